//! Enlightenments of Hyper-V that need others, which libvirt would only ask for when the guest starts. Pure.

use api::kubevirt::v1::VirtualMachineInstanceSpec;
use kit::admission::Cause;
use serde_json::{Map, Value, json};

/// Each with the one it needs; what others need comes after them.
const NEEDS: [(&str, &str); 5] =
    [("evmcs", "vapic"), ("ipi", "vpindex"), ("tlbflush", "vpindex"), ("synictimer", "synic"), ("synic", "vpindex")];
/// The processor's feature that `evmcs` is about.
const VMX: &str = "vmx";

/// An enlightenment without `enabled` is on.
fn is_on(hyperv: &Value, name: &str) -> bool {
    !hyperv[name].is_null() && hyperv[name]["enabled"] != false
}

/// Switches on what the enlightenments of `domain` need and nobody has decided.
pub(crate) fn complete(domain: &mut Value) {
    let Some(hyperv) = domain.pointer_mut("/features/hyperv").filter(|hyperv| hyperv.is_object()) else { return };
    for (name, needed) in NEEDS {
        if is_on(hyperv, name) && hyperv[needed]["enabled"].is_null() {
            hyperv[needed] = json!({ "enabled": true });
        }
    }
    if is_on(hyperv, "evmcs") {
        require_vmx(domain);
    }
}

fn require_vmx(domain: &mut Value) {
    if !domain["cpu"].is_object() {
        domain["cpu"] = Value::Object(Map::new());
    }
    if !domain["cpu"]["features"].is_array() {
        domain["cpu"]["features"] = json!([]);
    }
    let Some(features) = domain["cpu"]["features"].as_array_mut() else { return };
    match features.iter_mut().find(|feature| feature["name"] == VMX) {
        Some(feature) => feature["policy"] = json!("require"),
        None => features.push(json!({ "name": VMX, "policy": "require" })),
    }
}

/// What an instance's spec at `path` asks for and switches off what it needs.
pub(crate) fn causes(path: &str, spec: &VirtualMachineInstanceSpec) -> Vec<Cause> {
    let Some(hyperv) = spec.domain.features.as_ref().and_then(|features| features.hyperv.as_ref()) else {
        return Vec::new();
    };
    let hyperv = serde_json::to_value(hyperv).unwrap_or_default();
    let path = format!("{path}.domain.features.hyperv");
    let broken = NEEDS.iter().filter(|(name, needed)| is_on(&hyperv, name) && hyperv[needed]["enabled"] == false);
    broken
        .map(|(name, needed)| {
            let field = format!("{path}.{name}");
            let message = format!(
                "'{field}' requires '{path}.{needed}', which was disabled: enable it, or leave it out, and it is enabled"
            );
            Cause { reason: "FieldValueInvalid", field, message }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(hyperv: Value, expect: Value) {
        let mut domain = json!({ "features": { "hyperv": hyperv } });
        complete(&mut domain);
        assert_eq!(domain["features"]["hyperv"], expect);
    }

    #[test]
    fn required_enlightenments_are_enabled() {
        let on = json!({ "enabled": true });
        check(json!({ "relaxed": {} }), json!({ "relaxed": {} }));
        check(json!({ "synictimer": {} }), json!({ "synictimer": {}, "synic": on, "vpindex": on }));
        check(json!({ "ipi": on, "vpindex": {} }), json!({ "ipi": on, "vpindex": on }));
        check(json!({ "ipi": { "enabled": false } }), json!({ "ipi": { "enabled": false } }));
        let decided = json!({ "tlbflush": on, "vpindex": { "enabled": false } });
        check(decided.clone(), decided);
    }

    #[test]
    fn evmcs_requires_the_processors_vmx() {
        let mut domain = json!({ "features": { "hyperv": { "evmcs": {} } }, "cpu": { "cores": 2 } });
        complete(&mut domain);
        assert_eq!(domain["cpu"], json!({ "cores": 2, "features": [{ "name": "vmx", "policy": "require" }] }));
        domain["cpu"]["features"] = json!([{ "name": "vmx", "policy": "disable" }, { "name": "aes" }]);
        complete(&mut domain);
        let features = json!([{ "name": "vmx", "policy": "require" }, { "name": "aes" }]);
        assert_eq!(domain["cpu"]["features"], features);
        assert_eq!(domain["features"]["hyperv"]["vapic"], json!({ "enabled": true }));
    }

    #[test]
    fn a_required_enlightenment_cannot_be_disabled() {
        let spec = json!({ "domain": { "features": { "hyperv": { "synic": {}, "vpindex": { "enabled": false } } } } });
        let found = causes("spec", &serde_json::from_value(spec).unwrap());
        let found: Vec<_> = found.iter().map(|cause| (cause.field.as_str(), cause.message.as_str())).collect();
        let message = "'spec.domain.features.hyperv.synic' requires 'spec.domain.features.hyperv.vpindex', which was \
                       disabled: enable it, or leave it out, and it is enabled";
        assert_eq!(found, [("spec.domain.features.hyperv.synic", message)]);
    }
}
