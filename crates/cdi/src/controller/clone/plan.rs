//! The steps of a clone. A claim is made beside its target, filled as the strategy says, brought to its size, and then its volume
//! changes hands. Pure.
//!
//! ```text
//!  Snapshot ─▶ SnapshotClone ─┐
//!                  CSIClone ──┼─▶ PrepClaim ─▶ Rebind ─▶ Succeeded
//!                  HostClone ─┘
//! ```

use std::collections::BTreeMap;

use api::cdi::constants::{annotation, label};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::controller::clone::choose::Strategy;
use crate::controller::context::annotation_of;
use crate::controller::labels::labels;
use crate::controller::settings::bytes;
use crate::controller::storage::requested;

/// What is cloned.
#[derive(Clone, Debug)]
pub enum Source {
    /// A claim.
    Claim(Box<PersistentVolumeClaim>),
    /// A snapshot.
    Snapshot(Box<DynamicObject>),
}

impl Source {
    /// Its namespace.
    pub fn namespace(&self) -> String {
        match self {
            Source::Claim(claim) => claim.namespace(),
            Source::Snapshot(snapshot) => snapshot.namespace(),
        }
        .unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Source::Claim(claim) => claim.name_any(),
            Source::Snapshot(snapshot) => snapshot.name_any(),
        }
    }
}

/// Name of the claim that is made beside `target`.
pub fn claim_name(target: &PersistentVolumeClaim) -> String {
    format!("tmp-pvc-{}", target.uid().unwrap_or_default())
}

/// Name of the snapshot that is made on the way.
pub fn snapshot_name(target: &PersistentVolumeClaim) -> String {
    format!("tmp-snapshot-{}", target.uid().unwrap_or_default())
}

/// Where a clone stands.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A snapshot of the source is to be made.
    TakeSnapshot,
    /// It is not ready.
    AwaitSnapshot,
    /// The claim beside the target is to be made.
    MakeClaim,
    /// It has no volume, or not all of its data.
    AwaitClaim,
    /// A pod is to use it, so that its volume is made, or its file system grows.
    Use,
    /// It is to be enlarged to this many bytes.
    Enlarge(u64),
    /// Its volume is the target's now.
    Rebind(String),
    /// The target has its volume: what was made on the way goes.
    Finish,
}

/// What is there.
pub struct State<'a> {
    /// The target.
    pub target: &'a PersistentVolumeClaim,
    /// The claim beside it.
    pub claim: Option<&'a PersistentVolumeClaim>,
    /// The snapshot on the way, or the one that is cloned.
    pub snapshot: Option<&'a DynamicObject>,
    /// Claims of the class wait for a consumer.
    pub waits: bool,
}

/// What comes next.
pub fn step(strategy: Strategy, of_snapshot: bool, state: &State<'_>) -> Step {
    let volume = |claim: &PersistentVolumeClaim| {
        claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty())
    };
    let bound = |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    };
    if bound(state.target) && volume(state.target).is_some() {
        return Step::Finish;
    }
    let Some(claim) = state.claim else {
        return match (strategy, state.snapshot) {
            (Strategy::Snapshot, None) if !of_snapshot => Step::TakeSnapshot,
            (Strategy::Snapshot, Some(snapshot)) if snapshot.data["status"]["readyToUse"] != true => {
                Step::AwaitSnapshot
            }
            _ => Step::MakeClaim,
        };
    };
    let Some(name) = volume(claim).filter(|_| bound(claim)) else {
        let used = annotation_of(claim, annotation::SELECTED_NODE).is_some();
        // The worker that copies is a consumer, too.
        return if state.waits && !used && strategy != Strategy::Copy { Step::Use } else { Step::AwaitClaim };
    };
    if strategy == Strategy::Copy && annotation_of(claim, annotation::POD_PHASE) != Some("Succeeded") {
        return Step::AwaitClaim;
    }
    let wanted = state.target.spec.as_ref().and_then(requested).unwrap_or_default();
    let has = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage")).map_or(0, bytes);
    let asks = claim.spec.as_ref().and_then(requested).unwrap_or_default();
    if has < wanted {
        if asks < wanted {
            return Step::Enlarge(wanted);
        }
        let conditions = claim.status.as_ref().and_then(|status| status.conditions.as_ref());
        let pending =
            conditions.into_iter().flatten().any(|one| one.type_ == "FileSystemResizePending" && one.status == "True");
        return if pending { Step::Use } else { Step::AwaitClaim };
    }
    Step::Rebind(name)
}

