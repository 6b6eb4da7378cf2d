//! A disk that two nodes reach: it is not copied when its guest moves, and one guest at a time writes it, also when a node is
//! lost (see `node_loss`).
//!
//! What all nodes reach is `/srv/shared`, one directory of the host, so its locks are the kernel's. Each guest appends
//! records of its own to the disk, where the last one's end; so the disk itself tells who wrote it, and when.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, condition, holds, phase, uid};
use e2e::wait::{SOON, throughout, until};
use e2e::{Console, Namespace, kubeconfig};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::node_loss::qemus;
use crate::two_nodes::{self, FIRST, SECOND};
use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_shared_disk_has_one_writer", a_shared_disk_has_one_writer),
        long("a_shared_device_is_handed_over", a_shared_device_is_handed_over),
    ]
}

pub(crate) const NAME: &str = "ledger";
const RECORD: usize = 512;
const SIZE: u64 = 8 << 20;

/// A disk that both nodes reach, and guests on it; all is gone when this is.
pub(crate) struct Shared {
    pub(crate) space: Namespace,
    /// Of its volume, its class and its directory.
    name: &'static str,
    /// Where the host finds what guests wrote.
    disk: PathBuf,
    device: Option<String>,
}

impl Shared {
    /// A file in the directory that nodes share.
    pub(crate) fn file() -> Result<Self> {
        two_nodes::ready()?;
        let name = "e2e-shared-file";
        let directory = kubeconfig().with_file_name("shared").join(name);
        let shared = Self { space: Namespace::new("shared")?, name, disk: directory.join("disk.img"), device: None };
        let path = json!({ "path": format!("/srv/shared/{name}"), "type": "DirectoryOrCreate" });
        shared.claim("Filesystem", json!({ "hostPath": path }))?;
        Ok(shared)
    }

