//! Disks that come from somewhere: from a web server, by hand, out of another disk; captured with their machine, and brought
//! back with it.

use std::io::Write as _;

use anyhow::{Result, ensure};
use e2e::machine::{self, holds, phase, uid};
use e2e::{Console, Namespace};
use flate2::Compression;
use flate2::write::GzEncoder;
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::data_volume::{succeeded, volume};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("disks_are_imported_uploaded_cloned_and_restored", disks_are_imported_uploaded_cloned_and_restored)]
}

const NAME: &str = "keeper";
/// What the image begins with; the rest of it is empty.
const FIRST: &str = "this came over the network";
const BYTES: usize = 16 << 20;
const SIZE: &str = "16Mi";

/// A disk image in a file, packed.
fn image() -> Result<tempfile::NamedTempFile> {
    let mut disk = FIRST.as_bytes().to_vec();
    disk.push(b'\n');
    disk.resize(BYTES, 0);
    let mut file = tempfile::NamedTempFile::new()?;
    let mut packed = GzEncoder::new(file.as_file_mut(), Compression::fast());
    packed.write_all(&disk)?;
    packed.finish()?.sync_all()?;
    Ok(file)
}

/// A web server in a pod that has the same image; where it is.
fn server(space: &Namespace) -> Result<String> {
    let script = format!(
        "mkdir /tmp/www && cd /tmp/www && (echo {FIRST}; cat /dev/zero) | busybox head -c {BYTES} | busybox gzip > disk.gz && \
         exec busybox httpd -f -p 8080"
    );
    space.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "web", "image": "ferrovirt.local/component:v0.1.0", "command": ["sh", "-c", script],
            "readinessProbe": { "httpGet": { "path": "/disk.gz", "port": 8080 }, "periodSeconds": 1 },
        }] },
    }))?;
    let pod = space.wait("pod", "web", "served", |pod| holds(pod, "Ready"))?;
    Ok(format!("http://{}:8080/disk.gz", pod["status"]["podIP"].as_str().unwrap_or_default()))
}

/// A guest on the disk that was uploaded, and on a copy of the one that was imported.
fn keeper(space: &Namespace) -> Value {
    let mut vm = machine::on_kernel(NAME, "Always");
    let copy = json!({ "pvc": { "name": "imported", "namespace": space.name() } });
    let mut template = volume("copied", SIZE, &copy);
    for key in ["apiVersion", "kind"] {
        template.as_object_mut().map(|template| template.remove(key));
    }
    vm["spec"]["dataVolumeTemplates"] = json!([template]);
    machine::add_disk(&mut vm, "uploaded", json!({ "persistentVolumeClaim": { "claimName": "uploaded" } }));
    machine::add_disk(&mut vm, "copied", json!({ "dataVolume": { "name": "copied" } }));
    machine::add_disk(&mut vm, "work", json!({ "dataVolume": { "name": "work" } }));
    vm
}

/// Has the guest write files without end, each named after what is in it.
const LOAD: &str = "modprobe ext4; mke2fs /dev/vdc >/dev/null && mkdir -p /mnt && mount /dev/vdc /mnt && \
    { (n=0; while :; do n=$(((n + 1) % 64)); rm -f /mnt/$n.*; head -c 65536 /dev/urandom > /mnt/new; \
    mv /mnt/new /mnt/$n.$(sha256sum < /mnt/new | cut -c1-64); done) >/dev/null 2>&1 & } && \
    until [ -e /mnt/9.* ]; do sleep 0.2; done";
/// Looks whether every file is what its name says, and that there are files.
const CHECK: &str = "modprobe ext4; mkdir -p /mnt && mount /dev/vdc /mnt && cd /mnt && [ $(ls | wc -l) -gt 9 ] && \
    ! for f in [0-9]*.*; do [ ${f#*.} = $(sha256sum < $f | cut -c1-64) ] || echo $f is torn; done | grep torn; r=$?; cd /; (exit $r)";

/// The first line of each disk.
fn lines(space: &Namespace, then: &str) -> Result<[String; 2]> {
    let mut console = Console::open(space, NAME)?;
    console.log_in("root", "guest")?;
    let mut first = |disk: &str| -> Result<String> {
        Ok(console.run(&format!("head -c 64 /dev/{disk} | head -n 1"))?.0.trim().to_owned())
    };
    let found = [first("vda")?, first("vdb")?];
    let (shown, code) = console.run(then)?;
    ensure!(code == 0, "{shown}");
    console.leave()?;
    Ok(found)
}

fn disks_are_imported_uploaded_cloned_and_restored() -> Result<()> {
    let space = Namespace::new("volumes")?;
    let url = server(&space)?;
    space.apply(&volume("imported", SIZE, &json!({ "http": { "url": url } })))?;
    let image = image()?;
    let path = format!("--image-path={}", image.path().display());
    let said =
        space.virtctl(&["image-upload", "dv", "uploaded", "--size=16Mi", &path, "--force-bind", "--insecure"])?;
    ensure!(said.contains("completed successfully"), "{said}");
    succeeded(&space, "imported")?;
    succeeded(&space, "uploaded")?;
    space.apply(&volume("work", SIZE, &json!({ "blank": {} })))?;

    space.apply(&keeper(&space))?;
    let ready = |vmi: &Value| phase(vmi) == "Running" && holds(vmi, "AgentConnected");
    let before = space.wait("vmi", NAME, "ran on its disks", ready)?;
    succeeded(&space, "copied")?;
    ensure!(lines(&space, "true")? == [FIRST, FIRST], "the disks hold something else");

    // What is written after a snapshot is gone when the machine is brought back to it, and what was being written is whole.
    lines(&space, LOAD)?;
    space.apply(&json!({
        "apiVersion": "snapshot.kubevirt.io/v1beta1", "kind": "VirtualMachineSnapshot", "metadata": { "name": "then" },
        "spec": { "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": NAME } },
    }))?;
    let taken = space.wait("vmsnapshot", "then", "was taken", |found| found["status"]["readyToUse"] == true)?;
    ensure!(taken["status"]["indications"] == json!(["GuestAgent", "Online"]), "{}", taken["status"]);
    lines(&space, "for d in vda vdb; do echo overwritten > /dev/$d; done; sync")?;
    space.virtctl(&["stop", NAME])?;
    space.wait("vm", NAME, "stopped", |vm| machine::word(vm) == "Stopped")?;
    space.apply(&json!({
        "apiVersion": "snapshot.kubevirt.io/v1beta1", "kind": "VirtualMachineRestore", "metadata": { "name": "back" },
        "spec": { "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": NAME },
            "virtualMachineSnapshotName": "then" },
    }))?;
    space.wait("vmrestore", "back", "was restored", |found| found["status"]["complete"] == true)?;
    space.virtctl(&["start", NAME])?;
    space.wait("vmi", NAME, "ran again", |vmi| ready(vmi) && uid(vmi) != uid(&before))?;
    ensure!(lines(&space, CHECK)? == [FIRST, FIRST], "the disks are not what they were");
    space.kubectl(&["delete", "vm", NAME, "--timeout=120s"]).map(drop)
}
