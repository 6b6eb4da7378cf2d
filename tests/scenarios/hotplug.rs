//! Disks that come to a running guest and leave it, while it reads and writes: with a file system below and as a device,
//! for this run only and for good.

use anyhow::{Result, ensure};
use e2e::hostpath::Hostpath;
use e2e::machine::{self, condition, holds, phase, uid};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("disks_come_to_a_running_guest_and_leave_it", disks_come_and_go)]
}

const DRIVER: &str = "hotplug.csi.ferrovirt.io";
const CLASS: &str = "hotplug-test";
const NAME: &str = "host";
/// The guest has nobody who loads drivers for what comes after its start.
const DRIVERS: &str = "modprobe -a virtio_scsi sd_mod virtio_blk";

fn claim(name: &str, mode: &str, size: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name }, "spec": {
        "storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
        "resources": { "requests": { "storage": size } },
    } })
}

fn entry(vmi: &Value, volume: &str) -> Value {
    let all = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|entry| entry["name"] == volume).unwrap_or_default()
}

fn disks_come_and_go() -> Result<()> {
    let _driver = Hostpath::install(DRIVER, CLASS, &json!({}))?;
    let space = Namespace::new("hotplug")?;
    space.apply(&machine::on_kernel(NAME, "Always"))?;
    for (name, mode, size) in [("file", "Filesystem", "64Mi"), ("device", "Block", "32Mi")] {
        space.apply(&claim(name, mode, size))?;
    }
    space.wait("vmi", NAME, "ran", |vmi| phase(vmi) == "Running")?;
    let mut console = Console::open(&space, NAME)?;
    console.log_in("root", "guest")?;
    console.run(DRIVERS)?;

    // For good, and for this run only.
    let said = space.virtctl(&["addvolume", NAME, "--volume-name=file", "--persist"])?;
    ensure!(said.contains("Successfully submitted add volume request to VM host for volume file"), "{said}");
    let vmi = space.wait("vmi", NAME, "got a disk", |vmi| entry(vmi, "file")["phase"] == "Ready")?;
    ensure!(entry(&vmi, "file")["hotplugVolume"]["attachPodName"].is_string(), "{}", entry(&vmi, "file"));
    let seen = |console: &mut Console, disk: &str, sectors: &str| -> Result<()> {
        let wait = format!(
            "for i in $(seq 20); do [ \"$(cat /sys/block/{disk}/size 2>/dev/null)\" = {sectors} ] && echo seen && break; sleep 1; done"
        );
        let (found, _) = console.run(&wait)?;
        ensure!(found.contains("seen"), "the guest does not see {disk} with {sectors} sectors: {found}");
        Ok(())
    };
    seen(&mut console, "sda", "131072")?;
    console.run("(while :; do dd if=/dev/zero of=/dev/sda bs=4k count=64 seek=1 conv=notrunc 2>/dev/null; sleep 0.1; done) & true")?;
    console.run("echo kept > /tmp/word; dd if=/tmp/word of=/dev/sda bs=512 count=1 conv=notrunc,fsync 2>/dev/null")?;
    space.virtctl(&["addvolume", NAME, "--volume-name=device", "--bus=virtio"])?;
    space.wait("vmi", NAME, "got a device", |vmi| entry(vmi, "device")["phase"] == "Ready")?;
    seen(&mut console, "vda", "65536")?;
    let (found, code) = console.run("echo on a device > /dev/vda && sync && head -n 1 /dev/vda")?;
    ensure!(code == 0 && found.contains("on a device"), "{found}");

    // What cannot be done is said.
    let again = space.virtctl_refused(&["addvolume", NAME, "--volume-name=device"])?;
    ensure!(again.contains("volume with that name already exists"), "{again}");
    let unknown = space.virtctl_refused(&["addvolume", NAME, "--volume-name=nothing"])?;
    ensure!(unknown.contains("is not a DataVolume or PersistentVolumeClaim"), "{unknown}");

    // The guest lets go of the device, and then its claim is free.
    space.virtctl(&["removevolume", NAME, "--volume-name=device"])?;
    space.wait("vmi", NAME, "let go of the device", |vmi| entry(vmi, "device").is_null())?;
    let (found, _) = console.run("[ -e /sys/block/vda ] && echo there || echo gone")?;
    ensure!(found.contains("gone"), "{found}");
    space.kubectl(&["delete", "pvc", "device", "--timeout=120s"])?;

    console.leave()?;
    let vm = space.get("vm", NAME)?;
    ensure!(!holds(&vm, "RestartRequired"), "{}", condition(&vm, "RestartRequired"));

    // What is the VM's own is there after a restart, with what was written.
    let before = uid(&space.get("vmi", NAME)?).to_owned();
    space.virtctl(&["restart", NAME])?;
    let again = |vmi: &Value| uid(vmi) != before && entry(vmi, "file")["phase"] == "Ready";
    space.wait("vmi", NAME, "had its disk again", again)?;
    let mut console = Console::open(&space, NAME)?;
    console.log_in("root", "guest")?;
    console.run(DRIVERS)?;
    seen(&mut console, "sda", "131072")?;
    let (found, _) = console.run("head -n 1 /dev/sda")?;
    ensure!(found.contains("kept"), "{found}");
    console.leave()?;
    space.kubectl(&["delete", "vm", NAME])?;
    space.kubectl(&["delete", "pvc", "--all", "--timeout=120s"]).map(drop)
}
