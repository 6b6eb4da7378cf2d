//! Disks that change under a running guest: media that are put in, exchanged and taken out; a claim that grows; a claim that
//! is given in place of another, while the guest reads and writes.

use anyhow::{Result, ensure};
use e2e::hostpath::Hostpath;
use e2e::machine::{self, condition, holds, phase};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::{backup, long, trial, two_nodes};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("disks_change_under_a_running_guest", || disks_change_under_a_running_guest("moves-test")),
        long("tracked_disks_change_under_a_running_guest", || {
            backup::track()?;
            disks_change_under_a_running_guest(TRACKED)
        }),
    ]
}

const NAME: &str = "changing";
/// The class of volumes of a guest whose changes are tracked: layers move and grow with its disks.
const TRACKED: &str = "moves-tracked";
/// What the guest writes without a pause, behind what is compared.
const WRITER: &str = "(while :; do dd if=/dev/urandom of=/dev/vda bs=64k count=16 seek=512 conv=notrunc 2>/dev/null; \
                      sleep 0.2; done) & true";

fn claim(class: &str, name: &str, mode: &str, size: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name }, "spec": {
        "storageClassName": class, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
        "resources": { "requests": { "storage": size } },
    } })
}

/// A machine with a disk on the claim `file` and an empty drive.
fn vm() -> Value {
    let mut vm = machine::on_kernel(NAME, "Always");
    vm["spec"]["updateVolumesStrategy"] = json!("Migration");
    machine::add_disk(&mut vm, "data", json!({ "persistentVolumeClaim": { "claimName": "file" } }));
    let drive = json!({ "name": "drive", "cdrom": { "bus": "sata" } });
    if let Some(disks) = machine::domain(&mut vm)["devices"]["disks"].as_array_mut() {
        disks.push(drive);
    }
    vm
}

/// Gives the template these volumes: a claim of the disk, and one of the drive.
fn names(space: &Namespace, data: &str, medium: Option<&str>) -> Result<()> {
    let mut volumes = vec![json!({ "name": "data", "persistentVolumeClaim": { "claimName": data } })];
    let medium = medium.map(|claim| json!({ "claimName": claim, "hotpluggable": true }));
    volumes.extend(medium.map(|claim| json!({ "name": "drive", "persistentVolumeClaim": claim })));
    space.patch("vm", NAME, &json!({ "spec": { "template": { "spec": { "volumes": volumes } } } }))
}

fn run(console: &mut Console, command: &str) -> Result<String> {
    let (shown, code) = console.run(command)?;
    ensure!(code == 0, "{command:?} ended with {code}: {shown}");
    Ok(shown)
}

/// The guest comes to see a disk of as many sectors.
fn sees(console: &mut Console, disk: &str, sectors: &str) -> Result<()> {
    let wait = format!(
        "for i in $(seq 60); do [ \"$(cat /sys/block/{disk}/size 2>/dev/null)\" = {sectors} ] && echo seen && break; sleep 1; done"
    );
    let (found, _) = console.run(&wait)?;
    let (size, _) = console.run(&format!("cat /sys/block/{disk}/size"))?;
    ensure!(found.contains("seen"), "the guest does not see {disk} with {sectors} sectors, but {size}");
    Ok(())
}

/// The guest reads the whole medium of its drive. The first look after a change tells it no more than that there was one.
fn reads(console: &mut Console, sectors: &str) -> Result<()> {
    let wait = format!(
        "for i in $(seq 60); do dd if=/dev/sr0 of=/dev/null bs=64k 2>/dev/null && \
         [ \"$(cat /sys/block/sr0/size)\" = {sectors} ] && echo seen && break; sleep 1; done"
    );
    let (found, _) = console.run(&wait)?;
    ensure!(found.contains("seen"), "the guest does not read a medium of {sectors} sectors");
    Ok(())
}

/// What is on the disk before what is written all the time. No more of it than an emulated processor sums up in seconds.
fn digest(console: &mut Console) -> Result<String> {
    run(console, "echo 3 > /proc/sys/vm/drop_caches; head -c 8388608 /dev/vda | sha256sum")
}

fn entry(vmi: &Value, volume: &str) -> Value {
    let all = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|entry| entry["name"] == volume).unwrap_or_default()
}

