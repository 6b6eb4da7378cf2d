//! The product is exchanged for its next build, and back, while a guest is on its way between two nodes.

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, holds, phase, uid};
use e2e::wait::SOON;
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::eviction::{BUILD, next_build, to, updated};
use crate::mover::{Policy, under_way};
use crate::trial;
use crate::two_nodes;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("guests_move_to_a_new_launcher", guests_move_to_a_new_launcher)]
}

const NAME: &str = "wanderer";

/// What tells this guest, and this run of it, from any other.
fn life(space: &Namespace) -> Result<(String, String)> {
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
/// under way either arrives or fails with a reason.
fn exchange(space: &Namespace, tag: &Value, build: &str) -> Result<()> {
    let migration = format!("before-{build}").replace('.', "-");
    let slow = Policy::new(space, &json!({ "bandwidthPerMigration": "2Mi" }))?;
    on_its_way(space, &migration)?;
    // The next one may be as fast as it can.
    drop(slow);
    to(tag, &json!(["LiveMigrate"]))?;
    updated(build)?;
    let over = |found: &Value| matches!(phase(found), "Succeeded" | "Failed");
    let ended = space.wait("vmim", &migration, "ended", over)?;
    let state = &ended["status"]["migrationState"];
    let told = state["failureReason"].as_str().is_some_and(|why| !why.is_empty());
    ensure!(phase(&ended) == "Succeeded" || told, "it failed and nobody said why: {state}");
    let image = format!("ferrovirt.local/launcher:{build}");
    space.wait("vmi", NAME, "ran in the other launcher", |vmi| {
        let moving = vmi["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"].is_string();
        phase(vmi) == "Running" && vmi["status"]["launcherContainerImageVersion"] == image && !moving
    })?;
    Ok(())
}

fn guests_move_to_a_new_launcher() -> Result<()> {
    two_nodes::ready()?;
    next_build()?;
    let space = Namespace::new("update")?;
    space.apply(&machine::on_kernel(NAME, "Always"))?;
    let ready = |vmi: &Value| phase(vmi) == "Running" && holds(vmi, "AgentConnected") && holds(vmi, "LiveMigratable");
    space.wait("vmi", NAME, "ran with its agent", ready)?;
    let before = life(&space)?;
    let forth = exchange(&space, &json!("next"), "next");
    let there = forth.as_ref().ok().map(|()| life(&space));
    // Whatever happened, the cluster is left as it was found.
    let back = exchange(&space, &Value::Null, BUILD);
    to(&Value::Null, &Value::Null)?;
    forth.context("to the next build")?;
    back.context("back to the first build")?;
    let after = [there.transpose()?.unwrap_or_default(), life(&space)?];
    ensure!(after.iter().all(|life| *life == before), "the guest was started anew: {before:?}, then {after:?}");
    Ok(())
}
