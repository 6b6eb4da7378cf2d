//! Everything the KubeVirt object stands for, as manifests. Pure: the same input is always the same manifests.

pub mod admission;
pub(crate) mod constraints;
pub mod crds;
pub mod instancetypes;
pub mod kinds;
pub mod policies;
pub mod rbac;
pub mod workloads;

use k8s_openapi::api::core::v1::LocalObjectReference;
use kit::operator;
use kit::workload::Placement;
use serde_json::{Value, json};

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Namespace of the KubeVirt object and of all components.
    pub namespace: String,
    /// Image of virt-api, virt-controller, virt-handler.
    pub component_image: String,
    /// Image of launcher pods.
    pub launcher_image: String,
    /// Image of what `virtctl guestfs` runs.
    pub guestfs_image: String,
    /// Pull policy of all of them.
    pub pull_policy: String,
    /// Secrets to pull them with.
    pub pull_secrets: Vec<LocalObjectReference>,
    /// Replicas of virt-api and virt-controller.
    pub replicas: i32,
    /// Where virt-api and virt-controller run.
    pub infra: Placement,
    /// Where virt-handler runs.
    pub workloads: Placement,
    /// NetworkAttachmentDefinition of the network that guests are moved over; none is the pod network.
    pub migration_network: Option<String>,
    /// The bundle that verifies our servers.
    pub ca_bundle: String,
    /// The cluster admits pods by SecurityContextConstraints.
    pub constrained: bool,
    /// Version, as labels say it.
    pub version: String,
    /// Names the configuration: workloads carry it, so that what is seen of them is known to be of this one.
    pub deployment_id: String,
}

/// Labels of everything this operator owns, of a `version` of the product.
pub fn labels(version: &str) -> Value {
    json!({
        "kubevirt.io": "",
        "app.kubernetes.io/managed-by": "virt-operator",
        "app.kubernetes.io/component": "kubevirt",
        "app.kubernetes.io/version": version,
    })
}

/// All manifests but the CRDs, the certificates and their bundle.
pub fn render(input: &Input) -> Vec<Value> {
    let mut out = rbac::render(input);
    out.extend(workloads::render(input));
    out.extend(admission::render(input));
    out.extend(policies::render(input));
    out.extend(kinds::render());
    if input.constrained {
        out.extend(constraints::render(&input.namespace));
    }
    for manifest in &mut out {
        operator::label(manifest, &labels(&input.version));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_has_a_name_and_ours_are_marked() {
        let input = Input { namespace: "kubevirt".into(), replicas: 1, constrained: true, ..Default::default() };
        let all = render(&input);
        let mut seen = std::collections::BTreeSet::new();
        for manifest in &all {
            let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let id = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
            assert!(!id.0.is_empty() && !id.2.is_empty(), "{manifest}");
            assert_eq!(text("/metadata/labels/app.kubernetes.io~1managed-by"), "virt-operator");
            assert!(seen.insert(id.clone()), "twice: {id:?}");
        }
        assert!(all.len() > 25);
    }
}
