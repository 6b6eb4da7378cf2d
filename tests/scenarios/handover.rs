//! The worst moment to lose a node: a guest was handed over to it, and nobody has said whether it runs there.

use anyhow::{Context, Result, ensure};
use e2e::machine::{phase, uid};
use e2e::wait::SOON;
use e2e::{ferrovirt, node};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::long;
use crate::mover::{Mover, NAME, Policy, with_mover};
use crate::two_nodes::{self, FIRST, SECOND};

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("a_source_outlives_its_lost_target", a_source_outlives_its_lost_target)]
}

fn progress(vmi: &Value) -> Value {
    let text = vmi["metadata"]["annotations"]["ferrovirt.io/migration-progress"].as_str().unwrap_or("{}");
    serde_json::from_str(text).unwrap_or_default()
}

/// Stops the target's libvirt: the guest is sent to the end, and is never told to run.
fn stop_short_of_the_end(mover: &Mover, vmi: &Value) -> Result<()> {
    let pod = vmi["status"]["migrationState"]["targetPod"].as_str().context("no target pod")?;
    let libvirt = node::process(uid(&mover.space.get("pod", pod)?), "libvirtd")?;
    let pid = Pid::from_raw(libvirt.pid).context("a process id is positive")?;
    kill_process(pid, Signal::STOP).context("cannot stop the target's libvirtd")?;
    let sent = |vmi: &Value| {
        let progress = progress(vmi);
        progress["remaining"] == 0 && progress["processed"].as_u64() > Some(0)
    };
    let vmi = mover.space.wait("vmi", NAME, "was sent", sent)?;
    // A little later nothing has changed but the time.
    let then = progress(&vmi)["elapsed"].as_u64().unwrap_or_default() + 3000;
    let later = |vmi: &Value| sent(vmi) && progress(vmi)["elapsed"].as_u64() >= Some(then);
    mover.space.wait("vmi", NAME, "stood still", later).map(drop)
}

/// Whatever becomes of a scenario, the node is well afterwards.
struct Cut;

impl Drop for Cut {
    fn drop(&mut self) {
        let _ = ferrovirt(&["node", "heal", SECOND]);
    }
}

fn a_source_outlives_its_lost_target() -> Result<()> {
    with_mover(|mover| {
        mover.go_to(FIRST)?;
        let slow = Policy::new(&mover.space, &json!({ "bandwidthPerMigration": "16Mi" }))?;
        let migration = mover.leave()?;
        let vmi = mover.under_way()?;
        drop(slow);
        stop_short_of_the_end(mover, &vmi)?;
        ferrovirt(&["node", "cut", SECOND])?;
        let healed = Cut;
        mover.ended(&migration, "Failed")?;
        let job = uid(&mover.space.get("vmim", &migration)?).to_owned();
        let told = |vmi: &Value| vmi["metadata"]["annotations"]["ferrovirt.io/migration-target-fenced"] == job.as_str();
        mover.space.wait_for(2 * SOON, "vmi", NAME, "was told that its target can do no harm", told)?;
        let failed = |vmi: &Value| vmi["status"]["migrationState"]["failed"] == true;
        let vmi = mover.space.wait_for(2 * SOON, "vmi", NAME, "went on", failed)?;
        ensure!(phase(&vmi) == "Running" && vmi["status"]["nodeName"] == FIRST, "{}", vmi["status"]);
        mover.unharmed()?;
        // The target hears of it, and ends what it had received.
        drop(healed);
        two_nodes::ready()?;
        mover.stayed(FIRST)
    })
}
