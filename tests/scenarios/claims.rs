//! Disks on claims: they outlive the guest, belong to one guest at a time, and are waited for.

use anyhow::{Result, ensure};
use e2e::hostpath::{CLASS, DRIVER, Hostpath, claim};
use e2e::machine::{self, condition, holds, phase, uid};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("disks_on_claims", disks_on_claims)]
}

/// A guest on a claim with a file system, on one that is a device, and on a layer over a third.
fn keeper(name: &str) -> Value {
    let mut vm = machine::on_kernel(name, "Always");
    let on = |claim: &str| json!({ "persistentVolumeClaim": { "claimName": claim } });
    machine::add_disk(&mut vm, "file", on("file"));
    machine::add_disk(&mut vm, "device", json!({ "dataVolume": { "name": "device" } }));
    vm
}

fn disks_on_claims() -> Result<()> {
    let _driver = Hostpath::install(DRIVER, CLASS, &json!({}))?;
    let space = Namespace::new("claims")?;
    space.apply(&keeper("first"))?;
    let vm = space.wait("vm", "first", "waited for its claim", |vm| machine::word(vm) == "ErrorPvcNotFound")?;
    let said = condition(&vm, "Synchronized")["message"].clone();
    ensure!(said == "PVC e2e-claims/file does not exist, waiting for it to appear", "{said}");
    space.apply(&claim("file", "Filesystem", "64Mi"))?;
    space.apply(&claim("device", "Block", "32Mi"))?;
    let vmi = space.wait("vmi", "first", "ran", |vmi| phase(vmi) == "Running")?;
    let status = |name: &str| {
        let all = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|status| status["name"] == name).unwrap_or_default()
    };
    ensure!(status("file")["persistentVolumeClaimInfo"]["capacity"]["storage"] == "64Mi", "{}", status("file"));
    ensure!(status("device")["persistentVolumeClaimInfo"]["volumeMode"] == "Block", "{}", status("device"));

    let mut console = Console::open(&space, "first")?;
    console.log_in("root", "guest")?;
    let (sizes, _) = console.run("cat /sys/block/vda/size /sys/block/vdb/size | tr '\\n' ' '")?;
    ensure!(sizes.trim() == "131072 65536", "sectors: {sizes}");
    let (_, code) = console.run("echo on a file > /dev/vda; echo on a device > /dev/vdb; sync")?;
    ensure!(code == 0, "nothing could be written");
    console.leave()?;

    // Another guest on the same disks waits, whichever kind they are, and writes nothing.
    space.apply(&keeper("second"))?;
    let waits = |vmi: &Value| {
        let said = condition(vmi, "Synchronized")["message"].as_str().unwrap_or_default().to_owned();
        said.contains("in use by another virtual machine")
    };
    space.wait("vmi", "second", "waited for its disks", waits)?;
    let mut alone = machine::on_kernel("third", "Always");
    machine::add_disk(&mut alone, "file", json!({ "persistentVolumeClaim": { "claimName": "file" } }));
    space.apply(&alone)?;
    space.wait("vmi", "third", "waited for its disk", waits)?;
    space.kubectl(&["delete", "vm", "third"])?;

    // It runs once the first has ended, and finds what that one wrote.
    space.virtctl(&["stop", "first"])?;
    let vmi = space.wait("vmi", "second", "ran", |vmi| phase(vmi) == "Running")?;
    ensure!(condition(&vmi, "Synchronized")["status"] != "False", "{}", vmi["status"]);
    let mut console = Console::open(&space, "second")?;
    console.log_in("root", "guest")?;
    let (found, _) = console.run("head -n 1 /dev/vda; head -n 1 /dev/vdb")?;
    ensure!(found.contains("on a file") && found.contains("on a device"), "{found}");
    console.leave()?;
    space.virtctl(&["stop", "second"])?;
    space.wait("vm", "second", "stopped", |vm| machine::word(vm) == "Stopped")?;

    // A layer takes what is written, and goes with the guest.
    let mut layered = machine::on_kernel("layered", "Manual");
    for name in ["file", "device"] {
        machine::add_disk(
            &mut layered,
            name,
            json!({ "ephemeral": { "persistentVolumeClaim": { "claimName": name } } }),
        );
    }
    space.apply(&layered)?;
    let mut before = String::new();
    for _ in 0..2 {
        space.virtctl(&["start", "layered"])?;
        let another = |vmi: &Value| phase(vmi) == "Running" && uid(vmi) != before && !holds(vmi, "Paused");
        let vmi = space.wait("vmi", "layered", "ran", another)?;
        before = uid(&vmi).to_owned();
        let mut console = Console::open(&space, "layered")?;
        console.log_in("root", "guest")?;
        let (found, _) = console.run("head -n 1 /dev/vda; head -n 1 /dev/vdb")?;
        ensure!(found.contains("on a file") && found.contains("on a device"), "{found}");
        console.run("echo spoilt > /dev/vda; echo spoilt > /dev/vdb; sync")?;
        console.leave()?;
        space.virtctl(&["stop", "layered"])?;
        let stopped = |vm: &Value| {
            let asked = vm["status"]["stateChangeRequests"].as_array().is_some_and(|asked| !asked.is_empty());
            machine::word(vm) == "Stopped" && vm["status"]["created"] != true && !asked
        };
        space.wait("vm", "layered", "stopped", stopped)?;
    }
    space.kubectl(&["delete", "vm", "--all"])?;
    space.kubectl(&["delete", "pvc", "--all"]).map(drop)
}
