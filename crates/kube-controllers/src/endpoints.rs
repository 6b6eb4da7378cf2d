//! EndpointSlices and Endpoints of services with a selector, EndpointSlices of Endpoints written by hand.

mod mirror;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kit::controller::owner::{controlled_by, has_all};
use kit::controller::{self, Result, pod};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, ObjectMeta};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::context::Context;

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (services, pods, nodes) = (ctx.store::<Service>(), ctx.store::<Pod>(), ctx.store::<Node>());
    let (slices, classic) = (ctx.store::<EndpointSlice>(), ctx.store::<Endpoints>());
    services.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(service) = new.or(old) {
                queue.add(Key::of(service.as_ref()));
            }
        }
    });
    pods.on_change({
        let (queue, services) = (queue.clone(), services.clone());
        move |old, new| {
            if old.zip(new).is_some_and(|(old, new)| appearance(old) == appearance(new)) {
                return;
            }
            let Some(namespace) = new.or(old).and_then(|pod| pod.namespace()) else { return };
            for service in services.in_namespace(&namespace) {
                let selected = |pod: &Arc<Pod>| selects(&service, pod);
                if old.is_some_and(selected) || new.is_some_and(selected) {
                    queue.add(Key::of(service.as_ref()));
                }
            }
        }
    });
    nodes.on_change({
        let (queue, services) = (queue.clone(), services.clone());
        move |old, new| {
            let zone = |node: Option<&Arc<Node>>| {
                node.and_then(|node| pod::labels(node.meta()).get("topology.kubernetes.io/zone").cloned())
            };
            if zone(old) != zone(new) {
                services.all().iter().for_each(|service| queue.add(Key::of(service.as_ref())));
            }
        }
    });
    slices.on_change({
        let queue = queue.clone();
        move |old, new| {
            for slice in [old, new].into_iter().flatten() {
                if let Some(service) = pod::labels(slice.meta()).get(plan::SERVICE_NAME) {
                    queue.add(Key::new(slice.namespace().unwrap_or_default(), service));
                }
            }
        }
    });
    classic.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(endpoints) = new.or(old) {
                queue.add(Key::of(endpoints.as_ref()));
            }
        }
    });
    services.synced().await;
    pods.synced().await;
    nodes.synced().await;
    slices.synced().await;
    classic.synced().await;
    controller::work(&queue, "endpoints", 8, |key| reconcile(&ctx, key)).await;
}

/// What of a pod an endpoint shows.
fn appearance(pod: &Pod) -> impl PartialEq + '_ {
    let status = pod.status.as_ref();
    let addresses = status.and_then(|s| s.pod_ips.as_ref());
    let labels = pod.metadata.labels.as_ref();
    (addresses, labels, pod::is_ready(pod), pod::is_terminating(pod), pod::is_finished(pod), pod::node_name(pod))
}

fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref()).filter(|s| !s.is_empty());
    selector.is_some_and(|selector| has_all(pod::labels(&pod.metadata), selector))
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let service = ctx.store::<Service>().get(&key);
    let service = service.filter(|service| service.metadata.deletion_timestamp.is_none());
    let slices: Vec<_> = ctx.store::<EndpointSlice>().in_namespace(&key.namespace);
    let managed = |slice: &&Arc<EndpointSlice>, manager: &str| {
        let labels = pod::labels(slice.meta());
        labels.get(plan::SERVICE_NAME) == Some(&key.name)
            && labels.get(plan::MANAGED_BY).map(String::as_str) == Some(manager)
    };
    let existing: Vec<_> = slices.iter().filter(|slice| managed(slice, plan::MANAGER)).cloned().collect();
    let mirrored: Vec<_> = slices.iter().filter(|slice| managed(slice, mirror::MANAGER)).cloned().collect();
    let by_hand = ctx.store::<Endpoints>().get(&key).filter(|endpoints| !is_ours(endpoints));
    let wanted = mirror::contents(service.as_deref(), by_hand.as_deref());
    let metadata = by_hand.map(|endpoints| mirrored_metadata(&endpoints)).unwrap_or_default();
    write_slices(ctx, &metadata, plan::changes(mirrored, wanted)).await?;
    let Some(service) = service else {
        for slice in existing {
            ctx.delete("delete endpointslice", slice.as_ref(), DeleteParams::default()).await?;
        }
        if let Some(classic) = ctx.store::<Endpoints>().get(&key).filter(|e| is_ours(e)) {
            ctx.delete("delete endpoints", classic.as_ref(), DeleteParams::default()).await?;
        }
        return Ok(Next::Wait);
    };
    let spec = service.spec.as_ref();
    let external = spec.and_then(|s| s.type_.as_deref()) == Some("ExternalName");
    if external || spec.and_then(|s| s.selector.as_ref()).is_none_or(BTreeMap::is_empty) {
        return Ok(Next::Wait);
    }
    let pods: Vec<_> = ctx.store::<Pod>().in_namespace(&key.namespace);
    let pods: Vec<_> = pods.into_iter().filter(|pod| selects(&service, pod)).collect();
    let nodes = ctx.store::<Node>();
    let wanted = plan::slices(&service, &pods, |name| nodes.get(&Key::new("", name)));
    write_slices(ctx, &slice_metadata(&service), plan::changes(existing, wanted)).await?;
    write_classic(ctx, &service, &key, plan::subsets(&service, &pods)).await?;
    Ok(Next::Wait)
}

