//! What becomes of a machine whose guest shut itself down, or whose QEMU died, under each run strategy.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machine::{self, phase, uid, word};
use e2e::wait::{SOON, throughout, until};
use e2e::{Console, Namespace, node};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("run_strategy_always", always),
        long("run_strategy_rerun_on_failure", rerun_on_failure),
        long("run_strategy_manual", manual),
        long("run_strategy_once", once),
        trial("run_strategy_halted", halted),
        long("run_strategy_by_the_older_running", by_the_older_running),
    ]
}

const NAME: &str = "vm";

fn runs(space: &Namespace) -> Result<Value> {
    space.wait("vmi", NAME, "ran", |vmi| phase(vmi) == "Running")
}

fn runs_anew(space: &Namespace, before: &Value) -> Result<Value> {
    space.wait("vmi", NAME, "ran anew", |vmi| phase(vmi) == "Running" && uid(vmi) != uid(before))
}

/// Shuts the guest down from within.
fn power_off(space: &Namespace) -> Result<()> {
    let mut console = Console::open(space, NAME)?;
    console.log_in("root", "guest")?;
    console.type_in("poweroff\r")?;
    let (code, shown) = console.end()?;
    ensure!(code == Some(0) && shown.contains("disconnected"), "{code:?}: {shown:?}");
    Ok(())
}

/// Ends QEMU as a crash would.
fn crash(vmi: &Value) -> Result<()> {
    node::process(machine::pod_uid(vmi), "qemu-system-x86_64")?.kill()
}

fn ended_well(space: &Namespace, before: &Value) -> Result<()> {
    let vmi = space.wait("vmi", NAME, "Succeeded", |vmi| phase(vmi) == "Succeeded")?;
    ensure!(uid(&vmi) == uid(before), "another instance succeeded");
    let vm = space.wait_for(SOON, "vm", NAME, "said Stopped", |vm| word(vm) == "Stopped")?;
    ensure!(vm["status"]["ready"] == false, "{}", vm["status"]);
    Ok(())
}

/// Nothing happens that nobody asked for.
fn stays(space: &Namespace, check: impl Fn(&Value) -> bool) -> Result<()> {
    throughout(Duration::from_secs(5), || {
        let vmi = space.get("vmi", NAME)?;
        ensure!(check(&vmi), "the instance changed by itself: {vmi}");
        Ok(())
    })
}

fn always() -> Result<()> {
    let space = Namespace::new("always")?;
    space.apply(&machine::on_kernel(NAME, "Always"))?;
    let first = runs(&space)?;
    power_off(&space)?;
    let second = runs_anew(&space, &first)?;
    let vm = space.get("vm", NAME)?;
    ensure!(vm["spec"]["runStrategy"] == "Always" && vm["status"]["startFailure"].is_null(), "{vm}");
    let refused = space.virtctl_refused(&["start", NAME])?;
    ensure!(refused.contains("VM is already running"), "{refused}");

    crash(&second)?;
    // Until it starts again, which is soon; the reason comes by an event.
    let mut backs_off = false;
    until("the crash to be told and explained", SOON, || {
        backs_off |= word(&space.get("vm", NAME)?) == "CrashLoopBackOff";
        let explained = space.virtctl(&["explain", NAME])?;
        ensure!(explained.contains("it failed to start once, the last time because"), "{explained}");
        Ok(backs_off.then_some(()))
    })?;
    let failure = &space.get("vm", NAME)?["status"]["startFailure"];
    ensure!(failure["consecutiveFailCount"] == 1 && failure["lastFailedVMIUID"] == uid(&second), "{failure}");
    runs_anew(&space, &second)?;
    space.wait_for(SOON, "vm", NAME, "said Running", |vm| word(vm) == "Running")?;
    Ok(())
}

fn rerun_on_failure() -> Result<()> {
    let space = Namespace::new("rerun")?;
    space.apply(&machine::on_kernel(NAME, "RerunOnFailure"))?;
    let first = runs(&space)?;
    crash(&first)?;
    let told = space.event("VirtualMachineInstance", NAME, "Stopped")?;
    ensure!(told == "The VirtualMachineInstance failed: the guest crashed.", "{told}");
    space.wait_for(SOON, "vm", NAME, "said CrashLoopBackOff", |vm| word(vm) == "CrashLoopBackOff")?;
    runs_anew(&space, &first)?;

    power_off(&space)?;
    space.wait("vmi", NAME, "was taken away", Value::is_null)?;
    stays(&space, Value::is_null)?;
    let vm = space.get("vm", NAME)?;
    ensure!(word(&vm) == "Stopped", "a guest that shut itself down is not looping: {}", vm["status"]);
    space.virtctl(&["start", NAME])?;
    runs(&space)?;
    Ok(())
}

