//! The second node that some scenarios need: added by the first of them, and removed when all are over.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use e2e::machine::{holds, uid};
use e2e::wait::{BOOT, until};
use e2e::{Namespace, node, product, root};
use serde_json::Value;

/// The node that every cluster has.
pub(crate) const FIRST: &str = "node1";
/// The one that is added.
pub(crate) const SECOND: &str = "node2";
static ADDED: Mutex<bool> = Mutex::new(false);

/// Runs the checkout's ferrovirt on the cluster under test.
pub(crate) fn ferrovirt(words: &[&str]) -> Result<String> {
    let output = Command::new(root().join("bin/ferrovirt")).args(words).output().context("cannot run bin/ferrovirt")?;
    ensure!(output.status.success(), "ferrovirt {}: {output:?}", words.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Makes sure that there are two nodes and that both take guests.
pub(crate) fn ready() -> Result<()> {
    let mut added = ADDED.lock().unwrap_or_else(PoisonError::into_inner);
    let there = Namespace::kubectl_in("default", &["get", "node", SECOND, "--ignore-not-found", "-o", "name"])?;
    if there.trim().is_empty() {
        ferrovirt(&["node", "add"])?;
        *added = true;
    }
    until("both nodes to take guests", BOOT, || {
        let text =
            Namespace::kubectl_in("default", &["get", "nodes", "-l", "kubevirt.io/schedulable=true", "-o", "json"])?;
        let nodes: Value = serde_json::from_str(&text).context("kubectl's JSON")?;
        let names: Vec<_> =
            nodes["items"].as_array().into_iter().flatten().filter(|node| holds(node, "Ready")).collect();
        Ok((names.len() == 2 && handler(FIRST).is_ok() && handler(SECOND).is_ok()).then_some(()))
    })
}

/// The virt-handler of a node.
pub(crate) fn handler(on: &str) -> Result<node::Process> {
    let pods = [
        "get",
        "pods",
        "-l",
        "kubevirt.io=virt-handler",
        "--field-selector",
        &format!("spec.nodeName={on}"),
        "-o",
        "json",
    ];
    let list: Value = serde_json::from_str(&product::kubectl(&pods)?).context("kubectl's JSON")?;
    let mut pods = list["items"].as_array().into_iter().flatten();
    let pod = pods.find(|pod| holds(pod, "Ready")).with_context(|| format!("virt-handler is not ready on {on}"))?;
    node::process(uid(pod), "virt-handler")
}

/// Removes what was added.
pub(crate) fn shut_down() {
    if std::mem::take(&mut *ADDED.lock().unwrap_or_else(PoisonError::into_inner)) {
        // The scenarios are over, and have said how they ended.
        let _ = ferrovirt(&["node", "remove", SECOND]);
    }
}
