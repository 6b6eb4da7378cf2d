//! The kinds of group `storage.k8s.io`: what they must say and what never changes.

use std::collections::HashSet;

use serde_json::Value;

use super::{invalid, one_of, required};
use crate::error::Cause;
use crate::schema::validate::cause;

const FIXED: &str = "field is immutable";
/// Bytes of a class's parameters, keys and values together.
const MOST_PARAMETERS: usize = 256 * 1024;

/// Checks an object of the group.
pub(super) fn validate(plural: &str, object: &Value, causes: &mut Vec<Cause>) {
    match plural {
        "storageclasses" => class(object, causes),
        "volumeattachments" => attachment(&object["spec"], causes),
        "csidrivers" => driver(&object["spec"], causes),
        "csinodes" => node(&object["spec"], causes),
        "csistoragecapacities" if object["storageClassName"].as_str().unwrap_or_default().is_empty() => {
            required("storageClassName", causes);
        }
        _ => {}
    }
}

/// Checks what of it changed.
pub(super) fn update(plural: &str, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let fixed = |fields: &[&[&str]], causes: &mut Vec<Cause>| {
        for path in fields {
            let at = |object: &Value| path.iter().fold(object.clone(), |value, part| value[*part].clone());
            if at(old) != at(new) {
                invalid(&path.join("."), &at(new), FIXED, causes);
            }
        }
    };
    match plural {
        "storageclasses" => {
            for field in ["parameters", "provisioner", "reclaimPolicy"] {
                if old[field] != new[field] {
                    let message = format!("Forbidden: updates to {field} are forbidden.");
                    causes.push(cause("FieldValueForbidden", field, message));
                }
            }
            fixed(&[&["volumeBindingMode"]], causes);
        }
        "volumeattachments" => fixed(&[&["spec"]], causes),
        "csidrivers" => fixed(&[&["spec", "attachRequired"], &["spec", "volumeLifecycleModes"]], causes),
        "csistoragecapacities" => fixed(&[&["nodeTopology"], &["storageClassName"]], causes),
        "csinodes" => {
            let drivers = |object: &Value| object["spec"]["drivers"].as_array().cloned().unwrap_or_default();
            let before = drivers(old);
            for (index, driver) in drivers(new).iter().enumerate() {
                let Some(known) = before.iter().find(|known| known["name"] == driver["name"]) else { continue };
                if known["nodeID"] != driver["nodeID"] || known["topologyKeys"] != driver["topologyKeys"] {
                    invalid(&format!("spec.drivers[{index}]"), driver, FIXED, causes);
                }
            }
        }
        _ => {}
    }
}

fn class(object: &Value, causes: &mut Vec<Cause>) {
    if object["provisioner"].as_str().unwrap_or_default().is_empty() {
        required("provisioner", causes);
    }
    one_of("reclaimPolicy", &object["reclaimPolicy"], &["Delete", "Retain"], causes);
    one_of("volumeBindingMode", &object["volumeBindingMode"], &["Immediate", "WaitForFirstConsumer"], causes);
    let parameters = object["parameters"].as_object();
    if parameters.is_some_and(|map| map.contains_key("")) {
        invalid("parameters", &"".into(), "field can not be empty.", causes);
    }
    let total: usize = parameters.into_iter().flatten().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if total > MOST_PARAMETERS {
        let message = format!("Too long: may not be more than {MOST_PARAMETERS} bytes");
        causes.push(cause("FieldValueTooLong", "parameters", message));
    }
    for (index, term) in object["allowedTopologies"].as_array().into_iter().flatten().enumerate() {
        let mut seen = HashSet::new();
        for (number, rule) in term["matchLabelExpressions"].as_array().into_iter().flatten().enumerate() {
            let at = format!("allowedTopologies[{index}].matchLabelExpressions[{number}]");
            if rule["values"].as_array().is_none_or(Vec::is_empty) {
                required(&format!("{at}.values"), causes);
            }
            if !seen.insert(rule["key"].as_str().unwrap_or_default()) {
                let message = format!("Duplicate value: {}", rule["key"]);
                causes.push(cause("FieldValueDuplicate", &format!("{at}.key"), message));
            }
        }
    }
}

fn attachment(spec: &Value, causes: &mut Vec<Cause>) {
    for field in ["attacher", "nodeName"] {
        if spec[field].as_str().unwrap_or_default().is_empty() {
            required(&format!("spec.{field}"), causes);
        }
    }
    let named = spec["source"]["persistentVolumeName"].as_str().is_some_and(|name| !name.is_empty());
    let inline = spec["source"]["inlineVolumeSpec"].is_object();
    if named && inline {
        let why = "only one of inlineVolumeSpec and persistentVolumeName can be set";
        causes.push(cause("FieldValueForbidden", "spec.source", format!("Forbidden: {why}")));
    } else if !named && !inline {
        let why = "Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        causes.push(cause("FieldValueRequired", "spec.source", why.into()));
    }
}

