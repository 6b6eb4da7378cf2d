//! Disks that are copied: a machine captured and brought back, a golden image cloned; and what storage takes at rest.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cluster::{self, Cluster};
use crate::table::{Table, Times};
use crate::{disks, rest};

const MACHINE: &str = "captured";
const NODE: &str = "node1";
const GIB: u64 = 1 << 30;
/// Disks that are copied: bytes, and how many of them hold anything.
const CAPTURED: (u64, u64) = (2 * GIB, GIB / 2);
const GOLDEN: (u64, u64) = (10 * GIB, GIB);
/// How often each is done; the middle one counts.
const ROUNDS: usize = 3;
/// The classes: their volumes are made at once, so that what is measured ends when they are filled.
const PLAIN: &str = "plain";
/// The one whose pool is on a file system that shares blocks between files; the pool is called so too.
const SHARING: &str = "sharing";

pub(crate) async fn measure(cluster: &Cluster, client: &Client, rounds: usize) -> Result<Table> {
    let mut table = Table::default();
    disks::measure(cluster, client, rounds, &mut table).await?;
    class(cluster, PLAIN, "local")?;
    let classes = if share(cluster)? { vec![PLAIN, SHARING] } else { vec![PLAIN] };
    for class in &classes {
        capture(cluster, client, class, &mut table).await?;
    }
    for class in classes {
        clone(cluster, client, class, &mut table).await?;
    }
    Ok(table)
}

fn api(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), "default", &resource)
}

fn failed(seen: &Value) -> bool {
    seen["status"]["phase"] == "Failed"
}

fn succeeded(seen: &Value) -> bool {
    seen["status"]["phase"] == "Succeeded"
}

/// A DataVolume that is filled at once.
fn volume(name: &str, class: &str, size: u64, source: &Value) -> Value {
    json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": name, "namespace": "default",
            "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" } },
        "spec": { "source": source, "storage": { "volumeMode": "Filesystem", "accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "resources": { "requests": { "storage": size.to_string() } } } } })
}

/// Makes a class of a pool: it waits for nobody, and clones by the driver, as the classes of the demo do.
fn class(cluster: &Cluster, name: &str, pool: &str) -> Result<()> {
    let class = json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": name, "annotations": { "cdi.kubevirt.io/clone-strategy": "csi-clone" } },
        "provisioner": "kubevirt.io.hostpath-provisioner", "parameters": { "storagePool": pool },
        "volumeBindingMode": "Immediate", "allowVolumeExpansion": true });
    cluster.apply(&class).map(drop)
}

/// Makes a pool on XFS, in a file of the node's; false where nobody can make one.
fn share(cluster: &Cluster) -> Result<bool> {
    if Command::new("mkfs.xfs").arg("-V").output().is_err() {
        return Ok(false);
    }
    let (file, path) = (format!("/var/{SHARING}.img"), format!("/var/{SHARING}"));
    let script = format!(
        "mkdir -p {path} && truncate -s 16G {file} && mkfs.xfs -q -m reflink=1 {file} && mount -o loop {file} {path}"
    );
    cluster.ferrovirt(&["node", "exec", NODE, "--", "sh", "-c", &script])?;
    let pool = json!([{ "op": "add", "path": "/spec/storagePools/-", "value": { "name": SHARING, "path": path } }]);
    let object = ["hostpathprovisioner", "hostpath-provisioner"];
    cluster.kubectl(&[&["patch"], &object[..], &["--type=json", "-p", &pool.to_string()]].concat())?;
    class(cluster, SHARING, SHARING)?;
    let ready = format!("--for=jsonpath={{.status.storagePoolStatuses[?(@.name==\"{SHARING}\")].phase}}=Ready");
    cluster.kubectl(&[&["wait"], &object[..], &[&ready, "--timeout=120s"]].concat())?;
    let rollout = ["rollout", "status", "daemonset/hostpath-provisioner-csi", "--timeout=120s"];
    cluster.kubectl(&[&["-n", rest::PRODUCT], &rollout[..]].concat())?;
    Ok(true)
}

