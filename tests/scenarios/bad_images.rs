//! Images that hold no proper disk, or do not exist: said on the VMI and the VM, with the field and what to do.

use anyhow::{Result, ensure};
use e2e::machine::{self, condition, phase, word};
use e2e::wait::SOON;
use e2e::{Namespace, image};
use libtest_mimic::Trial;
use serde_json::json;

use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("an_image_without_a_disk_fails_with_a_sentence", an_image_without_a_disk_fails_with_a_sentence),
        trial("an_image_that_does_not_exist_is_waited_for", an_image_that_does_not_exist_is_waited_for),
        long("a_bad_image_is_tried_again_ever_less_often", a_bad_image_is_tried_again_ever_less_often),
    ]
}

/// A qcow2 header of version 2 that names another file as what it is based on.
fn with_a_backing_file(backing: &str) -> Vec<u8> {
    const SIZE: u64 = 1 << 20;
    let mut out = vec![0; 4 * 65_536];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    put(4, &2_u32.to_be_bytes());
    put(8, &72_u64.to_be_bytes());
    put(16, &u32::try_from(backing.len()).unwrap_or_default().to_be_bytes());
    put(20, &16_u32.to_be_bytes());
    put(24, &SIZE.to_be_bytes());
    put(36, &1_u32.to_be_bytes());
    put(40, &(3_u64 * 65_536).to_be_bytes());
    put(48, &65_536_u64.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(72, backing.as_bytes());
    out
}

fn an_image_without_a_disk_fails_with_a_sentence() -> Result<()> {
    let space = Namespace::new("image")?;
    let check = |name: &str, files: &[(&str, &[u8])], expect: &str| -> Result<()> {
        let image = format!("e2e.local/{name}:v1");
        image::import(&image, files)?;
        let mut vm = machine::on_disk(name, "Once");
        machine::spec(&mut vm)["volumes"][0]["containerDisk"]["image"] = json!(image);
        space.apply(&vm)?;
        let vmi = space.wait("vmi", name, "failed", |vmi| phase(vmi) == "Failed")?;
        let expect = format!("volume root: {expect}");
        ensure!(
            vmi["status"]["reason"] == expect.as_str(),
            "expected: {expect}\n   found: {}",
            vmi["status"]["reason"]
        );
        let said = condition(&vmi, "Synchronized");
        ensure!(said["reason"] == "Synchronizing with the Domain failed." && said["status"] == "False", "{said}");
        ensure!(said["message"] == expect.as_str(), "{said}");
        ensure!(space.event("VirtualMachineInstance", name, "SyncFailed")? == expect, "another event");
        let stopped = space.event("VirtualMachineInstance", name, "Stopped")?;
        ensure!(stopped == format!("The VirtualMachineInstance failed: {expect}."), "{stopped}");
        let vm = space.wait_for(SOON, "vm", name, "told it too", |vm| {
            condition(vm, "Synchronized")["message"] == expect.as_str()
        })?;
        ensure!(vm["status"]["ready"] == false && condition(&vm, "Ready")["status"] == "False", "{}", vm["status"]);
        let explained = space.virtctl(&["explain", name])?;
        ensure!(explained.contains(&expect), "{explained}");
        Ok(())
    };
    check(
        "text",
        &[("disk/notes.txt", b"this is no disk\n")],
        "the file is a text file, not a disk image: put a qcow2 or raw image in its place",
    )?;
    check(
        "backed",
        &[("disk/disk.qcow2", &with_a_backing_file("/etc/passwd"))],
        "the qcow2 image has a backing file (\"/etc/passwd\"), which would make QEMU read another file: make it stand alone \
         with `qemu-img convert -O qcow2`",
    )?;
    check(
        "none",
        &[("etc/motd", b"no disk here\n")],
        "no disk in /disk: the image must hold exactly one file there, or the volume must name its path",
    )?;
    check(
        "two",
        &[("disk/a.img", &[0; 4096]), ("disk/b.img", &[0; 4096])],
        "2 files in /disk: the image must hold exactly one there, or the volume must name its path",
    )
}

fn an_image_that_does_not_exist_is_waited_for() -> Result<()> {
    let space = Namespace::new("missing")?;
    let mut vm = machine::on_disk("missing", "Always");
    // Nobody answers on this port of the node: the pull fails at once, with no network at all.
    let image = "127.0.0.1:9/no/such/image:v1";
    machine::spec(&mut vm)["volumes"][0]["containerDisk"]["image"] = json!(image);
    space.apply(&vm)?;
    let vm = space.wait("vm", "missing", "said ErrImagePull", |vm| word(vm) == "ErrImagePull")?;
    ensure!(vm["status"]["ready"] == false && vm["status"]["created"] == true, "{}", vm["status"]);
    let vmi = space.get("vmi", "missing")?;
    ensure!(phase(&vmi) == "Scheduling", "{}", vmi["status"]);
    let said = condition(&vmi, "Synchronized");
    let message = said["message"].as_str().unwrap_or_default();
    let expect = format!(
        "spec.volumes[0].containerDisk.image: \"{image}\" cannot be used: correct it, or make the image available to the node: \
         failed to pull and unpack image \"{image}\": failed to resolve reference \"{image}\": "
    );
    ensure!(message.starts_with(&expect), "expected: {expect}\n   found: {message}");
    space.wait("vm", "missing", "said ImagePullBackOff", |vm| {
        word(vm) == "ImagePullBackOff" && condition(vm, "Synchronized")["reason"] == "ImagePullBackOff"
    })?;
    let explained = space.virtctl(&["explain", "missing"])?;
    ensure!(
        explained.contains(&format!("the image {image} of volume root cannot be pulled"))
            && explained.contains("Next: `kubectl edit vm missing -n e2e-missing`"),
        "{explained}"
    );
    Ok(())
}

fn a_bad_image_is_tried_again_ever_less_often() -> Result<()> {
    let space = Namespace::new("backoff")?;
    let name = "e2e.local/backoff:v1";
    image::import(name, &[("disk/notes.txt", b"this is no disk\n")])?;
    let mut vm = machine::on_disk("backoff", "Always");
    machine::spec(&mut vm)["volumes"][0]["containerDisk"]["image"] = json!(name);
    space.apply(&vm)?;
    let vm =
        space.wait("vm", "backoff", "failed twice", |vm| vm["status"]["startFailure"]["consecutiveFailCount"] == 2)?;
    ensure!(vm["status"]["startFailure"]["retryAfterTimestamp"].is_string(), "{}", vm["status"]);
    space.wait("vm", "backoff", "said CrashLoopBackOff", |vm| word(vm) == "CrashLoopBackOff")?;
    // Stopping it ends the tries, and the count.
    space.virtctl(&["stop", "backoff"])?;
    let vm = space.wait("vm", "backoff", "said Stopped", |vm| word(vm) == "Stopped")?;
    ensure!(vm["status"]["startFailure"].is_null(), "{}", vm["status"]);
    Ok(())
}
