//! VirtualMachineInstancePreset: what an instance is given when it is made, before any default, by the presets of its namespace that select it.
//!
//! What the instance says itself stands. Presets that contradict each other keep it from being made.

use std::collections::BTreeMap;

use api::kubevirt::v1::VirtualMachineInstancePreset;
use kit::Chain;
use kit::admission::{Request, Verdict};
use kit::controller::owner::selects;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

/// On an instance that takes nothing.
const EXCLUDE: &str = "virtualmachineinstancepresets.admission.kubevirt.io/exclude";

/// On an instance: what it was given this by.
const APPLIED: &str = "virtualmachinepreset.kubevirt.io/";

/// What presets give of a domain; of the resources, each request by itself.
pub(crate) const PARTS: [&str; 6] = ["cpu", "firmware", "clock", "features", "watchdog", "ioThreadsPolicy"];

/// The object of `request`, which makes an instance, with what presets give it.
///
/// # Errors
/// The answer, when they contradict each other, or the cluster cannot be asked.
pub(crate) async fn apply(client: &Client, request: &Request) -> Result<Value, Verdict> {
    let object = request.object.clone();
    if request.operation != "CREATE" || text_map(&object, "annotations").get(EXCLUDE).is_some_and(|said| said == "true")
    {
        return Ok(object);
    }
    let api: Api<VirtualMachineInstancePreset> = Api::namespaced(client.clone(), &request.namespace);
    // As good as the API server has it at hand: it is asked for each instance.
    let found = match api.list(&ListParams::default().match_any()).await {
        Ok(found) => found.items,
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => {
            let message = format!("cannot look at the presets of namespace {}: {}", request.namespace, Chain(&error));
            return Err(Verdict::Deny { code: 500, reason: "InternalError", message });
        }
    };
    given(object, &found)
}

/// `object` with what those of `presets` give that select it. Pure.
fn given(mut object: Value, presets: &[VirtualMachineInstancePreset]) -> Result<Value, Verdict> {
    let labels = text_map(&object, "labels");
    let mut chosen: Vec<(String, Map<String, Value>)> = presets
        .iter()
        .filter(|preset| preset.metadata.deletion_timestamp.is_none())
        .filter_map(|preset| {
            let spec = preset.spec.as_ref()?;
            selects(Some(&spec.selector), &labels).then(|| (preset.name_any(), parts(&json!(spec.domain))))
        })
        .collect();
    chosen.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (index, (name, parts)) in chosen.iter().enumerate() {
        for (other, theirs) in &chosen[index + 1..] {
            let unlike = parts.iter().find(|(path, value)| theirs.get(*path).is_some_and(|held| held != *value));
            if let Some((path, _)) = unlike {
                let message = format!(
                    "VirtualMachinePresets cannot be applied due to conflicts: presets '{name}' and '{other}' conflict: \
                     spec.domain.{} differs",
                    path.trim_start_matches('/').replace('/', ".")
                );
                return Err(Verdict::Deny { code: 422, reason: "Invalid", message });
            }
        }
    }
    for (name, parts) in chosen {
        let mut took = false;
        for (path, value) in parts {
            took |= take(&mut object, &path, value);
        }
        if took {
            place(&mut object, &["metadata", "annotations"])[format!("{APPLIED}{name}")] = json!("kubevirt.io/v1");
        }
    }
    Ok(object)
}

/// What a domain sets of what presets give, by its path.
fn parts(domain: &Value) -> Map<String, Value> {
    let set = |value: &&Value| !value.is_null();
    let mut parts = Map::new();
    for part in PARTS {
        parts.extend(domain.get(part).filter(set).map(|value| (format!("/{part}"), value.clone())));
    }
    let requests = domain.pointer("/resources/requests").and_then(Value::as_object);
    for (resource, amount) in requests.into_iter().flatten() {
        parts.insert(format!("/resources/requests/{resource}"), amount.clone());
    }
    parts
}