fn claim_of(vmi: &Value, volume: &str) -> String {
    let all = vmi["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|one| one["name"] == volume).unwrap_or_default();
    found["persistentVolumeClaim"]["claimName"].as_str().unwrap_or_default().to_owned()
}

fn disks_change_under_a_running_guest(class: &str) -> Result<()> {
    two_nodes::ready()?;
    let driver = Hostpath::install(&format!("{class}.csi.ferrovirt.io"), class, &json!({}))?;
    let space = Namespace::new(class)?;
    for (name, mode, size) in
        [("file", "Filesystem", "48Mi"), ("device", "Block", "64Mi"), ("one", "Block", "4Mi"), ("two", "Block", "6Mi")]
    {
        space.apply(&claim(class, name, mode, size))?;
    }
    let mut vm = vm();
    if class == TRACKED {
        vm["metadata"]["labels"] = json!({ backup::LABEL: "true" });
    }
    space.apply(&vm)?;
    space.wait("vmi", NAME, "ran", |vmi| phase(vmi) == "Running" && !condition(vmi, "LiveMigratable").is_null())?;
    let tracks = |vmi: &Value| vmi["status"]["changedBlockTracking"]["state"] == "Enabled";
    ensure!(tracks(&space.get("vmi", NAME)?) == (class == TRACKED), "it is tracked, or it is not");
    let mut console = Console::open(&space, NAME)?;
    console.log_in("root", "guest")?;
    run(
        &mut console,
        "modprobe -a sr_mod ahci 2>/dev/null; dd if=/dev/urandom of=/dev/vda bs=1M count=8 2>/dev/null; sync",
    )?;
    let written = digest(&mut console)?;
    run(&mut console, WRITER)?;

    // Media.
    names(&space, "file", Some("one"))?;
    space.wait("vmi", NAME, "got a medium", |vmi| entry(vmi, "drive")["phase"] == "Ready")?;
    reads(&mut console, "8192")?;
    names(&space, "file", Some("two"))?;
    let exchanged = |vmi: &Value| claim_of(vmi, "drive") == "two" && entry(vmi, "drive")["phase"] == "Ready";
    space.wait("vmi", NAME, "got another medium", exchanged)?;
    reads(&mut console, "12288")?;
    names(&space, "file", None)?;
    space.wait("vmi", NAME, "gave it back", |vmi| entry(vmi, "drive")["hotplugVolume"].is_null())?;

    // A claim that grows.
    space.patch("pvc", "file", &json!({ "spec": { "resources": { "requests": { "storage": "56Mi" } } } }))?;
    sees(&mut console, "vda", "114688")?;
    ensure!(digest(&mut console)? == written, "a disk that grew is another");

    // Another claim: a device in place of an image, and larger.
    let node = space.get("vmi", NAME)?["status"]["nodeName"].clone();
    names(&space, "device", None)?;
    let there = |vmi: &Value| {
        let settled = vmi["status"]["migratedVolumes"].is_null() && vmi["status"]["nodeName"] != node;
        settled && claim_of(vmi, "data") == "device"
    };
    space.wait("vmi", NAME, "moved to another claim", there)?;
    ensure!(digest(&mut console)? == written, "the copy is another disk");
    run(&mut console, "dd if=/dev/vda of=/dev/null bs=1M 2>/dev/null && kill -0 $!")?;
    sees(&mut console, "vda", "131072")?;
    let settled = |vm: &Value| condition(vm, "VolumesChange").is_null() && !holds(vm, "RestartRequired");
    let vm = space.wait("vm", NAME, "had nothing left to change", settled)?;
    let told = &vm["status"]["volumeUpdateState"]["volumeMigrationState"]["migratedVolumes"][0];
    let claims = [&told["sourcePVCInfo"]["claimName"], &told["destinationPVCInfo"]["claimName"]];
    ensure!(claims == [&json!("file"), &json!("device")], "{}", vm["status"]);
    // What it left is whoever's it was.
    space.kubectl(&["delete", "pvc", "file", "--timeout=120s"])?;
    ensure!(digest(&mut console)? == written, "the copy is another disk without the one it was made of");
    console.leave()?;
    space.kubectl(&["delete", "vm", NAME, "--timeout=120s"])?;
    space.kubectl(&["delete", "pvc", "--all", "--timeout=120s"])?;
    driver.volumes_are_gone()
}
