//! StatefulSets: numbered pods with names and claims of their own.

mod claims;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use kit::clock;
use kit::controller::owner::{controlled_by, controller_key, workload_selector};
use kit::controller::{self, Result, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};

use crate::context::Context;
use crate::{claim, revision};

const COMPONENT: &str = "statefulset-controller";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (sets, pods) = (ctx.store::<StatefulSet>(), ctx.store::<Pod>());
    let (revisions, claims) = (ctx.store::<ControllerRevision>(), ctx.store::<PersistentVolumeClaim>());
    sets.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(set) = new {
                queue.add(Key::of(set.as_ref()));
            }
        }
    });
    pods.on_change({
        let queue = queue.clone();
        move |old, new| {
            for pod in [old, new].into_iter().flatten() {
                if let Some(key) = controller_key::<StatefulSet>(pod.meta()) {
                    queue.add(key);
                }
            }
        }
    });
    claims.on_change({
        let (queue, sets) = (queue.clone(), sets.clone());
        // A pod may wait for a claim of its name to be gone.
        move |old, new| {
            if let Some(gone) = old.filter(|_| new.is_none()) {
                let namespace = gone.namespace().unwrap_or_default();
                let with_claims = |set: &Arc<StatefulSet>| {
                    set.spec.as_ref().is_some_and(|spec| spec.volume_claim_templates.iter().flatten().next().is_some())
                };
                for set in sets.in_namespace(&namespace).into_iter().filter(with_claims) {
                    queue.add(Key::of(set.as_ref()));
                }
            }
        }
    });
    sets.synced().await;
    pods.synced().await;
    revisions.synced().await;
    claims.synced().await;
    controller::work(&queue, "statefulset", 4, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(set) = ctx.store::<StatefulSet>().get(&key) else { return Ok(Next::Wait) };
    let Some(spec) = set.spec.as_ref().filter(|_| set.metadata.deletion_timestamp.is_none()) else {
        return Ok(Next::Wait);
    };
    let selector = workload_selector(&spec.selector, set.as_ref())?;
    let pods: Vec<Arc<Pod>> = claim::children(ctx, set.as_ref(), &selector).await?;
    let (update, revisions) = revision::sync(ctx, set.as_ref(), &selector, &spec.template).await?;
    let known = set.status.as_ref().and_then(|s| s.current_revision.clone());
    let current = revisions.iter().find(|r| Some(r.name_any()) == known).unwrap_or(&update).clone();
    let (update_hash, current_hash) = (revision::hash_of(&update).to_owned(), revision::hash_of(&current).to_owned());
    let now = clock::time();
    let observed = plan::Observed { set: &set, pods: &pods, update: &update_hash, current: &current_hash, now: &now };
    let steps = plan::steps(&observed);
    let outcome = match claims::own(ctx, &set, &pods).await {
        Ok(()) => execute(ctx, &set, &steps, &current).await,
        error => error,
    };
    let pods = ctx.store::<Pod>().owned_by(&set.uid().unwrap_or_default());
    let names = (current.name_any(), update.name_any());
    let (status, wake) = plan::status(&plan::Observed { pods: &pods, ..observed }, (&names.0, &names.1));
    ctx.set_status::<StatefulSet, _>("write status of statefulset", &key, set.status.as_ref(), &status).await?;
    outcome?;
    let in_use: BTreeSet<&str> = pods
        .iter()
        .filter_map(|p| pod::labels(p.meta()).get(revision::HASH_LABEL))
        .map(String::as_str)
        .chain([current_hash.as_str()])
        .collect();
    let limit = spec.revision_history_limit.unwrap_or(10);
    revision::cut_history(ctx, &revisions, &update, &in_use, limit).await?;
    let wake = wake.and_then(|s| u64::try_from(s).ok());
    Ok(wake.map_or(Next::Wait, |s| Next::After(Duration::from_secs(s))))
}

