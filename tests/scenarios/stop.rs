//! Stopping: by the power button, by the end of the grace period, at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::machine::{self, holds, phase, word};
use e2e::wait::SOON;
use e2e::{Console, Namespace, node};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("stop_presses_the_power_button", stop_presses_the_power_button),
        trial("stop_ends_a_deaf_guest_after_its_grace_period", stop_ends_a_deaf_guest_after_its_grace_period),
    ]
}

/// Waits until nothing of the instance is left.
fn gone(space: &Namespace, name: &str) -> Result<()> {
    space.wait("vmi", name, "was gone", Value::is_null)?;
    let vm = space.wait_for(SOON, "vm", name, "said Stopped", |vm| word(vm) == "Stopped")?;
    ensure!(vm["status"]["created"] == false && vm["status"]["ready"] == false, "{}", vm["status"]);
    Ok(())
}

fn stop_presses_the_power_button() -> Result<()> {
    let space = Namespace::new("stop")?;
    let mut vm = machine::on_disk("polite", "Always");
    machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(120);
    space.apply(&vm)?;
    space.wait("vmi", "polite", "had booted", |vmi| holds(vmi, "AgentConnected"))?;
    let asked = Instant::now();
    space.virtctl(&["stop", "polite"])?;
    space.wait_for(SOON, "vm", "polite", "said Stopping", |vm| word(vm) == "Stopping")?;
    gone(&space, "polite")?;
    ensure!(asked.elapsed() < Duration::from_secs(60), "the guest took {:?} to shut down", asked.elapsed());
    let told = space.event("VirtualMachineInstance", "polite", "ShuttingDown")?;
    ensure!(told == "Signaled Graceful Shutdown", "{told}");
    let told = space.event("VirtualMachineInstance", "polite", "Stopped")?;
    ensure!(told == "The VirtualMachineInstance was shut down.", "{told}");
    let vm = space.get("vm", "polite")?;
    ensure!(vm["spec"]["runStrategy"] == "Halted", "{}", vm["spec"]);
    let refused = space.virtctl_refused(&["stop", "polite"])?;
    ensure!(refused.contains("VM is not running"), "{refused}");
    Ok(())
}

fn stop_ends_a_deaf_guest_after_its_grace_period() -> Result<()> {
    const GRACE: Duration = Duration::from_secs(8);
    let space = Namespace::new("deaf")?;
    let mut vm = machine::on_kernel("deaf", "Always");
    machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(GRACE.as_secs());
    space.apply(&vm)?;
    let vmi = space.wait("vmi", "deaf", "had booted", |vmi| holds(vmi, "AgentConnected"))?;
    let qemu = node::process(machine::pod_uid(&vmi), "qemu-system-x86_64")?;
    let mut console = Console::open(&space, "deaf")?;
    console.log_in("root", "guest")?;
    console.run("killall acpid qemu-ga")?;
    space.wait("vmi", "deaf", "had lost its agent", |vmi| !holds(vmi, "AgentConnected"))?;
    console.leave()?;

    let asked = Instant::now();
    space.virtctl(&["stop", "deaf"])?;
    e2e::wait::until("the end of QEMU", SOON, || Ok((!qemu.lives()).then_some(())))?;
    let took = asked.elapsed();
    ensure!(took >= GRACE && took < GRACE + Duration::from_secs(10), "ended after {took:?}");
    gone(&space, "deaf")?;
    ensure!(asked.elapsed() < GRACE + Duration::from_secs(20), "gone after {:?}", asked.elapsed());
    let told = space.event("VirtualMachineInstance", "deaf", "Stopped")?;
    let expect = "The VirtualMachineInstance failed: the guest did not shut down in its grace period and was ended.";
    ensure!(told == expect, "{told}");

    // A firmware that looks for something to boot is deaf too, and has an hour this time.
    space.patch(
        "vm",
        "deaf",
        &json!({ "spec": { "template": { "spec": { "terminationGracePeriodSeconds": 3600 } } } }),
    )?;
    space.virtctl(&["start", "deaf"])?;
    let vmi = space.wait("vmi", "deaf", "ran again", |vmi| phase(vmi) == "Running")?;
    let qemu = node::process(machine::pod_uid(&vmi), "qemu-system-x86_64")?;
    let asked = Instant::now();
    space.virtctl(&["stop", "deaf", "--grace-period=0", "--force"])?;
    e2e::wait::until("the end of QEMU", SOON, || Ok((!qemu.lives()).then_some(())))?;
    ensure!(asked.elapsed() < Duration::from_secs(10), "ended after {:?}", asked.elapsed());
    gone(&space, "deaf")
}
