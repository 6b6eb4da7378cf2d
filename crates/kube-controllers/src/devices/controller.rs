//! The claims of pods: made of their templates, reserved no longer than their pods live, given back and deleted after them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaimStatus};
use kit::controller::owner::{controlled_by, controller_of};
use kit::controller::{self, During, Error, Result, gone_is_none, pod};
use kit::events::Severity;
use kit::queue::{self, Next, Queue};
use kit::store::Key;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::claims::{self, Named, belongs_to, consumers, is_done};
use super::kinds::{Consumer, ResourceClaim, ResourceClaimTemplate};
use super::{FINALIZER, POD_CLAIM};
use crate::context::Context;

const COMPONENT: &str = "resource_claim";

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Work {
    /// The claims a pod waits for.
    Pod(Key),
    /// Whether a claim is still used.
    Claim(Key),
}

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (pods, claims) = (ctx.store::<Pod>(), ctx.store::<ResourceClaim>());
    let templates = ctx.store::<ResourceClaimTemplate>();
    pods.on_change({
        let queue = queue.clone();
        move |old, new| pod_changed(&queue, old, new)
    });
    claims.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(claim) = new {
                queue.add(Work::Claim(Key::of(claim.as_ref())));
            }
        }
    });
    templates.on_change({
        let (queue, pods) = (queue.clone(), pods.clone());
        move |_, new| {
            let Some(template) = new else { return };
            for pod in pods.in_namespace(&template.namespace().unwrap_or_default()) {
                if awaited(&pod).next().is_some() {
                    queue.add(Work::Pod(Key::of(pod.as_ref())));
                }
            }
        }
    });
    pods.synced().await;
    claims.synced().await;
    templates.synced().await;
    controller::work(&queue, "resource-claim", 4, |work| reconcile(&ctx, work)).await;
}

fn pod_changed(queue: &Queue<Work>, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
    if let Some(pod) = new.filter(|pod| awaited(pod).next().is_some()) {
        queue.add(Work::Pod(Key::of(pod.as_ref())));
    }
    if new.is_none_or(|pod| is_done(pod)) {
        let keys = old.into_iter().chain(new).flat_map(|pod| claims::keys(pod));
        keys.for_each(|key| queue.add(Work::Claim(key)));
    }
}

/// The pod's claims that are still to be made: their names in the pod, and the templates.
fn awaited(pod: &Pod) -> impl Iterator<Item = (&str, String)> {
    claims::of(pod).filter_map(|(name, named)| match named {
        Named::Awaited(template) => Some((name, template)),
        Named::Claim(..) => None,
    })
}

async fn reconcile(ctx: &Context, work: Work) -> Result<Next> {
    match work {
        Work::Pod(key) => make_all(ctx, &key).await,
        Work::Claim(key) => tend(ctx, &key).await,
    }
}

/// Makes the pod's claims and notes their names on it.
async fn make_all(ctx: &Context, key: &Key) -> Result<Next> {
    let Some(pod) = ctx.store::<Pod>().get(key).filter(|pod| pod::is_active(pod)) else { return Ok(Next::Wait) };
    let mut made: Vec<PodResourceClaimStatus> = Vec::new();
    for (name, template) in awaited(&pod) {
        let owned = ctx.store::<ResourceClaim>().owned_by(&pod.uid().unwrap_or_default());
        let known = owned.iter().find(|claim| {
            claim.annotations().get(POD_CLAIM).map(String::as_str) == Some(name)
                && claim.metadata.namespace == pod.metadata.namespace
                && claim.metadata.deletion_timestamp.is_none()
        });
        let claim = match known {
            Some(claim) => claim.name_any(),
            None => make(ctx, &pod, name, &template).await?,
        };
        made.push(PodResourceClaimStatus { name: name.to_owned(), resource_claim_name: Some(claim) });
    }
    if made.is_empty() {
        return Ok(Next::Wait);
    }
    let api: Api<Pod> = ctx.api(&key.namespace);
    // Merged by name: what others are writing there stays.
    let change = json!({"metadata": {"uid": pod.uid()}, "status": {"resourceClaimStatuses": made}});
    let patched = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(&change)).await;
    if let Some(pod) = gone_is_none(patched.during("write status of pod", key))? {
        ctx.store::<Pod>().observe(pod);
    }
    Ok(Next::Wait)
}

