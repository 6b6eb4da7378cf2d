//! Deletion of namespaces: everything in them first, then the finalizer that holds them.

mod status;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kit::clock;
use kit::controller::{self, During, Result, gone_is_none};
use kit::merge_patch;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, Resource, ResourceExt};
use tokio::sync::broadcast::error::RecvError;

use crate::context::Context;
use crate::resources::{Served, discover};
use status::Left;

const FINALIZER: &str = "kubernetes";
/// How often content is looked at whose end nobody announces.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (namespaces, pods) = (ctx.store::<Namespace>(), ctx.store::<Pod>());
    namespaces.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(namespace) = new.filter(|namespace| namespace.meta().deletion_timestamp.is_some()) {
                queue.add(namespace.name_any());
            }
        }
    });
    let removed = {
        let (queue, namespaces) = (queue.clone(), namespaces.clone());
        move |namespace: &str| {
            let terminating = namespaces.get(&Key::new("", namespace));
            if terminating.is_some_and(|namespace| namespace.meta().deletion_timestamp.is_some()) {
                queue.add(namespace.to_owned());
            }
        }
    };
    pods.on_change({
        let removed = removed.clone();
        move |old, new| {
            if let (Some(old), None) = (old, new) {
                removed(&old.namespace().unwrap_or_default());
            }
        }
    });
    let mut removals = ctx.removals();
    ctx.spawn(async move {
        loop {
            match removals.recv().await {
                Ok(namespace) => removed(&namespace),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
    namespaces.synced().await;
    controller::work(&queue, "namespace", 4, |name| reconcile(&ctx, name)).await;
}

async fn reconcile(ctx: &Context, name: String) -> Result<Next> {
    let key = Key::new("", &name);
    let namespace = ctx.store::<Namespace>().get(&key);
    let Some(namespace) = namespace.filter(|n| n.metadata.deletion_timestamp.is_some()) else {
        return Ok(Next::Wait);
    };
    let held = namespace.spec.iter().flat_map(|s| s.finalizers.iter().flatten()).any(|f| f == FINALIZER);
    if !held {
        return Ok(Next::Wait);
    }
    let left = delete_content(ctx, &name).await;
    if left.is_empty() {
        finalize(ctx, &namespace).await?;
        return Ok(Next::Wait);
    }
    let old = namespace.status.clone().unwrap_or_default();
    let mut status = old.clone();
    status.phase = Some("Terminating".into());
    let conditions = old.conditions.as_deref().unwrap_or_default();
    status.conditions = Some(status::conditions(conditions, &left, &clock::time()));
    if let Some(change) = merge_patch::of_status(Some(&old), &status).during("write status of namespace", &name)? {
        let api: Api<Namespace> = Api::all(ctx.client.clone());
        let params = PatchParams::default();
        let patched = api.patch_status(&name, &params, &Patch::Merge(&change)).await;
        gone_is_none(patched.during("write status of namespace", &name))?;
    }
    Ok(Next::After(LOOK_AGAIN))
}

async fn delete_content(ctx: &Context, namespace: &str) -> Left {
    let mut left = Left::default();
    let served = match discover(&ctx.client).await {
        Ok(served) => served,
        Err(error) => {
            left.discovery = Some(error.chain());
            return left;
        }
    };
    let within = served.iter().filter(|served| served.namespaced);
    let outcomes = futures::future::join_all(
        within.map(|served| async move { (served, delete_all(ctx, namespace, served).await) }),
    );
    for (served, outcome) in outcomes.await {
        match outcome {
            Ok(objects) if objects.is_empty() => {}
            Ok(objects) => {
                left.objects.insert(format!("{}.{}", served.api.plural, served.api.group), objects.len());
                for finalizer in objects.iter().flat_map(|object| object.finalizers()) {
                    *left.finalizers.entry(finalizer.clone()).or_default() += 1;
                }
            }
            Err(error) => left.failures.push(format!("{}: {}", served.group_resource(), error.message())),
        }
    }
    left
}

/// Deletes all objects of a resource in a namespace and returns those that are still there.
async fn delete_all(ctx: &Context, namespace: &str, served: &Served) -> Result<Vec<PartialObjectMeta<DynamicObject>>> {
    let about = || format!("{} in {namespace}", served.group_resource());
    let metadata: Api<PartialObjectMeta<DynamicObject>> = served.within(&ctx.client, namespace);
    let list = || async {
        match gone_is_none(metadata.list(&ListParams::default()).await.during("list", about()))? {
            Some(list) => Ok(list.items),
            None => Ok(Vec::new()),
        }
    };
    let objects = list().await?;
    if objects.iter().all(|object| object.metadata.deletion_timestamp.is_some()) {
        return Ok(objects);
    }
    let api: Api<DynamicObject> = served.within(&ctx.client, namespace);
    let params = DeleteParams::background();
    if served.whole {
        let deleted = api.delete_collection(&params, &ListParams::default()).await.during("delete", about());
        gone_is_none(deleted)?;
    } else {
        for object in &objects {
            gone_is_none(api.delete(&object.name_any(), &params).await.during("delete", about()))?;
        }
    }
    list().await
}

async fn finalize(ctx: &Context, namespace: &Namespace) -> Result<()> {
    let name = namespace.name_any();
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    // The rest is sent as it is: what others hold the namespace by is theirs to take away.
    let mut body = namespace.clone();
    for finalizers in body.spec.iter_mut().flat_map(|spec| spec.finalizers.iter_mut()) {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    let finalized = api.replace_subresource("finalize", &name, &PostParams::default(), &body).await;
    match gone_is_none(finalized.during("finalize namespace", &name))? {
        Some(namespace) => ctx.store::<Namespace>().observe(namespace),
        None => ctx.store::<Namespace>().forget(&Key::new("", &name), &namespace.uid().unwrap_or_default()),
    }
    Ok(())
}
