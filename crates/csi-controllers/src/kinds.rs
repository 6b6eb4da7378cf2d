//! VolumeAttributesClass, as far as controllers read it, and which kinds a cluster may lack. Writes are patches, so that nothing
//! is lost.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::controller::{Kept, Kinds};
use meta::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use serde::{Deserialize, Serialize};

/// On a content: a claim of another volume mode may be restored from it.
pub(crate) const MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";
/// On a content whose volume only one node reaches: that node.
pub(crate) const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// Attributes that a driver can give a volume, and change while it is in use. k8s-openapi has it from Kubernetes 1.34 on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttributesClass {
    /// Standard object metadata.
    pub metadata: ObjectMeta,
    /// The driver that knows the parameters.
    pub driver_name: String,
    /// What the driver is told, as it is.
    pub parameters: Option<BTreeMap<String, String>>,
}

meta::kind!(VolumeAttributesClass, "storage.k8s.io", "v1", "volumeattributesclasses", ClusterResourceScope);

/// Clusters may lack these kinds.
pub fn kept() -> Kinds {
    Kinds::default()
        .with(Kept::<VolumeSnapshot> { optional: true, ..Kept::default() })
        .with(Kept::<VolumeSnapshotContent> { optional: true, ..Kept::default() })
        .with(Kept::<VolumeSnapshotClass> { optional: true, ..Kept::default() })
        .with(Kept::<VolumeAttributesClass> { optional: true, ..Kept::default() })
}
