//! The ControllerRevision that keeps what a machine chose: who edits an instance type changes no machine that has it.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use crate::{GROUP, VERSION};

/// Labels of a revision, below the group.
const LABELS: [&str; 5] = ["object-generation", "object-kind", "object-name", "object-uid", "object-version"];

/// The label `what` of a revision.
pub fn label(what: &str) -> String {
    format!("{GROUP}/{what}")
}

/// The name of the revision that keeps `object` for the machine called `vm`.
pub fn name(vm: &str, object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
    format!("{vm}-{}-{VERSION}-{}-{generation}", text("name"), text("uid"))
}

/// The revision that keeps `object`, an instance type or a preference as the API server has it, for the machine that `owner` refers to.
pub fn of(owner: OwnerReference, namespace: &str, object: &Value) -> ControllerRevision {
    let kept = kept(object);
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let values = [
        metadata["generation"].as_i64().unwrap_or(0).to_string(),
        text(&object["kind"]),
        text(&metadata["name"]),
        text(&metadata["uid"]),
        VERSION.to_owned(),
    ];
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name(&owner.name, object)),
            namespace: Some(namespace.to_owned()),
            labels: Some(LABELS.into_iter().map(label).zip(values).collect()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(kept)),
        revision: 0,
    }
}

/// What of an object makes the machine, and what identifies it.
fn kept(object: &Value) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field).filter(|value| !value.is_null()) {
            metadata[field] = value.clone();
        }
    }
    json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": metadata, "spec": object["spec"],
    })
}

/// True when `revision` keeps the same as a new one of `object` would. An object that was written again without another spec, say with
/// another label, is the same.
pub fn is_of(revision: &ControllerRevision, object: &Value) -> bool {
    let held = revision.data.as_ref().map_or(&Value::Null, |data| &data.0);
    held["kind"] == object["kind"]
        && held["metadata"]["uid"] == object["metadata"]["uid"]
        && held["spec"] == object["spec"]
}
