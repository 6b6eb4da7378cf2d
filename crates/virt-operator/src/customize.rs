//! `spec.customizeComponents`: what an administrator changes in the components' manifests before they are applied. Pure.

use api::kubevirt::v1::{CustomizeComponents, CustomizeComponentsPatch};
use serde_json::{Map, Value};

/// Why a customisation cannot be applied; the field is named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Refusal {
    /// Its path in the KubeVirt object.
    pub field: String,
    why: String,
}

fn refuse(field: String, why: impl std::fmt::Display) -> Refusal {
    Refusal { field, why: why.to_string() }
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

enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

fn parse(field: &str, patch: &CustomizeComponentsPatch) -> Result<Patch, Refusal> {
    let text = &patch.patch;
    let value = || {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| refuse(format!("{field}.patch"), format!("not JSON: {error}")))?;
        if value.is_object() { Ok(value) } else { Err(refuse(format!("{field}.patch"), "not a JSON object")) }
    };
    match patch.type_.as_str() {
        "json" => serde_json::from_str(text)
            .map(Patch::Json)
            .map_err(|error| refuse(format!("{field}.patch"), format!("not a JSON patch: {error}"))),
        "merge" => value().map(Patch::Merge),
        "strategic" => value().map(Patch::Strategic),
        other => Err(refuse(format!("{field}.type"), format!("{other:?} is not one of json, merge, strategic"))),
    }
}

/// What is wrong with `wanted` whatever it is applied to.
pub fn check(wanted: &CustomizeComponents) -> Vec<Refusal> {
    let mut out = Vec::new();
    let base = "spec.customizeComponents";
    if let Some(flags) = &wanted.flags {
        for (name, set) in [("api", &flags.api), ("controller", &flags.controller), ("handler", &flags.handler)] {
            if !set.is_empty() {
                let why = "flags cannot be set in this version: change the workload with customizeComponents.patches";
                out.push(refuse(format!("{base}.flags.{name}"), why));
            }
        }
    }
    let patches = wanted.patches.iter().enumerate();
    out.extend(patches.filter_map(|(index, patch)| parse(&format!("{base}.patches[{index}]"), patch).err()));
    out
}

/// Changes `manifests` as `wanted` says, in its order.
///
/// # Errors
/// The first patch that cannot be applied, or that nothing is patched by.
pub fn apply(manifests: &mut [Value], wanted: &CustomizeComponents) -> Result<(), Refusal> {
    if let Some(refusal) = check(wanted).into_iter().next() {
        return Err(refusal);
    }
    for (index, patch) in wanted.patches.iter().enumerate() {
        let field = format!("spec.customizeComponents.patches[{index}]");
        let parsed = parse(&field, patch)?;
        let mut met = false;
        for manifest in manifests.iter_mut().filter(|manifest| concerns(patch, manifest)) {
            met = true;
            match &parsed {
                Patch::Json(operations) => json_patch::patch(manifest, operations)
                    .map_err(|error| refuse(format!("{field}.patch"), format!("cannot be applied: {error}")))?,
                Patch::Merge(patch) => json_patch::merge(manifest, patch),
                Patch::Strategic(patch) => strategic(manifest, patch),
            }
        }
        if !met {
            let why = format!("there is no {} named {:?} to patch", patch.resource_type, patch.resource_name);
            return Err(refuse(format!("{field}.resourceName"), why));
        }
    }
    Ok(())
}

fn concerns(patch: &CustomizeComponentsPatch, manifest: &Value) -> bool {
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
    fn wanted(name: &str, kind: &str, patch: Value) -> CustomizeComponents {
        let patch =
            json!({ "resourceType": "Deployment", "resourceName": name, "type": kind, "patch": patch.to_string() });
        serde_json::from_value(json!({ "patches": [patch] })).unwrap()
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
    fn what_cannot_be_applied_is_named() {
        let refused = |wanted: &CustomizeComponents| apply(&mut [deployment()], wanted).unwrap_err().to_string();
        assert_eq!(
            refused(&wanted("virt-apy", "merge", json!({}))),
            "spec.customizeComponents.patches[0].resourceName: there is no Deployment named \"virt-apy\" to patch"
        );
        assert_eq!(
            refused(&wanted("*", "magic", json!({}))),
            "spec.customizeComponents.patches[0].type: \"magic\" is not one of json, merge, strategic"
        );
        let flags = serde_json::from_value(json!({ "flags": { "api": { "v": "5" } } })).unwrap();
        assert_eq!(
            refused(&flags),
            "spec.customizeComponents.flags.api: flags cannot be set in this version: change the workload with \
             customizeComponents.patches"
        );
    }
}
