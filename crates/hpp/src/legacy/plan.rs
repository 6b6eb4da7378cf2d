//! Which claims and volumes are this node's, and what a volume is like. Pure.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::NAME;
use crate::record;

/// On a claim: the node its volume is to be on, whatever its class says.
const PLACED: &str = "kubevirt.io/provisionOnNode";
/// On a claim whose class waits: the node of its first consumer.
const SELECTED: &str = "volume.kubernetes.io/selected-node";
/// On a claim: who is to make its volume.
const ASKED: [&str; 2] = ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// On a volume: who made it.
const MADE: &str = "pv.kubernetes.io/provisioned-by";
/// On a volume: which provisioner's it is.
const IDENTITY: &str = "hostPathProvisionerIdentity";

/// Where volumes are made.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) node: String,
    pub(super) dir: PathBuf,
    /// Whether directories are named after their claims as well.
    pub(super) prefix: bool,
}

/// The name of a claim's volume.
pub(super) fn name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.uid().unwrap_or_default())
}

/// The name of its directory.
pub(super) fn directory(claim: &PersistentVolumeClaim, site: &Site) -> String {
    let name = name(claim);
    record::id(&if site.prefix { format!("{}-{name}", claim.name_any()) } else { name })
}

/// Whether the claim's volume is to be made here, and now.
pub(super) fn is_due(claim: &PersistentVolumeClaim, class: &StorageClass, site: &Site) -> bool {
    let has = |key: &str, value: &str| claim.annotations().get(key).is_some_and(|known| known == value);
    let spec = claim.spec.as_ref();
    let open = spec.and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default().is_empty();
    let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    let here =
        has(PLACED, &site.node) || (waits && !claim.annotations().contains_key(PLACED) && has(SELECTED, &site.node));
    let block = spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
    class.provisioner == NAME
        && ASKED.iter().any(|key| has(key, NAME))
        && open
        && here
        && !block
        && claim.metadata.deletion_timestamp.is_none()
}

/// The volume. It has what the file system has: nothing bounds a directory.
pub(super) fn volume(claim: &PersistentVolumeClaim, class: &StorageClass, site: &Site, bytes: i64) -> Value {
    let spec = claim.spec.as_ref();
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name(claim),
            "annotations": { MADE: NAME, IDENTITY: NAME, PLACED: site.node },
        },
        "spec": {
            "accessModes": spec.and_then(|spec| spec.access_modes.clone()),
            "capacity": { "storage": bytes.to_string() },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                "name": claim.name_any(), "uid": claim.uid(), "resourceVersion": claim.resource_version(),
            },
            "hostPath": { "path": site.dir.join(directory(claim, site)) },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [site.node] },
            ] }] } },
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.name_any(),
            "volumeMode": "Filesystem",
        },
    })
}

/// The directory of a volume of this node that is to be removed.
pub(super) fn is_left(volume: &PersistentVolume, site: &Site) -> Option<String> {
    let has = |key: &str, value: &str| volume.annotations().get(key).is_some_and(|known| known == value);
    let spec = volume.spec.as_ref()?;
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let ours = has(IDENTITY, NAME) && has(PLACED, &site.node);
    let left = phase == "Released" && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    let path = PathBuf::from(&spec.host_path.as_ref()?.path);
    let name = path.file_name()?.to_str()?;
    let beneath = path.parent() == Some(site.dir.as_path()) && record::is_id(name);
    (ours && left && beneath && volume.metadata.deletion_timestamp.is_none()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(prefix: bool) -> Site {
        Site { node: "n1".into(), dir: "/pv".into(), prefix }
    }

    fn claim(annotations: &Value) -> PersistentVolumeClaim {
        serde_json::from_value(
            json!({"metadata": {"name": "data", "namespace": "n", "uid": "u", "annotations": annotations},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "s"}}),
        )
        .unwrap()
    }

    fn class(mode: &str) -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": "s"}, "provisioner": NAME, "volumeBindingMode": mode}))
            .unwrap()
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(annotations: Value, mode: &str, expect: bool) {
        assert_eq!(is_due(&claim(&annotations), &class(mode), &site(false)), expect, "{annotations} {mode}");
    }

    #[test]
    fn claims_of_this_node_and_provisioner_are_provisioned() {
        let (late, now) = ("WaitForFirstConsumer", "Immediate");
        check(json!({ASKED[0]: NAME, SELECTED: "n1"}), late, true);
        check(json!({ASKED[1]: NAME, SELECTED: "n1"}), late, true);
        check(json!({ASKED[0]: NAME, SELECTED: "n2"}), late, false);
        check(json!({ASKED[0]: NAME, SELECTED: "n1"}), now, false);
        check(json!({ASKED[0]: NAME, PLACED: "n1"}), now, true);
        check(json!({ASKED[0]: NAME, PLACED: "n2", SELECTED: "n1"}), late, false);
        check(json!({SELECTED: "n1"}), late, false);
        check(json!({ASKED[0]: "another", SELECTED: "n1"}), late, false);
    }

    #[test]
    fn a_volume_and_its_end() {
        for (prefix, path) in [(false, "/pv/pvc-u"), (true, "/pv/data-pvc-u")] {
            let made = volume(&claim(&json!({})), &class("Immediate"), &site(prefix), 1 << 30);
            assert_eq!(
                (&made["spec"]["hostPath"]["path"], &made["spec"]["capacity"]["storage"]),
                (&json!(path), &json!("1073741824"))
            );
            let mut volume: PersistentVolume = serde_json::from_value(made).unwrap();
            assert_eq!(is_left(&volume, &site(prefix)), None, "it is still claimed");
            volume.status = serde_json::from_value(json!({"phase": "Released"})).unwrap();
            assert_eq!(is_left(&volume, &site(prefix)).map(|name| format!("/pv/{name}")).as_deref(), Some(path));
            assert_eq!(is_left(&volume, &Site { node: "n2".into(), ..site(prefix) }), None);
            // Whatever somebody writes into a volume: only what lies in the directory is removed.
            volume.spec.as_mut().unwrap().host_path.as_mut().unwrap().path = "/pv/..".into();
            assert_eq!(is_left(&volume, &site(prefix)), None);
            volume.spec.as_mut().unwrap().host_path.as_mut().unwrap().path = "/etc/pvc-u".into();
            assert_eq!(is_left(&volume, &site(prefix)), None);
        }
    }
}
