//! The objects that follow from the HyperConverged object, as manifests. Pure: the same input is always the same manifests.

mod cdi;
mod kubevirt;
mod network_addons;
mod ssp;

use api::hco::{HyperConverged, Placement};
use serde_json::{Value, json};

use crate::child::Child;
use crate::refusal::Refusal;
use crate::topology::Topology;
use crate::{golden_images, patches};

/// The name of the object that counts.
pub const NAME: &str = "kubevirt-hyperconverged";

/// Annotations of the objects that go when nothing asks for them any more.
pub(crate) const OWNED: &[&str] = &[kubevirt::EVEN];

/// What the manifests are made from, beside the HyperConverged object.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Namespace of the operator and of what it makes.
    pub namespace: String,
    /// Image of what the operator deploys itself.
    pub image: String,
    /// Version of the product.
    pub version: String,
    /// Guests are emulated where a node has no KVM.
    pub emulation: bool,
    /// The type of machines that name none; empty leaves it to KubeVirt.
    pub machine_type: String,
    /// What guests see of their vendor; null leaves it to KubeVirt.
    pub smbios: Value,
    /// The nodes.
    pub topology: Topology,
    /// When boot images are looked for.
    pub schedule: String,
}

/// One of the objects.
///
/// # Errors
/// When a value of the object cannot be rendered.
pub fn render(child: Child, hco: &HyperConverged, input: &Input) -> Result<Value, Refusal> {
    let (annotations, spec) = match child {
        Child::KubeVirt => (kubevirt::annotations(hco), kubevirt::spec(hco, input)?),
        Child::Cdi => (json!({}), cdi::spec(hco)),
        Child::NetworkAddons => (json!({}), network_addons::spec(hco)),
        Child::Ssp => (ssp::annotations(hco), ssp::spec(hco, input)),
    };
    let kind = child.kind();
    let mut metadata = json!({ "name": kind.name, "labels": labels(kind.component, &input.version) });
    if annotations.as_object().is_some_and(|all| !all.is_empty()) {
        metadata["annotations"] = annotations;
    }
    if kind.namespaced {
        metadata["namespace"] = json!(input.namespace);
    }
    let manifest = json!({ "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec });
    patches::apply(manifest, hco, kind.patch)
}

/// Labels of everything that follows from the object.
pub(crate) fn labels(component: &str, version: &str) -> Value {
    json!({
        "app": NAME,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "hco-operator",
        "app.kubernetes.io/part-of": "hyperconverged-cluster",
        "app.kubernetes.io/version": version,
    })
}

/// The boot images that `hco` asks for.
pub(crate) fn images(hco: &HyperConverged, input: &Input) -> Vec<api::hco::CronTemplate> {
    let info = input.topology.architectures(hco.spec.deployment.node_placements.workload.as_ref());
    golden_images::wanted(&hco.spec.workload_sources, &input.schedule, &info.workloads_architectures)
}

fn placement(placement: Option<&Placement>) -> Option<Value> {
    placement.map(|placement| json!(placement))
}

/// `type` of a TLS security profile, as the least version of TLS and the ciphers; no ciphers are all.
fn tls(profile: &Value) -> Option<(String, Value)> {
    let least = match profile["type"].as_str()? {
        "Old" => "VersionTLS10",
        "Modern" => "VersionTLS13",
        "Custom" => {
            let least = profile.pointer("/custom/minTLSVersion").and_then(Value::as_str).unwrap_or("VersionTLS12");
            let ciphers = profile.pointer("/custom/ciphers").cloned().unwrap_or_default();
            return Some((least.to_owned(), ciphers));
        }
        _ => "VersionTLS12",
    };
    Some((least.to_owned(), Value::Null))
}

#[cfg(test)]
mod tests;
