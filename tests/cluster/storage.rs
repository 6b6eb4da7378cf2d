//! The default classes: claims that say nothing get volumes, which are captured, restored, copied and grown.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, ready, sh, special, with};

pub(crate) const TESTS: &[Test] = &[
    ("volumes_are_captured_restored_copied_and_grown", volumes_are_captured_restored_copied_and_grown),
    ("a_block_volume_is_captured_and_restored", a_block_volume_is_captured_and_restored),
];

/// A claim that leaves its class to the cluster.
fn claim(name: &str, mode: &str, size: &str, source: &Value) -> Value {
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": mode, "resources": {"requests": {"storage": size}}}});
    if !source.is_null() {
        claim["spec"]["dataSource"] = source.clone();
    }
    claim
}

fn of_snapshot(name: &str) -> Value {
    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name})
}

fn of_claim(name: &str) -> Value {
    json!({"kind": "PersistentVolumeClaim", "name": name})
}

fn snapshot(name: &str, claim: &str) -> Value {
    json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
        "spec": {"source": {"persistentVolumeClaimName": claim}}})
}

/// A pod that has each of the claims at a path of its name.
fn user(name: &str, claims: &[&str], mode: &str) -> Value {
    let at = |claim: &&str| {
        if mode == "Block" {
            json!({"name": claim, "devicePath": format!("/dev/{claim}")})
        } else {
            json!({"name": claim, "mountPath": format!("/{claim}")})
        }
    };
    let field = if mode == "Block" { "volumeDevices" } else { "volumeMounts" };
    let main = json!({ field: claims.iter().map(at).collect::<Vec<_>>(), "securityContext": {"runAsUser": 0} });
    let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    special(name, IDLE, &main, &json!({"volumes": claims.iter().map(volume).collect::<Vec<_>>()}))
}

fn is_ready(snapshot: &Value) -> bool {
    snapshot["status"]["readyToUse"] == true
}

fn volumes_are_captured_restored_copied_and_grown() -> Result<()> {
    let space = Namespace::new("storage")?;
    apply(&space, &[claim("first", "Filesystem", "16Mi", &Value::Null), user("one", &["first"], "Filesystem")])?;
    ready(&space, "one")?;
    sh(&space, "one", "echo before > /first/f && ln -s f /first/link && busybox chown 7:8 /first/f && sync")?;
    apply(&space, &[snapshot("s", "first")])?;
    let taken = space.wait("volumesnapshot", "s", "is ready", is_ready)?;
    ensure!(taken["spec"]["volumeSnapshotClassName"] == "hostpath-csi", "{taken}");
    ensure!(taken["status"]["restoreSize"] == "16Mi", "{taken}");
    sh(&space, "one", "echo after > /first/f && sync")?;

    // Wherever this pod might go, its volumes are made where the first one is.
    apply(
        &space,
        &[
            claim("restored", "Filesystem", "16Mi", &of_snapshot("s")),
            claim("copy", "Filesystem", "32Mi", &of_claim("first")),
            user("two", &["restored", "copy"], "Filesystem"),
        ],
    )?;
    ready(&space, "two")?;
    let found = sh(&space, "two", "cat /restored/link /copy/f; busybox stat -c %u:%g /restored/f")?;
    ensure!(found == "before\nafter\n7:8\n", "{found}");
    sh(&space, "two", "echo mine > /restored/f && sync")?;
    ensure!(sh(&space, "one", "cat /first/f")? == "after\n", "a copy is not its own");

    space.patch("pvc", "first", &json!({"spec": {"resources": {"requests": {"storage": "48Mi"}}}}))?;
    space.wait("pvc", "first", "was made larger", |claim| claim["status"]["capacity"]["storage"] == "48Mi")?;

    space.kubectl(&["delete", "volumesnapshot", "s"])?;
    let contents = space.kubectl(&[
        "get",
        "volumesnapshotcontents",
        "-o",
        "jsonpath={.items[*].spec.volumeSnapshotRef.namespace}",
    ])?;
    ensure!(!contents.split(' ').any(|name| name == space.name()), "the content is left: {contents}");
    ensure!(sh(&space, "two", "cat /restored/f")? == "mine\n", "what was restored went with its snapshot");
    Ok(())
}

fn a_block_volume_is_captured_and_restored() -> Result<()> {
    let space = Namespace::new("block")?;
    apply(&space, &[claim("disk", "Block", "8Mi", &Value::Null), user("one", &["disk"], "Block")])?;
    ready(&space, "one")?;
    sh(&space, "one", "echo before > /dev/disk && sync")?;
    apply(&space, &[snapshot("s", "disk")])?;
    space.wait("volumesnapshot", "s", "is ready", is_ready)?;
    sh(&space, "one", "echo behind > /dev/disk && sync")?;
    apply(&space, &[claim("restored", "Block", "16Mi", &of_snapshot("s")), user("two", &["restored"], "Block")])?;
    ready(&space, "two")?;
    let found = sh(&space, "two", "head -c 6 /dev/restored; busybox blockdev --getsize64 /dev/restored")?;
    ensure!(found == "before16777216\n", "{found}");
    space.patch("pvc", "disk", &json!({"spec": {"resources": {"requests": {"storage": "12Mi"}}}}))?;
    space.wait("pvc", "disk", "was made larger", |claim| claim["status"]["capacity"]["storage"] == "12Mi")?;
    let size = sh(&space, "one", "busybox blockdev --getsize64 /dev/disk")?;
    ensure!(size == "12582912\n", "the device has {size}");
    Ok(())
}

/// For the test of two nodes: one volume that pods of both have.
pub(crate) fn nodes_share_a_volume(space: &Namespace) -> Result<()> {
    let mut many = claim("many", "Filesystem", "8Mi", &Value::Null);
    many["spec"]["storageClassName"] = json!("hostpath-shared");
    many["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    let on = |name: &str, node: &str| with(user(name, &["many"], "Filesystem"), &json!({"spec": {"nodeName": node}}));
    apply(space, &[many, on("writer", "node1"), on("reader", "node2")])?;
    ready(space, "writer")?;
    ready(space, "reader")?;
    sh(space, "writer", "echo shared > /many/f && sync")?;
    ensure!(sh(space, "reader", "cat /many/f")? == "shared\n", "the nodes have two volumes");
    space.kubectl(&["delete", "pod", "writer", "reader"])?;
    space.kubectl(&["delete", "pvc", "many"]).map(drop)
}
