//! What a volume remembers while it is put back under the name of the claim whose disk it has: all that is needed to go on
//! after any interruption. Pure.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::index::put_back_index;
use super::stand_ins::{self, size_of};

/// On a volume that is put back under its claim's name: a label, and an annotation with what is remembered.
pub const PUT_BACK: &str = "ferrovirt.io/put-back";

/// The reclaim policy under which a volume outlives its claims.
const RETAIN: &str = "Retain";
/// The policy of volumes that say nothing.
const DEFAULT_POLICY: &str = "Retain";
/// Annotations that say how a claim came to its volume, which is another one now.
const OF_THE_VOLUME: [&str; 5] = [
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];
/// Set by the cluster on every claim.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// What is remembered, as an annotation of the volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The claim as it is to be again; without what its old volume left on it.
    pub claim: PersistentVolumeClaim,
    /// The UID of the claim that has the outdated disk.
    pub outdated: String,
    /// The stand-in's name.
    pub stand_in: String,
    /// The stand-in's UID.
    pub stand_in_uid: String,
    /// What becomes of the volume once its claim is deleted.
    pub policy: String,
}

impl Record {
    /// What has to be remembered when `volume`, bound to `stand_in`, takes the place of the volume of `claim`.
    pub fn new(claim: &PersistentVolumeClaim, stand_in: &PersistentVolumeClaim, volume: &PersistentVolume) -> Self {
        let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.clone());
        Self {
            claim: manifest(claim, volume),
            outdated: claim.uid().unwrap_or_default(),
            stand_in: stand_in.name_any(),
            stand_in_uid: stand_in.uid().unwrap_or_default(),
            policy: policy.unwrap_or_else(|| DEFAULT_POLICY.to_owned()),
        }
    }

    /// What `volume` remembers.
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        serde_json::from_str(volume.metadata.annotations.as_ref()?.get(PUT_BACK)?).ok()
    }

    /// The claim's namespace and name.
    pub fn named(&self) -> (String, String) {
        (self.claim.namespace().unwrap_or_default(), self.claim.name_any())
    }

    /// The patch by which `volume` begins to remember, and outlives its claims.
    pub fn begin(&self, volume: &PersistentVolume) -> Value {
        json!({
            "metadata": {
                "resourceVersion": volume.metadata.resource_version,
                "labels": { (PUT_BACK): "true" },
                "annotations": { (PUT_BACK): json!(self).to_string() },
            },
            "spec": { "persistentVolumeReclaimPolicy": RETAIN },
        })
    }

    /// The patch that keeps `volume` for whatever claim has the name, and for no other.
    pub fn reserve(&self, volume: &PersistentVolume) -> Value {
        let (namespace, name) = self.named();
        json!({
            "metadata": { "resourceVersion": volume.metadata.resource_version },
            "spec": { "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name,
                "uid": null, "resourceVersion": null,
            } },
        })
    }

    /// The patch with which `volume` is as any other.
    pub fn end(&self, volume: &PersistentVolume) -> Value {
        json!({
            "metadata": {
                "resourceVersion": volume.metadata.resource_version,
                "labels": { (PUT_BACK): null }, "annotations": { (PUT_BACK): null },
            },
            "spec": { "persistentVolumeReclaimPolicy": self.policy },
        })
    }
}

/// Index values of a volume that is put back: the claim it is put back for.
pub(crate) fn indexes(volume: &PersistentVolume) -> Vec<String> {
    let named = Record::of(volume).map(|record| record.named());
    named.map(|(namespace, name)| put_back_index(&namespace, &name)).into_iter().collect()
}

/// `claim` as somebody would write it who wants it on `volume`.
fn manifest(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> PersistentVolumeClaim {
    let mut labels = claim.metadata.labels.clone();
    let mut annotations = claim.metadata.annotations.clone();
    if let Some(annotations) = &mut annotations {
        annotations.retain(|key, _| !OF_THE_VOLUME.contains(&key.as_str()) && key != stand_ins::MOVED_TO);
    }
    labels = labels.filter(|labels| !labels.is_empty());
    annotations = annotations.filter(|annotations| !annotations.is_empty());
    let finalizers: Vec<String> = claim.finalizers().iter().filter(|name| *name != PROTECTION).cloned().collect();
    let mut spec = claim.spec.clone().unwrap_or_default();
    spec.volume_name.clone_from(&volume.metadata.name);
    // A claim that asks for more than there is would wait for ever.
    let there = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    if let (Some(there), Some(asked)) =
        (there, spec.resources.as_mut().and_then(|all| all.requests.as_mut()?.get_mut("storage")))
        && size_of(asked) > size_of(there)
    {
        *asked = Quantity(there.0.clone());
    }
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: claim.metadata.name.clone(),
            namespace: claim.metadata.namespace.clone(),
            labels,
            annotations,
            finalizers: Some(finalizers).filter(|all| !all.is_empty()),
            owner_references: claim.metadata.owner_references.clone(),
            ..Default::default()
        },
        spec: Some(spec),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claim_comes_back_as_its_owner_wrote_it() {
        let claim = serde_json::from_value(json!({
            "metadata": {
                "name": "data", "namespace": "ns", "uid": "old", "resourceVersion": "7", "labels": { "app": "x" },
                "annotations": {
                    "team": "a", "pv.kubernetes.io/bind-completed": "yes", "ferrovirt.io/moved-to": "data-1",
                    "volume.kubernetes.io/selected-node": "node1",
                },
                "finalizers": ["kubernetes.io/pvc-protection", "somebody.example/keeps"],
                "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "o" }],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": "pv-old",
                "resources": { "requests": { "storage": "3Gi" } },
            },
            "status": { "phase": "Bound" },
        }))
        .unwrap();
        let stand_in = serde_json::from_value(json!({ "metadata": { "name": "data-1", "uid": "new" } })).unwrap();
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": { "name": "pv-new", "resourceVersion": "9" },
            "spec": { "capacity": { "storage": "2Gi" }, "persistentVolumeReclaimPolicy": "Delete" },
        }))
        .unwrap();
        let record = Record::new(&claim, &stand_in, &volume);
        assert_eq!(
            json!(record.claim),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "data", "namespace": "ns", "labels": { "app": "x" }, "annotations": { "team": "a" },
                    "finalizers": ["somebody.example/keeps"],
                    "ownerReferences": [
                        { "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "o" },
                    ],
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": "pv-new",
                    "resources": { "requests": { "storage": "2Gi" } },
                },
            })
        );
        let begun = record.begin(&volume);
        assert_eq!(begun["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        let mut remembers = volume.clone();
        remembers.metadata.annotations = serde_json::from_value(begun["metadata"]["annotations"].clone()).unwrap();
        assert_eq!(Record::of(&remembers), Some(record.clone()));
        assert_eq!(indexes(&remembers), [put_back_index("ns", "data")]);
        assert_eq!(record.end(&volume)["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    }
}