async fn execute(ctx: &Context, set: &StatefulSet, steps: &plan::Steps, current: &ControllerRevision) -> Result<()> {
    for pod in &steps.delete {
        ctx.delete("delete pod", pod.as_ref(), DeleteParams::default()).await?;
        let text = format!("delete Pod {} in StatefulSet {} successful", pod.name_any(), set.name_any());
        ctx.events.record(COMPONENT, set, Severity::Normal, "SuccessfulDelete", text);
    }
    let create = steps.create.iter().map(|(number, hash)| create(ctx, set, *number, hash, current));
    futures::future::join_all(create).await.into_iter().collect()
}

/// The template pods of `hash` are made from: the present one, or that of the current revision.
fn template_of(set: &StatefulSet, hash: &str, current: &ControllerRevision) -> Option<PodTemplateSpec> {
    let spec = set.spec.as_ref()?;
    let stored = || {
        let mut template = current.data.as_ref()?.0.pointer("/spec/template")?.clone();
        template.as_object_mut()?.remove("$patch");
        serde_json::from_value(template).ok()
    };
    if revision::hash_of(current) == hash {
        stored().or_else(|| Some(spec.template.clone()))
    } else {
        Some(spec.template.clone())
    }
}

async fn create(ctx: &Context, set: &StatefulSet, number: i32, hash: &str, current: &ControllerRevision) -> Result<()> {
    let Some(spec) = &set.spec else { return Ok(()) };
    let Some(template) = template_of(set, hash, current) else { return Ok(()) };
    let namespace = set.namespace().unwrap_or_default();
    let name = format!("{}-{number}", set.name_any());
    if claims::stale(ctx, set, &name) {
        // Its removal wakes us.
        return Ok(());
    }
    let mut pod = pod::from_template(&template, &namespace, &name, controlled_by(set));
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    pod.metadata.labels.get_or_insert_default().extend(BTreeMap::from([
        (revision::HASH_LABEL.to_owned(), hash.to_owned()),
        ("statefulset.kubernetes.io/pod-name".to_owned(), name.clone()),
        ("apps.kubernetes.io/pod-index".to_owned(), number.to_string()),
    ]));
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(name.clone());
    pod_spec.subdomain = spec.service_name.clone();
    for wanted in spec.volume_claim_templates.iter().flatten() {
        let volume = wanted.name_any();
        let claim_name = format!("{volume}-{name}");
        claim_for(ctx, set, wanted, &claim_name).await?;
        let volumes = pod_spec.volumes.get_or_insert_default();
        volumes.retain(|v| v.name != volume);
        volumes.push(Volume {
            name: volume,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
            ..Volume::default()
        });
    }
    match ctx.create("create pod", &pod).await {
        Ok(_) => {
            let text = format!("create Pod {name} in StatefulSet {} successful", set.name_any());
            ctx.events.record(COMPONENT, set, Severity::Normal, "SuccessfulCreate", text);
            Ok(())
        }
        Err(error) if error.code() == 403 && error.message().contains("being terminated") => Ok(()),
        Err(error) => {
            let text = format!("create Pod {name} in StatefulSet {} failed error: {}", set.name_any(), error.message());
            ctx.events.record(COMPONENT, set, Severity::Warning, "FailedCreate", text);
            Err(error)
        }
    }
}

/// Makes a pod's claim if it is missing.
async fn claim_for(ctx: &Context, set: &StatefulSet, template: &PersistentVolumeClaim, name: &str) -> Result<()> {
    let namespace = set.namespace().unwrap_or_default();
    if ctx.store::<PersistentVolumeClaim>().get(&Key::new(&namespace, name)).is_some() {
        return Ok(());
    }
    let mut claim = PersistentVolumeClaim { status: None, ..template.clone() };
    claim.metadata.name = Some(name.to_owned());
    claim.metadata.namespace = Some(namespace);
    let selector = set.spec.as_ref().and_then(|s| s.selector.match_labels.clone()).unwrap_or_default();
    claim.metadata.labels.get_or_insert_default().extend(selector);
    claim.metadata.owner_references = claims::first_owner(set);
    match ctx.create("create persistentvolumeclaim", &claim).await {
        Err(error) if error.code() == 409 => Ok(()),
        result => result.map(drop),
    }
}
