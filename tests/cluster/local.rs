//! Local volumes: a directory and a disk of a node, claimed by hand-made PersistentVolumes.

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, kubeconfig, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, ready, sh, special, with};

pub(crate) const TESTS: &[Test] = &[("local_volumes", local_volumes)];

/// What the disk is made of, on the node.
const POOL: &str = "/var/local-test";

/// A pod that may do to its node what it wants.
fn admin() -> Value {
    let main = json!({"securityContext": {"privileged": true, "runAsUser": 0}, "volumeMounts": [
        {"name": "pool", "mountPath": "/pool"}, {"name": "dev", "mountPath": "/host-dev"}]});
    let host = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
    special("admin", IDLE, &main, &json!({"nodeName": "node1", "volumes": [host("pool", POOL), host("dev", "/dev")]}))
}

/// Others use loop devices as well: whoever finds one taken looks for the next.
const ATTACH: &str = "mkdir -p /pool/dir && busybox truncate -s 32M /pool/disk && \
    for i in 0 1 2 3 4 5 6 7 8 9; do for n in $(busybox seq 31 -1 0); do \
    busybox losetup /host-dev/loop$n /pool/disk 2>/dev/null && echo -n /dev/loop$n && exit; done; done; exit 1";

fn volume(class: &str, path: &str, size: &str) -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"]});
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("{class}-{size}").to_lowercase()},
        "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "persistentVolumeReclaimPolicy": "Retain", "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}}})
}

fn claim(class: &str, name: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

fn user(name: &str) -> Value {
    let main = json!({"securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "dir", "mountPath": "/dir"}, {"name": "disk", "mountPath": "/disk"}]});
    let claimed = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    special(name, IDLE, &main, &json!({"volumes": [claimed("dir"), claimed("disk")]}))
}

/// Where the node has the volume's file system.
fn mounts(volume: &str) -> Result<usize> {
    let lock = kubeconfig().with_file_name("nodes/node1/lock");
    let init = sys::lock::holder(&lock)?.context("no node runs")?;
    let mounts = std::fs::read_to_string(format!("/proc/{init}/mountinfo"))?;
    Ok(mounts.lines().filter(|line| line.contains(&format!("/local-volume/mounts/{volume} "))).count())
}

fn local_volumes() -> Result<()> {
    let space = Namespace::new("local")?;
    let class = space.name().to_owned();
    apply(&space, &[admin()])?;
    ready(&space, "admin")?;
    let device = sh(&space, "admin", ATTACH)?;
    let by_hand = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
    let (dir, disk) = (volume(&class, &format!("{POOL}/dir"), "1Mi"), volume(&class, &device, "32Mi"));
    let disk_name = disk["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    apply(&space, &[by_hand, dir, with(disk, &json!({"spec": {"local": {"fsType": "ext4"}}}))])?;

    apply(&space, &[claim(&class, "dir", "1Mi"), claim(&class, "disk", "32Mi"), user("one"), user("two")])?;
    ready(&space, "one")?;
    ready(&space, "two")?;
    sh(&space, "one", "echo kept > /disk/f && echo here > /dir/f && sync")?;
    ensure!(sh(&space, "two", "cat /disk/f")? == "kept\n", "two pods of a node have two disks");
    ensure!(sh(&space, "admin", "cat /pool/dir/f")? == "here\n", "the directory is another one");
    ensure!(mounts(&disk_name)? == 1, "the disk is mounted {} times", mounts(&disk_name)?);

    // It stays for the pod that is left, and goes with that one.
    space.kubectl(&["delete", "pod", "one"])?;
    ensure!(sh(&space, "two", "cat /disk/f")? == "kept\n", "the disk went with the first pod");
    space.kubectl(&["delete", "pod", "two"])?;
    until("the disk is unmounted", || Ok((mounts(&disk_name)? == 0).then_some(())))?;
    apply(&space, &[user("three")])?;
    ready(&space, "three")?;
    ensure!(sh(&space, "three", "cat /disk/f")? == "kept\n", "the disk was formatted again");

    space.kubectl(&["delete", "pod", "three"])?;
    space.kubectl(&["delete", "pvc", "dir", "disk"])?;
    space.wait("pv", &disk_name, "is released", |volume| volume["status"]["phase"] == "Released")?;
    space.kubectl(&["delete", "pv", &disk_name, &format!("{class}-1mi"), "--timeout=60s"])?;
    space.kubectl(&["delete", "storageclass", &class])?;
    until("nobody has the disk any more", || Ok((mounts(&disk_name)? == 0).then_some(())))?;
    sh(&space, "admin", &format!("busybox losetup -d /host-dev/{}", device.trim_start_matches("/dev/")))?;
    sh(&space, "admin", "busybox rm -rf /pool/dir /pool/disk").map(drop)
}