/// Makes one claim; its name.
async fn make(ctx: &Context, pod: &Pod, name: &str, template: &str) -> Result<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let failed = |what: String| {
        let text = format!("PodResourceClaim {name}: {what}");
        ctx.events.record(COMPONENT, pod, Severity::Warning, "FailedResourceClaimCreation", text.clone());
        text
    };
    let Some(found) = ctx.store::<ResourceClaimTemplate>().get(&Key::new(namespace.clone(), template)) else {
        let what = failed(format!("resourceclaimtemplate {template:?} does not exist in namespace {namespace:?}"));
        // It is looked at again when the template comes; a retry covers a store that is late.
        return Err(Error::Unfinished { object: Key::of(pod).to_string(), what });
    };
    let given = found.spec.metadata.clone().unwrap_or_default();
    let mut annotations: BTreeMap<String, String> = given.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), name.to_owned());
    let prefix: String = format!("{}-{name}", pod.name_any()).chars().take(57).collect();
    let metadata = ObjectMeta {
        generate_name: Some(format!("{prefix}-")),
        namespace: Some(namespace.clone()),
        labels: given.labels,
        annotations: Some(annotations),
        owner_references: Some(vec![controlled_by(pod)]),
        ..ObjectMeta::default()
    };
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
        "spec": found.spec.spec});
    let made = post(ctx, &namespace, &claim).await.during("create resourceclaim", Key::of(pod));
    match made {
        Ok(claim) => {
            let name = claim.name_any();
            ctx.store::<ResourceClaim>().observe(claim);
            Ok(name)
        }
        Err(error) => {
            failed(format!("resource claim creation: {}", error.message()));
            Err(error)
        }
    }
}

/// Creates the claim with all that its template says, also what is not read here.
async fn post(ctx: &Context, namespace: &str, claim: &Value) -> Result<ResourceClaim, kube::Error> {
    let uri = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims");
    let request = kube::core::Request::new(uri);
    let body = serde_json::to_vec(claim).map_err(kube::Error::SerdeError)?;
    let request = request.create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
    ctx.client.request(request).await
}

/// Takes back what nobody uses any more.
async fn tend(ctx: &Context, key: &Key) -> Result<Next> {
    let Some(claim) = ctx.store::<ResourceClaim>().get(key) else { return Ok(Next::Wait) };
    let mut users = Vec::new();
    for consumer in consumers(&claim) {
        if is_used_by(ctx, key, consumer).await? {
            users.push(consumer.clone());
        }
    }
    let leaving = claim.metadata.deletion_timestamp.is_some();
    let fewer = users.len() < consumers(&claim).len();
    let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    let release = users.is_empty() && allocated && (fewer || leaving);
    let version = claim.resource_version();
    if fewer || release {
        let mut status = json!({"reservedFor": Some(&users).filter(|users| !users.is_empty())});
        if release {
            status["allocation"] = Value::Null;
            status["devices"] = Value::Null;
        }
        let change = json!({"metadata": {"resourceVersion": version}, "status": status});
        ctx.merge_status::<ResourceClaim>("give back resourceclaim", key, &change).await?;
        // The store has what was written, and tells of it: the rest is done then, but for the finalizer.
        if !release {
            return Ok(Next::Wait);
        }
    }
    let Some(claim) = ctx.store::<ResourceClaim>().get(key) else { return Ok(Next::Wait) };
    let held =
        claim.status.as_ref().is_some_and(|status| status.allocation.is_some() || !status.reserved_for.is_empty());
    if !held && (release || leaving) && claim.finalizers().iter().any(|known| known == FINALIZER) {
        let others: Vec<&String> = claim.finalizers().iter().filter(|known| *known != FINALIZER).collect();
        let change = json!({"metadata": {"resourceVersion": claim.resource_version(), "finalizers": others}});
        match ctx.merge::<ResourceClaim>("release resourceclaim", key, &change).await? {
            Some(_) if !leaving => {}
            _ => return Ok(Next::Wait),
        }
    }
    delete_after_pod(ctx, key, &claim).await?;
    Ok(Next::Wait)
}

/// Whether the consumer is still there and needs its devices. What is no pod is not known here, and stays.
async fn is_used_by(ctx: &Context, claim: &Key, consumer: &Consumer) -> Result<bool> {
    let is_pod = consumer.resource == "pods" && consumer.api_group.as_deref().unwrap_or_default().is_empty();
    if !is_pod {
        return Ok(true);
    }
    let key = Key::new(claim.namespace.clone(), consumer.name.clone());
    if let Some(pod) = ctx.store::<Pod>().get(&key).filter(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid)) {
        return Ok(!is_done(&pod));
    }
    // The store may be behind the scheduler's writes.
    let api: Api<Pod> = ctx.api(&key.namespace);
    let found = api.get_opt(&key.name).await.during("read pod", &key)?;
    Ok(found.is_some_and(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid) && !is_done(&pod)))
}

/// A claim that was made for a pod goes with it, also when the pod only ended.
async fn delete_after_pod(ctx: &Context, key: &Key, claim: &Arc<ResourceClaim>) -> Result<()> {
    let Some(owner) = controller_of(&claim.metadata).filter(|owner| owner.kind == "Pod" && owner.api_version == "v1")
    else {
        return Ok(());
    };
    if claim.metadata.deletion_timestamp.is_some() || !claim.annotations().contains_key(POD_CLAIM) {
        return Ok(());
    }
    let pod = ctx.store::<Pod>().get(&Key::new(key.namespace.clone(), owner.name.clone()));
    // A pod that is not known here may be newer than the store; when it is gone its claims are collected.
    if pod.is_some_and(|pod| belongs_to(claim, &pod) && is_done(&pod)) {
        ctx.delete("delete resourceclaim", claim.as_ref(), DeleteParams::default()).await?;
    }
    Ok(())
}
