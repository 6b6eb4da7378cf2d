//! What cannot work is refused when it is applied: the exact sentences that a user reads.

use anyhow::{Result, ensure};
use e2e::{Namespace, machine};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bad_machines_are_refused_with_the_field", bad_machines_are_refused_with_the_field),
        trial("a_volume_without_a_disk_gets_one", a_volume_without_a_disk_gets_one),
    ]
}

/// Applies a machine that `change` spoilt, and expects this complaint.
fn check(space: &Namespace, change: impl FnOnce(&mut Value), expect: &str) -> Result<()> {
    let mut vm = machine::on_disk("bad", "Always");
    change(&mut vm);
    let complaint = space.refused(&vm)?;
    ensure!(complaint == expect, "expected: {expect}\n   found: {complaint}");
    ensure!(space.get("vm", "bad")?.is_null(), "the machine is there all the same");
    Ok(())
}

const STRICT: &str = "Error from server (BadRequest): error when creating \"STDIN\": VirtualMachine in version \"v1\" cannot be \
                      handled as a VirtualMachine: strict decoding error: ";

fn bad_machines_are_refused_with_the_field() -> Result<()> {
    let space = &Namespace::new("bad")?;
    check(
        space,
        |vm| machine::domain(vm)["memmory"] = json!({ "guest": "1Gi" }),
        &format!("{STRICT}unknown field \"spec.template.spec.domain.memmory\": did you mean memory?"),
    )?;
    check(
        space,
        |vm| machine::domain(vm)["devices"]["disks"][0]["frobnicate"] = json!(true),
        &format!("{STRICT}unknown field \"spec.template.spec.domain.devices.disks[0].frobnicate\""),
    )?;
    check(
        space,
        |vm| machine::domain(vm)["cpu"] = json!({ "sockets": 16, "cores": 16, "threads": 2 }),
        "The request is invalid: spec.template.spec.domain.cpu: spec.template.spec.domain.cpu: 16 sockets x 16 cores x 2 \
         threads are 512 virtual CPUs, more than the 255 a machine can have: lower one of them",
    )?;
    check(
        space,
        |vm| machine::domain(vm)["cpu"] = json!({ "cores": -1 }),
        "The request is invalid: spec.template.spec.domain.cpu.cores: spec.template.spec.domain.cpu.cores must be greater \
         than 0",
    )?;
    check(
        space,
        |vm| machine::domain(vm)["devices"]["disks"][0]["name"] = json!("boot"),
        "The request is invalid: spec.template.spec.domain.devices.disks[0].name: \
         spec.template.spec.domain.devices.disks[0].Name 'boot' not found: add a volume of this name to \
         spec.template.spec.volumes, or correct the disk's name",
    )?;
    check(
        space,
        |vm| machine::spec(vm)["volumes"][1]["name"] = json!("root"),
        "The request is invalid: \n\
         * spec.template.spec.volumes[1].name: spec.template.spec.volumes[1].name and spec.template.spec.volumes[0].name must \
         not have the same Name: \"root\" names one volume\n\
         * spec.template.spec.domain.devices.disks[1].name: spec.template.spec.domain.devices.disks[1].Name 'seed' not found: \
         add a volume of this name to spec.template.spec.volumes, or correct the disk's name",
    )?;
    check(
        space,
        |vm| machine::domain(vm)["memory"]["guest"] = json!("900k"),
        "The request is invalid: spec.template.spec.domain.memory.guest: spec.template.spec.domain.memory.guest '900k': must \
         be greater than or equal to 1M.",
    )?;
    check(
        space,
        |vm| vm["spec"]["runStrategy"] = json!("Sometimes"),
        "The request is invalid: spec.runStrategy: Invalid RunStrategy (Sometimes): use one of Halted, Manual, Always, \
         RerunOnFailure, Once",
    )?;
    check(
        space,
        |vm| vm["spec"]["runStrategy"] = json!("WaitAsReceiver"),
        "The request is invalid: spec.runStrategy: spec.runStrategy WaitAsReceiver cannot be used in this version: no machine is \
         received from another cluster, and its guest would boot: use Halted, Manual, Always, RerunOnFailure or Once",
    )?;
    check(
        space,
        |vm| vm["spec"]["running"] = json!(true),
        "The request is invalid: spec.running: Running and RunStrategy are mutually exclusive. Note that Running is \
         deprecated, please use RunStrategy instead",
    )
}

/// As in KubeVirt: who names a volume wants it in the guest.
fn a_volume_without_a_disk_gets_one() -> Result<()> {
    let space = Namespace::new("volume")?;
    let mut vm = machine::on_kernel("volume", "Always");
    machine::spec(&mut vm)["volumes"] = json!([{ "name": "data", "emptyDisk": { "capacity": "64Mi" } }]);
    space.apply(&vm)?;
    let vmi = space.wait("vmi", "volume", "ran", |vmi| machine::phase(vmi) == "Running")?;
    ensure!(vmi["spec"]["domain"]["devices"]["disks"][0]["name"] == "data", "{}", vmi["spec"]);
    let vmi = space.wait("vmi", "volume", "had its disk", |vmi| !vmi["status"]["volumeStatus"][0].is_null())?;
    let volume = &vmi["status"]["volumeStatus"][0];
    ensure!(volume["name"] == "data" && volume["size"] == 64 << 20, "{volume}");
    Ok(())
}
