//! Volumes of CSI drivers, with and without what calls them: the hostpath provisioner, installed as anybody would
//! install a
//! driver.

use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::hostpath::{CLASS, DRIVER, Hostpath, claim, node_dir};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[("a_driver_without_sidecars", a_driver_without_sidecars)];
pub(crate) const LONG: &[Test] = &[("a_driver_brings_its_controllers", a_driver_brings_its_controllers)];

/// A pod that has a directory, a device, a volume of its own and a claim of its own.
fn user(name: &str) -> Value {
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let main = json!({"volumeMounts": [mount("dir"), mount("own"), mount("scratch")],
        "volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}], "securityContext": {"runAsUser": 0}});
    let here = json!({"kubernetes.io/hostname": "node1"});
    let spec = json!({"securityContext": {"fsGroup": 2000}, "nodeSelector": here, "volumes": [
        {"name": "dir", "persistentVolumeClaim": {"claimName": "dir"}},
        {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
        {"name": "own", "csi": {"driver": DRIVER}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim("", "Filesystem", "1Mi")["spec"]}}}
    ]});
    special(name, IDLE, &main, &spec)
}

/// Ends the node's agent as a failure would; its init starts another.
fn kill_the_kubelet() -> Result<()> {
    let init = sys::lock::holder(&node_dir("node1").join("lock"))?.context("no node runs")?;
    let is_agent = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|parent| parent.trim() == init.to_string()))
            && words.split(|byte| *byte == 0).any(|word| word == b"node-agent")
    };
    let mut pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let agent: u32 = pids.find(is_agent).context("the node has no agent")?;
    let process = sys::process::Handle::open(agent)?.context("it has just ended")?;
    process.kill()?;
    ensure!(process.ended_within(std::time::Duration::from_secs(10))?, "it does not end");
    Ok(())
}

fn a_driver_without_sidecars() -> Result<()> {
    // Removed after the other: without their driver, volumes cannot be taken from pods.
    let driver = Hostpath::install(DRIVER, CLASS, &json!({}))?;
    let space = Namespace::new("csi")?;
    driver.registered("node1")?;
    let label = space.get("node", "node1")?["metadata"]["labels"]["topology.hostpath.csi/node"].clone();
    ensure!(label == "node1", "the node's topology label is {label}");

    apply(&space, &[claim("dir", "Filesystem", "16Mi"), claim("disk", "Block", "16Mi"), user("one")])?;
    ready(&space, "one")?;
    sh(
        &space,
        "one",
        "echo kept > /dir/f && echo own > /own/f && echo mine > /scratch/f && echo block > /dev/disk && sync",
    )?;
    let group = sh(&space, "one", "busybox stat -c %g /dir /dir/f")?;
    ensure!(group == "2000\n2000\n", "the volume is not the pod's group's: {group}");

    let summary = space.kubectl(&["get", "--raw", "/api/v1/nodes/node1/proxy/stats/summary"])?;
    let metrics = space.kubectl(&["get", "--raw", "/api/v1/nodes/node1/proxy/metrics"])?;
    let own = format!("{{namespace=\"{}\",persistentvolumeclaim=\"disk\"}} 16777216", space.name());
    ensure!(metrics.contains(&format!("kubelet_volume_stats_capacity_bytes{own}")), "{metrics}");
    ensure!(summary.contains("\"pvcRef\""), "{summary}");

    // What a pod has outlives the kubelet and the driver.
    kill_the_kubelet()?;
    driver.registered("node1")?;
    driver.space.kubectl(&["delete", "pod", "-l", "app=driver"])?;
    driver.rolled_out()?;
    driver.registered("node1")?;
    ensure!(sh(&space, "one", "cat /dir/f /own/f && head -c 6 /dev/disk")? == "kept\nown\nblock\n", "the data");

    // And the next pod has it, except for what was the first one's own.
    space.kubectl(&["delete", "pod", "one"])?;
    until("what was the pod's own is removed", || Ok((driver.data("node1")?.len() == 2).then_some(())))?;
    apply(&space, &[user("two")])?;
    ready(&space, "two")?;
    ensure!(
        sh(&space, "two", "cat /dir/f && ls /own && test ! -e /scratch/f && head -c 6 /dev/disk")? == "kept\nblock\n",
        "the data"
    );

    for name in ["disk", "dir"] {
        space.patch("pvc", name, &json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}}))?;
        space.wait("pvc", name, "was made larger", |claim| claim["status"]["capacity"]["storage"] == "32Mi")?;
    }
    let size = sh(&space, "two", "busybox blockdev --getsize64 /dev/disk")?;
    ensure!(size == "33554432\n", "the device has {size}");

    space.kubectl(&["delete", "pod", "two"])?;
    space.kubectl(&["delete", "pvc", "dir", "disk"])?;
    until("the data is removed", || Ok(driver.data("node1")?.is_empty().then_some(())))?;
    driver.volumes_are_gone()?;
    driver.space.kubectl(&["delete", "daemonset", "driver"])?;
    until("the driver is forgotten", || Ok((!driver.is_listed("node1")?).then_some(())))
}