/// The word that a DataVolume's phase follows from.
pub fn phase(strategy: Strategy, step: &Step) -> &'static str {
    match (step, strategy) {
        (Step::TakeSnapshot | Step::AwaitSnapshot, _) => "Snapshot",
        (Step::MakeClaim | Step::AwaitClaim, Strategy::Snapshot) => "SnapshotClone",
        (Step::MakeClaim | Step::AwaitClaim, Strategy::Csi) => "CSIClone",
        (Step::MakeClaim | Step::AwaitClaim, Strategy::Copy) => "HostClone",
        (Step::Use | Step::Enlarge(_), _) => "PrepClaim",
        (Step::Rebind(_), _) => "Rebind",
        (Step::Finish, _) => "Succeeded",
    }
}

/// The claim beside `target`, filled from `source`, whose data take `size` bytes.
pub fn claim(target: &PersistentVolumeClaim, source: &Source, strategy: Strategy, size: u64) -> Value {
    let spec = target.spec.clone().unwrap_or_default();
    let mut annotations = marks(target);
    let mut asked = json!({
        "accessModes": spec.access_modes, "storageClassName": spec.storage_class_name, "volumeMode": spec.volume_mode,
        "resources": { "requests": { "storage": size.to_string() } },
    });
    let namespace = match strategy {
        // A driver clones within a namespace.
        Strategy::Csi | Strategy::Snapshot => source.namespace(),
        Strategy::Copy => target.namespace().unwrap_or_default(),
    };
    let snapshot = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot" });
    match (strategy, source) {
        (Strategy::Csi, source) => {
            asked["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": source.name() });
        }
        (Strategy::Snapshot, source) => {
            let name = match source {
                Source::Claim(_) => snapshot_name(target),
                Source::Snapshot(snapshot) => snapshot.name_any(),
            };
            asked["dataSource"] = snapshot;
            asked["dataSource"]["name"] = json!(name);
        }
        (Strategy::Copy, source) => {
            asked["resources"] = json!(spec.resources);
            for (key, value) in [
                (annotation::UPLOAD, String::new()),
                (annotation::CLONE_REQUEST, format!("{}/{}", source.namespace(), source.name())),
                (annotation::IMMEDIATE_BINDING, String::new()),
            ] {
                annotations.insert(key.to_owned(), value);
            }
            let passed_on = [
                annotation::CONTENT_TYPE,
                annotation::PREALLOCATION_REQUESTED,
                annotation::PRIORITY_CLASS,
                annotation::SERVICE_ACCOUNT,
                annotation::POD_RETAIN,
            ];
            for key in passed_on.into_iter().chain(annotation::PASSED_ON) {
                annotations.extend(annotation_of(target, key).map(|value| (key.to_owned(), value.to_owned())));
            }
        }
    }
    annotations.extend(
        annotation_of(target, annotation::SELECTED_NODE)
            .map(|node| (annotation::SELECTED_NODE.to_owned(), node.to_owned())),
    );
    json!({
        "metadata": {
            "name": claim_name(target), "namespace": namespace, "labels": owned(target, label::SMART_CLONER), "annotations": annotations,
        },
        "spec": asked,
    })
}

/// The snapshot of `source` on the way to `target`.
pub fn snapshot(target: &PersistentVolumeClaim, source: &Source, class: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {
            "name": snapshot_name(target), "namespace": source.namespace(), "labels": owned(target, label::SMART_CLONER),
            "annotations": marks(target),
        },
        "spec": { "volumeSnapshotClassName": class, "source": { "persistentVolumeClaimName": source.name() } },
    })
}

/// Labels of what is made on the way to `target`, which may be of another namespace and cannot own it.
pub fn owned(target: &PersistentVolumeClaim, component: &str) -> BTreeMap<String, String> {
    let mut labels = labels(component);
    labels.insert(label::CLONE_OWNER_UID.to_owned(), target.uid().unwrap_or_default());
    labels.insert(label::EXCLUDE_FROM_BACKUP.to_owned(), "true".to_owned());
    labels
}