    /// A block device of the host, which each node has in its /dev.
    fn device() -> Result<Self> {
        two_nodes::ready()?;
        let name = "e2e-shared-device";
        let directory = kubeconfig().with_file_name("shared").join(name);
        std::fs::create_dir_all(&directory)?;
        let disk = directory.join("device.img");
        std::fs::File::create(&disk)?.set_len(SIZE)?;
        let made =
            Command::new("losetup").args(["--find", "--show"]).arg(&disk).output().context("cannot run losetup")?;
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        ensure!(made.status.success() && !device.is_empty(), "losetup: {made:?}");
        let shared = Self { space: Namespace::new("device")?, name, disk, device: Some(device.clone()) };
        let both = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": [FIRST, SECOND] },
        ] }] } });
        shared.claim("Block", json!({ "local": { "path": device }, "nodeAffinity": both }))?;
        Ok(shared)
    }

    fn claim(&self, mode: &str, source: Value) -> Result<()> {
        let mut spec = source;
        spec["capacity"] = json!({ "storage": "8Mi" });
        spec["accessModes"] = json!(["ReadWriteMany"]);
        spec["storageClassName"] = json!(self.name);
        spec["volumeMode"] = json!(mode);
        self.space.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": self.name, "annotations": { "ferrovirt.io/locks": "shared" } }, "spec": spec,
        }))?;
        self.space.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
            "spec": { "accessModes": ["ReadWriteMany"], "storageClassName": self.name, "volumeMode": mode,
                "resources": { "requests": { "storage": "8Mi" } } },
        }))
    }

    /// A guest on the disk that rather runs on the second node.
    pub(crate) fn guest(&self, name: &str) -> Result<()> {
        let mut vm = machine::on_kernel(name, "Always");
        machine::add_disk(&mut vm, "data", json!({ "persistentVolumeClaim": { "claimName": "data" } }));
        machine::spec(&mut vm)["affinity"] = json!({ "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "preference": { "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [SECOND] },
            ] } }],
        } });
        self.space.apply(&vm)
    }

    pub(crate) fn runs_on(&self, node: &str) -> Result<Value> {
        self.space.wait("vmi", NAME, &format!("ran on {node}"), |vmi| {
            phase(vmi) == "Running" && holds(vmi, "LiveMigratable") && vmi["status"]["nodeName"] == node
        })
    }

    /// Has the guest append records until it ends.
    pub(crate) fn writes(&self, who: &str) -> Result<()> {
        let mut console = Console::open(&self.space, NAME)?;
        console.log_in("root", "guest")?;
        let (shown, code) = console.run(&format!(
            "(setsid sh -c 'n=$(tr -d \"\\000\" < /dev/vda | wc -l); while :; do echo \"{who} $n\" | \
             dd of=/dev/vda bs={RECORD} seek=$n conv=sync,fsync,notrunc; n=$((n+1)); sleep 0.3; done' \
             < /dev/null > /dev/null 2>&1 &)"
        ))?;
        ensure!(code == 0, "{shown}");
        console.leave()?;
        self.more(who)
    }

    /// Who wrote, in the order of the records.
    pub(crate) fn writers(&self) -> Result<Vec<String>> {
        let disk = std::fs::read(&self.disk).with_context(|| format!("cannot read {}", self.disk.display()))?;
        let records = disk.chunks(RECORD).map_while(|record| {
            let end = record.iter().position(|byte| *byte == 0).unwrap_or(record.len());
            (end > 0).then(|| String::from_utf8_lossy(&record[..end]).trim().to_owned())
        });
        let mut writers = Vec::new();
        for (at, record) in records.enumerate() {
            let (who, number) = record.split_once(' ').with_context(|| format!("record {at} is {record:?}"))?;
            ensure!(number == at.to_string(), "record {at} is {record:?}");
            writers.push(who.to_owned());
        }
        Ok(writers)
    }

    /// Waits until there are more records of this writer, and nobody else's behind them.
    pub(crate) fn more(&self, who: &str) -> Result<()> {
        let before = self.writers()?.len();
        until(&format!("{who} writes"), SOON, || {
            let writers = self.writers()?;
            Ok((writers.len() > before + 2 && writers.last().is_some_and(|last| last == who)).then_some(()))
        })
    }

    pub(crate) fn moves_to(&self, node: &str) -> Result<()> {
        let before = self.space.get("vmi", NAME)?;
        self.space.virtctl(&["migrate", NAME])?;
        let vmi = self.space.wait("vmi", NAME, &format!("moved to {node}"), |vmi| {
            let state = &vmi["status"]["migrationState"];
            state["completed"] == true && vmi["status"]["nodeName"] == node || state["failed"] == true
        })?;
        let status = &vmi["status"];
        ensure!(status["migrationState"]["failed"] != true && uid(&vmi) == uid(&before), "{status}");
        ensure!(status["migrationMethod"] == "LiveMigration", "{status}");
        until("one pod", SOON, || {
            Ok((self.space.list("pods", &format!("kubevirt.io/created-by={}", uid(&vmi)))?.len() == 1).then_some(()))
        })
    }

    /// Its node is cut off from the cluster, and not from the disk: its guest goes on writing, and the next one waits.
    pub(crate) fn is_cut_off(&self, held: &Value) -> Result<()> {
        self.waits_for_its_disk(NAME, uid(held))?;
        ensure!(qemus(held)? == 1, "the guest of the node without a cable does not run");
        self.more("first")?;
        throughout(SOON / 12, || {
            let now = self.space.get("vmi", NAME)?;
            ensure!(phase(&now) != "Running", "two guests run on one disk: {}", now["status"]);
            Ok(())
        })
    }

    /// Once its node is back, that guest is ended and the next one writes.
    pub(crate) fn is_taken_over(&self, held: &Value) -> Result<()> {
        let after = self.runs_on(FIRST)?;
        ensure!(uid(&after) != uid(held) && qemus(held)? == 0 && qemus(&after)? == 1, "another guest runs");
        self.writes("second")
    }

    fn waits_for_its_disk(&self, name: &str, than: &str) -> Result<Value> {
        self.space.wait_for(2 * SOON, "vmi", name, "waited for its disk", |vmi| {
            let said = condition(vmi, "Synchronized")["message"].as_str().unwrap_or_default();
            uid(vmi) != than && said.contains("data") && said.contains("in use by another virtual machine")
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.space.kubectl(&["delete", "vm", "--all", "--wait=true", "--timeout=120s"]);
        let _ = self.space.kubectl(&["delete", "pvc", "data", "--timeout=60s"]);
        let _ = self.space.kubectl(&["delete", "pv", self.name, "--timeout=60s"]);
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
        let _ = self.disk.parent().map(std::fs::remove_dir_all);
    }
}

fn a_shared_disk_has_one_writer() -> Result<()> {
    let shared = Shared::file()?;
    shared.guest(NAME)?;
    shared.runs_on(SECOND)?;
    shared.writes("first")?;

    // It moves with the lock of its disk, which is not copied.
    shared.moves_to(FIRST)?;
    shared.more("first")?;

    // Another guest on the disk waits, and says for what.
    shared.guest("other")?;
    shared.waits_for_its_disk("other", "")?;
    shared.space.kubectl(&["delete", "vm", "other"])?;
    shared.moves_to(SECOND)?;
    shared.more("first")?;

    let mut writers = shared.writers()?;
    writers.dedup();
    ensure!(writers == ["first"], "{writers:?}");
    Ok(())
}

fn a_shared_device_is_handed_over() -> Result<()> {
    let shared = Shared::device()?;
    shared.guest(NAME)?;
    shared.runs_on(SECOND)?;
    shared.writes("first")?;
    shared.guest("other")?;
    shared.waits_for_its_disk("other", "")?;
    shared.moves_to(FIRST)?;
    shared.more("first")?;
    // It still waits: the device went from one node to the other, and to nobody between.
    let other = shared.space.get("vmi", "other")?;
    ensure!(phase(&other) != "Running" && shared.writers()?.iter().all(|who| who == "first"), "{}", other["status"]);
    Ok(())
}
