//! `spec.customizeComponents.patches`: what an administrator changes in the components' manifests before they are applied. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};

/// One patch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Patch {
    /// Kind of what is patched; `*` for any.
    pub resource_type: String,
    /// Its name; `*` for any.
    pub resource_name: String,
    /// `json`, `merge` or `strategic`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The patch as JSON.
    pub patch: String,
}

/// Why a customisation cannot be applied; the field is named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Refusal {
    /// Its path in the operator's object.
    pub field: String,
    why: String,
}

/// A refusal of `field`.
pub fn refuse(field: impl Into<String>, why: impl std::fmt::Display) -> Refusal {
    Refusal { field: field.into(), why: why.to_string() }
}

/// Lists that a strategic merge merges by a key; all others are replaced.
const KEYS: [(&str, &str); 9] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("env", "name"),
    ("volumes", "name"),
    ("imagePullSecrets", "name"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("ports", "containerPort"),
    ("webhooks", "name"),
];

enum Parsed {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

fn parse(field: &str, patch: &Patch) -> Result<Parsed, Refusal> {
    let text = &patch.patch;
    let value = || {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| refuse(format!("{field}.patch"), format!("not JSON: {error}")))?;
        if value.is_object() { Ok(value) } else { Err(refuse(format!("{field}.patch"), "not a JSON object")) }
    };
    match patch.kind.as_str() {
        "json" => serde_json::from_str(text)
            .map(Parsed::Json)
            .map_err(|error| refuse(format!("{field}.patch"), format!("not a JSON patch: {error}"))),
        "merge" => value().map(Parsed::Merge),
        "strategic" => value().map(Parsed::Strategic),
        other => Err(refuse(format!("{field}.type"), format!("{other:?} is not one of json, merge, strategic"))),
    }
}

const BASE: &str = "spec.customizeComponents.patches";

/// What is wrong with `patches` whatever they are applied to.
pub fn check(patches: &[Patch]) -> Vec<Refusal> {
    let patches = patches.iter().enumerate();
    patches.filter_map(|(index, patch)| parse(&format!("{BASE}[{index}]"), patch).err()).collect()
}

/// Changes `manifests` by `patches`, in their order.
///
/// # Errors
/// The first patch that cannot be applied, or that nothing is patched by.
pub fn apply(manifests: &mut [Value], patches: &[Patch]) -> Result<(), Refusal> {
    if let Some(refusal) = check(patches).into_iter().next() {
        return Err(refusal);
    }
    for (index, patch) in patches.iter().enumerate() {
        let field = format!("{BASE}[{index}]");
        let parsed = parse(&field, patch)?;
        let mut met = false;
        for manifest in manifests.iter_mut().filter(|manifest| concerns(patch, manifest)) {
            met = true;
            match &parsed {
                Parsed::Json(operations) => json_patch::patch(manifest, operations)
                    .map_err(|error| refuse(format!("{field}.patch"), format!("cannot be applied: {error}")))?,
                Parsed::Merge(patch) => json_patch::merge(manifest, patch),
                Parsed::Strategic(patch) => strategic(manifest, patch),
            }
        }
        if !met {
            let why = format!("there is no {} named {:?} to patch", patch.resource_type, patch.resource_name);
            return Err(refuse(format!("{field}.resourceName"), why));
        }
    }
    Ok(())
}

fn concerns(patch: &Patch, manifest: &Value) -> bool {
    let is = |wanted: &str, pointer: &str| {
        let found = manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        wanted == "*" || wanted.eq_ignore_ascii_case(found)
    };
    is(&patch.resource_type, "/kind") && is(&patch.resource_name, "/metadata/name")
}

fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    if patch.get("$patch").is_some_and(|word| word == "replace") {
        fields.clear();
    }
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        let key = KEYS.iter().find(|(list, _)| list == name).map(|(_, key)| *key);
        match (value, key) {
            (Value::Null, _) => {
                fields.remove(name);
            }
            (Value::Array(entries), Some(key)) => list(fields.entry(name.clone()).or_insert(Value::Null), entries, key),
            (value, _) => strategic(fields.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

fn list(target: &mut Value, entries: &[Value], key: &str) {
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Value::Array(held) = target else { return };
    if entries.iter().any(|entry| entry.get("$patch").is_some_and(|word| word == "replace")) {
        held.clear();
    }
    for entry in entries.iter().filter(|entry| entry.get(key).is_some()) {
        let at = held.iter().position(|other| other.get(key) == entry.get(key));
        let delete = entry.get("$patch").is_some_and(|word| word == "delete");
        match at {
            Some(at) if delete => {
                held.remove(at);
            }
            Some(at) => strategic(&mut held[at], entry),
            None if delete => {}
            None => {
                let mut new = Value::Null;
                strategic(&mut new, entry);
                held.push(new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment() -> Value {
        json!({
            "kind": "Deployment", "metadata": { "name": "virt-api" },
            "spec": { "replicas": 2, "template": { "spec": { "containers": [
                { "name": "virt-api", "image": "i", "env": [{ "name": "A", "value": "1" }], "command": ["virt-api"] },
            ] } } },
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn wanted(name: &str, kind: &str, patch: Value) -> Vec<Patch> {
        let patch =
            json!({ "resourceType": "Deployment", "resourceName": name, "type": kind, "patch": patch.to_string() });
        serde_json::from_value(json!([patch])).unwrap()
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(kind: &str, patch: Value, pointer: &str, expect: Value) {
        let mut manifests = [deployment()];
        apply(&mut manifests, &wanted("virt-api", kind, patch)).unwrap();
        assert_eq!(manifests[0].pointer(pointer), Some(&expect), "{}", manifests[0]);
    }

    #[test]
    fn each_kind_of_patch() {
        check("json", json!([{ "op": "replace", "path": "/spec/replicas", "value": 5 }]), "/spec/replicas", json!(5));
        check("merge", json!({ "metadata": { "labels": { "a": "b" } } }), "/metadata/labels", json!({ "a": "b" }));
        let container = json!({ "name": "virt-api", "env": [{ "name": "B", "value": "2" }], "args": ["x"] });
        let patch = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
        check(
            "strategic",
            patch,
            "/spec/template/spec/containers",
            json!([{
                "name": "virt-api", "image": "i", "command": ["virt-api"], "args": ["x"],
                "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
            }]),
        );
        let patch = json!({ "spec": { "template": { "spec": { "tolerations": [{ "key": "k" }] } } } });
        check("strategic", patch, "/spec/template/spec/tolerations", json!([{ "key": "k" }]));
    }

    #[test]
    fn patches_that_cannot_be_applied_are_named() {
        let refused = |wanted: &[Patch]| apply(&mut [deployment()], wanted).unwrap_err().to_string();
        assert_eq!(
            refused(&wanted("virt-apy", "merge", json!({}))),
            "spec.customizeComponents.patches[0].resourceName: there is no Deployment named \"virt-apy\" to patch"
        );
        assert_eq!(
            refused(&wanted("*", "magic", json!({}))),
            "spec.customizeComponents.patches[0].type: \"magic\" is not one of json, merge, strategic"
        );
    }
}
