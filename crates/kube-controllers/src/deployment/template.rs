//! Which ReplicaSet belongs to a pod template: equality of templates, and the hash that names the set. Pure.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

/// The label that tells the pods of one template from those of another.
pub(crate) const HASH_LABEL: &str = "pod-template-hash";

/// A short stable name of a value; collisions are resolved by counting up `collisions`.
pub(crate) fn hash<T: serde::Serialize>(value: &T, collisions: Option<i32>) -> String {
    // serde_json writes maps of k8s-openapi (BTreeMap) in order, so equal values have equal text.
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut state: u32 = 0x811c_9dc5;
    let salt = collisions.unwrap_or(0).to_le_bytes();
    for byte in text.iter().chain(salt.iter().filter(|_| collisions.is_some())) {
        state = (state ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    // No vowels and no digits that look like them: no words appear by accident.
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    state.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(meta) = &mut template.metadata {
        meta.creation_timestamp = None;
        if let Some(labels) = &mut meta.labels {
            labels.remove(HASH_LABEL);
            if labels.is_empty() {
                meta.labels = None;
            }
        }
    }
    if template.metadata.as_ref().is_some_and(|meta| *meta == Default::default()) {
        template.metadata = None;
    }
    template
}

/// A template without its hash label and without its empty lists: one whose last variable was removed is the one that
/// never had any.
fn canonical(template: &PodTemplateSpec) -> Value {
    fn prune(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.values_mut().for_each(prune);
                fields.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
            }
            Value::Array(list) => list.iter_mut().for_each(prune),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(without_hash(template)).unwrap_or_default();
    prune(&mut value);
    value
}

/// The hash of a deployment's template as the next set would carry it.
pub(crate) fn hash_of(deployment: &Deployment) -> String {
    let collisions = deployment.status.as_ref().and_then(|s| s.collision_count);
    let template = deployment.spec.as_ref().map(|s| canonical(&s.template));
    hash(&template, collisions)
}

/// Whether `set` runs the deployment's present template. The hash label counts as well as equality: a server that
/// learnt a new default must not look like a new template.
pub(crate) fn is_current(deployment: &Deployment, set: &ReplicaSet, hash: &str) -> bool {
    if kit::controller::pod::labels(&set.metadata).get(HASH_LABEL).is_some_and(|label| label == hash) {
        return true;
    }
    let wanted = deployment.spec.as_ref().map(|s| canonical(&s.template));
    let has = set.spec.as_ref().and_then(|s| s.template.as_ref()).map(canonical);
    wanted == has
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_lists_make_no_other_template() {
        let deployment = |container: Value| -> Deployment {
            let template =
                json!({ "spec": { "containers": [container], "volumes": [{ "name": "v", "emptyDir": {} }] } });
            serde_json::from_value(json!({ "metadata": {}, "spec": { "selector": {}, "template": template } })).unwrap()
        };
        let plain = deployment(json!({ "name": "c" }));
        let emptied = deployment(json!({ "name": "c", "env": [], "ports": [] }));
        let other = deployment(json!({ "name": "c", "env": [{ "name": "A", "value": "1" }] }));
        assert_eq!(hash_of(&plain), hash_of(&emptied));
        assert_ne!(hash_of(&plain), hash_of(&other));
        let template = emptied.spec.map(|spec| spec.template);
        let set = json!({ "metadata": {}, "spec": { "selector": {}, "template": template } });
        let set: ReplicaSet = serde_json::from_value(set).unwrap();
        assert!(is_current(&plain, &set, "another hash") && !is_current(&other, &set, "another hash"));
    }
}
