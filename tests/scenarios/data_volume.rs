//! Manifests of DataVolumes, and what becomes of them.

use anyhow::{Result, ensure};
use e2e::Namespace;
use e2e::machine::{condition, holds, phase, uid};
use e2e::node::{self, Process};
use e2e::wait::{SOON, until};
use serde_json::{Value, json};

/// A DataVolume that is filled at once, whether or not somebody uses it yet.
pub(crate) fn volume(name: &str, size: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": name, "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" } },
        "spec": { "source": source, "storage": { "resources": { "requests": { "storage": size } } } },
    })
}

/// Applies several objects at once.
pub(crate) fn apply(space: &Namespace, objects: Vec<Value>) -> Result<()> {
    space.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }))
}

/// Waits until it is filled.
pub(crate) fn succeeded(space: &Namespace, name: &str) -> Result<Value> {
    let over = |found: &Value| matches!(phase(found), "Succeeded" | "Failed");
    let found = space.wait("datavolume", name, "was filled", over)?;
    ensure!(phase(&found) == "Succeeded" && holds(&found, "Ready"), "{name}: {}", found["status"]);
    Ok(found)
}

/// Waits until a condition of it says this, in part.
pub(crate) fn says(space: &Namespace, name: &str, kind: &str, words: &str) -> Result<Value> {
    let told = |found: &Value| condition(found, kind)["message"].as_str().is_some_and(|text| text.contains(words));
    space.wait("datavolume", name, &format!("said {words:?} in {kind}"), told)
}

/// Waits for the pod that works for it and has this label `cdi.kubevirt.io`.
pub(crate) fn worker(space: &Namespace, name: &str, kind: &str) -> Result<Value> {
    until(&format!("a pod {kind} of {name}"), SOON, || {
        let claim = uid(&space.get("pvc", name)?).to_owned();
        if claim.is_empty() {
            return Ok(None);
        }
        // It fills the claim itself, or one in its place, whose name ends with the claim's UID.
        let is_its = |volume: &Value| {
            let of = volume["persistentVolumeClaim"]["claimName"].as_str().unwrap_or_default();
            of == name || of.ends_with(&claim)
        };
        let its = |pod: &Value| pod["spec"]["volumes"].as_array().is_some_and(|volumes| volumes.iter().any(is_its));
        Ok(space.list("pods", &format!("cdi.kubevirt.io={kind}"))?.into_iter().find(its))
    })
}

/// Waits for the program of that pod, which runs in it for longer than a moment.
pub(crate) fn program(pod: &Value, program: &str) -> Result<Process> {
    until(&format!("{program} runs"), SOON, || Ok(node::process(uid(pod), program).ok()))
}
