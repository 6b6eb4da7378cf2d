//! Backups of a running machine: a full one, one of what changed since, and the disk that is put together from both, in the
//! shell that `virtctl guestfs` gives beside their claim.

use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::{self, condition, holds, phase, uid};
use e2e::{Console, Namespace, product};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "an_incremental_backup_holds_the_changes_since_the_last",
            an_incremental_backup_holds_the_changes_since_the_last,
        ),
        long("what_changed_on_devices_and_on_disks_that_came_is_backed_up", devices_and_disks_that_came),
    ]
}

/// The machine.
pub(crate) const NAME: &str = "saved";
const GATE: &str = "incrementalBackup";

pub(crate) const FILES: &str = "Filesystem";
const DEVICE: &str = "Block";

/// The launcher's image has qemu-img, and is on every node.
const WITHOUT_LIBGUESTFS: [&str; 3] = ["--image=ferrovirt.local/launcher:v0.1.0", "--uid=107", "--gid=107"];

/// Machines with this label are tracked.
pub(crate) const LABEL: &str = "changedBlockTracking";

/// Has the cluster track machines with the label, from now on.
pub(crate) fn track() -> Result<()> {
    product::merge(&json!({
        "featureGates": [{ "name": GATE }],
        "virtualization": { "changedBlockTrackingLabelSelectors": {
            "virtualMachineLabelSelector": { "matchLabels": { LABEL: "true" } },
        } },
    }))
}

pub(crate) fn claim(name: &str, mode: &str, size: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name }, "spec": {
        "accessModes": ["ReadWriteOnce"], "volumeMode": mode, "resources": { "requests": { "storage": size } },
    } })
}

/// Applies a machine that does not run, and starts it once it is known to be tracked.
pub(crate) fn start(space: &Namespace, vm: &Value) -> Result<()> {
    space.apply(vm)?;
    let tracked = |vm: &Value| vm["status"]["changedBlockTracking"]["state"] == "Initializing";
    space.wait("vm", NAME, "was to be tracked", tracked)?;
    space.virtctl(&["start", NAME]).map(drop)
}

/// The tracker `nightly` of the machine.
fn tracker(space: &Namespace) -> Result<()> {
    space.apply(&json!({
        "apiVersion": "backup.kubevirt.io/v1alpha1", "kind": "VirtualMachineBackupTracker",
        "metadata": { "name": "nightly" },
        "spec": { "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": NAME } },
    }))
}

/// A backup of these volumes, as it was made.
fn backup(space: &Namespace, name: &str, kind: &str, volumes: &[&str]) -> Result<Value> {
    let source = json!({ "apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackupTracker", "name": "nightly" });
    space.apply(&json!({
        "apiVersion": "backup.kubevirt.io/v1alpha1", "kind": "VirtualMachineBackup", "metadata": { "name": name },
        "spec": { "source": source, "mode": "Push", "pvcName": "backups" },
    }))?;
    let made = space.wait("virtualmachinebackup", name, "ended", |found| holds(found, "Done"))?;
    ensure!(holds(&made, "Complete") && holds(&made, "Quiesced"), "{}", made["status"]);
    ensure!(made["status"]["type"] == kind, "{}", made["status"]);
    // They stand in the order in which the guest got them: disks that were plugged one after the other may come the other way round.
    let included = made["status"]["includedVolumes"].as_array().into_iter().flatten();
    let mut included: Vec<&str> = included.filter_map(|volume| volume["volumeName"].as_str()).collect();
    included.sort_unstable();
    ensure!(included == volumes, "{}", made["status"]);
    let tracker = space.get("virtualmachinebackuptracker", "nightly")?;
    let latest = &tracker["status"]["latestCheckpoint"]["name"];
    ensure!(latest.is_string() && *latest == made["status"]["checkpointName"], "{}", tracker["status"]);
    Ok(made)
}

pub(crate) fn checksum(space: &Namespace, change: &str) -> Result<String> {
    checksum_of(space, "vda", change)
}

/// What is on `disk` after a `change`.
fn checksum_of(space: &Namespace, disk: &str, change: &str) -> Result<String> {
    let mut console = Console::open(space, NAME)?;
    console.log_in("root", "guest")?;
    let (shown, code) = console.run(&format!("{change} && sync && sha256sum /dev/{disk}"))?;
    ensure!(code == 0, "{shown}");
    console.leave()?;
    let sum = shown.split_whitespace().find(|word| word.len() == 64);
    sum.map(str::to_owned).with_context(|| format!("no checksum in {shown}"))
}