fn driver(spec: &Value, causes: &mut Vec<Cause>) {
    one_of("spec.fsGroupPolicy", &spec["fsGroupPolicy"], &["File", "None", "ReadWriteOnceWithFSType"], causes);
    for mode in spec["volumeLifecycleModes"].as_array().into_iter().flatten() {
        one_of("spec.volumeLifecycleModes", mode, &["Ephemeral", "Persistent"], causes);
    }
    let mut seen = HashSet::new();
    for (index, request) in spec["tokenRequests"].as_array().into_iter().flatten().enumerate() {
        if !seen.insert(request["audience"].as_str().unwrap_or_default()) {
            let message = format!("Duplicate value: {}", request["audience"]);
            causes.push(cause("FieldValueDuplicate", &format!("spec.tokenRequests[{index}].audience"), message));
        }
        if request["expirationSeconds"].as_i64().is_some_and(|seconds| seconds < 600) {
            let field = format!("spec.tokenRequests[{index}].expirationSeconds");
            invalid(&field, &request["expirationSeconds"], "may not specify a duration less than 10 minutes", causes);
        }
    }
}

fn node(spec: &Value, causes: &mut Vec<Cause>) {
    let mut seen = HashSet::new();
    for (index, driver) in spec["drivers"].as_array().into_iter().flatten().enumerate() {
        let at = |field: &str| format!("spec.drivers[{index}].{field}");
        let name = driver["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            required(&at("name"), causes);
        } else if name.len() > 63 {
            causes.push(cause("FieldValueTooLong", &at("name"), "Too long: may not be more than 63 bytes".into()));
        } else if !seen.insert(name) {
            causes.push(cause("FieldValueDuplicate", &at("name"), format!("Duplicate value: {name:?}")));
        }
        let id = driver["nodeID"].as_str().unwrap_or_default();
        if id.is_empty() {
            required(&at("nodeID"), causes);
        } else if id.len() > 192 {
            invalid(&at("nodeID"), &driver["nodeID"], "must be 192 characters or less", causes);
        }
        if driver["allocatable"]["count"].as_i64().is_some_and(|count| count < 0) {
            invalid(
                &at("allocatable.count"),
                &driver["allocatable"]["count"],
                "must be greater than or equal to 0",
                causes,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(causes: &[Cause]) -> Vec<String> {
        causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect()
    }

    #[track_caller]
    fn check(plural: &str, object: &Value, expect: &[&str]) {
        let mut causes = Vec::new();
        validate(plural, object, &mut causes);
        assert_eq!(said(&causes), expect);
    }

    #[track_caller]
    fn check_update(plural: &str, old: &Value, change: &Value, expect: &[&str]) {
        let mut new = old.clone();
        json_patch::merge(&mut new, change);
        let mut causes = Vec::new();
        update(plural, old, &new, &mut causes);
        assert_eq!(said(&causes), expect);
    }

    #[test]
    fn classes() {
        let good = json!({"provisioner": "d", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"});
        check("storageclasses", &good, &[]);
        check(
            "storageclasses",
            &json!({"reclaimPolicy": "Recycle"}),
            &[
                "provisioner: Required value",
                "reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\"",
            ],
        );
        check_update("storageclasses", &good, &json!({"allowVolumeExpansion": true}), &[]);
        check_update(
            "storageclasses",
            &good,
            &json!({"provisioner": "e", "volumeBindingMode": "WaitForFirstConsumer"}),
            &[
                "provisioner: Forbidden: updates to provisioner are forbidden.",
                "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable",
            ],
        );
    }

    #[test]
    fn attachments_drivers_and_nodes() {
        let attachment = json!({"spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}});
        check("volumeattachments", &attachment, &[]);
        check_update("volumeattachments", &attachment, &json!({"status": {"attached": true}}), &[]);
        check(
            "volumeattachments",
            &json!({"spec": {"attacher": "d", "nodeName": "n", "source": {}}}),
            &["spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"],
        );
        check_update(
            "csidrivers",
            &json!({"spec": {"attachRequired": true}}),
            &json!({"spec": {"attachRequired": false, "storageCapacity": true}}),
            &["spec.attachRequired: Invalid value: false: field is immutable"],
        );
        let node = json!({"spec": {"drivers": [{"name": "d", "nodeID": "n"}, {"name": "d", "nodeID": "n"}]}});
        check("csinodes", &node, &["spec.drivers[1].name: Duplicate value: \"d\""]);
        let node = json!({"spec": {"drivers": [{"name": "d", "nodeID": "n"}]}});
        check_update(
            "csinodes",
            &node,
            &json!({"spec": {"drivers": [{"name": "d", "nodeID": "m"}]}}),
            &["spec.drivers[0]: Invalid value: {\"name\":\"d\",\"nodeID\":\"m\"}: field is immutable"],
        );
    }
}
