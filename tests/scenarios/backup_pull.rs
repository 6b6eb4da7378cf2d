//! Backups of a running machine that are pulled: all of a disk, and then what changed since, put together by whoever pulls.

use anyhow::{Context as _, Result, ensure};
use e2e::Namespace;
use e2e::machine::{self, holds, phase};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::backup::{self, FILES, LABEL, NAME, checksum, claim, track};
use crate::{export_links, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_backup_is_pulled_while_the_guest_goes_on", a_backup_is_pulled_while_the_guest_goes_on)]
}

const TOKEN: &str = "let-me-pull";

fn backup(space: &Namespace, name: &str, kind: &str) -> Result<Value> {
    let source = json!({ "apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackupTracker", "name": "nightly" });
    space.apply(&json!({
        "apiVersion": "backup.kubevirt.io/v1alpha1", "kind": "VirtualMachineBackup", "metadata": { "name": name },
        "spec": { "source": source, "mode": "Pull", "pvcName": "scratch", "tokenSecretRef": "token" },
    }))?;
    let made = space.wait("virtualmachinebackup", name, "could be pulled", |found| holds(found, "ExportReady"))?;
    ensure!(holds(&made, "Progressing") && !holds(&made, "Done"), "{}", made["status"]);
    ensure!(made["status"]["type"] == kind, "{}", made["status"]);
    ensure!(made["status"]["includedVolumes"][0]["volumeName"] == "data", "{}", made["status"]);
    Ok(made)
}

/// What is at an endpoint of the backup's volume.
fn pull(space: &Namespace, made: &Value, endpoint: &str, query: &str) -> Result<Vec<u8>> {
    pull_with(TOKEN, space, made, endpoint, query)
}

fn pull_with(token: &str, space: &Namespace, made: &Value, endpoint: &str, query: &str) -> Result<Vec<u8>> {
    let status = &made["status"];
    let url = status["includedVolumes"][0][endpoint].as_str().context("no endpoint")?;
    let authority = status["endpointCert"].as_str().context("no certificate")?;
    let words = format!("--fail --header x-kubevirt-export-token:{token} '{url}{query}'");
    export_links::bytes(space, authority, &words)
}

fn extents(space: &Namespace, made: &Value) -> Result<Vec<(u64, u64, String)>> {
    let (mut all, mut offset) = (Vec::new(), 0);
    loop {
        // Small pages, so that there are several.
        let page: Value =
            serde_json::from_slice(&pull(space, made, "mapEndpoint", &format!("?page_size=2&offset={offset}"))?)?;
        let number = |extent: &Value, key: &str| extent[key].as_u64().context("no number");
        for extent in page["extents"].as_array().context("no extents")? {
            let what = extent["description"].as_str().unwrap_or_default().to_owned();
            all.push((number(extent, "offset")?, number(extent, "length")?, what));
        }
        match page["next_offset"].as_u64() {
            Some(next) => offset = next,
            None => return Ok(all),
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Says that all of the backup was pulled, and sees that its checkpoint is the tracker's.
fn finish(space: &Namespace, made: &Value) -> Result<()> {
    let name = made["metadata"]["name"].as_str().unwrap_or_default();
    space.kubectl(&["delete", "virtualmachinebackup", name, "--timeout=120s"])?;
    let tracker = space.get("virtualmachinebackuptracker", "nightly")?;
    let latest = &tracker["status"]["latestCheckpoint"]["name"];
    ensure!(latest.is_string() && *latest == made["status"]["checkpointName"], "{}", tracker["status"]);
    space.wait("vmexport", name, "went", Value::is_null)?;
    Ok(())
}

fn a_backup_is_pulled_while_the_guest_goes_on() -> Result<()> {
    track()?;
    let space = Namespace::new("backup-pull")?;
    space.apply(&claim("data", FILES, "16Mi"))?;
    space.apply(&claim("scratch", FILES, "64Mi"))?;
    space.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "token" }, "stringData": { "token": TOKEN },
    }))?;
    export_links::client(&space)?;
    let mut vm = machine::on_kernel(NAME, "Halted");
    vm["metadata"]["labels"] = json!({ LABEL: "true" });
    machine::add_disk(&mut vm, "data", json!({ "persistentVolumeClaim": { "claimName": "data" } }));
    backup::start(&space, &vm)?;
    let tracked = |vm: &Value| vm["status"]["changedBlockTracking"]["state"] == "Enabled";
    space.wait("vm", NAME, "was tracked", tracked)?;
    space.wait("vmi", NAME, "ran", |vmi| phase(vmi) == "Running" && holds(vmi, "AgentConnected"))?;
    space.wait("pod", "client", "ran", |pod| phase(pod) == "Running")?;
    let first = checksum(&space, "dd if=/dev/urandom of=/dev/vda bs=64k count=64 conv=fsync")?;
    space.apply(&json!({
        "apiVersion": "backup.kubevirt.io/v1alpha1", "kind": "VirtualMachineBackupTracker",
        "metadata": { "name": "nightly" },
        "spec": { "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": NAME } },
    }))?;

    let full = backup(&space, "full", "Full")?;
    ensure!(holds(&full, "Quiesced"), "{}", full["status"]);
    // What the guest writes from now on is not of the backup.
    let second = checksum(&space, "dd if=/dev/urandom of=/dev/vda bs=64k count=2 seek=3 conv=fsync")?;
    let mut disk = pull(&space, &full, "dataEndpoint", "")?;
    ensure!(digest(&disk) == first, "the disk of {} bytes is not what it was", disk.len());
    let data = extents(&space, &full)?;
    ensure!(
        data.iter().any(|(.., what)| what == "data") && data.iter().any(|(.., what)| what.contains("zero")),
        "{data:?}"
    );
    let size = disk.len() as u64;
    ensure!(pull(&space, &full, "dataEndpoint", &format!("?offset={size}")).is_err(), "there is nothing at {size}");
    let wrong = pull_with("wrong", &space, &full, "dataEndpoint", "");
    ensure!(wrong.is_err(), "a wrong token pulls");
    finish(&space, &full)?;

    let since = backup(&space, "since", "Incremental")?;
    let changed: Vec<_> = extents(&space, &since)?.into_iter().filter(|(.., what)| what.starts_with("dirty")).collect();
    let bytes: u64 = changed.iter().map(|(_, length, _)| length).sum();
    ensure!((1..=4 * 65536).contains(&bytes), "two clusters changed: {changed:?}");
    for (offset, length, _) in changed {
        let part = pull(&space, &since, "dataEndpoint", &format!("?offset={offset}&length={length}"))?;
        ensure!(part.len() as u64 == length, "{} bytes instead of {length}", part.len());
        disk[offset as usize..(offset + length) as usize].copy_from_slice(&part);
    }
    ensure!(digest(&disk) == second, "the disk is another, it was {second}");
    finish(&space, &since)
}
