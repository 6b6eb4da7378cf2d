//! Names that snapshots, contents, classes and claims carry.

/// On a snapshot while claims may be restored from it.
pub(crate) const AS_SOURCE: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// On a snapshot whose content goes with it.
pub(crate) const BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// On a content as long as there is something of it in the storage, or a snapshot that needs it.
pub(crate) const CONTENT: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// On a claim while its snapshot is being taken.
pub(crate) const CLAIM: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// On a content whose snapshot is being deleted.
pub(crate) const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// On a content whose snapshot the driver may have begun to take.
pub(crate) const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// On the class of snapshots that name none.
pub(crate) const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// On a content: what the driver needs to delete it.
pub(crate) const SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// Its namespace.
pub(crate) const SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
