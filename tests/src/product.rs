//! The product as a whole: where it is, and its administrator's one object.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::Namespace;
use crate::wait::{BOOT, until};

/// Where the operators are and what they deploy.
pub const NAMESPACE: &str = "kubevirt-hyperconverged";
/// The KubeVirt object.
pub const KUBEVIRT: &str = "kubevirt-kubevirt-hyperconverged";
const OBJECT: &str = "kubevirt-hyperconverged";

/// Runs kubectl where the product is.
pub fn kubectl(words: &[&str]) -> Result<String> {
    Namespace::kubectl_in(NAMESPACE, words)
}

/// An object where the product is, or a list of them.
pub fn get(words: &[&str]) -> Result<Value> {
    let words = [&["get"], words, &["-o", "json"]].concat();
    serde_json::from_str(&kubectl(&words)?).context("kubectl's JSON")
}

/// Merges `change` into the spec of the HyperConverged object, and waits until the other objects were made to follow.
pub fn merge(change: &Value) -> Result<()> {
    patch(&json!({ "spec": change }))?;
    until("the objects of HyperConverged to follow", BOOT, || {
        let object = get(&["hyperconverged", OBJECT])?;
        let (generation, observed) = (&object["metadata"]["generation"], &object["status"]["observedGeneration"]);
        Ok((generation == observed).then_some(()))
    })
}

/// Has the KubeVirt object patched with what HyperConverged has no field for; null takes all such patches back.
pub fn patch_kubevirt(patches: &Value) -> Result<()> {
    patch_others(&[(Operator::KubeVirt, patches.clone())])
}

/// Whose objects follow from HyperConverged and can be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The KubeVirt object.
    KubeVirt,
    /// The CDI object.
    Cdi,
    /// The NetworkAddonsConfig object.
    NetworkAddons,
}

impl Operator {
    fn annotation(self) -> &'static str {
        match self {
            Operator::KubeVirt => "kubevirt.kubevirt.io/jsonpatch",
            Operator::Cdi => "containerizeddataimporter.kubevirt.io/jsonpatch",
            Operator::NetworkAddons => "networkaddonsconfigs.kubevirt.io/jsonpatch",
        }
    }
}

/// Has these objects patched with what HyperConverged has no field for, or would refuse; null takes the patches of an object back.
pub fn patch_others(patches: &[(Operator, Value)]) -> Result<()> {
    let text = |patches: &Value| if patches.is_null() { Value::Null } else { json!(patches.to_string()) };
    let all: serde_json::Map<String, Value> =
        patches.iter().map(|(operator, patches)| (operator.annotation().to_owned(), text(patches))).collect();
    patch(&json!({ "metadata": { "annotations": all } }))
}

fn patch(change: &Value) -> Result<()> {
    kubectl(&["patch", "hyperconverged", OBJECT, "--type=merge", "-p", &change.to_string()]).map(drop)
}