/// A machine with a disk on a claim is captured while it runs, and brought back once it is stopped.
async fn capture(cluster: &Cluster, client: &Client, class: &str, table: &mut Table) -> Result<()> {
    let data = api(client, "cdi.kubevirt.io", "v1beta1", "DataVolume");
    let blank = volume("kept", class, CAPTURED.0, &json!({ "blank": {} }));
    cluster::create(&data, &blank, succeeded, failed).await?;
    let image = image_of(cluster, "kept")?;
    fill(&image, CAPTURED)?;
    let floors = copies(&image)?;

    let mut spec = cluster::instance(cluster.root(), MACHINE)?["spec"].take();
    let push = |list: &mut Value, item: Value| list.as_array_mut().map(|list| list.push(item));
    push(&mut spec["volumes"], json!({ "name": "kept", "dataVolume": { "name": "kept" } }));
    push(&mut spec["domain"]["devices"]["disks"], json!({ "name": "kept", "disk": { "bus": "virtio" } }));
    let machine = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": MACHINE },
        "spec": { "runStrategy": "Always", "template": { "spec": spec } } });
    let vmis = cluster::kind(client, "default", "VirtualMachineInstance");
    let vms = cluster::kind(client, "default", "VirtualMachine");
    cluster::create(&vms, &machine, |vm| vm["status"]["ready"] == true, |_| false).await?;
    wait(&vmis, |vmi| cluster::condition(vmi, "AgentConnected")).await?;

    let of = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": MACHINE });
    let (group, version) = ("snapshot.kubevirt.io", "v1beta1");
    let object = |kind: &str, name: &str, spec: Value| json!({ "apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": { "name": name }, "spec": spec });
    let (snapshots, restores) =
        (api(client, group, version, "VirtualMachineSnapshot"), api(client, group, version, "VirtualMachineRestore"));
    let mut times = [Times::default(), Times::default()];
    for n in 0..ROUNDS {
        let snapshot = object("VirtualMachineSnapshot", &format!("then-{n}"), json!({ "source": of }));
        let ready = |seen: &Value| seen["status"]["readyToUse"] == true;
        times[0].extend([cluster::create(&snapshots, &snapshot, ready, failed).await?]);
    }
    cluster.run(&cluster.root().join("bin/virtctl").to_string_lossy(), &["stop", MACHINE])?;
    wait(&vms, |vm| vm["status"]["printableStatus"] == "Stopped").await?;
    for n in 0..ROUNDS {
        let spec = json!({ "target": of, "virtualMachineSnapshotName": format!("then-{n}") });
        let restore = object("VirtualMachineRestore", &format!("back-{n}"), spec);
        times[1].extend([
            cluster::create(&restores, &restore, |seen| seen["status"]["complete"] == true, |_| false).await?
        ]);
    }
    let does = ["snapshot of a running machine -> ready", "restore of a stopped machine -> complete"];
    for (does, times) in does.into_iter().zip(times) {
        let (gib, of) = (CAPTURED.1 as f64 / GIB as f64, CAPTURED.0 / GIB);
        let what = format!("{does}, a disk of {of} GiB with {gib} in it, {class} (s)");
        table.row(what, format!("{:.2}", times.at(0.5)), &floors);
    }
    for kind in ["vmrestore", "vmsnapshot", "vm", "datavolume", "pvc"] {
        cluster.kubectl(&["delete", kind, "--all", "--timeout=120s"])?;
    }
    Ok(())
}

/// A golden image is copied by a DataVolume, and by `cp`.
async fn clone(cluster: &Cluster, client: &Client, class: &str, table: &mut Table) -> Result<()> {
    let data = api(client, "cdi.kubevirt.io", "v1beta1", "DataVolume");
    let blank = volume("golden", class, GOLDEN.0, &json!({ "blank": {} }));
    cluster::create(&data, &blank, succeeded, failed).await?;
    let image = image_of(cluster, "golden")?;
    fill(&image, GOLDEN)?;
    let floors = copies(&image)?;
    let source = json!({ "pvc": { "name": "golden", "namespace": "default" } });
    let mut times = Times::default();
    for n in 0..ROUNDS {
        let copy = volume(&format!("copy-{n}"), class, GOLDEN.0, &source);
        times.extend([cluster::create(&data, &copy, succeeded, failed).await?]);
    }
    let (of, data) = (GOLDEN.0 / GIB, GOLDEN.1 / GIB);
    let aim = if class == SHARING { "; aim 0.2" } else { "" };
    table.row(
        format!("clone of a golden image of {of} GiB with {data} in it, {class} (s)"),
        format!("{:.2}", times.at(0.5)),
        format!("{floors}{aim}"),
    );
    cluster.kubectl(&["delete", "datavolume", "--all", "--timeout=120s"]).map(drop)
}

/// Waits until `reached` holds of the machine.
async fn wait(api: &Api<DynamicObject>, reached: impl Fn(&Value) -> bool) -> Result<()> {
    let begin = Instant::now();
    loop {
        let seen = serde_json::to_value(api.get(MACHINE).await.context("cannot read the machine")?)?;
        if reached(&seen) {
            return Ok(());
        }
        ensure!(begin.elapsed() < Duration::from_secs(120), "the machine came to {}", seen["status"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Where the host has the image of a claim: below the node's own root, whatever is mounted there.
fn image_of(cluster: &Cluster, claim: &str) -> Result<PathBuf> {
    let volume = cluster.kubectl(&["get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}"])?;
    let agent = rest::node_agent(cluster)?;
    let root = PathBuf::from(format!("/proc/{agent}/root/var"));
    let directories = [root.join("hpvolumes"), root.join(SHARING)];
    let image = directories.iter().map(|pool| pool.join(&volume).join("disk.img")).find(|image| image.exists());
    image.with_context(|| format!("volume {volume:?} of {claim} has no image in {directories:?}"))
}

/// Writes what no copy can leave out, in as many places as there are GiB.
fn fill(image: &Path, (size, data): (u64, u64)) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().write(true).open(image)?;
    let block: Vec<u8> = (1..=u8::MAX).cycle().take(1 << 20).collect();
    let places = size / GIB;
    for place in 0..places {
        let begin = place * GIB;
        for at in (begin..begin + data / places).step_by(block.len()) {
            file.write_all_at(&block, at)?;
        }
    }
    file.sync_all().context("cannot write the image")
}

/// How long `cp` takes of the same file in the same place, to stable storage.
fn copies(image: &Path) -> Result<String> {
    let copy = image.with_file_name("floor.img");
    let timed = |word: &str| -> Option<f64> {
        let mut times = Times::default();
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            let done = Command::new("cp").args([word, "--sparse=always"]).args([image, &copy]).output().ok()?;
            let synced = Command::new("sync").arg(&copy).status().ok()?;
            times.extend([begin.elapsed()]);
            let _ = std::fs::remove_file(&copy);
            (done.status.success() && synced.success()).then_some(())?;
        }
        Some(times.at(0.5))
    };
    let plain = timed("--reflink=never").context("cp failed")?;
    let shared = Command::new("cp").arg("--reflink=always").args([image, &copy]).output()?.status.success();
    let _ = std::fs::remove_file(&copy);
    let word = if shared { "; blocks are shared here" } else { "" };
    Ok(format!("cp --sparse=always {plain:.2}{word}"))
}
