//! Volumes: what they must say, what may change.

use meta::quantity::nanos;
use serde_json::{Map, Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::rules::{self, Must, Rules};
use super::{invalid, one_of, required};

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub(super) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

const SECRET: &[Must] = &[Must::Be];

const VOLUME: Rules = &[
    ("spec.persistentVolumeReclaimPolicy", &[Must::OneOf(&["Delete", "Recycle", "Retain"])]),
    ("spec.volumeMode", &[Must::OneOf(&VOLUME_MODES)]),
    ("spec.storageClassName", &[Must::ReadIfAny(rules::subdomain)]),
    ("spec.volumeAttributesClassName", &[Must::ReadIfSet(rules::subdomain)]),
    ("spec.csi?.driver", &[Must::Be, Must::BeShort(63), Must::ReadIfAny(super::storage::driver_name)]),
    ("spec.csi?.volumeHandle", &[Must::Be]),
    ("spec.csi?.controllerPublishSecretRef?.name", SECRET),
    ("spec.csi?.controllerPublishSecretRef?.namespace", SECRET),
    ("spec.csi?.controllerExpandSecretRef?.name", SECRET),
    ("spec.csi?.controllerExpandSecretRef?.namespace", SECRET),
    ("spec.csi?.nodePublishSecretRef?.name", SECRET),
    ("spec.csi?.nodePublishSecretRef?.namespace", SECRET),
    ("spec.csi?.nodeStageSecretRef?.name", SECRET),
    ("spec.csi?.nodeStageSecretRef?.namespace", SECRET),
    ("spec.csi?.nodeExpandSecretRef?.name", SECRET),
    ("spec.csi?.nodeExpandSecretRef?.namespace", SECRET),
    ("spec.hostPath?.path", &[Must::Be, Must::ReadIfAny(backsteps)]),
    ("spec.hostPath?.type", &[Must::OneOf(&HOST_TYPES)]),
    ("spec.local?.path", &[Must::Be, Must::ReadIfAny(backsteps)]),
    ("spec.nfs?.server", &[Must::Be]),
    ("spec.nfs?.path", &[Must::Be]),
    ("spec.iscsi?.targetPortal", &[Must::Be]),
    ("spec.iscsi?.iqn", &[Must::Be]),
    ("spec.iscsi?.lun", &[Must::Within(0, 255, "must be between 0 and 255, inclusive")]),
    ("spec.rbd?.monitors", &[Must::Be]),
    ("spec.rbd?.image", &[Must::Be]),
    ("spec.cephfs?.monitors", &[Must::Be]),
    ("spec.glusterfs?.endpoints", &[Must::Be]),
    ("spec.glusterfs?.path", &[Must::Be]),
];

const HOST_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

fn backsteps(path: &str) -> Option<String> {
    path.split('/').any(|part| part == "..").then(|| "must not contain '..'".to_owned())
}

pub(super) fn forbidden(field: &str, why: &str, causes: &mut Vec<Cause>) {
    causes.push(cause("FieldValueForbidden", field, format!("Forbidden: {why}")));
}

/// A status with a new phase says since when.
pub(super) fn prepare_volume_status(old: &Value, new: &mut Value) {
    if old["status"]["phase"] != new["status"]["phase"]
        && old["status"]["lastPhaseTransitionTime"] == new["status"]["lastPhaseTransitionTime"]
    {
        let now = kit::clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        new["status"]["lastPhaseTransitionTime"] = json!(now);
    }
}

pub(super) fn access_modes(spec: &Value, missing: &str, causes: &mut Vec<Cause>) {
    let modes = spec["accessModes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if modes.is_empty() {
        causes.push(cause("FieldValueRequired", "spec.accessModes", missing.to_owned()));
    }
    for mode in modes {
        one_of("spec.accessModes", mode, &MODES, causes);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        forbidden("spec.accessModes", "may not use ReadWriteOncePod with other access modes", causes);
    }
}

pub(super) fn size(field: &str, value: &Value, causes: &mut Vec<Cause>) {
    if value.is_null() {
        required(field, causes);
    } else if value.as_str().and_then(nanos).is_some_and(|size| size <= 0) {
        invalid(field, value, "must be greater than zero", causes);
    }
}

/// The fields of a volume that say where its data lies, in the order in which the second is one too many.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

fn sources(spec: &Value) -> Vec<&'static str> {
    SOURCES.into_iter().filter(|field| spec[*field].is_object()).collect()
}

/// Checks a volume.
pub(super) fn volume(object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    access_modes(spec, "Required value", causes);
    let capacity = spec["capacity"].as_object();
    if capacity.is_none_or(Map::is_empty) {
        required("spec.capacity", causes);
    }
    if capacity.is_none_or(|map| !map.contains_key("storage") || map.len() > 1) {
        let field = "spec.capacity";
        let message = format!("Unsupported value: {}: supported values: \"storage\"", spec["capacity"]);
        causes.push(cause("FieldValueNotSupported", field, message));
    } else {
        size("spec.capacity[storage]", &spec["capacity"]["storage"], causes);
    }
    rules::check(object, VOLUME, causes);
    match sources(spec).as_slice() {
        [] => causes.push(cause("FieldValueRequired", "spec", "Required value: must specify a volume type".into())),
        [_] => {}
        [_, more @ ..] => {
            for field in more {
                forbidden(&format!("spec.{field}"), "may not specify more than 1 volume type", causes);
            }
        }
    }
    affinity(spec, causes);
    if spec["volumeAttributesClassName"].is_string() && !spec["csi"].is_object() {
        let why = "Required value: has to be specified when using volumeAttributesClassName".to_owned();
        causes.push(cause("FieldValueRequired", "spec.csi", why));
    }
    if spec["hostPath"]["path"] == "/" && spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        let why = "may not be 'recycle' for a hostPath mount of '/'";
        forbidden("spec.persistentVolumeReclaimPolicy", why, causes);
    }
}