/// As on any Kubernetes, whose control plane calls no drivers.
fn a_driver_brings_its_controllers() -> Result<()> {
    const SHORT: &str = "csi-whole";
    const NAME: &str = "whole.hostpath.example.com";
    let driver = Hostpath::install_whole(NAME, SHORT, &json!({"storageCapacity": true}))?;
    let space = Namespace::new("whole")?;
    driver.registered("node1")?;
    let mut first = claim("first", "Filesystem", "16Mi");
    first["spec"]["storageClassName"] = json!(SHORT);
    let user = |name: &str, claim: &str| {
        let main = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}], "securityContext": {"runAsUser": 0}});
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        let here = json!({"kubernetes.io/hostname": "node1"});
        special(name, IDLE, &main, &json!({"nodeSelector": here, "volumes": volumes}))
    };
    apply(&space, &[first.clone(), user("one", "first")])?;
    ready(&space, "one")?;
    sh(&space, "one", "echo before > /v/f && sync")?;
    let made = space.get("pvc", "first")?;
    let volume = made["spec"]["volumeName"].as_str().context("the claim has no volume")?.to_owned();
    ensure!(space.get("pv", &volume)?["spec"]["csi"]["driver"] == NAME, "another driver made it");

    space.patch("pvc", "first", &json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}}))?;
    space.wait("pvc", "first", "was made larger", |claim| claim["status"]["capacity"]["storage"] == "32Mi")?;
    let room = ["get", "csistoragecapacities", "-l", &format!("csi.storage.k8s.io/drivername={NAME}"), "-o", "json"];
    until("it is said how much room there is", || {
        let rooms: Value = serde_json::from_str(&driver.space.kubectl(&room)?)?;
        let rooms = rooms["items"].as_array().cloned().unwrap_or_default();
        let by = "csi.storage.k8s.io/managed-by";
        let said = |room: &Value| room["metadata"]["labels"][by] == "csi-controller" && room["capacity"] != "0";
        Ok(rooms.iter().any(said).then_some(()))
    })?;

    let class = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "driver": NAME,
        "metadata": {"name": SHORT}, "deletionPolicy": "Delete"});
    let taken = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s"},
        "spec": {"volumeSnapshotClassName": SHORT, "source": {"persistentVolumeClaimName": "first"}}});
    apply(&space, &[class, taken])?;
    space.wait("volumesnapshot", "s", "is ready", |snapshot| snapshot["status"]["readyToUse"] == true)?;
    sh(&space, "one", "echo after > /v/f && sync")?;
    let mut restored = first;
    restored["metadata"]["name"] = json!("restored");
    restored["spec"]["resources"]["requests"]["storage"] = json!("32Mi");
    restored["spec"]["dataSource"] =
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    apply(&space, &[restored, user("two", "restored")])?;
    ready(&space, "two")?;
    ensure!(sh(&space, "two", "cat /v/f")? == "before\n", "what was restored is not what was captured");

    space.kubectl(&["delete", "pod", "one", "two"])?;
    space.kubectl(&["delete", "volumesnapshot", "s"])?;
    space.kubectl(&["delete", "pvc", "first", "restored"])?;
    until("the data is removed", || Ok(driver.data("node1")?.is_empty().then_some(())))?;
    driver.volumes_are_gone()
}
