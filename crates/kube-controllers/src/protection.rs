//! Claims and volumes in use are not deleted: finalizers that go when the last user does.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kit::controller::{self, During, Result, gone_is_none, pod};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::context::Context;

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
    let pods = ctx.store::<Pod>();
    claims.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(claim) = new {
                queue.add(Key::of(claim.as_ref()));
            }
        }
    });
    volumes.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(volume) = new {
                queue.add(Key::of(volume.as_ref()));
            }
        }
    });
    pods.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(old) = old.filter(|_| new.is_none_or(|pod| is_shut_down(pod))) {
                for claim in claims_of(old) {
                    queue.add(Key::new(old.namespace().unwrap_or_default(), claim));
                }
            }
        }
    });
    claims.synced().await;
    volumes.synced().await;
    pods.synced().await;
    controller::work(&queue, "storage-protection", 4, |key| reconcile(&ctx, key)).await;
}

/// The names of the claims a pod uses.
pub(crate) fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let name = |volume: &k8s_openapi::api::core::v1::Volume| match (&volume.persistent_volume_claim, &volume.ephemeral)
    {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name)),
        (None, None) => None,
    };
    volumes.filter_map(name).collect()
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    if key.namespace.is_empty() {
        let Some(volume) = ctx.store::<PersistentVolume>().get(&key) else { return Ok(Next::Wait) };
        let bound = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        if let Some(change) = change(volume.as_ref(), VOLUME, bound) {
            let api: Api<PersistentVolume> = Api::all(ctx.client.clone());
            let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(&change)).await;
            match gone_is_none(patched.during("protect persistentvolume", &key))? {
                Some(volume) => ctx.store::<PersistentVolume>().observe(volume),
                None => ctx.store::<PersistentVolume>().forget(&key, &volume.uid().unwrap_or_default()),
            }
        }
        return Ok(Next::Wait);
    }
    let Some(claim) = ctx.store::<PersistentVolumeClaim>().get(&key) else { return Ok(Next::Wait) };
    let pods = ctx.store::<Pod>().in_namespace(&key.namespace);
    let used = pods.iter().any(|pod| uses(pod, &claim));
    if let Some(change) = change(claim.as_ref(), CLAIM, used) {
        ctx.merge::<PersistentVolumeClaim>("protect persistentvolumeclaim", &key, &change).await?;
    }
    Ok(Next::Wait)
}

/// Whether the pod keeps the claim from being deleted. A pod without a node does not: none would start it with a claim that
/// is going away. One that is finished does: its node may still have the volume mounted.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let own = claim.owner_references().iter().any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref());
    pod::node_name(pod).is_some() && claims_of(pod).contains(&claim.name_any()) && !(own && is_shut_down(pod))
}

/// Deleted, and nothing on its node any more; what waits for its own claims to go would wait for ever.
fn is_shut_down(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

/// Puts the finalizer on a living object, takes it off a leaving one that is not in use.
fn change<K: Resource>(object: &K, finalizer: &str, used: bool) -> Option<Value> {
    let mut finalizers = object.finalizers().to_vec();
    let (has, leaving) = (finalizers.iter().any(|f| f == finalizer), object.meta().deletion_timestamp.is_some());
    if leaving && has && !used {
        finalizers.retain(|f| f != finalizer);
    } else if !leaving && !has {
        finalizers.push(finalizer.to_owned());
    } else {
        return None;
    }
    Some(json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_use_a_claim_protect_it() {
        let check = |pod: Value, owner: &str, expect: bool| {
            let claim = json!({"metadata": {"name": "p-v", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner}]}});
            let given = serde_json::from_value(pod.clone()).unwrap();
            assert_eq!(uses(&given, &serde_json::from_value(claim).unwrap()), expect, "{pod}");
        };
        let pod = |node: Option<&str>, phase: &str, grace: Option<i64>, volume: Value| {
            let deleted = grace.map(|_| "2026-01-01T00:00:00Z");
            let meta =
                json!({"name": "p", "uid": "u", "deletionTimestamp": deleted, "deletionGracePeriodSeconds": grace});
            json!({"metadata": meta, "spec": {"nodeName": node, "containers": [], "volumes": [volume]}, "status": {"phase": phase}})
        };
        let (named, own) = (
            json!({"name": "x", "persistentVolumeClaim": {"claimName": "p-v"}}),
            json!({"name": "v", "ephemeral": {}}),
        );
        check(pod(None, "Pending", None, named.clone()), "", false);
        check(pod(Some("n"), "Running", None, named.clone()), "", true);
        check(pod(Some("n"), "Succeeded", None, named.clone()), "", true);
        check(pod(Some("n"), "Succeeded", Some(0), named), "", true);
        check(pod(Some("n"), "Running", None, own.clone()), "u", true);
        check(pod(Some("n"), "Running", Some(30), own.clone()), "u", true);
        check(pod(Some("n"), "Running", Some(0), own), "u", false);
    }
}
