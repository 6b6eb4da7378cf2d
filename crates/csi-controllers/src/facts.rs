//! Facts read off claims, volumes and classes. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::controller::quantity::{self, Milli};
use kube::{Resource, ResourceExt};

use super::names::{BETA_CLASS, BIND_COMPLETED, DEFAULT_CLASS, SELECTED_NODE};

/// An annotation, empty when absent.
pub fn annotation<'a, K: Resource>(object: &'a K, key: &str) -> &'a str {
    object.meta().annotations.as_ref().and_then(|a| a.get(key)).map_or("", String::as_str)
}

/// The class a claim names; `None` when it leaves that to the cluster, empty when it wants none.
pub fn named_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let beta = claim.metadata.annotations.as_ref().and_then(|a| a.get(BETA_CLASS));
    beta.or_else(|| claim.spec.as_ref()?.storage_class_name.as_ref()).map(String::as_str)
}

/// The class of a claim, empty for none.
pub fn class_of(claim: &PersistentVolumeClaim) -> &str {
    named_class(claim).unwrap_or_default()
}

/// The class of a volume, empty for none.
pub fn class_of_volume(volume: &PersistentVolume) -> &str {
    match annotation(volume, BETA_CLASS) {
        "" => volume.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()).unwrap_or_default(),
        beta => beta,
    }
}

/// The class of attributes a claim wants for its volume, empty for none.
pub fn attributes_class(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()).unwrap_or_default()
}

/// The class whose attributes a claim's volume has, empty for none.
pub fn current_attributes_class(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.current_volume_attributes_class_name.as_deref()).unwrap_or_default()
}

/// The classes of attributes that a claim names, has, and is on its way to.
pub fn attributes_classes(claim: &PersistentVolumeClaim) -> Vec<&str> {
    let target = claim.status.as_ref().and_then(|s| s.modify_volume_status.as_ref());
    let target = target.and_then(|s| s.target_volume_attributes_class_name.as_deref()).unwrap_or_default();
    let all = [attributes_class(claim), current_attributes_class(claim), target];
    all.into_iter().filter(|name| !name.is_empty()).collect()
}

/// The class whose attributes a volume has, empty for none.
pub fn attributes_class_of_volume(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()).unwrap_or_default()
}

/// Whether the class is that of claims that name none.
pub fn is_default(class: &StorageClass) -> bool {
    DEFAULT_CLASS.iter().any(|key| annotation(class, key) == "true")
}

/// The default class: the newest, and of equally old ones the first by name.
pub fn default_class(classes: &[Arc<StorageClass>]) -> Option<&Arc<StorageClass>> {
    let age = |class: &StorageClass| class.metadata.creation_timestamp.clone();
    classes
        .iter()
        .filter(|class| is_default(class))
        .max_by(|a, b| age(a).cmp(&age(b)).then_with(|| b.name_any().cmp(&a.name_any())))
}

/// Whether claims of the class wait for their first consumer.
pub fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// What a claim asks for.
pub fn requested(claim: &PersistentVolumeClaim) -> Milli {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
    resources.and_then(|r| r.get("storage")).map_or(0, quantity::of)
}

/// The size a claim has according to its status.
pub fn has(claim: &PersistentVolumeClaim) -> Milli {
    let capacity = claim.status.as_ref().and_then(|s| s.capacity.as_ref());
    capacity.and_then(|c| c.get("storage")).map_or(0, quantity::of)
}

/// The size of a volume.
pub fn capacity(volume: &PersistentVolume) -> Milli {
    let capacity = volume.spec.as_ref().and_then(|s| s.capacity.as_ref());
    capacity.and_then(|c| c.get("storage")).map_or(0, quantity::of)
}

/// Whole bytes, rounded up.
pub fn bytes(amount: Milli) -> i64 {
    i64::try_from((amount + 999).div_euclid(1000)).unwrap_or(i64::MAX)
}

/// The access modes of a claim.
pub fn modes(claim: &PersistentVolumeClaim) -> &[String] {
    claim.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default()
}

/// The access modes of a volume.
pub fn modes_of_volume(volume: &PersistentVolume) -> &[String] {
    volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default()
}

/// `Filesystem` or `Block`.
pub fn volume_mode(mode: Option<&String>) -> &str {
    mode.map_or("Filesystem", String::as_str)
}

/// The volume a claim is bound to or asks for, empty for none.
pub fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default()
}

/// The claim a volume is bound to or kept for.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// The CSI source of a volume.
pub fn source(volume: &PersistentVolume) -> Option<&CSIPersistentVolumeSource> {
    volume.spec.as_ref()?.csi.as_ref()
}

/// `status.phase`, empty before there is one.
pub fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// `status.phase`, empty before there is one.
pub fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// Whether the binding of a claim is complete.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    !volume_name(claim).is_empty() && !annotation(claim, BIND_COMPLETED).is_empty()
}

/// Whether the volume is bound to this very claim, or kept for one of its name.
pub fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|reference| {
        let uid = reference.uid.as_deref().unwrap_or_default();
        reference.name == claim.metadata.name
            && reference.namespace == claim.metadata.namespace
            && (uid.is_empty() || Some(uid) == claim.metadata.uid.as_deref())
    })
}

/// The node chosen for a claim's first consumer, empty before.
pub fn selected_node(claim: &PersistentVolumeClaim) -> &str {
    annotation(claim, SELECTED_NODE)
}

/// Being deleted.
pub fn is_leaving<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}
