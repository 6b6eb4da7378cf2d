//! Which volumes are to be attached to which nodes, and which attachments are to end. Pure.

use std::collections::{BTreeMap, BTreeSet};

use csi_controllers::facts;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

/// The taint of a node that will not come back as it was.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// How long the volumes of a node that fell silent are waited for.
pub(crate) const PATIENCE: i64 = 6 * 60;

/// The name of an attachment: the same for the same volume and node, as every client of the API computes it.
pub(crate) fn name(handle: &str, driver: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{driver}{node}").as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

/// How nodes name a volume in `volumesInUse` and `volumesAttached`.
pub(crate) fn unique(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// A volume some pods on a node need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) volume: String,
    /// Those that need it, `namespace/name`.
    pub(crate) pods: BTreeSet<String>,
}

/// (node, volume) -> who needs it.
pub(crate) type Wants = BTreeMap<(String, String), Want>;

/// Whether a volume may be used on several nodes.
fn is_shared(volume: &PersistentVolume) -> bool {
    facts::modes_of_volume(volume).iter().any(|mode| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany"))
}

/// Why the volume cannot be attached to the node yet: another node has it.
pub(crate) fn conflict(
    volume: &PersistentVolume,
    node: &str,
    attachments: &[&VolumeAttachment],
    wants: &Wants,
) -> Option<String> {
    if is_shared(volume) {
        return None;
    }
    let name = volume.name_any();
    let elsewhere = attachments
        .iter()
        .find(|a| a.spec.source.persistent_volume_name.as_ref() == Some(&name) && a.spec.node_name != node)?;
    let users = wants.get(&(elsewhere.spec.node_name.clone(), name.clone()));
    let users: Vec<&str> =
        users.iter().flat_map(|want| want.pods.iter()).map(|p| p.rsplit('/').next().unwrap_or(p)).collect();
    let why = if users.is_empty() {
        "Volume is already exclusively attached to one node and can't be attached to another".to_owned()
    } else {
        format!("Volume is already used by pod(s) {}", users.join(", "))
    };
    Some(format!("Multi-Attach error for volume {name:?} {why}"))
}

/// What is to become of an attachment no pod needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detach {
    /// It ends now.
    Now,
    /// Its node still has the volume mounted.
    Wait,
    /// The node is silent: it ends in so many seconds whatever the node last said.
    In(i64),
}

/// When an attachment no pod needs may end; `unneeded` is for how many seconds it is that.
pub(crate) fn detach(node: Option<&Node>, volume: &str, unneeded: i64) -> Detach {
    let Some(node) = node else { return Detach::Now };
    let in_use = node.status.as_ref().and_then(|s| s.volumes_in_use.as_deref()).unwrap_or_default();
    if !in_use.iter().any(|used| used == volume) {
        return Detach::Now;
    }
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    if taints.iter().any(|taint| taint.key == OUT_OF_SERVICE) {
        return Detach::Now;
    }
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    if conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True") {
        return Detach::Wait;
    }
    if unneeded >= PATIENCE { Detach::Now } else { Detach::In(PATIENCE - unneeded) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        // The SHA-256 of "abc".
        assert_eq!(name("a", "b", "c"), "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn volumes_of_one_node() {
        let volume = |mode: &str| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {"accessModes": [mode]}})).unwrap()
        };
        let attachment: VolumeAttachment = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {
            "attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "v"}}}))
        .unwrap();
        let check = |mode: &str, node: &str, wants: &Wants, expect: Option<&str>| {
            assert_eq!(conflict(&volume(mode), node, &[&attachment], wants).as_deref(), expect);
        };
        let none = Wants::new();
        check("ReadWriteOnce", "n1", &none, None);
        check("ReadWriteMany", "n2", &none, None);
        let exclusive = "Multi-Attach error for volume \"v\" Volume is already exclusively attached to one node and can't be attached to another";
        check("ReadWriteOnce", "n2", &none, Some(exclusive));
        let want = Want { volume: "v".into(), pods: BTreeSet::from(["ns/web".to_owned()]) };
        let used = Wants::from([(("n1".to_owned(), "v".to_owned()), want)]);
        check(
            "ReadWriteOnce",
            "n2",
            &used,
            Some("Multi-Attach error for volume \"v\" Volume is already used by pod(s) web"),
        );
    }

    #[test]
    fn detaching_waits_for_the_node() {
        let node = |ready: &str, taints: Value, in_use: &[&str]| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {
                "volumesInUse": in_use, "conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap()
        };
        let check = |node: Option<Node>, unneeded: i64, expect: Detach| {
            assert_eq!(detach(node.as_ref(), "v", unneeded), expect);
        };
        check(None, 0, Detach::Now);
        check(Some(node("True", json!([]), &[])), 0, Detach::Now);
        check(Some(node("True", json!([]), &["v"])), 1000, Detach::Wait);
        check(Some(node("Unknown", json!([]), &["v"])), 60, Detach::In(300));
        check(Some(node("Unknown", json!([]), &["v"])), 360, Detach::Now);
        let taint = json!([{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]);
        check(Some(node("Unknown", taint, &["v"])), 0, Detach::Now);
    }
}
