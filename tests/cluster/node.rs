//! The node: cordon, drain with a budget, taints.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, idle, pod, ready, special, template, text};

pub(crate) const TESTS: &[Test] =
    &[("a_node_is_cordoned_and_drained", a_node_is_cordoned_and_drained), ("taints_are_heeded", taints_are_heeded)];

/// Makes the node schedulable again whatever happens.
struct Cordoned<'a>(&'a Namespace);

impl Drop for Cordoned<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["uncordon", "node1"]);
        let _ = self.0.kubectl(&["taint", "node", "node1", "e2e-"]);
    }
}

fn a_node_is_cordoned_and_drained() -> Result<()> {
    let space = Namespace::new("drain")?;
    let labels = json!({"drain": "me"});
    apply(
        &space,
        &[
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
               "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template(&labels, IDLE)}}),
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": labels}}}),
        ],
    )?;
    space.kubectl(&["rollout", "status", "deployment/d", "--timeout=120s"])?;
    space.wait("pdb", "b", "knew its pods", |budget| budget["status"]["currentHealthy"] == 2)?;
    let _cordoned = Cordoned(&space);
    space.kubectl(&["cordon", "node1"])?;
    let table = space.kubectl(&["get", "node", "node1", "--no-headers"])?;
    ensure!(table.contains("Ready,SchedulingDisabled"), "{table}");
    apply(&space, &[pod("late", IDLE)])?;
    let late = space
        .wait("pod", "late", "was unschedulable", |pod| pod["status"]["conditions"][0]["reason"] == "Unschedulable")?;
    ensure!(late["status"]["conditions"][0]["message"].to_string().contains("unschedulable"), "{late}");
    // The budget keeps both, until it allows one to go.
    let drain = ["drain", "node1", "--pod-selector=drain=me", "--ignore-daemonsets", "--timeout=3s"];
    let held = space.output(&drain)?;
    ensure!(
        text(&held.stderr).contains("Cannot evict pod as it would violate the pod's disruption budget"),
        "{held:?}"
    );
    space.kubectl(&["patch", "pdb", "b", "--type=merge", "-p", r#"{"spec":{"minAvailable":0}}"#])?;
    space.wait("pdb", "b", "allowed it", |budget| budget["status"]["disruptionsAllowed"] == 2)?;
    let drained =
        space.kubectl(&["drain", "node1", "--pod-selector=drain=me", "--ignore-daemonsets", "--timeout=60s"])?;
    ensure!(drained.contains("drained"), "{drained}");
    space.kubectl(&["uncordon", "node1"])?;
    space.kubectl(&["rollout", "status", "deployment/d", "--timeout=120s"])?;
    ready(&space, "late")
}

fn taints_are_heeded() -> Result<()> {
    let space = Namespace::new("taints")?;
    idle(&space, "there")?;
    let _tainted = Cordoned(&space);
    space.kubectl(&["taint", "node", "node1", "e2e=yes:NoSchedule"])?;
    let tolerant =
        json!({"tolerations": [{"key": "e2e", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]});
    apply(&space, &[pod("kept-away", IDLE), special("tolerant", IDLE, &json!({}), &tolerant)])?;
    ready(&space, "tolerant")?;
    let away = space.wait("pod", "kept-away", "was unschedulable", |pod| {
        pod["status"]["conditions"][0]["reason"] == "Unschedulable"
    })?;
    ensure!(away["status"]["conditions"][0]["message"].to_string().contains("untolerated taint {e2e: yes}"), "{away}");
    ensure!(space.get("pod", "there")?["metadata"]["deletionTimestamp"].is_null(), "NoSchedule evicted");
    space.kubectl(&["taint", "node", "node1", "e2e-"])?;
    ready(&space, "kept-away")?;
    let node: Value = space.get("node", "node1")?;
    ensure!(node["spec"]["taints"].is_null(), "{}", node["spec"]);
    Ok(())
}
