//! What is to be done about a claim, and about a volume: the two halves of binding. Pure.
//!
//! ```text
//!  claim Pending --found / provisioned--> Bound --volume gone--> Lost
//!  volume Available --------------------> Bound --claim gone---> Released --policy Delete--> deleted, or Failed
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use csi_controllers::facts;
use csi_controllers::names::{BIND_COMPLETED, BOUND_BY_CONTROLLER, NO_PROVISIONER, PROVISIONED_BY};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::controller::pod;
use kit::events::Severity;
use kube::ResourceExt;

use super::fit;

/// The reason of a claim whose volume is another's.
pub(crate) const MISBOUND: &str = "ClaimMisbound";

/// An event to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) severity: Severity,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Note {
    fn normal(reason: &'static str, message: impl Into<String>) -> Option<Self> {
        Some(Self { severity: Severity::Normal, reason, message: message.into() })
    }
    fn warning(reason: &'static str, message: impl Into<String>) -> Option<Self> {
        Some(Self { severity: Severity::Warning, reason, message: message.into() })
    }
}

/// What a claim needs next.
#[derive(Clone, Debug)]
pub(crate) enum ClaimStep {
    /// To become pending, if it is not, until something changes.
    Wait(Option<Note>),
    /// The default class, which came after the claim.
    TakeClass(String),
    /// A volume made by this provisioner.
    Provision(String),
    /// This volume.
    Bind(Arc<PersistentVolume>),
    /// To be told that its volume is gone.
    Lose(&'static str, &'static str),
}

/// The world as far as a claim can see it.
#[derive(Clone, Copy)]
pub(crate) struct World<'a> {
    pub(crate) volumes: &'a [Arc<PersistentVolume>],
    pub(crate) classes: &'a [Arc<StorageClass>],
    /// Pods of the claim's namespace that use it and are not finished.
    pub(crate) consumers: &'a [Arc<Pod>],
}

/// What a claim needs next.
pub(crate) fn claim(claim: &PersistentVolumeClaim, world: World<'_>) -> ClaimStep {
    if !facts::annotation(claim, BIND_COMPLETED).is_empty() {
        return bound_claim(claim, world);
    }
    if facts::volume_name(claim).is_empty() {
        return if facts::named_class(claim).is_none()
            && let Some(class) = facts::default_class(world.classes)
        {
            ClaimStep::TakeClass(class.name_any())
        } else {
            unbound_claim(claim, world)
        };
    }
    let wanted = facts::volume_name(claim);
    let Some(volume) = world.volumes.iter().find(|v| v.metadata.name.as_deref() == Some(wanted)) else {
        return ClaimStep::Wait(None);
    };
    if facts::claim_ref(volume).is_none() {
        return match fit::mismatch(volume, claim) {
            None => ClaimStep::Bind(volume.clone()),
            Some(why) => ClaimStep::Wait(Note::warning(
                "VolumeMismatch",
                format!("Cannot bind to requested volume {wanted:?}: {why}"),
            )),
        };
    }
    if facts::is_for(volume, claim) {
        return ClaimStep::Bind(volume.clone());
    }
    ClaimStep::Wait(Note::warning("FailedBinding", format!("volume {wanted:?} already bound to a different claim.")))
}

