//! The kinds of snapshot.storage.k8s.io, and VolumeAttributesClass, as far as controllers read them. Writes are patches, so
//! nothing else is lost.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::controller::{Kept, Kinds};
use kube::core::{ClusterResourceScope, NamespaceResourceScope, TypeMeta};
use serde::{Deserialize, Serialize};

pub(crate) const GROUP: &str = "snapshot.storage.k8s.io";
/// On a content: a claim of another volume mode may be restored from it.
pub(crate) const MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";
/// On a content whose volume only one node reaches: that node.
pub(crate) const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
const VERSION: &str = "v1";

/// A request for a snapshot of a claim's volume, or for one that exists.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VolumeSnapshot {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: SnapshotSpec,
    pub(crate) status: Option<SnapshotStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotSpec {
    #[serde(default)]
    pub(crate) source: SnapshotSource,
    pub(crate) volume_snapshot_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotSource {
    pub(crate) persistent_volume_claim_name: Option<String>,
    pub(crate) volume_snapshot_content_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotStatus {
    pub(crate) bound_volume_snapshot_content_name: Option<String>,
    pub(crate) creation_time: Option<String>,
    pub(crate) ready_to_use: Option<bool>,
    /// A quantity.
    pub(crate) restore_size: Option<serde_json::Value>,
    pub(crate) error: Option<Failure>,
}

/// The last failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) message: Option<String>,
    pub(crate) time: Option<String>,
}

/// A snapshot in the storage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VolumeSnapshotContent {
    /// Said where one is made; what is read needs it not.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) types: Option<TypeMeta>,
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: ContentSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<ContentStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContentSpec {
    pub(crate) deletion_policy: String,
    pub(crate) driver: String,
    pub(crate) source: ContentSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume_snapshot_class_name: Option<String>,
    pub(crate) volume_snapshot_ref: ObjectReference,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContentSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume_handle: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContentStatus {
    /// In nanoseconds since 1970.
    pub(crate) creation_time: Option<i64>,
    pub(crate) ready_to_use: Option<bool>,
    /// In bytes.
    pub(crate) restore_size: Option<i64>,
    pub(crate) snapshot_handle: Option<String>,
    pub(crate) error: Option<Failure>,
}

/// How snapshots are taken.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeSnapshotClass {
    pub(crate) metadata: ObjectMeta,
    pub(crate) deletion_policy: String,
    pub(crate) driver: String,
    pub(crate) parameters: Option<BTreeMap<String, String>>,
}

/// Attributes that a driver can give a volume, and change while it is in use.
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

impl VolumeSnapshot {
    pub(crate) fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }

    /// The claim it is of, unless it stands for a content that was there before.
    pub(crate) fn claim(&self) -> Option<&str> {
        self.spec.source.persistent_volume_claim_name.as_deref()
    }

    /// The name its content has.
    pub(crate) fn content(&self) -> String {
        let named = self.spec.source.volume_snapshot_content_name.clone();
        named.unwrap_or_else(|| format!("snapcontent-{}", self.metadata.uid.as_deref().unwrap_or_default()))
    }
}

impl VolumeSnapshotContent {
    /// Whether it is this very snapshot's, or kept for one of its name.
    pub(crate) fn is_for(&self, snapshot: &VolumeSnapshot) -> bool {
        let (of, meta) = (&self.spec.volume_snapshot_ref, &snapshot.metadata);
        let uid = of.uid.as_deref().unwrap_or_default();
        of.name == meta.name && of.namespace == meta.namespace && (uid.is_empty() || Some(uid) == meta.uid.as_deref())
    }

    /// The driver's name of the snapshot, as soon as there is one.
    pub(crate) fn handle(&self) -> Option<&str> {
        let found = self.status.as_ref().and_then(|status| status.snapshot_handle.as_deref());
        found.or(self.spec.source.snapshot_handle.as_deref())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }

    pub(crate) fn deletes(&self) -> bool {
        self.spec.deletion_policy == "Delete"
    }
}

macro_rules! resource {
    ($kind:ident, $group:expr, $plural:literal, $scope:ty) => {
        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($kind).into()
            }
            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                VERSION.into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
resource!(VolumeSnapshot, GROUP, "volumesnapshots", NamespaceResourceScope);
resource!(VolumeSnapshotContent, GROUP, "volumesnapshotcontents", ClusterResourceScope);
resource!(VolumeSnapshotClass, GROUP, "volumesnapshotclasses", ClusterResourceScope);
resource!(VolumeAttributesClass, "storage.k8s.io", "volumeattributesclasses", ClusterResourceScope);

/// Clusters may lack these kinds.
pub fn kept() -> Kinds {
    Kinds::default()
        .with(Kept::<VolumeSnapshot> { optional: true, ..Kept::default() })
        .with(Kept::<VolumeSnapshotContent> { optional: true, ..Kept::default() })
        .with(Kept::<VolumeSnapshotClass> { optional: true, ..Kept::default() })
        .with(Kept::<VolumeAttributesClass> { optional: true, ..Kept::default() })
}
