//! Everything the CDI object stands for, as manifests. Pure: the same input is always the same manifests.

pub mod admission;
pub(crate) mod constraints;
pub mod crds;
pub mod monitoring;
pub mod network;
pub mod rbac;
pub mod workloads;

use k8s_openapi::api::core::v1::LocalObjectReference;
use kit::operator;
use kit::workload::Placement;
use serde_json::{Value, json};

use super::MANAGER;

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Namespace of all components.
    pub namespace: String,
    /// Their image, and that of the pods that import, clone and upload.
    pub image: String,
    /// Pull policy of all of them.
    pub pull_policy: String,
    /// Secrets to pull them with.
    pub pull_secrets: Vec<LocalObjectReference>,
    /// Priority class of the components; none leaves it to the cluster.
    pub priority_class: Option<String>,
    /// Replicas of cdi-deployment, cdi-apiserver and cdi-uploadproxy.
    pub replicas: [i32; 3],
    /// Where they run.
    pub infra: Placement,
    /// What is logged: an environment variable's value, or empty for the default.
    pub log: String,
    /// The bundle that verifies cdi-apiserver.
    pub ca_bundle: String,
    /// Version, as labels say it.
    pub version: String,
    /// Names the configuration: Deployments carry it, so that what is seen of them is known to be of this one.
    pub configuration: String,
    /// Whether the cluster knows the kinds of Prometheus' operator.
    pub monitoring: bool,
    /// The cluster admits pods by SecurityContextConstraints.
    pub constrained: bool,
    /// Whether plain claims are rendered with the profile of their storage class.
    pub render_claims: bool,
}

/// Labels of everything this operator owns.
pub fn labels(version: &str) -> Value {
    json!({
        "cdi.kubevirt.io": "",
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/component": "storage",
        "app.kubernetes.io/version": version,
    })
}

/// All manifests but the CRDs and what is secret.
pub fn render(input: &Input) -> Vec<Value> {
    let mut out = rbac::render(&input.namespace);
    out.extend(workloads::render(input));
    out.extend(network::render(input));
    if input.monitoring {
        out.extend(monitoring::render(input));
    }
    if input.constrained {
        out.push(constraints::render(&input.namespace));
    }
    out.extend(admission::render(input));
    for manifest in &mut out {
        operator::label(manifest, &labels(&input.version));
    }
    out
}

/// All that can be rendered for `namespace`, whatever the object asks for and the cluster knows.
pub fn every(namespace: &str) -> Vec<Value> {
    let input = Input {
        namespace: namespace.to_owned(),
        monitoring: true,
        constrained: true,
        render_claims: true,
        ..Input::default()
    };
    render(&input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_has_a_name_and_ours_are_marked() {
        let input = Input {
            namespace: "cdi".into(),
            replicas: [1; 3],
            monitoring: true,
            constrained: true,
            render_claims: true,
            ..Input::default()
        };
        let all = render(&input);
        let mut seen = std::collections::BTreeSet::new();
        for manifest in &all {
            let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let id = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
            assert!(!id.0.is_empty() && !id.2.is_empty(), "{manifest}");
            assert_eq!(text("/metadata/labels/app.kubernetes.io~1managed-by"), MANAGER);
            assert!(seen.insert(id.clone()), "twice: {id:?}");
        }
        assert!(all.len() > 25, "{}", all.len());
    }
}
