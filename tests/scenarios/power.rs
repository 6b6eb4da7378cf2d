//! Pause, soft reboot, reset and restart of a guest that runs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::Guest;
use e2e::guest::NAME;
use e2e::machine::{condition, holds, phase, uid, word};
use e2e::node;
use e2e::wait::{BOOT, SOON, throughout, until};
use libtest_mimic::Trial;

use crate::shared::with_guest;
use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("pause_stops_the_guests_time", pause_stops_the_guests_time),
        long("soft_reboot_boots_the_guest_again", soft_reboot_boots_the_guest_again),
        long("reset_boots_the_guest_again", reset_boots_the_guest_again),
        trial("restart_makes_a_new_instance", restart_makes_a_new_instance),
    ]
}

fn uptime(guest: &Guest) -> Result<f64> {
    let text = guest.ssh("cat /proc/uptime")?;
    text.split(' ').next().unwrap_or_default().parse().with_context(|| format!("{text:?} is no uptime"))
}

fn pause_stops_the_guests_time() -> Result<()> {
    with_guest(|guest| {
        let space = &guest.space;
        let (wall, before) = (Instant::now(), uptime(guest)?);
        space.virtctl(&["pause", "vm", NAME])?;
        let vmi = space.wait_for(SOON, "vmi", NAME, "was Paused", |vmi| holds(vmi, "Paused"))?;
        let paused = Instant::now();
        let reason = condition(&vmi, "Paused");
        ensure!(reason["reason"] == "PausedByUser" && reason["message"] == "VMI was paused by user", "{reason}");
        ensure!(phase(&vmi) == "Running", "{vmi}");
        space.wait_for(SOON, "vm", NAME, "said Paused", |vm| word(vm) == "Paused" && holds(vm, "Paused"))?;
        told(guest, "Paused", "VirtualMachineInstance paused")?;
        // Nobody is sent to a guest that does not answer.
        space.wait_for(SOON, "vmi", NAME, "was not Ready", |vmi| condition(vmi, "Ready")["status"] == "False")?;
        let refused = space.virtctl_refused(&["pause", "vmi", NAME])?;
        ensure!(refused.contains("VMI is already paused"), "{refused}");
        let refused = space.virtctl_refused(&["soft-reboot", NAME])?;
        ensure!(refused.contains("VMI is paused"), "{refused}");
        throughout(Duration::from_secs(8), || Ok(()))?;
        let stood = paused.elapsed();
        space.virtctl(&["unpause", "vm", NAME])?;
        space
            .wait_for(SOON, "vm", NAME, "ran again", |vm| word(vm) == "Running" && condition(vm, "Paused").is_null())?;
        told(guest, "Unpaused", "VirtualMachineInstance unpaused")?;
        guest.wait_until_usable()?;
        let (after, passed) = (uptime(guest)?, wall.elapsed().as_secs_f64());
        let lived = after - before;
        ensure!(
            lived <= passed - stood.as_secs_f64() + 1.0,
            "the guest lived {lived} s of {passed} s, paused for {stood:?}"
        );
        let refused = space.virtctl_refused(&["unpause", "vmi", NAME])?;
        ensure!(refused.contains("VMI is not paused"), "{refused}");
        Ok(())
    })
}

/// The event of what was done to the guest.
fn told(guest: &Guest, reason: &str, message: &str) -> Result<()> {
    let found = guest.space.event("VirtualMachineInstance", NAME, reason)?;
    ensure!(found == message, "{reason}: {found}");
    Ok(())
}

/// The guest boots again in the same QEMU, and so in the same instance.
fn boots_again(guest: &Guest, verb: &str) -> Result<()> {
    let (vmi, boot) = (guest.vmi()?, guest.boot_id()?);
    let qemu = node::process(e2e::machine::pod_uid(&vmi), "qemu-system-x86_64")?;
    guest.space.virtctl(&[verb, NAME])?;
    until("another boot", BOOT, || {
        let target = format!("guest@vm/{NAME}");
        let output = guest.virtctl_with_key("ssh", &[&target, "--command", "cat /proc/sys/kernel/random/boot_id"])?;
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok((output.status.success() && !id.is_empty() && id != boot).then_some(()))
    })?;
    let after = guest.wait_until_usable()?;
    ensure!(uid(&after) == uid(&vmi), "{verb} made another instance");
    ensure!(qemu.lives(), "{verb} ended QEMU");
    Ok(())
}

fn soft_reboot_boots_the_guest_again() -> Result<()> {
    with_guest(|guest| {
        boots_again(guest, "soft-reboot")?;
        told(guest, "SoftRebooted", "VirtualMachineInstance soft rebooted")
    })
}

fn reset_boots_the_guest_again() -> Result<()> {
    with_guest(|guest| {
        boots_again(guest, "reset")?;
        told(guest, "Reset", "VirtualMachineInstance reset")
    })
}

fn restart_makes_a_new_instance() -> Result<()> {
    with_guest(|guest| {
        let before = guest.vmi()?;
        guest.space.virtctl(&["restart", NAME])?;
        guest.space.wait("vmi", NAME, "was another", |vmi| !vmi.is_null() && uid(vmi) != uid(&before))?;
        guest.wait_until_usable()?;
        let vm = guest.space.get("vm", NAME)?;
        ensure!(vm["status"]["stateChangeRequests"].is_null(), "{}", vm["status"]);
        ensure!(vm["spec"]["runStrategy"] == "Always", "{}", vm["spec"]);
        guest.page().map(drop)
    })
}
