//! Disks that one node reaches move with their guest: as files, as devices, to and fro, and back under their names.

use anyhow::{Context, Result, ensure};
use e2e::hostpath::{CLASS, DRIVER, Hostpath, claim};
use e2e::machine::{self, condition, holds, phase, uid};
use e2e::wait::{SOON, until};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::mover::Policy;
use crate::trial;
use crate::two_nodes;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("local_disks_move_with_their_guest", local_disks_move_with_their_guest)]
}

const NAME: &str = "keeper";
const CLAIMS: [&str; 2] = ["device", "file"];
const MOVED_TO: &str = "ferrovirt.io/moved-to";

fn vm() -> Value {
    let mut vm = machine::on_kernel(NAME, "Always");
    machine::add_disk(&mut vm, "file", json!({ "persistentVolumeClaim": { "claimName": "file" } }));
    machine::add_disk(&mut vm, "device", json!({ "dataVolume": { "name": "device" } }));
    vm
}

/// Manifests, as somebody keeps them in a repository.
fn manifests() -> [Value; 3] {
    [claim("file", "Filesystem", "48Mi"), claim("device", "Block", "32Mi"), vm()]
}

fn local_disks_move_with_their_guest() -> Result<()> {
    two_nodes::ready()?;
    let driver = Hostpath::install(DRIVER, CLASS, &json!({}))?;
    let space = Namespace::new("local")?;
    for manifest in manifests() {
        space.apply(&manifest)?;
    }
    let mut first = Console::open(&space, usable(&space)?)?;
    first.log_in("root", "guest")?;
    // The end of a disk is as good as its beginning, and what nobody wrote stays empty.
    let fill = "for d in vda vdb; do dd if=/dev/urandom of=/dev/$d bs=1M count=9 2>/dev/null; \
                dd if=/dev/urandom of=/dev/$d bs=1M count=2 seek=30 2>/dev/null; done; sync";
    run(&mut first, fill)?;
    let written = digest(&mut first)?;
    let node = node_of(&space)?;

    let slow = Policy::new(&space, &json!({ "bandwidthPerMigration": "1Mi" }))?;
    cancelled(&space)?;
    drop(slow);
    ensure!(digest(&mut first)? == written, "a migration that was cancelled changed a disk");

    // It moves, and goes on writing.
    moves(&space, "away")?;
    ensure!(node_of(&space)? != node, "it is still on {node}");
    ensure!(digest(&mut first)? == written, "a disk is another after the guest was moved");
    run(&mut first, "for d in vda vdb; do dd if=/dev/urandom of=/dev/$d bs=1M count=1 seek=3 2>/dev/null; done; sync")?;
    let rewritten = digest(&mut first)?;
    ensure!(rewritten != written, "nothing was written");
    first.leave()?;
    for name in CLAIMS {
        let held = space.get("pvc", name)?["metadata"]["annotations"][MOVED_TO].as_str().unwrap_or_default().to_owned();
        let vmi = space.get("vmi", NAME)?;
        let volumes = vmi["spec"]["volumes"].as_array().context("no volumes")?;
        let named = |volume: &Value| volume["persistentVolumeClaim"]["claimName"] == held;
        ensure!(volumes.iter().any(named), "{name} is on {held:?}, and the guest on {volumes:?}");
    }

    // Once it stops, its claims have what it wrote; what is applied again changes nothing.
    space.virtctl(&["stop", NAME])?;
    put_back(&space, &CLAIMS)?;
    for manifest in &manifests()[..2] {
        let answer = space.feed(&["apply", "-f", "-"], manifest.to_string().as_bytes())?;
        let said = String::from_utf8_lossy(&answer.stdout).into_owned();
        ensure!(answer.status.success() && said.contains("unchanged"), "{answer:?}");
    }
    space.virtctl(&["start", NAME])?;
    let mut second = Console::open(&space, usable(&space)?)?;
    second.log_in("root", "guest")?;
    ensure!(node_of(&space)? != node, "its disks are on the other node");
    ensure!(digest(&mut second)? == rewritten, "a disk is another under its old name");

    // There and back while it runs; a machine that is stopped at once keeps what it has then.
    moves(&space, "back")?;
    moves(&space, "and-away")?;
    ensure!(node_of(&space)? != node, "it is on {node}");
    ensure!(digest(&mut second)? == rewritten, "a disk is another after two moves");
    second.leave()?;
    space.virtctl(&["restart", NAME])?;
    put_back(&space, &CLAIMS)?;
    let mut third = Console::open(&space, usable(&space)?)?;
    third.log_in("root", "guest")?;
    ensure!(digest(&mut third)? == rewritten, "a disk is another after two moves and a start");
    third.leave()?;
    space.kubectl(&["delete", "vm", "--all"])?;
    space.kubectl(&["delete", "pvc", "--all"])?;
    driver.volumes_are_gone()
}

