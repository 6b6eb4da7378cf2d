//! Who owns a pod's claims, so that they are collected as `persistentVolumeClaimRetentionPolicy` says. Pure.
//!
//! ```text
//!  whenDeleted  whenScaled   pod stays   pod goes for good
//!  Retain       Retain       -           -
//!  Delete       Retain       set         set
//!  Retain       Delete       -           pod
//!  Delete       Delete       set         pod
//! ```

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::plan;
use crate::owner::controlled_by;

fn policy(set: &StatefulSet) -> (bool, bool) {
    let policy = set.spec.as_ref().and_then(|s| s.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
    (deletes(policy.and_then(|p| p.when_deleted.as_ref())), deletes(policy.and_then(|p| p.when_scaled.as_ref())))
}

/// The owners the claim of a pod is to have; `None` when it has them.
pub(super) fn owners(set: &StatefulSet, pod: &Pod, claim: &PersistentVolumeClaim) -> Option<Vec<OwnerReference>> {
    let (when_deleted, when_scaled) = policy(set);
    let goes = plan::ordinal(set, pod).is_some_and(|number| !plan::numbers(set).contains(&number));
    let wanted = match (when_deleted, when_scaled && goes) {
        (_, true) => Some(controlled_by(pod)),
        (true, false) => Some(controlled_by(set)),
        (false, false) => None,
    };
    let known = claim.owner_references();
    let ours = |owner: &OwnerReference| {
        Some(&owner.uid) == set.metadata.uid.as_ref() || is_named(owner, pod.metadata.name.as_deref())
    };
    let others: Vec<OwnerReference> = known.iter().filter(|owner| !ours(owner)).cloned().collect();
    // Somebody else controls it: it is theirs to keep or to delete.
    if others.iter().any(|owner| owner.controller == Some(true)) {
        return None;
    }
    let have: Vec<&str> = known.iter().filter(|owner| ours(owner)).map(|owner| owner.uid.as_str()).collect();
    let want: Vec<&str> = wanted.iter().map(|owner| owner.uid.as_str()).collect();
    (have != want).then(|| others.into_iter().chain(wanted).collect())
}

/// The owners of a claim that is made for a pod to be.
pub(super) fn first_owners(set: &StatefulSet) -> Option<Vec<OwnerReference>> {
    policy(set).0.then(|| vec![controlled_by(set)])
}

/// Whether the claim is on its way out, with an earlier pod of the name: the next pod has to wait for a claim of its own.
pub(super) fn is_stale(claim: &PersistentVolumeClaim, pod: &str) -> bool {
    claim.metadata.deletion_timestamp.is_some()
        || claim.owner_references().iter().any(|owner| is_named(owner, Some(pod)))
}

fn is_named(owner: &OwnerReference, pod: Option<&str>) -> bool {
    owner.kind == "Pod" && owner.api_version == "v1" && Some(owner.name.as_str()) == pod
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn claims_go_as_the_policy_says() {
        let check = |deleted: &str, scaled: &str, number: i32, known: &[(&str, &str)], expect: Option<&[&str]>| {
            let policy = json!({"whenDeleted": deleted, "whenScaled": scaled});
            let spec = json!({"replicas": 2, "selector": {}, "serviceName": "s", "template": {}, "persistentVolumeClaimRetentionPolicy": policy});
            let set = serde_json::from_value(json!({"metadata": {"name": "s", "uid": "set"}, "spec": spec})).unwrap();
            let name = format!("s-{number}");
            let pod = serde_json::from_value(json!({"metadata": {"name": name, "uid": "pod"}})).unwrap();
            let owners: Vec<Value> = known
                .iter()
                .map(|(kind, uid)| {
                    let controls = *kind != "Config";
                    json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": controls})
                })
                .collect();
            let claim = json!({"metadata": {"name": "c", "ownerReferences": owners}});
            let got = super::owners(&set, &pod, &serde_json::from_value(claim).unwrap());
            let got = got.map(|owners| owners.into_iter().map(|owner| owner.uid).collect::<Vec<_>>());
            let expect = expect.map(|uids| uids.iter().map(|uid| (*uid).to_owned()).collect());
            assert_eq!(got, expect, "{deleted} {scaled} {number} {known:?}");
        };
        check("Retain", "Retain", 1, &[], None);
        check("Retain", "Retain", 2, &[("Set", "set"), ("Config", "x")], Some(&["x"]));
        check("Delete", "Retain", 1, &[], Some(&["set"]));
        check("Delete", "Retain", 2, &[("Set", "set")], None);
        check("Retain", "Delete", 1, &[], None);
        check("Retain", "Delete", 2, &[], Some(&["pod"]));
        check("Delete", "Delete", 1, &[("Pod", "pod")], Some(&["set"]));
        check("Delete", "Delete", 2, &[("Set", "set")], Some(&["pod"]));
        check("Delete", "Delete", 2, &[("Other", "y")], None);
    }

    #[test]
    fn a_claim_of_the_pod_before() {
        let check = |meta: Value, expect: bool| {
            assert_eq!(is_stale(&serde_json::from_value(json!({"metadata": meta})).unwrap(), "s-1"), expect, "{meta}");
        };
        let of = |kind: &str, name: &str| json!({"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"}]});
        check(json!({}), false);
        check(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), true);
        check(of("Pod", "s-1"), true);
        check(of("Pod", "s-2"), false);
        check(of("StatefulSet", "s"), false);
    }
}