/// What a shell beside the claim shows of `script`, where `virtctl guestfs` gets these words; the pod it runs in is gone then.
pub(crate) fn shell(space: &Namespace, claim: &str, words: &[&str], script: &str) -> Result<String> {
    let mut command = space.virtctl_command(&[&["guestfs", claim, "--kvm=false"], words].concat());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no input")?.write_all(script.as_bytes())?;
    let done = child.wait_with_output()?;
    let (shown, told) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "virtctl guestfs: {shown}{told}");
    let pod = space.get("pod", &format!("libguestfs-tools-{claim}"))?;
    ensure!(pod.is_null(), "the pod is still there: {}", pod["status"]);
    Ok(shown.into_owned())
}

/// Where a backup has the disk of `volume`.
fn file(made: &Value, volume: &str) -> String {
    let (name, checkpoint) = (&made["metadata"]["name"], &made["status"]["checkpointName"]);
    let words = [name, checkpoint].map(|word| word.as_str().unwrap_or_default().to_owned());
    format!("/disk/{NAME}/{}/{}-{volume}.qcow2", words[1], words[0])
}

fn an_incremental_backup_holds_the_changes_since_the_last() -> Result<()> {
    track()?;
    let space = Namespace::new("backup")?;
    space.apply(&claim("data", FILES, "16Mi"))?;
    space.apply(&claim("backups", FILES, "64Mi"))?;
    let mut vm = machine::on_kernel(NAME, "Halted");
    vm["metadata"]["labels"] = json!({ LABEL: "true" });
    // A guest that is cut off has a disk that nobody vouches for, and its next backup is a full one.
    machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(60);
    machine::add_disk(&mut vm, "data", json!({ "persistentVolumeClaim": { "claimName": "data" } }));
    start(&space, &vm)?;
    let tracked = |vm: &Value| vm["status"]["changedBlockTracking"]["state"] == "Enabled";
    space.wait("vm", NAME, "was tracked", tracked)?;
    let ready = |vmi: &Value| phase(vmi) == "Running" && holds(vmi, "AgentConnected");
    let first = space.wait("vmi", NAME, "ran", ready)?;
    checksum(&space, "dd if=/dev/urandom of=/dev/vda bs=64k count=64 conv=fsync")?;

    tracker(&space)?;
    let full = backup(&space, "full", "Full", &["data"])?;
    let busy = space.get("vmi", NAME)?;
    ensure!(busy["metadata"]["uid"] == uid(&first), "the guest was started again");

    // What changed is known after a restart, too.
    checksum(&space, "dd if=/dev/urandom of=/dev/vda bs=64k count=2 seek=100 conv=fsync")?;
    space.virtctl(&["restart", NAME])?;
    space.wait("vmi", NAME, "ran again", |vmi| ready(vmi) && uid(vmi) != uid(&first))?;
    space.wait("vm", NAME, "was tracked again", tracked)?;
    let expect = checksum(&space, "dd if=/dev/urandom of=/dev/vda bs=64k count=1 seek=1 conv=fsync")?;
    let since = backup(&space, "since", "Incremental", &["data"])?;

    // As long as the pod that brought the claim is there, so is what the guest is told of it.
    space.wait("vmi", NAME, "let go of the claim", |vmi| {
        let known = vmi["status"]["volumeStatus"].as_array().map(Vec::as_slice).unwrap_or_default();
        known.iter().all(|volume| volume["hotplugVolume"].is_null())
    })?;
    let used = space.virtctl_refused(&["guestfs", "data"])?;
    ensure!(used.contains("PVC data is used by another pod"), "{used}");
    let file = |made: &Value| file(made, "data");
    let script = format!(
        "F={}; S={}\nqemu-img rebase -u -F qcow2 -b $F $S && qemu-img convert -O raw $S /disk/disk.img && \
         busybox sha256sum /disk/disk.img; busybox stat -c 'bytes %s' $S\nexit\n",
        file(&full),
        file(&since)
    );
    let shown = shell(&space, "backups", &WITHOUT_LIBGUESTFS, &script)?;
    ensure!(shown.contains(&expect), "the disk is another, it was {expect}: {shown}");
    let bytes = shown.lines().filter_map(|line| line.trim().strip_prefix("bytes ")).find_map(|n| n.parse::<u64>().ok());
    ensure!(bytes.is_some_and(|bytes| bytes < 1 << 20), "what changed is three clusters: {shown}");
    let why = condition(&since, "Quiesced")["reason"].as_str().unwrap_or_default();
    ensure!(why == "QuiesceSucceeded", "{}", since["status"]);
    Ok(())
}

/// A device from the start, and two disks that come while the guest runs: an image and a device.
const ALL: [&str; 3] = ["device", "image", "plugged"];

fn entry(vmi: &Value, volume: &str) -> Value {
    let all = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|entry| entry["name"] == volume).unwrap_or_default()
}

