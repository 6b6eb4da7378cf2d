//! What else comes in the way of a migration: another one, a node that cannot run the guest, a target without memory, a
//! control plane that is gone for a while.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, condition, phase, uid};
use e2e::wait::{SOON, until};
use e2e::{Namespace, kubeconfig, node};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::long;
use crate::mover::{Mover, NAME, Policy, with_mover};
use crate::two_nodes::{FIRST, SECOND, ferrovirt};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        long("migrations_of_two_guests_at_once", two_at_once),
        long("migration_waits_for_a_node_that_can_run_the_guest", waits_for_a_node_that_can_run_the_guest),
        long("migration_fails_with_a_target_out_of_memory", fails_with_a_target_out_of_memory),
        long("migration_outlives_the_control_plane", outlives_the_control_plane),
    ]
}

fn two_at_once() -> Result<()> {
    const OTHER: &str = "other";
    with_mover(|mover| {
        let space = &mover.space;
        space.apply(&machine::on_kernel(OTHER, "Always"))?;
        let before = space.wait("vmi", OTHER, "ran with its agent", |vmi| {
            phase(vmi) == "Running" && machine::holds(vmi, "AgentConnected")
        })?;
        let from = mover.node()?;
        mover.space.virtctl(&["migrate", OTHER])?;
        let name = mover.leave()?;
        mover.ended(&name, "Succeeded")?;
        let went = |vmi: &Value| vmi["status"]["nodeName"] != before["status"]["nodeName"];
        let after = mover.space.wait("vmi", OTHER, "moved", went)?;
        ensure!(uid(&after) == uid(&before) && phase(&after) == "Running", "{}", after["status"]);
        mover.space.kubectl(&["delete", "vm", OTHER, "--timeout=120s"])?;
        mover.arrived(&from)?;
        mover.unharmed()
    })
}

/// A node whose labels are its administrator's for as long as this is held.
struct Relabelled {
    node: &'static str,
    label: &'static str,
}

const SKIP: &str = "node-labeller.kubevirt.io/skip-node";

impl Relabelled {
    fn without(node: &'static str, label: &'static str) -> Result<Self> {
        Namespace::kubectl_in("default", &["annotate", "node", node, &format!("{SKIP}=true"), "--overwrite"])?;
        let relabelled = Self { node, label };
        let away = format!("{}-", relabelled.label);
        Namespace::kubectl_in("default", &["label", "node", node, &away])?;
        Ok(relabelled)
    }
}

impl Drop for Relabelled {
    fn drop(&mut self) {
        let back = format!("{}=true", self.label);
        let _ = Namespace::kubectl_in("default", &["label", "node", self.node, &back, "--overwrite"]);
        let _ = Namespace::kubectl_in("default", &["annotate", "node", self.node, &format!("{SKIP}-")]);
    }
}

/// Emulation offers every processor on every node, so it is the machine type that a node lacks here.
fn waits_for_a_node_that_can_run_the_guest() -> Result<()> {
    with_mover(|mover| {
        let from = mover.node()?;
        let other = if from == FIRST { SECOND } else { FIRST };
        let without = Relabelled::without(other, "machine-type.node.kubevirt.io/q35")?;
        let migration = mover.leave()?;
        let told =
            mover.space.event("VirtualMachineInstanceMigration", &migration, "migrationTargetPodUnschedulable")?;
        let expect =
            format!("Migration target pod for VMI [{}/{NAME}] is currently unschedulable.", mover.space.name());
        ensure!(told == expect, "{told}");
        let target = target_pod(mover, &migration)?;
        let why = condition(&target, "PodScheduled")["message"].as_str().unwrap_or_default().to_owned();
        ensure!(why.contains("node(s) didn't match Pod's node affinity/selector"), "{why}");
        let vmim = mover.space.get("vmim", &migration)?;
        ensure!(phase(&vmim) == "Scheduling" && mover.node()? == from, "{}", vmim["status"]);
        // It takes the node as soon as that can run the guest.
        drop(without);
        mover.ended(&migration, "Succeeded")?;
        mover.arrived(&from)?;
        mover.unharmed()
    })
}

/// The pod that a migration has made, by its label.
fn target_pod(mover: &Mover, migration: &str) -> Result<Value> {
    let vmim = mover.space.get("vmim", migration)?;
    let pods = mover.space.list("pods", &format!("kubevirt.io/migrationJobUID={}", uid(&vmim)))?;
    pods.into_iter().next().with_context(|| format!("{migration} has no pod"))
}

fn fails_with_a_target_out_of_memory() -> Result<()> {
    with_mover(|mover| {
        mover.disturbed(|mover, migration, _| {
            let target = target_pod(mover, migration)?;
            node::process(uid(&target), "qemu-system-x86_64")?.leave_memory(4 << 20)?;
            mover.ended(migration, "Failed").map(drop)
        })
    })
}

fn outlives_the_control_plane() -> Result<()> {
    with_mover(|mover| {
        let from = mover.node()?;
        let slow = Policy::new(&mover.space, &json!({ "bandwidthPerMigration": "8Mi" }))?;
        let name = mover.leave()?;
        mover.under_way()?;
        let lock = kubeconfig().with_file_name("control-plane.lock");
        let pid = sys::lock::holder(&lock)?.context("nobody holds the lock of the control plane")?;
        let process = sys::process::Handle::open(pid)?.context("the control plane has just ended")?;
        process.kill()?;
        ensure!(process.ended_within(Duration::from_secs(10))?, "the control plane does not end");
        ferrovirt(&["up", "--cluster-only"])?;
        until("the API to answer", SOON, || mover.vmi().map(Some))?;
        mover.ended(&name, "Succeeded")?;
        drop(slow);
        mover.arrived(&from)?;
        mover.unharmed()
    })
}