fn affinity(spec: &Value, causes: &mut Vec<Cause>) {
    let affinity = &spec["nodeAffinity"];
    let needs = |field: &str, why: &str, causes: &mut Vec<Cause>| {
        causes.push(cause("FieldValueRequired", field, format!("Required value: {why}")));
    };
    if affinity.is_null() {
        if spec["local"].is_object() {
            needs("spec.nodeAffinity", "Local volume requires node affinity", causes);
        }
        return;
    }
    if affinity["required"].is_null() {
        needs("spec.nodeAffinity.required", "must specify required node constraints", causes);
        return;
    }
    let at = "spec.nodeAffinity.required.nodeSelectorTerms";
    let terms = affinity["required"]["nodeSelectorTerms"].as_array().map(Vec::as_slice).unwrap_or_default();
    if terms.is_empty() {
        needs(at, "must have at least one node selector term", causes);
    }
    for (index, term) in terms.iter().enumerate() {
        for (number, requirement) in term["matchExpressions"].as_array().into_iter().flatten().enumerate() {
            self::requirement(requirement, &format!("{at}[{index}].matchExpressions[{number}]"), causes);
        }
    }
}

/// What a label of a node must be.
fn requirement(requirement: &Value, at: &str, causes: &mut Vec<Cause>) {
    rules::check_at(at, requirement, &[("key", &[Must::Read(rules::qualified)])], causes);
    let values = requirement["values"].as_array().map_or(0, Vec::len);
    let field = format!("{at}.values");
    let mut needs = |why: &str| causes.push(cause("FieldValueRequired", &field, format!("Required value: {why}")));
    match requirement["operator"].as_str().unwrap_or_default() {
        "In" | "NotIn" if values == 0 => needs("must be specified when `operator` is 'In' or 'NotIn'"),
        "Gt" | "Lt" if values != 1 => needs("must be specified single value when `operator` is 'Lt' or 'Gt'"),
        "Exists" | "DoesNotExist" if values > 0 => {
            forbidden(&field, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'", causes);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => invalid(&format!("{at}.operator"), &json!(other), "not a valid selector operator", causes),
    }
}

/// Checks what of a volume changed: its data stays where it is.
pub(super) fn volume_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let source = |object: &Value| -> Value {
        let mut found = Map::new();
        for field in sources(&object["spec"]) {
            let mut value = object["spec"][field].clone();
            if let Some(map) = value.as_object_mut() {
                // Secrets for growing may be added to volumes made before their class named any.
                map.retain(|key, _| !matches!(key.as_str(), "controllerExpandSecretRef" | "nodeExpandSecretRef"));
            }
            found.insert(field.into(), value);
        }
        found.into()
    };
    if source(old) != source(new) {
        forbidden("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation", causes);
    }
    if old["spec"]["volumeMode"] != new["spec"]["volumeMode"] {
        invalid("volumeMode", &new["spec"]["volumeMode"], "field is immutable", causes);
    }
    if old["spec"]["nodeAffinity"].is_object() && old["spec"]["nodeAffinity"] != new["spec"]["nodeAffinity"] {
        invalid("spec.nodeAffinity", &new["spec"]["nodeAffinity"], "field is immutable", causes);
    }
    if !old["spec"]["volumeAttributesClassName"].is_null() && new["spec"]["volumeAttributesClassName"].is_null() {
        forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden", causes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(causes: &[Cause]) -> Vec<String> {
        causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect()
    }

    #[test]
    fn volumes_have_one_source() {
        let check = |spec: &Value, expect: &[&str]| {
            let mut causes = Vec::new();
            volume(&json!({"spec": spec}), &mut causes);
            assert_eq!(said(&causes), expect);
        };
        let with = |more: Value| {
            let mut spec =
                json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "volumeMode": "Filesystem"});
            json_patch::merge(&mut spec, &more);
            spec
        };
        check(&with(json!({"hostPath": {"path": "/a"}})), &[]);
        check(&with(json!({})), &["spec: Required value: must specify a volume type"]);
        check(
            &with(json!({"hostPath": {"path": "/a"}, "csi": {"driver": "d", "volumeHandle": "h"}})),
            &["spec.csi: Forbidden: may not specify more than 1 volume type"],
        );
        check(
            &with(json!({"local": {"path": "/a"}})),
            &["spec.nodeAffinity: Required value: Local volume requires node affinity"],
        );
        check(&with(json!({"csi": {"driver": "d"}})), &["spec.csi.volumeHandle: Required value"]);
    }
}
