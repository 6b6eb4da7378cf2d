//! Volumes that one node at a time may have, when their nodes are lost: one without power, one cut off.
//!
//! The hostpath provisioner stands in for storage on a network: its driver is said to need attaching, and the volumes
//! are of the kind it makes where they are published and removes where they are unpublished, on whichever node.

use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};
use e2e::hostpath::{Hostpath, node_dir};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::nodes::Joined;
use crate::pods::{IDLE, apply, ready, special};
use crate::survival::ferrovirt;

pub(crate) const TESTS: &[Test] = &[("lost_nodes_keep_their_volumes", lost_nodes_keep_their_volumes)];

const DRIVER: &str = "attached.hostpath.example.com";

/// A volume called `vol-<name>` with its claim.
fn volume(name: &str) -> [Value; 2] {
    let (name, volume) = (format!("claim-{name}"), format!("vol-{name}"));
    let common = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": ""});
    let mut spec = common.clone();
    spec["capacity"] = json!({"storage": "1Mi"});
    spec["csi"] = json!({"driver": DRIVER, "volumeHandle": volume,
        "volumeAttributes": {"csi.storage.k8s.io/ephemeral": "true"}});
    spec["persistentVolumeReclaimPolicy"] = json!("Retain");
    let mut wanted = common;
    wanted["resources"] = json!({"requests": {"storage": "1Mi"}});
    wanted["volumeName"] = json!(volume);
    [
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": wanted}),
    ]
}

/// A pod with that volume on a node, which leaves it as soon as that is lost.
fn user(pod: &str, volume: &str, node: &str) -> Value {
    let main = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let spec = json!({
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": format!("claim-{volume}")}}]
    });
    special(pod, IDLE, &main, &spec)
}

/// The nodes that a volume is attached to.
fn attached(space: &Namespace, volume: &str) -> Result<Vec<String>> {
    let filter = format!(
        "{{range .items[?(@.spec.source.persistentVolumeName==\"vol-{volume}\")]}}{{.spec.nodeName}}={{.status.attached}} {{end}}"
    );
    let found = space.kubectl(&["get", "volumeattachments", "-o", &format!("jsonpath={filter}")])?;
    Ok(found.split_whitespace().map(str::to_owned).collect())
}

/// What a node says, or the cluster about it, of a volume in a list of its status.
fn lists(space: &Namespace, node: &str, list: &str, volume: &str) -> Result<bool> {
    let name = format!("kubernetes.io/csi/{DRIVER}^vol-{volume}");
    let node = space.get("node", node)?;
    Ok(node["status"][list]
        .as_array()
        .into_iter()
        .flatten()
        .any(|known| known == name.as_str() || known["name"] == name))
}

/// Removes volumes that nobody else would.
struct Volumes<'a>(&'a Namespace);

impl Drop for Volumes<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "pod,pvc", "--all", "--force", "--grace-period=0"]);
        let _ = self.0.kubectl(&["delete", "pv", "vol-dark", "vol-cut", "--ignore-not-found"]);
    }
}

fn lost_nodes_keep_their_volumes() -> Result<()> {
    let (dark, cut) = (Joined::new()?, Joined::new()?);
    let driver = Hostpath::install(DRIVER, "attached-test", &json!({"attachRequired": true, "podInfoOnMount": false}))?;
    let space = Namespace::new("attachment")?;
    let _volumes = Volumes(&space);
    let both = [("dark", dark.name()), ("cut", cut.name())];
    for (name, node) in both {
        driver.registered(node)?;
        apply(&space, &volume(name))?;
        apply(&space, &[user(name, name, node)])?;
    }
    for (name, node) in both {
        ready(&space, name)?;
        ensure!(attached(&space, name)? == [format!("{node}=true")], "{:?}", attached(&space, name)?);
        until("the node says what it uses", || Ok(lists(&space, node, "volumesInUse", name)?.then_some(())))?;
        ensure!(lists(&space, node, "volumesAttached", name)?, "{}", space.get("node", node)?["status"]);
        ensure!(driver.data(node)? == [format!("vol-{name}")], "{:?}", driver.data(node)?);
    }
    let dirs = both.map(|(name, node)| pod_dir(&space, name, node)).into_iter().collect::<Result<Vec<_>>>()?;
    // At once, as in a fire.
    std::thread::scope(|scope| {
        let killed = scope.spawn(|| ferrovirt(&["node", "kill", dark.name()]));
        let isolated = ferrovirt(&["node", "cut", cut.name()]);
        killed.join().map_err(|_| anyhow!("the thread panicked"))?.and(isolated)
    })?;
    for (name, node) in both {
        apply(&space, &[user(&format!("{name}-elsewhere"), name, "node1")])?;
        let event = space.event("Pod", &format!("{name}-elsewhere"), "FailedAttachVolume")?;
        let expect = format!("Multi-Attach error for volume \"vol-{name}\" Volume is already used by pod(s) {name}");
        ensure!(event == expect, "{event}");
        space.wait("pod", name, "was told to leave", |pod| pod["metadata"]["deletionTimestamp"].is_string())?;
        ensure!(attached(&space, name)? == [format!("{node}=true")], "{:?}", attached(&space, name)?);
    }

    // Somebody vouches for it that one of them is gone: its volume is taken from it, the other's is not.
    space.kubectl(&["taint", "node", dark.name(), "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])?;
    space.wait("pod", "dark", "was given up", Value::is_null)?;
    ready(&space, "dark-elsewhere")?;
    ensure!(attached(&space, "dark")? == ["node1=true"], "{:?}", attached(&space, "dark")?);
    ensure!(attached(&space, "cut")? == [format!("{}=true", cut.name())], "{:?}", attached(&space, "cut")?);
    ensure!(space.get("pod", "cut-elsewhere")?["status"]["phase"] == "Pending", "two nodes have one volume");

    // The other comes back, and ends what it is told to; only then its volume is another's.
    ferrovirt(&["node", "heal", cut.name()])?;
    space.wait("pod", "cut", "was ended by its node", Value::is_null)?;
    ready(&space, "cut-elsewhere")?;
    ensure!(attached(&space, "cut")? == ["node1=true"], "{:?}", attached(&space, "cut")?);
    ensure!(driver.data(cut.name())?.is_empty(), "the volume is still published on the node it left");

    // And the first does so too, once it has power again: of the pod that was taken from it nothing is left.
    ferrovirt(&["node", "start", dark.name()])?;
    space.kubectl(&["taint", "node", dark.name(), "node.kubernetes.io/out-of-service-"])?;
    driver.rolled_out()?;
    driver.registered(dark.name())?;
    until("the volume was unpublished where nobody has it", || Ok(driver.data(dark.name())?.is_empty().then_some(())))?;
    until("the nodes have nothing of the volumes any more", || {
        let mut clean = true;
        for (name, node) in both {
            clean &= !lists(&space, node, "volumesInUse", name)? && !lists(&space, node, "volumesAttached", name)?;
        }
        Ok(clean.then_some(()))
    })?;
    until("the nodes have nothing of the pods any more", || Ok((!dirs.iter().any(|dir| dir.exists())).then_some(())))
}

/// Where a node keeps what belongs to a pod.
fn pod_dir(space: &Namespace, pod: &str, node: &str) -> Result<PathBuf> {
    let uid = space.get("pod", pod)?["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let dir = node_dir(node).join("var/lib/kubelet/pods").join(uid);
    ensure!(dir.is_dir(), "{} is not there", dir.display());
    Ok(dir)
}