fn manual() -> Result<()> {
    let space = Namespace::new("manual")?;
    space.apply(&machine::on_kernel(NAME, "Manual"))?;
    space.wait_for(SOON, "vm", NAME, "said Stopped", |vm| word(vm) == "Stopped")?;
    ensure!(space.get("vmi", NAME)?.is_null(), "it started by itself");
    space.virtctl(&["start", NAME])?;
    let first = runs(&space)?;
    power_off(&space)?;
    ended_well(&space, &first)?;
    stays(&space, |vmi| phase(vmi) == "Succeeded")?;
    space.virtctl(&["start", NAME])?;
    let second = runs_anew(&space, &first)?;

    crash(&second)?;
    let vmi = space.wait("vmi", NAME, "Failed", |vmi| phase(vmi) == "Failed")?;
    ensure!(vmi["status"]["reason"] == "the guest crashed", "{}", vmi["status"]);
    stays(&space, |vmi| phase(vmi) == "Failed" && uid(vmi) == uid(&second))?;
    let vm = space.get("vm", NAME)?;
    ensure!(vm["spec"]["runStrategy"] == "Manual", "{}", vm["spec"]);
    Ok(())
}

fn once() -> Result<()> {
    let space = Namespace::new("once")?;
    space.apply(&machine::on_kernel(NAME, "Once"))?;
    let first = runs(&space)?;
    power_off(&space)?;
    ended_well(&space, &first)?;
    stays(&space, |vmi| phase(vmi) == "Succeeded" && uid(vmi) == uid(&first))?;
    let refused = space.virtctl_refused(&["start", NAME])?;
    ensure!(refused.contains("Once does not support manual start requests"), "{refused}");
    Ok(())
}

fn halted() -> Result<()> {
    let space = Namespace::new("halted")?;
    space.apply(&machine::on_kernel(NAME, "Halted"))?;
    space.wait_for(SOON, "vm", NAME, "said Stopped", |vm| word(vm) == "Stopped")?;
    stays(&space, Value::is_null)?;
    let refused = space.virtctl_refused(&["restart", NAME])?;
    ensure!(refused.contains("Halted does not support manual restart requests"), "{refused}");
    space.virtctl(&["start", NAME, "--paused"])?;
    let vmi = space.wait("vmi", NAME, "was Paused", |vmi| machine::holds(vmi, "Paused"))?;
    ensure!(phase(&vmi) == "Running", "{vmi}");
    let vm = space.get("vm", NAME)?;
    ensure!(vm["spec"]["runStrategy"] == "Always", "{}", vm["spec"]);
    space.virtctl(&["unpause", "vm", NAME])?;
    space.wait_for(SOON, "vm", NAME, "said Running", |vm| word(vm) == "Running")?;
    let grace = json!({ "spec": { "template": { "spec": { "terminationGracePeriodSeconds": 2 } } } });
    space.patch("vm", NAME, &grace)?;
    space.wait_for(SOON, "vm", NAME, "needed a restart", |vm| machine::holds(vm, "RestartRequired"))?;
    space.virtctl(&["restart", NAME, "--grace-period=0", "--force"])?;
    let second = runs_anew(&space, &vmi)?;
    space.wait_for(SOON, "vm", NAME, "needed none", |vm| machine::condition(vm, "RestartRequired").is_null())?;
    space.patch("vm", NAME, &json!({ "spec": { "runStrategy": "Halted" } }))?;
    space.wait("vmi", NAME, "was gone", |vmi| vmi.is_null() || uid(vmi) != uid(&second))?;
    space.wait_for(SOON, "vm", NAME, "said Stopped", |vm| word(vm) == "Stopped")?;
    Ok(())
}

fn by_the_older_running() -> Result<()> {
    let space = Namespace::new("running")?;
    let mut vm = machine::on_kernel(NAME, "Always");
    if let Some(spec) = vm["spec"].as_object_mut() {
        spec.remove("runStrategy");
    }
    vm["spec"]["running"] = json!(false);
    space.apply(&vm)?;
    space.wait_for(SOON, "vm", NAME, "said Stopped", |vm| word(vm) == "Stopped")?;
    space.virtctl(&["start", NAME])?;
    let first = runs(&space)?;
    let vm = space.get("vm", NAME)?;
    ensure!(vm["spec"]["running"] == true && vm["spec"]["runStrategy"].is_null(), "{}", vm["spec"]);
    power_off(&space)?;
    runs_anew(&space, &first)?;
    space.patch("vm", NAME, &json!({ "spec": { "running": false } }))?;
    space.wait("vmi", NAME, "was gone", Value::is_null)?;
    stays(&space, Value::is_null)
}