const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Endpoints written by hand for a service that lost its selector are not ours to delete.
fn is_ours(endpoints: &Endpoints) -> bool {
    pod::labels(endpoints.meta()).get(MANAGED).map(String::as_str) == Some("endpoint-controller")
        || endpoints.annotations().contains_key(TRIGGER)
}

const MANAGED: &str = "endpoints.kubernetes.io/managed-by";

/// The metadata of new slices of a service.
fn slice_metadata(service: &Service) -> ObjectMeta {
    ObjectMeta {
        generate_name: Some(format!("{}-", service.name_any())),
        namespace: service.namespace(),
        labels: Some(slice_labels(service)),
        owner_references: Some(vec![controlled_by(service)]),
        ..ObjectMeta::default()
    }
}

/// The metadata of new slices that show Endpoints written by hand.
fn mirrored_metadata(endpoints: &Endpoints) -> ObjectMeta {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(plan::SERVICE_NAME.into(), endpoints.name_any());
    labels.insert(plan::MANAGED_BY.into(), mirror::MANAGER.into());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(TRIGGER);
    ObjectMeta {
        generate_name: Some(format!("{}-", endpoints.name_any())),
        namespace: endpoints.namespace(),
        labels: Some(labels),
        annotations: (!annotations.is_empty()).then_some(annotations),
        owner_references: Some(vec![controlled_by(endpoints)]),
        ..ObjectMeta::default()
    }
}

fn slice_labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(plan::SERVICE_NAME.into(), service.name_any());
    labels.insert(plan::MANAGED_BY.into(), plan::MANAGER.into());
    if service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some("None") {
        labels.insert("service.kubernetes.io/headless".into(), String::new());
    }
    labels
}

async fn write_slices(ctx: &Context, metadata: &ObjectMeta, changes: plan::Changes) -> Result<()> {
    for content in changes.create {
        let slice = EndpointSlice {
            metadata: metadata.clone(),
            address_type: content.address_type,
            ports: Some(content.ports),
            endpoints: content.endpoints,
        };
        match ctx.create("create endpointslice", &slice).await {
            Err(error) if error.code() == 403 && error.message().contains("being terminated") => return Ok(()),
            result => result.map(drop)?,
        }
    }
    for (slice, content) in changes.update {
        let change = json!({"ports": content.ports, "endpoints": content.endpoints});
        ctx.merge::<EndpointSlice>("write endpointslice", &Key::of(slice.as_ref()), &change).await?;
    }
    for slice in changes.delete {
        ctx.delete("delete endpointslice", slice.as_ref(), DeleteParams::default()).await?;
    }
    Ok(())
}

async fn write_classic(
    ctx: &Context,
    service: &Service,
    key: &Key,
    subsets: Vec<k8s_openapi::api::core::v1::EndpointSubset>,
) -> Result<()> {
    let subsets = (!subsets.is_empty()).then_some(subsets);
    match ctx.store::<Endpoints>().get(key) {
        Some(classic) if classic.subsets.as_deref().unwrap_or_default() == subsets.as_deref().unwrap_or_default() => {
            Ok(())
        }
        Some(_) => {
            let change = json!({"subsets": subsets});
            ctx.merge::<Endpoints>("write endpoints", key, &change).await.map(drop)
        }
        None => {
            let mut labels = service.metadata.labels.clone().unwrap_or_default();
            labels.insert(MANAGED.into(), "endpoint-controller".into());
            let metadata = ObjectMeta {
                name: Some(key.name.clone()),
                namespace: Some(key.namespace.clone()),
                labels: Some(labels),
                ..ObjectMeta::default()
            };
            match ctx.create("create endpoints", &Endpoints { metadata, subsets }).await {
                Err(error) if error.code() == 403 && error.message().contains("being terminated") => Ok(()),
                result => result.map(drop),
            }
        }
    }
}
