//! `spec.customizeComponents` of the KubeVirt object.

use api::kubevirt::v1::CustomizeComponents;
use kit::customize::{Patch, Refusal, refuse};
use serde_json::Value;

fn patches(wanted: &CustomizeComponents) -> Vec<Patch> {
    let one = |patch: &api::kubevirt::v1::CustomizeComponentsPatch| Patch {
        resource_type: patch.resource_type.clone(),
        resource_name: patch.resource_name.clone(),
        kind: patch.type_.clone(),
        patch: patch.patch.clone(),
    };
    wanted.patches.iter().map(one).collect()
}

/// What is wrong with `wanted` whatever it is applied to.
pub fn check(wanted: &CustomizeComponents) -> Vec<Refusal> {
    let mut out = Vec::new();
    if let Some(flags) = &wanted.flags {
        for (name, set) in [("api", &flags.api), ("controller", &flags.controller), ("handler", &flags.handler)] {
            if !set.is_empty() {
                let why = "flags cannot be set in this version: change the workload with customizeComponents.patches";
                out.push(refuse(format!("spec.customizeComponents.flags.{name}"), why));
            }
        }
    }
    out.extend(kit::customize::check(&patches(wanted)));
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
    kit::customize::apply(manifests, &patches(wanted))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn flags_are_refused_by_name() {
        let flags = serde_json::from_value(json!({ "flags": { "api": { "v": "5" } } })).unwrap();
        assert_eq!(
            super::apply(&mut [], &flags).unwrap_err().to_string(),
            "spec.customizeComponents.flags.api: flags cannot be set in this version: change the workload with \
             customizeComponents.patches"
        );
    }
}
