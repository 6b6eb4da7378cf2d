//! A claim whose volume comes filled: another claim, its prime, is filled in its place, and then its volume changes hands. Pure.

use std::collections::BTreeMap;

use api::cdi::constants::{self, annotation, label};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::controller::context::annotation_of;
use crate::controller::progress::Far;
use crate::controller::write::Changes;
use crate::controller::{labels, worker};

/// What is said of the prime on the claim it stands in for.
const TOLD: [&str; 17] = [
    annotation::POD_PHASE,
    annotation::POD_READY,
    annotation::POD_RESTARTS,
    annotation::POD_SCHEDULABLE,
    annotation::PREALLOCATION_REQUESTED,
    annotation::PREALLOCATION_APPLIED,
    annotation::CHECKPOINT_CURRENT,
    annotation::MULTISTAGE_DONE,
    annotation::RUNNING,
    annotation::RUNNING_MESSAGE,
    annotation::RUNNING_REASON,
    annotation::SOURCE_RUNNING,
    annotation::SOURCE_RUNNING_MESSAGE,
    annotation::SOURCE_RUNNING_REASON,
    annotation::FATAL_ERROR,
    annotation::VDDK_HOST,
    annotation::VDDK_VERSION,
];

/// Which populator of ours fills `claim`, and from which object.
pub fn source(claim: &PersistentVolumeClaim) -> Option<(&str, &str)> {
    let from = claim.spec.as_ref()?.data_source_ref.as_ref()?;
    let ours = from.api_group.as_deref() == Some(constants::GROUP) && from.namespace.is_none();
    ours.then_some((from.kind.as_str(), from.name.as_str()))
}

/// Name of the claim that is filled in the place of `claim`.
pub fn prime_name(claim: &PersistentVolumeClaim) -> String {
    format!("prime-{}", claim.uid().unwrap_or_default())
}

/// True when the claim can be filled now: its class does not wait for a consumer, there is one, or nobody is to be waited for.
pub fn ready(claim: &PersistentVolumeClaim, waits: bool) -> bool {
    !waits
        || annotation_of(claim, annotation::SELECTED_NODE).is_some_and(|node| !node.is_empty())
        || claim.annotations().contains_key(annotation::IMMEDIATE_BINDING)
}

/// The prime of `claim`, filled as `how` says.
pub fn prime(claim: &PersistentVolumeClaim, kind: &str, how: BTreeMap<String, String>) -> Value {
    let spec = claim.spec.clone().unwrap_or_default();
    let mut labels = worker::inherited(claim);
    labels.extend(labels::labels(""));
    labels.insert(label::EXCLUDE_FROM_BACKUP.to_owned(), "true".to_owned());
    let mut annotations: BTreeMap<String, String> = how;
    annotations.insert(annotation::IMMEDIATE_BINDING.to_owned(), String::new());
    annotations.insert(annotation::POPULATOR_KIND.to_owned(), kind.to_owned());
    for key in [
        annotation::SELECTED_NODE,
        annotation::POD_RETAIN,
        annotation::PRIORITY_CLASS,
        annotation::SERVICE_ACCOUNT,
        annotation::VDDK_EXTRA_ARGS,
        annotation::REQUIRES_DIRECT_IO,
    ]
    .into_iter()
    .chain(annotation::PASSED_ON)
    {
        if let Some(value) = annotation_of(claim, key) {
            annotations.insert(key.to_owned(), value.to_owned());
        }
    }
    json!({
        "metadata": {
            "name": prime_name(claim), "namespace": claim.namespace(), "labels": labels, "annotations": annotations,
            "ownerReferences": worker::owned_by(claim),
        },
        "spec": {
            "accessModes": spec.access_modes, "resources": spec.resources, "storageClassName": spec.storage_class_name,
            "volumeMode": spec.volume_mode,
        },
    })
}

/// What `claim` says of its prime.
pub fn told(claim: &PersistentVolumeClaim, prime: &PersistentVolumeClaim, progress: Option<&Far>) -> Changes {
    let mut out: Changes = TOLD
        .into_iter()
        .filter(|key| claim.annotations().contains_key(*key) || prime.annotations().contains_key(*key))
        .map(|key| (key.to_owned(), annotation_of(prime, key).map(ToOwned::to_owned)))
        .collect();
    out.extend(unbound(claim, prime));
    out.insert(annotation::PVC_PRIME.to_owned(), Some(prime.name_any()));
    let done = is_complete(prime);
    if let Some(far) = progress.filter(|far| !far.message.is_empty()) {
        out.insert(annotation::RUNNING_MESSAGE.to_owned(), Some(far.message.clone()));
    }
    let percent = match (done, progress.map(|far| far.percent)) {
        (true, _) => Some("100.0%".to_owned()),
        // The last steps are still to come.
        (false, Some(percent)) if percent < 100.0 => Some(format!("{percent:.2}%")),
        (false, _) if annotation_of(claim, annotation::POPULATOR_PROGRESS).is_none() => {
            Some(constants::NO_PROGRESS.to_owned())
        }
        _ => None,
    };
    out.extend(percent.map(|percent| (annotation::POPULATOR_PROGRESS.to_owned(), Some(percent))));
    out
}

