//! Claims: what they must say, what may change once they are bound.

use meta::quantity::nanos;
use serde_json::{Map, Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::stored;

use super::volume::{VOLUME_MODES, access_modes, forbidden, size};
use super::{invalid, one_of, required};

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const ATTRIBUTES: &str = "volumeAttributesClassName";

/// Keeps the two fields that name a claim's source in step, and drops a source `dataSource` cannot name.
pub(super) fn prepare_claim(claim: &mut Value) {
    let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let known = |source: &Value| {
        let group = source["apiGroup"].as_str().unwrap_or_default();
        matches!(
            (group, source["kind"].as_str().unwrap_or_default()),
            ("", "PersistentVolumeClaim") | (SNAPSHOTS, "VolumeSnapshot")
        )
    };
    if spec.get("dataSource").is_some_and(|source| source.is_object() && !known(source)) {
        spec.remove("dataSource");
    }
    // Nothing here brings data from another namespace.
    if spec.get("dataSourceRef").is_some_and(|from| !from["namespace"].as_str().unwrap_or_default().is_empty()) {
        spec.remove("dataSourceRef");
    }
    let present = |spec: &Map<String, Value>, field: &str| spec.get(field).is_some_and(Value::is_object);
    if present(spec, "dataSource") && !present(spec, "dataSourceRef") {
        spec.insert("dataSourceRef".into(), spec["dataSource"].clone());
    } else if present(spec, "dataSourceRef") && !present(spec, "dataSource") {
        let mut source = spec["dataSourceRef"].clone();
        source.as_object_mut().map(|map| map.remove("namespace"));
        spec.insert("dataSource".into(), source);
    }
}

/// Checks the spec of a claim.
pub(super) fn claim(spec: &Value, causes: &mut Vec<Cause>) {
    access_modes(spec, "Required value: at least 1 access mode is required", causes);
    size("spec.resources[storage]", &spec["resources"]["requests"]["storage"], causes);
    one_of("spec.volumeMode", &spec["volumeMode"], &VOLUME_MODES, causes);
    let class = &spec["storageClassName"];
    let problem = class.as_str().filter(|name| !name.is_empty()).and_then(apimachinery::names::subdomain_problem);
    if let Some(why) = problem {
        invalid("spec.storageClassName", class, why, causes);
    }
    let class = &spec["volumeAttributesClassName"];
    let problem = class.as_str().filter(|name| !name.is_empty()).and_then(apimachinery::names::subdomain_problem);
    if let Some(why) = problem {
        invalid("spec.volumeAttributesClassName", class, why, causes);
    }
    for field in ["dataSource", "dataSourceRef"] {
        let source = &spec[field];
        if !source.is_object() {
            continue;
        }
        for part in ["kind", "name"] {
            if source[part].as_str().unwrap_or_default().is_empty() {
                required(&format!("spec.{field}.{part}"), causes);
            }
        }
        let group = source["apiGroup"].as_str().unwrap_or_default();
        if group.is_empty() && source["kind"] != "PersistentVolumeClaim" {
            let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            invalid(&format!("spec.{field}"), &source["kind"], why, causes);
        }
    }
    let (source, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if source.is_object() && reference.is_object() && !same_source(source, reference) {
        invalid("spec", &json!(""), "must match dataSourceRef", causes);
    }
}

fn same_source(source: &Value, reference: &Value) -> bool {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    ["apiGroup", "kind", "name"].iter().all(|field| text(source, field) == text(reference, field))
}

/// Checks the status of a claim.
pub(super) fn status(object: &Value, causes: &mut Vec<Cause>) {
    for (name, amount) in object["status"]["capacity"].as_object().into_iter().flatten() {
        if amount.as_str().and_then(nanos).is_some_and(|amount| amount < 0) {
            invalid(&format!("status.capacity[{name}]"), amount, "must be a valid resource quantity", causes);
        }
    }
}

/// Checks what of a claim changed. A bound one may only ask for another size, and for less only down to what it has.
pub(super) fn claim_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let mut allowed = new["spec"].clone();
    let mut before = old["spec"].clone();
    stored::nulls(&mut allowed);
    stored::nulls(&mut before);
    let empty = |field: &str| old["spec"][field].as_str().unwrap_or_default().is_empty();
    if new["status"]["phase"] == "Bound" && allowed["resources"]["requests"].is_object() {
        allowed["resources"]["requests"]["storage"] = old["spec"]["resources"]["requests"]["storage"].clone();
    }
    if let Some(map) = allowed.as_object_mut() {
        if empty("volumeName") {
            map.remove("volumeName");
            if let Some(value) = old["spec"].get("volumeName") {
                map.insert("volumeName".into(), value.clone());
            }
        }
        if old["spec"]["storageClassName"].is_null() {
            map.remove("storageClassName");
        }
        if new["status"]["phase"] == "Bound" {
            map.remove(ATTRIBUTES);
            if let Some(value) = before.get(ATTRIBUTES) {
                map.insert(ATTRIBUTES.into(), value.clone());
            }
        }
    }
    if old["spec"]["volumeMode"] != new["spec"]["volumeMode"] {
        invalid("volumeMode", &new["spec"]["volumeMode"], "field is immutable", causes);
    }
    if allowed != before {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        forbidden("spec", why, causes);
    }
    attributes(old, new, causes);
    let amount = |value: &Value| value.as_str().and_then(nanos).unwrap_or(0);
    let request = |claim: &Value| amount(&claim["spec"]["resources"]["requests"]["storage"]);
    let has = amount(&old["status"]["capacity"]["storage"]);
    if request(new) < request(old) && request(new) <= has {
        let field = "spec.resources.requests.storage";
        forbidden(field, "field can not be less than status.capacity", causes);
    }
}

/// The class of attributes cannot be taken back once the volume has the attributes of one.
fn attributes(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let (before, after) = (&old["spec"][ATTRIBUTES], &new["spec"][ATTRIBUTES]);
    if before == after || old["status"]["currentVolumeAttributesClassName"].is_null() {
        return;
    }
    let to = if after.is_null() {
        "nil"
    } else if after == "" {
        "an empty string"
    } else {
        return;
    };
    let why = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
    forbidden("spec.volumeAttributesClassName", &why, causes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(causes: &[Cause]) -> Vec<String> {
        causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect()
    }

    #[track_caller]
    fn check_claim(spec: &Value, expect: &[&str]) {
        let mut causes = Vec::new();
        claim(spec, &mut causes);
        assert_eq!(said(&causes), expect);
    }

    #[test]
    fn claims_say_what_they_want() {
        let good = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        check_claim(&good, &[]);
        check_claim(
            &json!({"accessModes": [], "resources": {}}),
            &[
                "spec.accessModes: Required value: at least 1 access mode is required",
                "spec.resources[storage]: Required value",
            ],
        );
        let mut spec = good.clone();
        spec["accessModes"] = json!(["ReadWriteOncePod", "ReadOnlyMany"]);
        check_claim(&spec, &["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"]);
        let mut spec = good.clone();
        spec["dataSource"] = json!({"kind": "Pod", "name": "x"});
        check_claim(
            &spec,
            &[
                "spec.dataSource: Invalid value: \"Pod\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            ],
        );
        let mut spec = good;
        spec["resources"]["requests"]["storage"] = json!("0");
        check_claim(&spec, &["spec.resources[storage]: Invalid value: \"0\": must be greater than zero"]);
    }

    #[track_caller]
    fn check_update(phase: &str, change: &Value, expect: &[&str]) {
        let old = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}, "volumeMode": "Filesystem"},
            "status": {"phase": phase, "capacity": {"storage": "2Gi"}}});
        let mut new = old.clone();
        json_patch::merge(&mut new, &json!({"spec": change}));
        let mut causes = Vec::new();
        claim_update(&old, &new, &mut causes);
        assert_eq!(said(&causes), expect);
    }

    #[test]
    fn claims_change_only_their_size() {
        let frozen = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let size = |size: &str| json!({"resources": {"requests": {"storage": size}}});
        check_update("Pending", &json!({"volumeName": "v"}), &[]);
        check_update("Pending", &json!({"storageClassName": "c"}), &[]);
        check_update("Pending", &size("6Gi"), &[frozen]);
        check_update("Bound", &size("6Gi"), &[]);
        check_update("Bound", &size("3Gi"), &[]);
        let less = "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
        check_update("Bound", &size("2Gi"), &[less]);
        let mode = "volumeMode: Invalid value: \"Block\": field is immutable";
        check_update("Bound", &json!({"volumeMode": "Block"}), &[mode, frozen]);
    }

    #[test]
    fn a_bound_claim_takes_another_class_of_attributes() {
        let class = |name: Value| json!({"volumeAttributesClassName": name});
        let frozen = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        check_update("Pending", &class("gold".into()), &[frozen]);
        check_update("Bound", &class("gold".into()), &[]);
        let check = |current: &str, named: Value, expect: &[&str]| {
            let claim = |named: Value| {
                json!({"spec": {"volumeAttributesClassName": named},
                "status": {"phase": "Bound", "currentVolumeAttributesClassName": Some(current).filter(|c| !c.is_empty())}})
            };
            let mut causes = Vec::new();
            claim_update(&claim("gold".into()), &claim(named), &mut causes);
            assert_eq!(said(&causes), expect);
        };
        check("gold", "silver".into(), &[]);
        check("", Value::Null, &[]);
        check(
            "gold",
            Value::Null,
            &[
                "spec.volumeAttributesClassName: Forbidden: update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            ],
        );
        check(
            "gold",
            "".into(),
            &[
                "spec.volumeAttributesClassName: Forbidden: update to an empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            ],
        );
    }

    #[test]
    fn the_two_sources_of_a_claim_agree() {
        let mut object = json!({"spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a"}}});
        prepare_claim(&mut object);
        assert_eq!(object["spec"]["dataSource"]["name"], "a");
        let mut object = json!({"spec": {"dataSource": {"kind": "Foreign", "apiGroup": "example.com", "name": "a"}}});
        prepare_claim(&mut object);
        assert_eq!(object["spec"], json!({}));
        let mut object =
            json!({"spec": {"dataSourceRef": {"kind": "Foreign", "apiGroup": "example.com", "name": "a"}}});
        prepare_claim(&mut object);
        assert_eq!(object["spec"]["dataSource"]["name"], "a");
    }
}