/// Sets what is at `path` of the domain, unless the instance says something there. True when it is `value` now.
fn take(object: &mut Value, path: &str, value: Value) -> bool {
    let mut steps = vec!["spec", "domain"];
    let mut rest = path.trim_start_matches('/').splitn(3, '/').collect::<Vec<_>>();
    let Some(last) = rest.pop() else { return false };
    steps.extend(rest);
    let of = place(object, &steps);
    match of.get(last).filter(|held| !held.is_null()) {
        Some(held) => *held == value,
        None => {
            of[last] = value;
            true
        }
    }
}

/// The object at `steps`, made where it is missing.
fn place<'a>(of: &'a mut Value, steps: &[&str]) -> &'a mut Value {
    steps.iter().fold(of, |of, step| {
        let found = &mut of[*step];
        if !found.is_object() {
            *found = json!({});
        }
        found
    })
}

fn text_map(object: &Value, key: &str) -> BTreeMap<String, String> {
    let all = object.get("metadata").and_then(|metadata| metadata.get(key)).and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    all.into_iter().flatten().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset(name: &str, selector: &Value, domain: &Value) -> VirtualMachineInstancePreset {
        let preset = json!({ "metadata": { "name": name }, "spec": { "selector": selector, "domain": domain } });
        serde_json::from_value(preset).unwrap()
    }

    fn small() -> Value {
        json!({ "matchLabels": { "size": "small" } })
    }

    fn instance(domain: &Value) -> Value {
        json!({ "metadata": { "name": "vmi", "labels": { "size": "small" } }, "spec": { "domain": domain } })
    }

    #[test]
    fn an_instance_takes_what_it_does_not_say() {
        let domain = json!({
            "devices": {}, "cpu": { "cores": 4 }, "features": { "acpi": {} }, "ioThreadsPolicy": "auto",
            "resources": { "requests": { "memory": "64Mi", "cpu": "1" } },
        });
        let presets = [
            preset("a", &small(), &domain),
            preset(
                "b",
                &json!({ "matchLabels": { "size": "large" } }),
                &json!({ "devices": {}, "cpu": { "cores": 8 } }),
            ),
        ];
        let own = json!({ "devices": {}, "cpu": { "cores": 1 }, "resources": { "requests": { "memory": "1Gi" } } });
        let made = given(instance(&own), &presets).unwrap();
        assert_eq!(
            made["spec"]["domain"],
            json!({
                "devices": {}, "cpu": { "cores": 1 }, "features": { "acpi": {} }, "ioThreadsPolicy": "auto",
                "resources": { "requests": { "memory": "1Gi", "cpu": "1" } },
            })
        );
        assert_eq!(made["metadata"]["annotations"], json!({ "virtualmachinepreset.kubevirt.io/a": "kubevirt.io/v1" }));
    }

    #[test]
    fn presets_that_contradict_each_other_are_named() {
        let cores = |cores: u32| json!({ "devices": {}, "cpu": { "cores": cores } });
        let presets = |other: u32| [preset("b", &small(), &cores(2)), preset("a", &small(), &cores(other))];
        let Err(Verdict::Deny { code, message, .. }) = given(instance(&json!({})), &presets(4)) else { panic!() };
        let said = "VirtualMachinePresets cannot be applied due to conflicts: presets 'a' and 'b' conflict: spec.domain.cpu differs";
        assert_eq!((code, message.as_str()), (422, said));
        // Those that agree are both applied.
        let made = given(instance(&json!({})), &presets(2)).unwrap();
        assert_eq!(made["metadata"]["annotations"].as_object().unwrap().len(), 2);
    }

    #[test]
    fn who_takes_nothing_is_not_marked() {
        let presets = [preset("a", &small(), &json!({ "devices": {}, "cpu": { "cores": 2 } }))];
        let own = instance(&json!({ "cpu": { "cores": 1 } }));
        assert_eq!(given(own.clone(), &presets).unwrap(), own);
    }
}
