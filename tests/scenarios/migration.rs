//! A guest that moves between two nodes, and what may go wrong on the way: whatever happens, one guest runs, it is the one
//! that ran before, and nothing is left of the other.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machine::{holds, uid};
use e2e::node;
use e2e::wait::{BOOT, SOON, throughout, until};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::mover::{Mover, NAME, with_mover};
use crate::two_nodes::{self, ferrovirt};
use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("migration_moves_a_guest_to_and_fro", moves_to_and_fro),
        trial("migration_moves_a_guest_that_changes_its_memory", moves_a_busy_guest),
        trial("migration_leaves_a_paused_guest_paused", leaves_a_paused_guest_paused),
        trial("migration_fails_with_the_target_launcher", fails_with_the_target_launcher),
    ]
}

/// What takes the agent of a node.
pub(crate) fn trials_alone() -> Vec<Trial> {
    vec![long("migration_fails_with_the_source_handler", fails_with_the_source_handler)]
}

/// What leaves behind it connections of the second node that have yet to be found dead.
pub(crate) fn trials_last() -> Vec<Trial> {
    vec![long("migration_fails_with_the_link", fails_with_the_link)]
}

fn moves_to_and_fro() -> Result<()> {
    with_mover(|mover| {
        let mut console = mover.console()?;
        for _ in 0..5 {
            mover.move_with(&mut console)?;
        }
        console.leave()
    })
}

fn moves_a_busy_guest() -> Result<()> {
    with_mover(|mover| {
        let mut console = mover.console()?;
        let busy = "(while :; do dd if=/dev/zero of=/dev/shm/dirty bs=1M count=24 conv=notrunc 2>/dev/null; done) & dirtier=$!";
        let (_, code) = console.run(busy)?;
        ensure!(code == 0);
        mover.move_with(&mut console)?;
        let (shown, code) = console.run("kill $dirtier && rm /dev/shm/dirty")?;
        ensure!(code == 0, "what changed its memory is gone: {shown}");
        console.leave()
    })
}

fn leaves_a_paused_guest_paused() -> Result<()> {
    with_mover(|mover| {
        mover.space.virtctl(&["pause", "vmi", NAME])?;
        mover.space.wait_for(SOON, "vmi", NAME, "was Paused", |vmi| holds(vmi, "Paused"))?;
        let from = mover.node()?;
        let name = mover.leave()?;
        mover.ended(&name, "Succeeded")?;
        mover.alone()?;
        ensure!(mover.node()? != from, "it is still on {from}");
        throughout(Duration::from_secs(3), || {
            ensure!(holds(&mover.vmi()?, "Paused"), "it is no longer paused");
            Ok(())
        })?;
        mover.space.virtctl(&["unpause", "vmi", NAME])?;
        mover.space.wait_for(SOON, "vmi", NAME, "was not Paused", |vmi| !holds(vmi, "Paused"))?;
        mover.unharmed()
    })
}

fn target_pod(mover: &Mover, vmi: &Value) -> Result<Value> {
    mover.space.get("pod", vmi["status"]["migrationState"]["targetPod"].as_str().unwrap_or_default())
}

fn fails_with_the_target_launcher() -> Result<()> {
    with_mover(|mover| {
        mover.disturbed(|mover, migration, vmi| {
            node::process(uid(&target_pod(mover, vmi)?), "virt-launcher")?.kill()?;
            mover.ended(migration, "Failed").map(drop)
        })
    })
}

fn fails_with_the_source_handler() -> Result<()> {
    with_mover(|mover| {
        mover.disturbed(|mover, migration, vmi| {
            let on = vmi["status"]["nodeName"].as_str().unwrap_or_default();
            two_nodes::handler(on)?.kill()?;
            mover.ended(migration, "Failed").map(drop)
        })
    })
}

fn fails_with_the_link() -> Result<()> {
    with_mover(|mover| {
        // What is cut off is the target: the other node has the control plane.
        mover.go_to(two_nodes::FIRST)?;
        mover.disturbed(|mover, migration, _| {
            ferrovirt(&["node", "cut", two_nodes::SECOND])?;
            // Its connections are found dead, and the guest goes on while the node is still away.
            let broken = until("the way to be given up", BOOT, || {
                Ok(mover.vmi()?["status"]["migrationState"]["endTimestamp"].is_string().then_some(()))
            });
            ferrovirt(&["node", "heal", two_nodes::SECOND])?;
            broken?;
            mover.ended(migration, "Failed").map(drop)
        })
    })
}
