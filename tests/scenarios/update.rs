//! The product is exchanged for its next build, and back, while a guest is on its way between two nodes.

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, holds, phase, uid};
use e2e::wait::SOON;
use e2e::{Console, Guest, Namespace, product, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::eviction::{BUILD, next_build, to, updated};
use crate::long;
use crate::mover::{self, Policy, under_way};
use crate::shared::with_guest;
use crate::survival::{Life, life, unharmed};
use crate::two_nodes;

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("guests_outlive_an_update_and_the_way_back", guests_outlive_an_update_and_the_way_back)]
}

const NAME: &str = "wanderer";

/// What tells this guest, and this run of it, from any other.
fn boot(space: &Namespace) -> Result<(String, String)> {
    let vmi = space.get("vmi", NAME)?;
    let mut console = Console::open(space, NAME)?;
    console.log_in("root", "guest")?;
    let (boot, _) = console.run("cat /proc/sys/kernel/random/boot_id")?;
    console.log_out()?;
    console.leave()?;
    Ok((uid(&vmi).to_owned(), boot))
}

/// Has the guest leave its node, and waits until its memory is being sent.
fn on_its_way(space: &Namespace, migration: &str) -> Result<()> {
    space.apply(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration", "metadata": { "name": migration },
        "spec": { "vmiName": NAME },
    }))?;
    let sent = |vmi: &Value| under_way(vmi).is_some_and(|progress| progress["processed"].as_u64() > Some(0));
    space.wait_for(2 * SOON, "vmi", NAME, "was on its way", sent).map(drop)
}

/// Exchanges the product under a guest that is on its way, and waits until it runs in the launcher of that build. What was
/// under way either arrives or fails with a reason. `meanwhile` comes when the components are new and guests still old.
fn exchange(space: &Namespace, tag: &Value, build: &str, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    let migration = format!("before-{build}").replace('.', "-");
    let slow = Policy::new(space, &json!({ "bandwidthPerMigration": "2Mi" }))?;
    on_its_way(space, &migration)?;
    // The next one may be as fast as it can.
    drop(slow);
    to(tag, &Value::Null)?;
    updated(build)?;
    meanwhile()?;
    let over = |found: &Value| matches!(phase(found), "Succeeded" | "Failed");
    let ended = space.wait("vmim", &migration, "ended", over)?;
    let state = &ended["status"]["migrationState"];
    let told = state["failureReason"].as_str().is_some_and(|why| !why.is_empty());
    ensure!(phase(&ended) == "Succeeded" || told, "it failed and nobody said why: {state}");
    to(tag, &json!(["LiveMigrate"]))?;
    space.wait("vmi", NAME, "ran in the other launcher", |vmi| is_of(vmi, build))?;
    Ok(())
}

/// It runs in the launcher of that build, and stays there.
fn is_of(vmi: &Value, build: &str) -> bool {
    let image = format!("ferrovirt.local/launcher:{build}");
    let moving = vmi["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"].is_string();
    phase(vmi) == "Running" && vmi["status"]["launcherContainerImageVersion"] == image && !moving
}

/// A guest that is left where it is, in the launcher it has, and is known to be behind.
fn outdated(guest: &Guest, before: &Life) -> Result<()> {
    until("the guest's launcher to be known as old", || {
        let labels = guest.vmi()?["metadata"]["labels"].clone();
        let path = "jsonpath={.status.outdatedVirtualMachineInstanceWorkloads}";
        let count = product::kubectl(&["get", "kubevirt", product::KUBEVIRT, "-o", path])?;
        Ok((labels["kubevirt.io/outdatedLauncherImage"].is_string() && count.trim() != "0").then_some(()))
    })?;
    unharmed(guest, before)
}

fn guests_outlive_an_update_and_the_way_back() -> Result<()> {
    // Every guest that is there is moved.
    mover::shut_down();
    two_nodes::ready()?;
    next_build()?;
    let space = Namespace::new("update")?;
    space.apply(&machine::on_kernel(NAME, "Always"))?;
    let ready = |vmi: &Value| phase(vmi) == "Running" && holds(vmi, "AgentConnected") && holds(vmi, "LiveMigratable");
    space.wait("vmi", NAME, "ran with its agent", ready)?;
    let before = boot(&space)?;
    with_guest(|stays| {
        let at_rest = life(stays)?;
        let forth = exchange(&space, &json!("next"), "next", || outdated(stays, &at_rest));
        let there = forth.as_ref().ok().map(|()| boot(&space));
        // Whatever happened, the cluster is left as it was found.
        let back = exchange(&space, &Value::Null, BUILD, || Ok(())).and_then(|()| {
            until("the other guest to be in its first launcher", || Ok(is_of(&stays.vmi()?, BUILD).then_some(())))
        });
        to(&Value::Null, &Value::Null)?;
        forth.context("to the next build")?;
        back.context("back to the first build")?;
        let after = [there.transpose()?.unwrap_or_default(), boot(&space)?];
        ensure!(after.iter().all(|life| *life == before), "the guest was started anew: {before:?}, then {after:?}");
        ensure!(stays.boot_id()? == at_rest.boot, "the guest that was shared was started anew");
        Ok(())
    })
}