/// Why `claim` has no volume: what is said of `other`, whose volume becomes its.
pub fn unbound(claim: &PersistentVolumeClaim, other: &PersistentVolumeClaim) -> Changes {
    [annotation::BOUND, annotation::BOUND_REASON, annotation::BOUND_MESSAGE]
        .into_iter()
        .filter(|key| claim.annotations().contains_key(*key) || other.annotations().contains_key(*key))
        .map(|key| (key.to_owned(), annotation_of(other, key).map(ToOwned::to_owned)))
        .collect()
}

/// True when the volume of `claim` holds what it was to be filled with.
pub fn is_complete(claim: &PersistentVolumeClaim) -> bool {
    annotation_of(claim, annotation::POD_PHASE) == Some("Succeeded")
        && annotation_of(claim, annotation::CHECKPOINT_CURRENT).is_none()
}

/// What follows once the prime has begun.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// It is being filled.
    Follow,
    /// Its volume becomes the claim's.
    Rebind(String),
    /// The claim has the volume: the prime is of no further use.
    Clean,
    /// Nothing is left to do.
    Done,
}

/// What follows for `claim` from its `prime`.
pub fn step(claim: &PersistentVolumeClaim, prime: &PersistentVolumeClaim) -> Step {
    let volume = |claim: &PersistentVolumeClaim| {
        claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty())
    };
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    match (volume(claim), volume(prime)) {
        (Some(has), Some(given)) if bound && has == given => {
            if annotation_of(prime, annotation::POD_RETAIN) == Some("true") { Step::Done } else { Step::Clean }
        }
        (None, Some(given)) if is_complete(prime) => Step::Rebind(given),
        _ => Step::Follow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn claim(annotations: Value, volume: Option<&str>, phase: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "c", "namespace": "ns", "uid": "u", "annotations": annotations },
            "spec": { "volumeName": volume, "storageClassName": "s", "dataSourceRef": { "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "i" } },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn a_volume_changes_hands_once_it_is_filled() {
        let done = json!({ annotation::POD_PHASE: "Succeeded" });
        let staged = json!({ annotation::POD_PHASE: "Succeeded", annotation::CHECKPOINT_CURRENT: "a" });
        let empty = claim(json!({}), None, "Pending");
        let check = |target: &PersistentVolumeClaim, prime: Value, expect: Step| {
            assert_eq!(step(target, &claim(prime, Some("v"), "Bound")), expect);
        };
        check(&empty, json!({ annotation::POD_PHASE: "Running" }), Step::Follow);
        check(&empty, staged, Step::Follow);
        check(&empty, done.clone(), Step::Rebind("v".into()));
        check(&claim(json!({}), Some("v"), "Pending"), done.clone(), Step::Follow);
        check(&claim(json!({}), Some("v"), "Bound"), done.clone(), Step::Clean);
        check(&claim(json!({}), Some("other"), "Bound"), done, Step::Follow);
    }

    #[test]
    fn a_claim_is_filled_when_its_class_has_nobody_to_wait_for() {
        assert!(ready(&claim(json!({}), None, "Pending"), false));
        assert!(!ready(&claim(json!({}), None, "Pending"), true));
        assert!(ready(&claim(json!({ annotation::SELECTED_NODE: "n" }), None, "Pending"), true));
        assert!(ready(&claim(json!({ annotation::IMMEDIATE_BINDING: "" }), None, "Pending"), true));
    }

    #[test]
    fn outdated_annotations_are_removed() {
        let target = claim(json!({ annotation::POD_SCHEDULABLE: "false", "other": "kept" }), None, "Pending");
        let prime = claim(json!({ annotation::POD_PHASE: "Running" }), Some("v"), "Bound");
        let found = told(&target, &prime, Some(&Far { percent: 12.3456, message: "half".into() }));
        assert_eq!(found[annotation::POD_SCHEDULABLE], None);
        assert_eq!(found[annotation::POD_PHASE].as_deref(), Some("Running"));
        assert_eq!(found[annotation::POPULATOR_PROGRESS].as_deref(), Some("12.35%"));
        assert_eq!(found[annotation::RUNNING_MESSAGE].as_deref(), Some("half"));
        assert!(!found.contains_key("other"));
    }
}
