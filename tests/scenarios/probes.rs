//! Probes of the guest: readiness is the machine's readiness, and a guest that lost its life is ended.

use anyhow::{Result, ensure};
use e2e::machine::{self, condition, holds, phase, uid};
use e2e::wait::{BOOT, SOON};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::json;

use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("readiness_follows_a_command_in_the_guest", readiness_follows_a_command_in_the_guest),
        long("liveness_ends_a_guest_that_lost_it", liveness_ends_a_guest_that_lost_it),
    ]
}

fn readiness_follows_a_command_in_the_guest() -> Result<()> {
    let space = Namespace::new("ready")?;
    let mut vm = machine::on_kernel("ready", "Always");
    let command = json!(["sh", "-c", "test -e /run/ready"]);
    machine::spec(&mut vm)["readinessProbe"] =
        json!({ "exec": { "command": command }, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1 });
    space.apply(&vm)?;
    let vmi = space.wait("vmi", "ready", "had booted", |vmi| holds(vmi, "AgentConnected"))?;
    let ready = condition(&vmi, "Ready");
    ensure!(ready["status"] == "False" && ready["reason"] == "ContainersNotReady", "{ready}");
    let mut console = Console::open(&space, "ready")?;
    console.log_in("root", "guest")?;
    console.run("touch /run/ready")?;
    space.wait_for(SOON, "vmi", "ready", "was Ready", |vmi| holds(vmi, "Ready"))?;
    space.wait_for(SOON, "vm", "ready", "was Ready", |vm| holds(vm, "Ready") && vm["status"]["ready"] == true)?;
    console.run("rm /run/ready")?;
    space.wait_for(SOON, "vmi", "ready", "was not Ready", |vmi| !holds(vmi, "Ready"))?;
    space.wait_for(SOON, "vm", "ready", "was not Ready", |vm| !holds(vm, "Ready") && vm["status"]["ready"] == false)?;
    console.leave()
}

fn liveness_ends_a_guest_that_lost_it() -> Result<()> {
    let space = Namespace::new("live")?;
    let mut vm = machine::on_kernel("live", "Always");
    machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(5);
    machine::spec(&mut vm)["livenessProbe"] = json!({ "guestAgentPing": {}, "initialDelaySeconds": 120, "periodSeconds": 2, "timeoutSeconds": 10, "failureThreshold": 3 });
    machine::spec(&mut vm)["readinessProbe"] =
        json!({ "guestAgentPing": {}, "periodSeconds": 2, "timeoutSeconds": 10 });
    space.apply(&vm)?;
    let first = space.wait("vmi", "live", "was Ready", |vmi| phase(vmi) == "Running" && holds(vmi, "Ready"))?;
    let refused = space.virtctl_refused(&["pause", "vmi", "live"])?;
    ensure!(refused.contains("Pausing VMIs with LivenessProbe is currently not supported"), "{refused}");
    let mut console = Console::open(&space, "live")?;
    console.log_in("root", "guest")?;
    console.run("killall qemu-ga")?;
    drop(console);
    space
        .wait_for(2 * BOOT, "vmi", "live", "was replaced", |vmi| phase(vmi) == "Running" && uid(vmi) != uid(&first))?;
    Ok(())
}