/// Runs, and may be moved with its disks.
fn usable(space: &Namespace) -> Result<&'static str> {
    let judged = |vmi: &Value| phase(vmi) == "Running" && !condition(vmi, "LiveMigratable").is_null();
    let vmi = space.wait("vmi", NAME, "ran", judged)?;
    let said = condition(&vmi, "LiveMigratable");
    let why = said["message"].as_str().unwrap_or_default();
    ensure!(said["status"] == "True" && why.contains("file (on a claim that is not shared)"), "{said}");
    ensure!(holds(&vmi, "StorageLiveMigratable"), "{}", vmi["status"]["conditions"]);
    ensure!(vmi["status"]["migrationMethod"] == "BlockMigration", "{}", vmi["status"]["migrationMethod"]);
    Ok(NAME)
}

fn run(console: &mut Console, command: &str) -> Result<String> {
    let (shown, code) = console.run(command)?;
    ensure!(code == 0, "{command:?} ended with {code}: {shown}");
    Ok(shown)
}

/// What is on the disks, and not what the guest remembers of them.
fn digest(console: &mut Console) -> Result<String> {
    run(console, "echo 3 > /proc/sys/vm/drop_caches")?;
    run(console, "sha256sum /dev/vda /dev/vdb; cat /sys/block/vda/size /sys/block/vdb/size")
}

fn node_of(space: &Namespace) -> Result<String> {
    Ok(space.get("vmi", NAME)?["status"]["nodeName"].as_str().unwrap_or_default().to_owned())
}

fn migrate(space: &Namespace, name: &str) -> Result<()> {
    space.apply(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration", "metadata": { "name": name },
        "spec": { "vmiName": NAME },
    }))
}

fn moves(space: &Namespace, name: &str) -> Result<()> {
    migrate(space, name)?;
    let over = |found: &Value| matches!(phase(found), "Succeeded" | "Failed");
    let found = space.wait("vmim", name, "ended", over)?;
    ensure!(phase(&found) == "Succeeded", "{}", found["status"]);
    let volumes = |object: &Value| object["status"]["migratedVolumes"].as_array().map(Vec::len);
    ensure!(volumes(&space.get("vmi", NAME)?) == Some(2), "not all of its disks were copied");
    // One stand-in for each claim: those of an earlier move are gone.
    until("one stand-in for each claim", SOON, || Ok((claims(space)? == 4).then_some(())))
}

fn claims(space: &Namespace) -> Result<usize> {
    let text = space.kubectl(&["get", "pvc", "-o", "name"])?;
    Ok(text.lines().count())
}

/// A copy that is slow is cancelled in its midst, and leaves nothing.
fn cancelled(space: &Namespace) -> Result<()> {
    migrate(space, "cancelled")?;
    space.wait("vmim", "cancelled", "ran", |found| phase(found) == "Running")?;
    ensure!(claims(space)? == 4, "there is no claim to copy into");
    space.kubectl(&["delete", "vmim", "cancelled", "--timeout=60s"])?;
    until("the claims to be gone", SOON, || Ok((claims(space)? == 2).then_some(())))
}

/// Each of `claims`, by their order, has its disk again, and there is no other.
pub(crate) fn put_back(space: &Namespace, claims: &[&str]) -> Result<()> {
    until("the disks to be put back", 2 * SOON, || {
        let text = space.kubectl(&["get", "pvc", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).context("kubectl's JSON")?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let names: Vec<_> = items.iter().filter_map(|claim| claim["metadata"]["name"].as_str()).collect();
        let whole = |claim: &Value| phase(claim) == "Bound" && claim["metadata"]["annotations"][MOVED_TO].is_null();
        if names != claims || !items.iter().all(whole) {
            return Ok(None);
        }
        for claim in &items {
            let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
            let text = space.kubectl(&["get", "pv", volume, "-o", "json"])?;
            let volume: Value = serde_json::from_str(&text).context("kubectl's JSON")?;
            let policy = volume["spec"]["persistentVolumeReclaimPolicy"].as_str();
            if volume["spec"]["claimRef"]["uid"] != uid(claim) || policy != Some("Delete") {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}
