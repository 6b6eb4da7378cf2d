//! Presets of instances.

use api::kubevirt::v1::VirtualMachineInstancePreset;
use kit::admission::{Request, Verdict};
use kube::core::Selector;
use serde_json::{Value, json};

use super::{deleting, invalid, is_zero, required, strict};
use crate::presets::PARTS;

/// `/vmipreset-validate`.
pub fn preset(request: &Request) -> Verdict {
    if deleting(&request.object) {
        return Verdict::allow();
    }
    let preset: VirtualMachineInstancePreset = match strict::decode(&request.object) {
        Ok(preset) => preset,
        Err(causes) => return Verdict::Invalid(causes),
    };
    let mut causes = Vec::new();
    let name = preset.metadata.name.as_deref().unwrap_or(&request.name);
    // It becomes the name of an annotation.
    if name.len() > 63 {
        let message = format!("{name:?} is too long: instances are marked with it, so it has at most 63 characters");
        causes.push(invalid("metadata.name".to_owned(), message));
    }
    let spec = preset.spec.unwrap_or_default();
    if let Err(error) = Selector::try_from(spec.selector) {
        causes.push(invalid("spec.selector".to_owned(), format!("selector cannot be read: {error}")));
    }
    let Some(domain) = spec.domain else {
        causes.push(required("spec.domain".to_owned(), "missing domain.".to_owned()));
        return Verdict::Invalid(causes);
    };
    if causes.is_empty() { Verdict::Allow { warnings: ignored(&json!(domain)) } } else { Verdict::Invalid(causes) }
}

/// What of a domain no instance is given, in a sentence each.
fn ignored(domain: &Value) -> Vec<String> {
    let given = |key: &str| PARTS.contains(&key) || key == "resources";
    let parts = domain.as_object().into_iter().flatten().filter(|(key, value)| !given(key) && !is_zero(value));
    let resources = domain.get("resources").and_then(Value::as_object).into_iter().flatten();
    let resources = resources.filter(|(key, value)| *key != "requests" && !is_zero(value));
    let fields = parts.map(|(key, _)| key.clone()).chain(resources.map(|(key, _)| format!("resources.{key}")));
    let all = PARTS.join(", ");
    fields.map(|field| format!("spec.domain.{field} is not applied: presets give resources.requests, {all}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(name: &str, spec: Value, expect: Result<&[&str], &str>) {
        let request = Request { object: json!({ "metadata": { "name": name }, "spec": spec }), ..Request::default() };
        match (preset(&request), expect) {
            (Verdict::Allow { warnings }, Ok(said)) => assert_eq!(warnings, said),
            (Verdict::Invalid(causes), Err(field)) => {
                assert_eq!(causes.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(), [field]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_given_is_said() {
        let domain = json!({ "devices": {}, "cpu": { "cores": 1 }, "resources": { "requests": { "memory": "1Gi" } } });
        check("a", json!({ "selector": {}, "domain": domain }), Ok(&[]));
        let said = "spec.domain.memory is not applied: presets give resources.requests, cpu, firmware, clock, features, watchdog, ioThreadsPolicy";
        let domain = json!({ "devices": {}, "memory": { "guest": "1Gi" } });
        check("a", json!({ "selector": {}, "domain": domain }), Ok(&[said]));
        check("a", json!({ "selector": {} }), Err("spec.domain"));
        check(&"a".repeat(64), json!({ "selector": {}, "domain": { "devices": {} } }), Err("metadata.name"));
        let selector = json!({ "matchExpressions": [{ "key": "a", "operator": "Near" }] });
        check("a", json!({ "selector": selector, "domain": { "devices": {} } }), Err("spec.selector"));
        let unknown = json!({ "selector": {}, "domain": { "devices": {}, "cpus": { "cores": 1 } } });
        check("a", unknown, Err("spec.domain.cpus"));
    }
}
