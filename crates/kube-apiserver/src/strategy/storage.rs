//! The kinds of group `storage.k8s.io`: what they must say and what never changes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::Value;

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::rules::{self, Must, Rules};
use super::{invalid, one_of, required};

const FIXED: &str = "field is immutable";
/// Parameters of a class at most.
const PARAMETERS: usize = 512;
/// Their bytes at most, keys and values together.
const PARAMETER_BYTES: usize = 256 * 1024;

const CLASS: Rules = &[
    ("provisioner", &[Must::Be, Must::ReadIfAny(provisioner)]),
    ("volumeBindingMode", &[Must::OneOf(&["Immediate", "WaitForFirstConsumer"])]),
    ("allowedTopologies[].matchLabelExpressions", &[Must::Differ("key")]),
    ("allowedTopologies[].matchLabelExpressions[].key", &[Must::Read(rules::qualified)]),
    ("allowedTopologies[].matchLabelExpressions[].values", &[Must::Be, Must::Differ("")]),
];

const ATTRIBUTES: Rules = &[("driverName", &[Must::Be, Must::ReadIfAny(provisioner)])];

const ATTACHMENT: Rules = &[
    ("spec.attacher", &[Must::Be, Must::BeShort(63), Must::ReadIfAny(driver_name)]),
    ("spec.nodeName", &[Must::Read(rules::subdomain)]),
];

const DRIVER: Rules = &[
    ("spec.fsGroupPolicy", &[Must::OneOf(&["File", "None", "ReadWriteOnceWithFSType"])]),
    ("spec.tokenRequests", &[Must::Differ("audience")]),
    ("spec.tokenRequests[].expirationSeconds", &[Must::Within(600, 1 << 32, TEN_MINUTES)]),
    (
        "spec.nodeAllocatableUpdatePeriodSeconds",
        &[Must::Within(10, i64::MAX, "must be greater than or equal to 10 seconds")],
    ),
];

const NODE: Rules = &[
    ("spec.drivers", &[Must::Differ("name")]),
    ("spec.drivers[].name", &[Must::Be, Must::BeShort(63), Must::ReadIfAny(driver_name)]),
    ("spec.drivers[].nodeID", &[Must::Be, Must::ReadIfAny(node_id)]),
    ("spec.drivers[].allocatable?.count", &[rules::NOT_NEGATIVE]),
];

const CAPACITY: Rules = &[
    ("storageClassName", &[Must::Read(rules::subdomain)]),
    ("capacity", &[Must::NotBeNegative]),
    ("maximumVolumeSize", &[Must::NotBeNegative]),
    ("nodeTopology", &[Must::Select]),
];

const TEN_MINUTES: &str = "may not specify a duration less than 10 minutes";

fn provisioner(text: &str) -> Option<String> {
    rules::qualified(&text.to_lowercase())
}

/// The name of a driver, in which capitals do not count.
pub(super) fn driver_name(text: &str) -> Option<String> {
    rules::subdomain(&text.to_lowercase())
}

fn node_id(text: &str) -> Option<String> {
    (text.len() > 192).then(|| "must be 192 characters or less".to_owned())
}

