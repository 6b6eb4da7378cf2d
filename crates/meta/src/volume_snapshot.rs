//! Group `snapshot.storage.k8s.io`: its kinds, as far as anything here reads and writes them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_core::TypeMeta;
use serde::{Deserialize, Serialize};

/// The group.
pub const GROUP: &str = "snapshot.storage.k8s.io";
/// On the class of a driver that is taken when nobody names one.
pub const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";

/// A snapshot of a claim's volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeSnapshot {
    /// Its identity, which the API server wants to be told.
    #[serde(flatten)]
    pub types: Option<TypeMeta>,
    /// As ever.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default)]
    pub spec: VolumeSnapshotSpec,
    /// What there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<VolumeSnapshotStatus>,
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// Of what.
    #[serde(default)]
    pub source: VolumeSnapshotSource,
    /// By which class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// Of what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSource {
    /// A claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    /// A snapshot that is in the storage already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_content_name: Option<String>,
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// The content that stands for it in the storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    /// When it was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Volumes can be made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The least that a volume made of it has to hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
    /// Why it could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<VolumeSnapshotError>,
}

/// Why it could not be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeSnapshotError {
    /// The sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A snapshot in the storage, of the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeSnapshotContent {
    /// Its identity, which the API server wants to be told.
    #[serde(flatten)]
    pub types: Option<TypeMeta>,
    /// As ever.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default)]
    pub spec: VolumeSnapshotContentSpec,
    /// What the driver says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<VolumeSnapshotContentStatus>,
}

/// What is asked of the driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContentSpec {
    /// `Delete` or `Retain`: what becomes of the snapshot in the storage.
    #[serde(default)]
    pub deletion_policy: String,
    /// The driver's name.
    #[serde(default)]
    pub driver: String,
    /// Of what.
    #[serde(default)]
    pub source: VolumeSnapshotContentSource,
    /// `Filesystem` or `Block`, as the volume was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_volume_mode: Option<String>,
    /// By which class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    /// The snapshot that it stands for.
    #[serde(default)]
    pub volume_snapshot_ref: ObjectReference,
}

/// Of what: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContentSource {
    /// The driver's name of a snapshot that is there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// The driver's name of a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
}

/// What the driver says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContentStatus {
    /// In nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    /// Volumes can be made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// In bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    /// The driver's name of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// Why it could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<VolumeSnapshotError>,
}

/// How a driver makes snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotClass {
    /// Its identity, which the API server wants to be told.
    #[serde(flatten)]
    pub types: Option<TypeMeta>,
    /// As ever.
    pub metadata: ObjectMeta,
    /// The driver's name.
    #[serde(default)]
    pub driver: String,
    /// `Delete` or `Retain`: what becomes of snapshots in the storage.
    #[serde(default)]
    pub deletion_policy: String,
    /// What the driver is told, and where its secrets are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BTreeMap<String, String>>,
}

impl VolumeSnapshot {
    /// Whether volumes can be made of it.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }

    /// The claim it is of, unless it stands for a content that was there before.
    pub fn claim(&self) -> Option<&str> {
        self.spec.source.persistent_volume_claim_name.as_deref()
    }

    /// The name its content has.
    pub fn content(&self) -> String {
        let named = self.spec.source.volume_snapshot_content_name.clone();
        named.unwrap_or_else(|| format!("snapcontent-{}", self.metadata.uid.as_deref().unwrap_or_default()))
    }
}

impl VolumeSnapshotContent {
    /// Whether it is this very snapshot's, or kept for one of its name.
    pub fn is_for(&self, snapshot: &VolumeSnapshot) -> bool {
        let (of, meta) = (&self.spec.volume_snapshot_ref, &snapshot.metadata);
        let uid = of.uid.as_deref().unwrap_or_default();
        of.name == meta.name && of.namespace == meta.namespace && (uid.is_empty() || Some(uid) == meta.uid.as_deref())
    }

    /// The driver's name of the snapshot, as soon as there is one.
    pub fn handle(&self) -> Option<&str> {
        let found = self.status.as_ref().and_then(|status| status.snapshot_handle.as_deref());
        found.or(self.spec.source.snapshot_handle.as_deref())
    }

    /// Whether volumes can be made of it.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }

    /// Whether the snapshot in the storage goes with it.
    pub fn deletes(&self) -> bool {
        self.spec.deletion_policy == "Delete"
    }
}

crate::kind!(VolumeSnapshot, GROUP, "v1", "volumesnapshots", NamespaceResourceScope);
crate::kind!(VolumeSnapshotContent, GROUP, "v1", "volumesnapshotcontents", ClusterResourceScope);
crate::kind!(VolumeSnapshotClass, GROUP, "v1", "volumesnapshotclasses", ClusterResourceScope);

/// The class by which snapshots of volumes of `driver` are made: the default among its classes, else the first by name.
pub fn class_of<'a>(classes: &'a [VolumeSnapshotClass], driver: &str) -> Option<&'a VolumeSnapshotClass> {
    let is_default = |class: &VolumeSnapshotClass| {
        let marked = class.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CLASS));
        marked.is_some_and(|value| value == "true")
    };
    let own = classes.iter().filter(|class| class.driver == driver);
    own.min_by_key(|class| (!is_default(class), class.metadata.name.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_default_class_of_the_driver() {
        let class = |name: &str, driver: &str, default: bool| -> VolumeSnapshotClass {
            let annotations = json!({ (DEFAULT_CLASS): default.to_string() });
            let object = json!({ "metadata": { "name": name, "annotations": annotations }, "driver": driver });
            serde_json::from_value(object).unwrap()
        };
        let classes = [class("a", "x", false), class("b", "x", true), class("c", "y", false), class("d", "y", false)];
        let name = |driver: &str| class_of(&classes, driver).and_then(|class| class.metadata.name.as_deref());
        assert_eq!((name("x"), name("y"), name("z")), (Some("b"), Some("c"), None));
    }
}
