//! What the server sets in the metadata of objects: times, names, uid, generation.

use rand::Rng as _;
use serde_json::Value;

use crate::registry::Resource;

/// The time as objects carry it.
pub(crate) fn now() -> String {
    kit::clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The time `seconds` from now.
pub(crate) fn after(seconds: i64) -> String {
    let at = kit::clock::now().checked_add(jiff::SignedDuration::from_secs(seconds));
    at.unwrap_or(jiff::Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Letters of generated names: no vowels, so no words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// `base` with five random letters; the base is cut so that the name stays a valid label.
pub(crate) fn generated(base: &str) -> String {
    let mut random = rand::rng();
    let suffix: String = (0..5).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect();
    let cut = base.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= 58).last().unwrap_or(0);
    format!("{}{suffix}", &base[..cut])
}

/// Sets what a new object gets from the server, whatever the client sent there.
pub(crate) fn stamp_new(resource: &Resource, object: &mut Value, namespace: &str) {
    let metadata = &mut object["metadata"];
    if resource.namespaced {
        metadata["namespace"] = namespace.into();
    } else if let Some(map) = metadata.as_object_mut() {
        map.remove("namespace");
    }
    if let Some(map) = metadata.as_object_mut() {
        for field in ["resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            map.remove(field);
        }
    }
    metadata["uid"] = uuid::Uuid::new_v4().to_string().into();
    metadata["creationTimestamp"] = now().into();
    if resource.has_generation() {
        metadata["generation"] = 1.into();
    }
    drop_empty(object);
}

/// Lists and maps of metadata that hold nothing are not there, which is how clients look for them. Nobody owns twice.
fn drop_empty(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    if let Some(owners) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) {
        let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
        for owner in owners.drain(..) {
            if !kept.contains(&owner) {
                kept.push(owner);
            }
        }
        *owners = kept;
    }
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let empty = match metadata.get(field) {
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(value) => value.is_null(),
            None => false,
        };
        if empty {
            metadata.remove(field);
        }
    }
}

/// Carries over what an update may not change and moves the generation on when the desired state changed.
pub(crate) fn stamp_update(resource: &Resource, old: &Value, new: &mut Value, counts: bool) {
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
        "name",
        "namespace",
    ] {
        match old["metadata"].get(field) {
            Some(value) if new["metadata"].get(field) == Some(value) => {}
            Some(value) => new["metadata"][field] = value.clone(),
            None => {
                if let Some(map) = new["metadata"].as_object_mut() {
                    map.remove(field);
                }
            }
        }
    }
    drop_empty(new);
    // A driver counts its changes from none.
    let counted = resource.has_generation() || (resource.group == "storage.k8s.io" && resource.plural == "csidrivers");
    if counts && counted && desired_changed(resource, old, new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        new["metadata"]["generation"] = (generation + 1).into();
    }
}

fn desired_changed(resource: &Resource, old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return true };
    let ignored = |key: &str| {
        matches!(key, "metadata" | "apiVersion" | "kind")
            || (key == "status" && (resource.status_subresource || resource.crd.is_none()))
    };
    let differs = |(key, value): (&String, &Value)| !ignored(key) && new.get(key) != Some(value);
    if resource.group == "scheduling.k8s.io" {
        return false;
    }
    // The controller of a Deployment hands its annotations on.
    let annotated = || old["metadata"]["annotations"] != new["metadata"]["annotations"];
    if resource.group == "apps" && resource.plural == "deployments" && annotated() {
        return true;
    }
    old.iter().any(differs) || new.keys().any(|key| !ignored(key) && !old.contains_key(key))
}