/// Checks an object of the group.
pub(super) fn validate(plural: &str, object: &Value, causes: &mut Vec<Cause>) {
    match plural {
        "storageclasses" => class(object, causes),
        "volumeattachments" => attachment(object, causes),
        "csidrivers" => {
            rules::check(object, DRIVER, causes);
            for mode in object["spec"]["volumeLifecycleModes"].as_array().into_iter().flatten() {
                one_of("spec.volumeLifecycleModes", mode, &["Persistent", "Ephemeral"], causes);
            }
        }
        "csinodes" => node(object, causes),
        "csistoragecapacities" => rules::check(object, CAPACITY, causes),
        "volumeattributesclasses" => {
            rules::check(object, ATTRIBUTES, causes);
            if object["parameters"].as_object().is_none_or(serde_json::Map::is_empty) {
                let message = "Required value: must contain at least one key/value pair".to_owned();
                causes.push(cause("FieldValueRequired", "parameters", message));
            }
            parameters(object, causes);
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
            fixed(&[&["parameters"], &["provisioner"], &["reclaimPolicy"], &["volumeBindingMode"]], causes);
        }
        "volumeattributesclasses" => fixed(&[&["driverName"], &["parameters"]], causes),
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
    rules::check(object, CLASS, causes);
    if object["reclaimPolicy"] != "" {
        one_of("reclaimPolicy", &object["reclaimPolicy"], &["Delete", "Retain"], causes);
    }
    parameters(object, causes);
    topologies(object, causes);
}

/// What a driver is told as it is: bounded, and under names.
fn parameters(object: &Value, causes: &mut Vec<Cause>) {
    let parameters = object["parameters"].as_object();
    if parameters.is_some_and(|map| map.contains_key("")) {
        invalid("parameters", &"".into(), "field can not be empty.", causes);
    }
    let total: usize = parameters.into_iter().flatten().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    let number = parameters.map_or(0, serde_json::Map::len);
    for limit in [(number > PARAMETERS).then_some(PARAMETERS), (total > PARAMETER_BYTES).then_some(PARAMETER_BYTES)] {
        let Some(limit) = limit else { continue };
        causes.push(cause("FieldValueTooLong", "parameters", format!("Too long: may not be more than {limit} bytes")));
    }
}

fn topologies(object: &Value, causes: &mut Vec<Cause>) {
    let mut before: Vec<BTreeMap<&str, BTreeSet<&str>>> = vec![BTreeMap::new()];
    for (index, term) in object["allowedTopologies"].as_array().into_iter().flatten().enumerate() {
        let rules = term["matchLabelExpressions"].as_array().into_iter().flatten();
        let known = rules
            .map(|rule| {
                let values = rule["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                (rule["key"].as_str().unwrap_or_default(), values)
            })
            .collect();
        if before.contains(&known) {
            let field = format!("allowedTopologies[{index}].matchLabelExpressions");
            causes.push(cause("FieldValueDuplicate", &field, "Duplicate value: \"\"".into()));
        }
        before.push(known);
    }
}

fn attachment(object: &Value, causes: &mut Vec<Cause>) {
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    rules::check(object, ATTACHMENT, causes);
    let source = &object["spec"]["source"];
    let at = "spec.source.persistentVolumeName";
    match (source["persistentVolumeName"].as_str(), source["inlineVolumeSpec"].is_object()) {
        (Some(_), true) => causes.push(cause("FieldValueForbidden", "spec.source", format!("Forbidden: {ONE}"))),
        (None, false) => causes.push(cause("FieldValueRequired", "spec.source", format!("Required value: {ONE}"))),
        (Some(name), false) => {
            if name.is_empty() {
                let message = "Required value: must specify non empty persistentVolumeName".to_owned();
                causes.push(cause("FieldValueRequired", at, message));
            }
            if let Some(why) = rules::subdomain(name) {
                invalid(at, &name.into(), &why, causes);
            }
        }
        (None, true) => {}
    }
}

fn node(object: &Value, causes: &mut Vec<Cause>) {
    rules::check(object, NODE, causes);
    for (index, driver) in object["spec"]["drivers"].as_array().into_iter().flatten().enumerate() {
        let at = format!("spec.drivers[{index}]");
        let mut seen = HashSet::new();
        for key in driver["topologyKeys"].as_array().into_iter().flatten() {
            let text = key.as_str().unwrap_or_default();
            if text.is_empty() {
                required(&at, causes);
            } else if !seen.insert(text) {
                causes.push(cause("FieldValueDuplicate", &at, format!("Duplicate value: {key}")));
            } else if let Some(why) = rules::qualified(text) {
                invalid(&at, key, &why, causes);
            }
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
                "provisioner: Invalid value: \"e\": field is immutable",
                "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable",
            ],
        );
    }

    #[test]
    fn classes_of_attributes() {
        let good = json!({"driverName": "d.example.com", "parameters": {"iops": "3000"}});
        let check = |object: &Value, expect: &[&str]| check("volumeattributesclasses", object, expect);
        check(&good, &[]);
        check(
            &json!({}),
            &["driverName: Required value", "parameters: Required value: must contain at least one key/value pair"],
        );
        check(
            &json!({"driverName": "d", "parameters": {"": "x"}}),
            &["parameters: Invalid value: \"\": field can not be empty."],
        );
        check_update("volumeattributesclasses", &good, &json!({"metadata": {"labels": {"a": "b"}}}), &[]);
        check_update(
            "volumeattributesclasses",
            &good,
            &json!({"driverName": "e", "parameters": {"iops": "4000"}}),
            &[
                "driverName: Invalid value: \"e\": field is immutable",
                "parameters: Invalid value: {\"iops\":\"4000\"}: field is immutable",
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
