//! Who a pod's claims go with: nobody, the set, or the pod, by `persistentVolumeClaimRetentionPolicy`.
//!
//! ```text
//!                       whenScaled: Retain    whenScaled: Delete
//!   whenDeleted: Retain  nobody                the pod, once it is surplus
//!   whenDeleted: Delete  the set               the set, or the pod once it is surplus
//! ```

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kit::controller::Result;
use kit::controller::owner::controlled_by;
use kit::store::Key;
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::plan;
use crate::context::Context;

/// With whom a claim goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    WithSet,
    WithPod,
}

fn fate(set: &StatefulSet, surplus: bool) -> Fate {
    let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
    let scaled = deletes(policy.and_then(|policy| policy.when_scaled.as_ref()));
    let deleted = deletes(policy.and_then(|policy| policy.when_deleted.as_ref()));
    match (scaled && surplus, deleted) {
        (true, _) => Fate::WithPod,
        (false, true) => Fate::WithSet,
        (false, false) => Fate::Kept,
    }
}

/// The owners a claim shall have; None when it has them. Owners of other kinds stay.
fn owners(claim: &PersistentVolumeClaim, fate: Fate, set: &StatefulSet, pod: &Pod) -> Option<Vec<OwnerReference>> {
    let ours = |owner: &OwnerReference| {
        (owner.kind == "StatefulSet" && owner.name == set.name_any())
            || (owner.kind == "Pod" && owner.name == pod.name_any())
    };
    let before = claim.owner_references();
    let mut after: Vec<OwnerReference> = before.iter().filter(|owner| !ours(owner)).cloned().collect();
    let wanted = match fate {
        Fate::Kept => None,
        Fate::WithSet => Some(controlled_by(set)),
        Fate::WithPod => Some(controlled_by(pod)),
    };
    let has = |uid: &str| before.iter().any(|owner| ours(owner) && owner.uid == uid);
    let count = before.iter().filter(|owner| ours(owner)).count();
    let right = match &wanted {
        Some(owner) => count == 1 && has(&owner.uid),
        None => count == 0,
    };
    after.extend(wanted);
    (!right).then_some(after)
}

/// The names of a pod's claims.
pub(super) fn names(set: &StatefulSet, pod: &str) -> Vec<String> {
    let templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten());
    templates.map(|template| format!("{}-{pod}", template.name_any())).collect()
}

/// The first owner of a new claim: the set, when the claim is to go with it.
pub(super) fn first_owner(set: &StatefulSet) -> Option<Vec<OwnerReference>> {
    (fate(set, false) == Fate::WithSet).then(|| vec![controlled_by(set)])
}

/// Writes the owners of all claims of the pods there are. It must be done before a surplus pod is deleted, since what
/// goes with a pod is found by the pod.
pub(super) async fn own(ctx: &Context, set: &StatefulSet, pods: &[Arc<Pod>]) -> Result<()> {
    let store = ctx.store::<PersistentVolumeClaim>();
    for pod in pods {
        let Some(number) = plan::ordinal(set, pod) else { continue };
        let fate = fate(set, !plan::wanted(set).contains(&number));
        for name in names(set, &pod.name_any()) {
            let key = Key::new(set.namespace().unwrap_or_default(), name);
            let Some(claim) = store.get(&key) else { continue };
            let Some(owners) = owners(&claim, fate, set, pod) else { continue };
            let change = json!({"metadata": {"uid": claim.uid(), "resourceVersion": claim.resource_version(),
                "ownerReferences": owners}});
            ctx.merge::<PersistentVolumeClaim>("own persistentvolumeclaim", &key, &change).await?;
        }
    }
    Ok(())
}

/// Whether a claim still belongs to an earlier pod of the same name: it is about to go, and a new pod must not use it.
pub(super) fn stale(ctx: &Context, set: &StatefulSet, pod: &str) -> bool {
    let store = ctx.store::<PersistentVolumeClaim>();
    names(set, pod).into_iter().any(|name| {
        let claim = store.get(&Key::new(set.namespace().unwrap_or_default(), name));
        claim.is_some_and(|claim| {
            claim.meta().deletion_timestamp.is_some()
                || claim.owner_references().iter().any(|owner| owner.kind == "Pod" && owner.name == pod)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: (&str, &str), surplus: bool, owned_by: &[&str], expect: Option<&[&str]>) {
        let set: StatefulSet = serde_json::from_value(json!({"metadata": {"name": "s", "uid": "set"},
            "spec": {"selector": {}, "template": {}, "serviceName": "s",
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy.0, "whenScaled": policy.1}}}))
        .unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "s-0", "uid": "pod"}})).unwrap();
        let owner = |uid: &str| {
            let (kind, name) = match uid {
                "set" => ("StatefulSet", "s"),
                "pod" | "old-pod" => ("Pod", "s-0"),
                _ => ("Other", "o"),
            };
            json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid})
        };
        let claim = json!({"metadata": {"name": "c",
            "ownerReferences": owned_by.iter().map(|uid| owner(uid)).collect::<Vec<_>>()}});
        let claim = serde_json::from_value(claim).unwrap();
        let owners = owners(&claim, fate(&set, surplus), &set, &pod);
        let uids = owners.map(|all| all.into_iter().map(|owner| owner.uid).collect::<Vec<_>>());
        assert_eq!(uids, expect.map(|all| all.iter().map(|uid| (*uid).to_owned()).collect()));
    }

    #[test]
    fn claims_go_with_whom_the_policy_says() {
        let (keep, all) = (("Retain", "Retain"), ("Delete", "Delete"));
        check(keep, true, &[], None);
        check(keep, false, &["set", "x"], Some(&["x"]));
        check(("Delete", "Retain"), true, &[], Some(&["set"]));
        check(("Delete", "Retain"), false, &["set"], None);
        check(("Retain", "Delete"), false, &[], None);
        check(("Retain", "Delete"), true, &["x"], Some(&["x", "pod"]));
        check(("Retain", "Delete"), false, &["pod"], Some(&[]));
        check(all, false, &["pod"], Some(&["set"]));
        check(all, true, &["set"], Some(&["pod"]));
        check(all, true, &["old-pod"], Some(&["pod"]));
    }
}