/// By these its news are brought to `target`.
pub fn marks(target: &PersistentVolumeClaim) -> BTreeMap<String, String> {
    [(annotation::OWNER_UID.to_owned(), target.uid().unwrap_or_default())].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn made(annotations: Value, spec: Value, status: Value) -> PersistentVolumeClaim {
        let metadata = json!({ "name": "c", "namespace": "ns", "uid": "u", "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap()
    }

    fn sized(asks: &str, has: Option<&str>) -> (Value, Value) {
        let spec = json!({ "volumeName": has.map(|_| "v"), "resources": { "requests": { "storage": asks } } });
        (
            spec,
            has.map_or(
                json!({ "phase": "Pending" }),
                |has| json!({ "phase": "Bound", "capacity": { "storage": has } }),
            ),
        )
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(
        strategy: Strategy,
        claim: Option<PersistentVolumeClaim>,
        snapshot: Option<Value>,
        waits: bool,
        expect: Step,
    ) {
        let (spec, status) = sized("2Gi", None);
        let target = made(json!({}), spec, status);
        let snapshot: Option<DynamicObject> = snapshot.map(|status| {
            serde_json::from_value(
                json!({ "apiVersion": "v1", "kind": "VolumeSnapshot", "metadata": {}, "status": status }),
            )
            .unwrap()
        });
        let state = State { target: &target, claim: claim.as_ref(), snapshot: snapshot.as_ref(), waits };
        assert_eq!(step(strategy, false, &state), expect);
    }

    #[test]
    fn a_clone_goes_from_step_to_step() {
        let of = |asks: &str, has: Option<&str>, annotations: Value| {
            let (spec, status) = sized(asks, has);
            Some(made(annotations, spec, status))
        };
        check(Strategy::Snapshot, None, None, false, Step::TakeSnapshot);
        check(Strategy::Snapshot, None, Some(json!({ "readyToUse": false })), false, Step::AwaitSnapshot);
        check(Strategy::Snapshot, None, Some(json!({ "readyToUse": true })), false, Step::MakeClaim);
        check(Strategy::Csi, None, None, false, Step::MakeClaim);
        check(Strategy::Csi, of("1Gi", None, json!({})), None, false, Step::AwaitClaim);
        check(Strategy::Csi, of("1Gi", None, json!({})), None, true, Step::Use);
        check(Strategy::Copy, of("1Gi", None, json!({})), None, true, Step::AwaitClaim);
        check(Strategy::Csi, of("1Gi", Some("1Gi"), json!({})), None, false, Step::Enlarge(2 << 30));
        check(Strategy::Csi, of("2Gi", Some("1Gi"), json!({})), None, false, Step::AwaitClaim);
        check(Strategy::Csi, of("2Gi", Some("2Gi"), json!({})), None, false, Step::Rebind("v".into()));
        check(Strategy::Copy, of("2Gi", Some("2Gi"), json!({})), None, false, Step::AwaitClaim);
        let done = json!({ annotation::POD_PHASE: "Succeeded" });
        check(Strategy::Copy, of("2Gi", Some("2Gi"), done), None, false, Step::Rebind("v".into()));
    }

    #[test]
    fn a_driver_clones_where_the_source_is_and_a_copy_is_made_where_it_goes() {
        let (spec, status) = sized("2Gi", None);
        let target = made(json!({}), spec.clone(), status.clone());
        let mut elsewhere = made(json!({}), spec, status);
        elsewhere.metadata.namespace = Some("images".into());
        let source = Source::Claim(Box::new(elsewhere));
        let smart = claim(&target, &source, Strategy::Csi, 1 << 30);
        assert_eq!(
            (&smart["metadata"]["namespace"], &smart["spec"]["dataSource"]["name"]),
            (&json!("images"), &json!("c"))
        );
        let copy = claim(&target, &source, Strategy::Copy, 1 << 30);
        assert_eq!(copy["metadata"]["namespace"], "ns");
        assert_eq!(copy["metadata"]["annotations"][annotation::CLONE_REQUEST], "images/c");
    }
}