/// The guest, once it has all of its disks, and the name it knows the one of `volume` by.
fn complete(space: &Namespace, volume: &str, before: &str) -> Result<(Value, String)> {
    let has = |vmi: &Value, name: &str| entry(vmi, name)["target"].as_str().is_some_and(|target| !target.is_empty());
    let ready = |vmi: &Value| {
        phase(vmi) == "Running" && uid(vmi) != before && holds(vmi, "AgentConnected") && ALL.iter().all(|v| has(vmi, v))
    };
    let vmi = space.wait("vmi", NAME, "had all of its disks", ready)?;
    let mut console = Console::open(space, NAME)?;
    console.log_in("root", "guest")?;
    // The guest has nobody who loads drivers for what comes after its start. And it looks at several disks at a time, so that
    // their names say nothing: the serial number is the volume's name.
    let wait = format!(
        "modprobe -a virtio_scsi sd_mod virtio_blk; for i in $(seq 60); do for disk in /sys/block/sd*; do \
         grep -q {volume} $disk/device/vpd_pg80 2>/dev/null && echo is ${{disk##*/}} && break 2; done; sleep 1; done"
    );
    let (shown, _) = console.run(&wait)?;
    let target = shown.split_whitespace().skip_while(|word| *word != "is").nth(1);
    let target = target.with_context(|| format!("the guest has no disk {volume}: {shown}"))?.to_owned();
    console.leave()?;
    Ok((vmi, target))
}

fn devices_and_disks_that_came() -> Result<()> {
    track()?;
    let space = Namespace::new("backup-devices")?;
    for (name, mode, size) in
        [("device", DEVICE, "16Mi"), ("image", FILES, "16Mi"), ("plugged", DEVICE, "16Mi"), ("backups", FILES, "128Mi")]
    {
        space.apply(&claim(name, mode, size))?;
    }
    let mut vm = machine::on_kernel(NAME, "Halted");
    vm["metadata"]["labels"] = json!({ LABEL: "true" });
    machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(60);
    machine::add_disk(&mut vm, "device", json!({ "persistentVolumeClaim": { "claimName": "device" } }));
    start(&space, &vm)?;
    space.wait("vmi", NAME, "ran", |vmi| phase(vmi) == "Running" && holds(vmi, "AgentConnected"))?;
    for volume in ["image", "plugged"] {
        space.virtctl(&["addvolume", NAME, &format!("--volume-name={volume}"), "--persist"])?;
    }
    let (first, target) = complete(&space, "plugged", "")?;
    checksum_of(&space, &target, &format!("dd if=/dev/urandom of=/dev/{target} bs=64k count=64 conv=fsync"))?;
    tracker(&space)?;
    let full = backup(&space, "full", "Full", &ALL)?;

    // The device grows under the guest, which sees it, and what changed is still known.
    space.patch("pvc", "device", &json!({ "spec": { "resources": { "requests": { "storage": "24Mi" } } } }))?;
    space.wait("vmi", NAME, "had a larger disk", |vmi| entry(vmi, "device")["size"] == 24 << 20)?;
    checksum(&space, "dd if=/dev/urandom of=/dev/vda bs=64k count=1 seek=300 conv=fsync")?;
    let grown = backup(&space, "grown", "Incremental", &ALL)?;

    // It is after a restart, too.
    checksum_of(&space, &target, &format!("dd if=/dev/urandom of=/dev/{target} bs=64k count=2 seek=100 conv=fsync"))?;
    space.virtctl(&["restart", NAME])?;
    let (_, target) = complete(&space, "plugged", uid(&first))?;
    let change = format!("dd if=/dev/urandom of=/dev/{target} bs=64k count=1 seek=1 conv=fsync");
    let expect = checksum_of(&space, &target, &change)?;
    let since = backup(&space, "since", "Incremental", &ALL)?;
    space.wait("vmi", NAME, "let go of the claim", |vmi| {
        let known = vmi["status"]["volumeStatus"].as_array().map(Vec::as_slice).unwrap_or_default();
        !known.iter().any(|volume| volume["name"].as_str().is_some_and(|name| name.starts_with("backup-")))
    })?;
    let [full, grown, since] = [&full, &grown, &since].map(|made| file(made, "plugged"));
    let script = format!(
        "qemu-img rebase -u -F qcow2 -b {full} {grown} && qemu-img rebase -u -F qcow2 -b {grown} {since} && \
         qemu-img convert -O raw {since} /disk/disk.img && busybox sha256sum /disk/disk.img\nexit\n"
    );
    let shown = shell(&space, "backups", &WITHOUT_LIBGUESTFS, &script)?;
    ensure!(shown.contains(&expect), "the disk is another, it was {expect}: {shown}");
    // Nothing of this is anything to be warned of.
    let warned = space.kubectl(&["get", "events", "--field-selector=type=Warning,reason=SyncFailed", "-o", "name"])?;
    ensure!(warned.trim().is_empty(), "{warned}");
    Ok(())
}
