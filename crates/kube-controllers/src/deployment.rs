//! Deployments: moves pods from one template to the next through ReplicaSets.

mod plan;
mod sets;
mod status;
pub(crate) mod template;

pub(crate) use sets::resolve;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kit::clock;
use kit::controller::owner::{controlled_by, controller_key, controller_of, selects, workload_selector};
use kit::controller::{self, Result, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, ObjectMeta};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::claim;
use crate::context::Context;

const COMPONENT: &str = "deployment-controller";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (deployments, sets, pods) = (ctx.store::<Deployment>(), ctx.store::<ReplicaSet>(), ctx.store::<Pod>());
    deployments.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(deployment) = new {
                queue.add(Key::of(deployment.as_ref()));
            }
        }
    });
    sets.on_change({
        let (queue, deployments) = (queue.clone(), deployments.clone());
        move |old, new| {
            for set in [old, new].into_iter().flatten() {
                if let Some(key) = controller_key::<Deployment>(set.meta()) {
                    queue.add(key);
                }
            }
            if let Some(orphan) = new.filter(|set| set.owner_references().is_empty()) {
                for deployment in deployments.in_namespace(&orphan.namespace().unwrap_or_default()) {
                    if selects(deployment.spec.as_ref().map(|s| &s.selector), pod::labels(orphan.meta())) {
                        queue.add(Key::of(deployment.as_ref()));
                    }
                }
            }
        }
    });
    // The last old pod going away is what Recreate waits for; the sets say nothing then.
    pods.on_change({
        let (queue, sets) = (queue.clone(), sets.clone());
        move |old, new| {
            let (Some(old), None) = (old, new) else { return };
            let set = controller_key::<ReplicaSet>(old.meta()).and_then(|key| sets.get(&key));
            if let Some(key) = set.and_then(|set| controller_key::<Deployment>(set.meta())) {
                queue.add(key);
            }
        }
    });
    deployments.synced().await;
    sets.synced().await;
    pods.synced().await;
    controller::work(&queue, "deployment", 4, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(deployment) = ctx.store::<Deployment>().get(&key) else { return Ok(Next::Wait) };
    let Some(spec) = &deployment.spec else { return Ok(Next::Wait) };
    let selector = workload_selector(&spec.selector, deployment.as_ref())?;
    let sets: Vec<Arc<ReplicaSet>> = claim::children(ctx, deployment.as_ref(), &selector).await?;
    let old_pods_exist = {
        let (_, old) = sets::split(&deployment, &sets);
        let pods = ctx.store::<Pod>();
        old.iter().any(|set| pods.owned_by(&set.uid().unwrap_or_default()).iter().any(|pod| !pod::is_finished(pod)))
    };
    let steps = plan::steps(plan::Observed { deployment: &deployment, sets: &sets, old_pods_exist });
    for step in steps {
        execute(ctx, &deployment, &sets, step).await?;
    }
    let uid = deployment.uid().unwrap_or_default();
    let Some(deployment) = ctx.store::<Deployment>().get(&key) else { return Ok(Next::Wait) };
    let sets = ctx.store::<ReplicaSet>().owned_by(&uid);
    let (status, wake) = status::status(&deployment, &sets, &clock::time());
    ctx.set_status::<Deployment, _>("write status of deployment", &key, deployment.status.as_ref(), &status).await?;
    Ok(wake.and_then(|s| u64::try_from(s).ok()).map_or(Next::Wait, |s| Next::After(Duration::from_secs(s + 1))))
}

async fn execute(ctx: &Context, deployment: &Deployment, sets: &[Arc<ReplicaSet>], step: plan::Step) -> Result<()> {
    let key = Key::of(deployment);
    let child = |name: &str| Key::new(key.namespace.clone(), name);
    match step {
        plan::Step::Create { hash, replicas, annotations } => {
            let Some(set) = new_set(deployment, &hash, replicas, annotations) else { return Ok(()) };
            create_set(ctx, deployment, &set, replicas).await
        }
        plan::Step::Scale { set, from, to, annotations } => {
            let change = json!({"metadata": {"annotations": annotations}, "spec": {"replicas": to}});
            if ctx.merge::<ReplicaSet>("scale replicaset", &child(&set), &change).await?.is_some() {
                scaled(ctx, deployment, &set, from, to);
            }
            Ok(())
        }
        plan::Step::Annotate { set, annotations } => {
            let change = json!({"metadata": {"annotations": annotations}});
            ctx.merge::<ReplicaSet>("annotate replicaset", &child(&set), &change).await.map(drop)
        }
        plan::Step::Delete(set) => match sets.iter().find(|s| s.name_any() == set) {
            Some(set) => ctx.delete("delete replicaset", set.as_ref(), DeleteParams::background()).await,
            None => Ok(()),
        },
        plan::Step::Revision(revision) => {
            let change = json!({"metadata": {"annotations": {plan::REVISION: revision}}});
            ctx.merge::<Deployment>("annotate deployment", &key, &change).await.map(drop)
        }
    }
}

fn scaled(ctx: &Context, deployment: &Deployment, set: &str, from: i32, to: i32) {
    let direction = if to > from { "up" } else { "down" };
    let text = format!("Scaled {direction} replica set {set} from {from} to {to}");
    ctx.events.record(COMPONENT, deployment, Severity::Normal, "ScalingReplicaSet", text);
}

/// A name taken by a set of another template is a hash collision: counted in the status, which changes the next name.
async fn create_set(ctx: &Context, deployment: &Deployment, set: &ReplicaSet, replicas: i32) -> Result<()> {
    match ctx.create("create replicaset", set).await {
        Ok(created) => {
            if replicas > 0 {
                scaled(ctx, deployment, &created.name_any(), 0, replicas);
            }
            Ok(())
        }
        Err(error) if error.code() == 409 && error.message().contains("already exists") => {
            let key = Key::of(set);
            let known = ctx.store::<ReplicaSet>().get(&key);
            let foreign = known.is_none_or(|known| {
                controller_of(known.meta()).is_none_or(|o| Some(&o.uid) != deployment.meta().uid.as_ref())
            });
            if foreign {
                let count = deployment.status.as_ref().and_then(|s| s.collision_count).unwrap_or(0) + 1;
                let change = json!({"status": {"collisionCount": count}});
                ctx.merge_status::<Deployment>("count a hash collision of", &Key::of(deployment), &change).await?;
            }
            Err(error)
        }
        Err(error) if error.code() == 403 && error.message().contains("being terminated") => Ok(()),
        Err(error) => {
            let text = format!("Failed to create new replica set {:?}: {}", set.name_any(), error.message());
            ctx.events.record(COMPONENT, deployment, Severity::Warning, "ReplicaSetCreateError", text);
            Err(error)
        }
    }
}

fn new_set(
    deployment: &Deployment,
    hash: &str,
    replicas: i32,
    annotations: std::collections::BTreeMap<String, String>,
) -> Option<ReplicaSet> {
    let spec = deployment.spec.as_ref()?;
    let mut template = spec.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(template::HASH_LABEL.into(), hash.into());
    let labels = labels.clone();
    let mut matches = spec.selector.match_labels.clone().unwrap_or_default();
    matches.insert(template::HASH_LABEL.into(), hash.into());
    Some(ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", deployment.name_any())),
            namespace: deployment.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![controlled_by(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: spec.min_ready_seconds,
            selector: LabelSelector {
                match_labels: Some(matches),
                match_expressions: spec.selector.match_expressions.clone(),
            },
            template: Some(template),
        }),
        status: None,
    })
}