fn bound_claim(claim: &PersistentVolumeClaim, world: World<'_>) -> ClaimStep {
    let name = facts::volume_name(claim);
    if name.is_empty() {
        let text = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return ClaimStep::Lose("ClaimLost", text);
    }
    match world.volumes.iter().find(|v| v.metadata.name.as_deref() == Some(name)) {
        None => ClaimStep::Lose("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
        Some(volume) if facts::claim_ref(volume).is_none() || facts::is_for(volume, claim) => {
            ClaimStep::Bind(volume.clone())
        }
        Some(_) => {
            let text = "Two claims are bound to the same volume, this one is bound incorrectly";
            ClaimStep::Lose(MISBOUND, text)
        }
    }
}

fn unbound_claim(claim: &PersistentVolumeClaim, world: World<'_>) -> ClaimStep {
    let class_name = facts::class_of(claim);
    let class = world.classes.iter().find(|class| class.metadata.name.as_deref() == Some(class_name));
    let waits = class.is_some_and(|class| facts::waits_for_consumer(class)) && facts::selected_node(claim).is_empty();
    let purpose = if waits { fit::For::Consumer } else { fit::For::Now };
    if let Some(volume) = fit::best(claim, world.volumes, purpose, &BTreeSet::new()) {
        return ClaimStep::Bind(volume.clone());
    }
    if waits {
        return ClaimStep::Wait(first_consumer(world.consumers));
    }
    if class_name.is_empty() {
        let text = "no persistent volumes available for this claim and no storage class is set";
        return ClaimStep::Wait(Note::normal("FailedBinding", text));
    }
    let Some(class) = class else {
        let text = format!("storageclass.storage.k8s.io {class_name:?} not found");
        return ClaimStep::Wait(Note::warning("ProvisioningFailed", text));
    };
    if class.provisioner == NO_PROVISIONER {
        let text = format!("no volume plugin matched name: {NO_PROVISIONER}");
        return ClaimStep::Wait(Note::warning("ProvisioningFailed", text));
    }
    ClaimStep::Provision(class.provisioner.clone())
}

fn first_consumer(consumers: &[Arc<Pod>]) -> Option<Note> {
    let waiting: Vec<String> = consumers.iter().filter(|p| pod::node_name(p).is_none()).map(|p| p.name_any()).collect();
    match waiting.as_slice() {
        [] => Note::normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        [one] => Note::normal("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
        many => Note::normal("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", many.join(","))),
    }
}

/// What `ExternalProvisioning` says.
pub(crate) fn waiting_for(provisioner: &str) -> String {
    format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system \
         administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    )
}

/// What a volume needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeStep {
    /// This phase, which it may have already.
    Phase(&'static str),
    /// Its claim is to be looked at, which will do the rest.
    WakeClaim,
    /// Claim and volume can never be bound.
    Mismatch,
    /// Its claim is gone: what becomes of the data depends on the policy.
    Release(Reclaim),
    /// Its claim is bound to another volume: it is free again, and forgets the claim's name or only its uid.
    Free { forget_name: bool },
}

/// What becomes of a released volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reclaim {
    /// It waits for the administrator.
    Keep,
    /// Its provisioner deletes it.
    ByProvisioner,
    /// Nobody can do what its policy says.
    Fail(&'static str, String),
}

/// What a volume needs next; `claim` is the one its reference names, whatever its uid.
pub(crate) fn volume(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> VolumeStep {
    let Some(reference) = facts::claim_ref(volume) else { return VolumeStep::Phase("Available") };
    let uid = reference.uid.as_deref().unwrap_or_default();
    if uid.is_empty() {
        return VolumeStep::Phase("Available");
    }
    let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(uid)) else {
        return VolumeStep::Release(reclaim(volume));
    };
    let by_controller = !facts::annotation(volume, BOUND_BY_CONTROLLER).is_empty();
    match facts::volume_name(claim) {
        "" if !fit::same_volume_mode(volume, claim) => VolumeStep::Mismatch,
        "" => VolumeStep::WakeClaim,
        name if Some(name) == volume.metadata.name.as_deref() => VolumeStep::Phase("Bound"),
        _ if !facts::annotation(volume, PROVISIONED_BY).is_empty() && policy(volume) == "Delete" => {
            VolumeStep::Release(reclaim(volume))
        }
        _ => VolumeStep::Free { forget_name: by_controller },
    }
}

fn policy(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}

fn reclaim(volume: &PersistentVolume) -> Reclaim {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    match policy(volume) {
        "Delete" if !facts::annotation(volume, PROVISIONED_BY).is_empty() => Reclaim::ByProvisioner,
        "Delete" => {
            let text =
                format!("error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched");
            Reclaim::Fail("VolumeFailedDelete", text)
        }
        "Recycle" => Reclaim::Fail("VolumeFailedRecycle", "No recycler plugin found for the volume!".into()),
        _ => Reclaim::Keep,
    }
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
