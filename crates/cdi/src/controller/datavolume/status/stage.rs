//! The phase of a DataVolume, read off its claim, and what is said when it is entered. Pure.

use api::cdi::constants::{annotation, phase};
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use kube::ResourceExt;

use super::{Said, View};
use crate::controller::context::annotation_of;
use crate::controller::datavolume::plan::{self, Filling};

/// The phase of a DataVolume that has a claim, and what to say of it; `old` is the phase before.
pub(super) fn of_claim(
    volume: &DataVolume,
    claim: &PersistentVolumeClaim,
    old: &str,
    view: &View<'_>,
) -> (String, Option<Said>) {
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let populator = plan_uses_populator(claim);
    let ended = annotation_of(claim, annotation::POD_PHASE) == Some("Succeeded");
    let fatal = annotation_of(claim, annotation::FATAL_ERROR) == Some("true");
    let immediate = claim.annotations().contains_key(annotation::IMMEDIATE_BINDING);
    let consumed = annotation_of(claim, annotation::SELECTED_NODE).is_some_and(|node| !node.is_empty());
    match bound {
        _ if fatal => working(volume, claim, view.filling),
        "Lost" => {
            let message = format!("PVC {} lost", claim.name_any());
            (phase::FAILED.to_owned(), Some(Said { warning: true, reason: "ErrClaimLost".to_owned(), message }))
        }
        "Bound" if is_filled(volume, claim, view.filling) => match finished(volume, claim, view.filling) {
            Some(said) if ended => (phase::SUCCEEDED.to_owned(), Some(said)),
            _ => (phase::SUCCEEDED.to_owned(), None),
        },
        "Pending" if populator && view.waits && !consumed && !immediate && !ended => {
            (phase::PENDING_POPULATION.to_owned(), None)
        }
        // One that came filled is bound by nobody but its first consumer.
        "Pending" if !populator && view.waits && (view.honored || came_filled(volume, claim)) && !immediate => {
            (phase::WAIT_FOR_FIRST_CONSUMER.to_owned(), None)
        }
        "Bound" | "Pending" if populator => working(volume, claim, view.filling),
        "Pending" => (phase::PENDING.to_owned(), None),
        "Bound" if annotation_of(claim, annotation::POD_PHASE).is_some() => working(volume, claim, view.filling),
        "Bound" => {
            let keeps = !matches!(old, "" | phase::PENDING | phase::WAIT_FOR_FIRST_CONSUMER | phase::UNKNOWN);
            (if keeps { old } else { phase::PVC_BOUND }.to_owned(), None)
        }
        _ => (phase::UNKNOWN.to_owned(), None),
    }
}

/// True when somebody else has filled the claim.
pub fn came_filled(volume: &DataVolume, claim: &PersistentVolumeClaim) -> bool {
    annotation_of(claim, annotation::POPULATED_FOR) == Some(&volume.name_any())
}

/// True when the claim holds all the data.
pub fn is_filled(volume: &DataVolume, claim: &PersistentVolumeClaim, filling: Filling) -> bool {
    if came_filled(volume, claim) || filling == Filling::External {
        return true;
    }
    let staged = annotation_of(claim, annotation::CHECKPOINT_CURRENT).is_some();
    let unstaged_restore = filling == Filling::Restore && !plan_uses_populator(claim);
    unstaged_restore || (annotation_of(claim, annotation::POD_PHASE) == Some("Succeeded") && !staged)
}

fn plan_uses_populator(claim: &PersistentVolumeClaim) -> bool {
    claim
        .spec
        .as_ref()
        .and_then(|spec| spec.data_source_ref.as_ref())
        .is_some_and(|from| from.api_group.as_deref() == Some(api::cdi::constants::GROUP))
}

fn finished(volume: &DataVolume, claim: &PersistentVolumeClaim, filling: Filling) -> Option<Said> {
    let name = claim.name_any();
    let (reason, message) = match filling {
        Filling::Import => ("ImportSucceeded", format!("Successfully imported into PVC {name}")),
        Filling::Upload => ("UploadSucceeded", format!("Successfully uploaded into {name}")),
        Filling::Clone | Filling::Restore => {
            let (from, into) = (cloned(volume), Key::of(claim));
            ("CloneSucceeded", format!("Successfully cloned from {from} into {into}"))
        }
        Filling::External => return None,
    };
    Some(Said { warning: false, reason: reason.to_owned(), message })
}

