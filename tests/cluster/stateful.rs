//! StatefulSets with claims of their own, on volumes of a CSI driver: who starts when, and what becomes of the data.

use anyhow::{Context, Result, ensure};
use e2e::Namespace;
use e2e::hostpath::Hostpath;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, sh, template};

pub(crate) const TESTS: &[Test] = &[("each_ordinal_has_its_own_volume", each_ordinal_has_its_own_volume)];

const DRIVER: &str = "stateful.hostpath.example.com";
const CLASS: &str = "stateful-test";

/// Its pods are ready once there is a file on their volumes, so that a test says when.
fn set(replicas: u32) -> Value {
    let labels = json!({"app": "db"});
    let claim = json!({"metadata": {"name": "data"}, "spec": {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "16Mi"}}}});
    let mut template = template(&labels, IDLE);
    let container = &mut template["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    container["readinessProbe"] = json!({"exec": {"command": ["cat", "/data/go"]}, "periodSeconds": 1});
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {"replicas": replicas, "serviceName": "db", "selector": {"matchLabels": labels}, "template": template,
            "volumeClaimTemplates": [claim]}})
}

fn runs(space: &Namespace, pod: &str) -> Result<Value> {
    space.wait("pod", pod, "ran", |pod| pod["status"]["containerStatuses"][0]["state"]["running"].is_object())
}

fn rolled_out(space: &Namespace) -> Result<()> {
    space.kubectl(&["rollout", "status", "statefulset/db", "--timeout=120s"]).map(drop)
}

fn scale(space: &Namespace, replicas: u32) -> Result<()> {
    space.kubectl(&["scale", "statefulset/db", &format!("--replicas={replicas}")])?;
    rolled_out(space)
}

fn gone(space: &Namespace, kind: &str, name: &str) -> Result<()> {
    space.wait(kind, name, "went", Value::is_null).map(drop)
}

fn volume_of(space: &Namespace, claim: &str) -> Result<String> {
    let claim = space.get("pvc", claim)?;
    claim["spec"]["volumeName"].as_str().map(str::to_owned).with_context(|| format!("no volume: {claim}"))
}

fn each_ordinal_has_its_own_volume() -> Result<()> {
    let driver = Hostpath::install(DRIVER, CLASS, &json!({}))?;
    let space = Namespace::new("stateful")?;
    driver.registered("node1")?;
    apply(&space, &[set(2)])?;

    // In order: the second waits for the first to be ready.
    runs(&space, "db-0")?;
    ensure!(space.get("pod", "db-1")?.is_null() && space.get("pvc", "data-db-1")?.is_null(), "db-1 did not wait");
    let write = "busybox hostname > /data/who && busybox touch /data/go";
    sh(&space, "db-0", write)?;
    runs(&space, "db-1")?;
    sh(&space, "db-1", write)?;
    rolled_out(&space)?;

    // A pod's successor has its volume, and nobody else's.
    let uid = space.get("pod", "db-1")?["metadata"]["uid"].clone();
    let volume = volume_of(&space, "data-db-1")?;
    space.kubectl(&["delete", "pod", "db-1"])?;
    space.wait("pod", "db-1", "was made again", |pod| !pod.is_null() && pod["metadata"]["uid"] != uid)?;
    rolled_out(&space)?;
    for name in ["db-0", "db-1"] {
        ensure!(sh(&space, name, "cat /data/who")? == format!("{name}\n"), "the data of {name}");
    }
    ensure!(volume_of(&space, "data-db-1")? == volume, "another volume");

    // Scaled down, the claim waits for its pod to come back, unless the policy says that it goes.
    scale(&space, 1)?;
    gone(&space, "pod", "db-1")?;
    ensure!(space.get("pvc", "data-db-1")?["status"]["phase"] == "Bound", "the claim of a surplus pod");
    scale(&space, 2)?;
    ensure!(sh(&space, "db-1", "cat /data/who")? == "db-1\n", "the data of db-1");
    let policy = |deleted: &str, scaled: &str| {
        let policy = json!({"whenDeleted": deleted, "whenScaled": scaled});
        space.patch("statefulset", "db", &json!({"spec": {"persistentVolumeClaimRetentionPolicy": policy}}))
    };
    policy("Retain", "Delete")?;
    scale(&space, 1)?;
    gone(&space, "pvc", "data-db-1")?;
    gone(&space, "pv", &volume)?;
    ensure!(space.get("pvc", "data-db-0")?["status"]["phase"] == "Bound", "the claim of a pod that stays");

    // A claim grows under its pod; the set's template is not touched by it, and may not be changed.
    space.patch("pvc", "data-db-0", &json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}}))?;
    space.wait("pvc", "data-db-0", "was made larger", |claim| claim["status"]["capacity"]["storage"] == "32Mi")?;
    ensure!(sh(&space, "db-0", "cat /data/who")? == "db-0\n", "the data after the growth");
    let mut larger = set(1);
    larger["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = json!("32Mi");
    let refused = space.refused(&larger)?;
    ensure!(refused.contains("updates to statefulset spec for fields other than"), "{refused}");

    // Without its set the claim stays, unless the policy says that it goes.
    space.kubectl(&["delete", "statefulset", "db"])?;
    gone(&space, "pod", "db-0")?;
    ensure!(space.get("pvc", "data-db-0")?["status"]["phase"] == "Bound", "the claim of a set that is gone");
    apply(&space, &[set(1)])?;
    rolled_out(&space)?;
    ensure!(sh(&space, "db-0", "cat /data/who")? == "db-0\n", "the data under a new set");
    policy("Delete", "Retain")?;
    space.wait("pvc", "data-db-0", "was the set's", |claim| {
        claim["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
    })?;
    space.kubectl(&["delete", "statefulset", "db"])?;
    gone(&space, "pvc", "data-db-0")?;
    driver.volumes_are_gone()
}
