//! Components die and come back: guests do not notice. Launchers and QEMU die: machines do what their run strategy says.

use anyhow::{Result, ensure};
use e2e::guest::NAME;
use e2e::machine::{self, holds, phase, uid};
use e2e::wait::{SOON, until};
use e2e::{Guest, Namespace, node};
use libtest_mimic::Trial;

use crate::component::{VIRT_CONTROLLER, VIRT_HANDLER};
use crate::shared::with_guest;
use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("guests_outlive_virt_handler", guests_outlive_virt_handler),
        long("guests_outlive_the_pod_of_virt_handler", guests_outlive_the_pod_of_virt_handler),
        trial("guests_outlive_virt_controller", guests_outlive_virt_controller),
        long("a_dead_launcher_fails_the_instance", a_dead_launcher_fails_the_instance),
        trial("a_dead_qemu_fails_the_instance", a_dead_qemu_fails_the_instance),
    ]
}

/// What must be the same before and after.
#[derive(Debug, PartialEq)]
pub(crate) struct Life {
    instance: String,
    qemu: node::Process,
    pub(crate) boot: String,
}

pub(crate) fn life(guest: &Guest) -> Result<Life> {
    let vmi = guest.wait_until_usable()?;
    let qemu = node::process(machine::pod_uid(&vmi), "qemu-system-x86_64")?;
    Ok(Life { instance: uid(&vmi).to_owned(), qemu, boot: guest.boot_id()? })
}

/// The guest lives the life it lived, and everything that goes through virt-handler works again.
pub(crate) fn unharmed(guest: &Guest, before: &Life) -> Result<()> {
    let after = life(guest)?;
    ensure!(after == *before, "before: {before:?}\nafter: {after:?}");
    let mut console = guest.console()?;
    // A whole new lease, from whoever answers now; what it says is not used.
    let (lease, code) = console.run("busybox udhcpc -i eth0 -n -q -f -s /bin/true 2>&1")?;
    ensure!(code == 0 && lease.contains("lease of 10.0.2.2 obtained"), "{code}: {lease:?}");
    console.log_out()?;
    console.leave()?;
    guest.page()?;
    guest.space.virtctl(&["pause", "vmi", NAME])?;
    guest.space.wait_for(SOON, "vmi", NAME, "was Paused", |vmi| holds(vmi, "Paused"))?;
    guest.space.virtctl(&["unpause", "vmi", NAME])?;
    guest.space.wait_for(SOON, "vmi", NAME, "was not Paused", |vmi| !holds(vmi, "Paused"))?;
    Ok(())
}

fn guests_outlive_virt_handler() -> Result<()> {
    with_guest(|guest| {
        let before = life(guest)?;
        let mut console = guest.console()?;
        console.run("export WITNESS=here")?;
        VIRT_HANDLER.kill()?;
        // The console comes back by itself, in the shell that was left.
        console.expect(&["connection lost, connecting again"], SOON)?;
        console.expect(&["Successfully connected"], SOON)?;
        until("the shell", SOON, || {
            console.type_in("\r")?;
            Ok(console.run("echo $WITNESS").ok().filter(|(text, _)| text == "here").map(drop))
        })?;
        console.log_out()?;
        console.leave()?;
        unharmed(guest, &before)
    })
}

fn guests_outlive_the_pod_of_virt_handler() -> Result<()> {
    with_guest(|guest| {
        let before = life(guest)?;
        VIRT_HANDLER.delete()?;
        unharmed(guest, &before)
    })
}

fn guests_outlive_virt_controller() -> Result<()> {
    with_guest(|guest| {
        let before = life(guest)?;
        VIRT_CONTROLLER.kill()?;
        // It works again: a machine is started and taken away.
        let space = Namespace::new("controller")?;
        space.apply(&machine::on_kernel("new", "Always"))?;
        space.wait("vmi", "new", "ran", |vmi| phase(vmi) == "Running")?;
        let after = life(guest)?;
        ensure!(after == before, "before: {before:?}\nafter: {after:?}");
        space.event("VirtualMachine", "new", "SuccessfulCreate")?;
        Ok(())
    })
}

/// An instance whose `program` was killed: Failed for this reason, and nothing of it runs.
fn falls(space: &Namespace, program: &str, reason: &str) -> Result<()> {
    space.apply(&machine::on_kernel("fallen", "Once"))?;
    let vmi = space.wait("vmi", "fallen", "ran", |vmi| phase(vmi) == "Running")?;
    let pod = machine::pod_uid(&vmi);
    node::process(pod, program)?.kill()?;
    let vmi = space.wait_for(SOON, "vmi", "fallen", "Failed", |vmi| phase(vmi) == "Failed")?;
    ensure!(vmi["status"]["reason"] == reason, "{}", vmi["status"]);
    let told = space.event("VirtualMachineInstance", "fallen", "Stopped")?;
    ensure!(told == format!("The VirtualMachineInstance failed: {reason}."), "{told}");
    until("nothing of the pod to run", SOON, || Ok(node::processes(pod)?.is_empty().then_some(())))?;
    let explained = space.virtctl(&["explain", "fallen"])?;
    let expect = format!("its guest failed: {reason}, and its run strategy Once starts it a single time");
    ensure!(explained.contains(&expect), "{explained}");
    Ok(())
}

fn a_dead_launcher_fails_the_instance() -> Result<()> {
    falls(&Namespace::new("launcher")?, "virt-launcher", "the launcher ended while the guest ran")
}

fn a_dead_qemu_fails_the_instance() -> Result<()> {
    falls(&Namespace::new("qemu")?, "qemu-system-x86_64", "the guest crashed")
}