/// The phase while a worker fills the volume.
fn working(volume: &DataVolume, claim: &PersistentVolumeClaim, filling: Filling) -> (String, Option<Said>) {
    let name = claim.name_any();
    let normal = |reason: &str, message: String| Some(Said { warning: false, reason: reason.to_owned(), message });
    let failed = |reason: &str, message: String| Some(Said { warning: true, reason: reason.to_owned(), message });
    let pod = annotation_of(claim, annotation::POD_PHASE).unwrap_or_default();
    let fatal = annotation_of(claim, annotation::FATAL_ERROR) == Some("true");
    let (phase, said) = match (filling, pod) {
        (Filling::Import, _) if fatal => {
            (phase::FAILED, failed("ImportFailed", format!("Failed to import into PVC {name}")))
        }
        (Filling::Import, "Running") => {
            (phase::IMPORT_IN_PROGRESS, normal("ImportInProgress", format!("Import into {name} in progress")))
        }
        (Filling::Import, "Failed") => {
            (phase::IMPORT_IN_PROGRESS, failed("ImportFailed", format!("Failed to import into PVC {name}")))
        }
        (Filling::Import, "Succeeded") if annotation_of(claim, annotation::CHECKPOINT_CURRENT).is_some() => {
            (phase::PAUSED, normal("ImportPaused", format!("Multistage import into PVC {name} is paused")))
        }
        (Filling::Import, "Succeeded") => (phase::IMPORT_IN_PROGRESS, None),
        (Filling::Import, _) => {
            (phase::IMPORT_SCHEDULED, normal("ImportScheduled", format!("Import into {name} scheduled")))
        }
        (Filling::Upload, "Running") if annotation_of(claim, annotation::POD_READY) == Some("true") => {
            (phase::UPLOAD_READY, normal("UploadReady", format!("Upload into {name} ready")))
        }
        (Filling::Upload, "Failed") => {
            (phase::UPLOAD_SCHEDULED, failed("UploadFailed", format!("Upload into {name} failed")))
        }
        (Filling::Upload, "Succeeded") => (phase::UPLOAD_READY, None),
        (Filling::Upload, _) => {
            (phase::UPLOAD_SCHEDULED, normal("UploadScheduled", format!("Upload into {name} scheduled")))
        }
        (Filling::Clone | Filling::Restore, _) => return cloning(volume, claim, filling),
        (Filling::External, _) => (phase::PENDING, None),
    };
    (phase.to_owned(), said)
}

/// What `volume` is a clone of: `NAMESPACE/NAME`.
fn cloned(volume: &DataVolume) -> String {
    let source = volume.spec.source.as_deref();
    let claim = source.and_then(|source| source.pvc.as_ref()).map(|from| from.name.as_str());
    let snapshot = source.and_then(|source| source.snapshot.as_ref()).map(|from| from.name.as_str());
    claim.or(snapshot).map(|name| Key::new(plan::source_namespace(volume), name).to_string()).unwrap_or_default()
}

fn cloning(volume: &DataVolume, claim: &PersistentVolumeClaim, filling: Filling) -> (String, Option<Said>) {
    let (from, into) = (cloned(volume), Key::of(claim).to_string());
    let (phase, reason, message) = match annotation_of(claim, annotation::CLONE_PHASE).unwrap_or_default() {
        "Snapshot" => (
            phase::SNAPSHOT_FOR_SMART_CLONE_IN_PROGRESS,
            "SnapshotForSmartCloneInProgress",
            format!("Creating snapshot for smart-clone is in progress (for pvc {from})"),
        ),
        "SnapshotClone" => {
            let kind = if filling == Filling::Restore { "snapshot" } else { "pvc" };
            let message = format!("Creating PVC from snapshot source is in progress (for {kind} {from})");
            (phase::CLONE_FROM_SNAPSHOT_SOURCE_IN_PROGRESS, "CloneFromSnapshotSourceInProgress", message)
        }
        "CSIClone" => (
            phase::CSI_CLONE_IN_PROGRESS,
            "CSICloneInProgress",
            format!("CSI Volume clone in progress (for pvc {from})"),
        ),
        "HostClone" => {
            (phase::CLONE_IN_PROGRESS, "CloneInProgress", format!("Cloning from {from} into {into} in progress"))
        }
        "PrepClaim" => (
            phase::PREP_CLAIM_IN_PROGRESS,
            "PrepClaimInProgress",
            format!("Prepping PersistentVolumeClaim for DataVolume {into}"),
        ),
        "Rebind" => (
            phase::REBIND_IN_PROGRESS,
            "RebindInProgress",
            format!("Rebinding PersistentVolumeClaim for DataVolume {into}"),
        ),
        _ if annotation_of(claim, annotation::POD_PHASE) == Some("Running") => {
            (phase::CLONE_IN_PROGRESS, "CloneInProgress", format!("Cloning from {from} into {into} in progress"))
        }
        _ => (phase::CLONE_SCHEDULED, "CloneScheduled", format!("Cloning from {from} into {into} scheduled")),
    };
    (phase.to_owned(), Some(Said { warning: false, reason: reason.to_owned(), message }))
}
