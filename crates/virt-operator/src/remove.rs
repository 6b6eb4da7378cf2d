//! Takes everything away again: the machines first (their CRDs, while their controllers still run), then the rest, then what
//! the components wrote on objects of others.

use api::kubevirt::{v1::KubeVirt, words::finalizer};
use futures::{StreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::{apply, clock, keyring::Lifetimes, queue::Next};
use kube::{Api, ResourceExt, api::ListParams};
use std::time::Duration;

use crate::{
    certificates,
    deploy::{Context, patch_finalizers, write},
    error::Error,
    manifests::{self, Input, crds},
    status, traces,
};

/// One step of removal.
///
/// # Errors
/// When the API server refuses.
pub(crate) async fn sync(context: &Context, kubevirt: &KubeVirt) -> Result<Next, Error> {
    if !kubevirt.finalizers().iter().any(|name| name == finalizer::KUBEVIRT) {
        return Ok(Next::Wait);
    }
    let now = clock::seconds(clock::now());
    write(context, kubevirt, status::deleting(kubevirt, false, now)).await?;
    let api: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    let list = api.list_metadata(&ListParams::default()).await.map_err(Error::api("list", "CRDs", ""))?;
    let ours = |name: &str| crds::ALL.iter().any(|(known, _)| *known == name);
    let left: Vec<_> = list.items.iter().filter(|crd| ours(&crd.name_any())).collect();
    if !left.is_empty() {
        for crd in left.iter().filter(|crd| crd.metadata.deletion_timestamp.is_none()) {
            let address = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", crd.name_any());
            apply::delete(&context.client, &address).await?;
        }
        // Their objects are being finished by the controllers; there is nothing to watch that is cheaper than a look.
        return Ok(Next::After(Duration::from_millis(500)));
    }
    let namespace = kubevirt.namespace().unwrap_or_default();
    everything_else(context, &namespace).await?;
    context.applied.forget();
    if traces::are_being_left(context, &namespace, now).await? {
        return Ok(Next::After(Duration::from_millis(500)));
    }
    traces::remove(context, &namespace).await?;
    write(context, kubevirt, status::deleting(kubevirt, true, now)).await?;
    let kept: Vec<String> = kubevirt.finalizers().iter().filter(|name| *name != finalizer::KUBEVIRT).cloned().collect();
    patch_finalizers(context, kubevirt, &kept).await?;
    Ok(Next::Wait)
}

async fn everything_else(context: &Context, namespace: &str) -> Result<(), Error> {
    let input = Input { namespace: namespace.to_owned(), ..Default::default() };
    let mut all: Vec<String> = manifests::render(&input).iter().map(apply::address).collect();
    // Webhooks go first: nothing answers them any more.
    all.sort_by_key(|address| !address.contains("webhookconfigurations"));
    for ring in [certificates::keyring(namespace, Lifetimes::default()), certificates::exports(Lifetimes::default())] {
        for secret in ring.leaves.into_iter().map(|(name, _)| name).chain([ring.authority]) {
            all.push(format!("/api/v1/namespaces/{namespace}/secrets/{secret}"));
        }
        all.push(format!("/api/v1/namespaces/{namespace}/configmaps/{}", ring.bundle));
    }
    let results: Vec<Result<(), apply::Error>> = stream::iter(all)
        .map(|address| async move { apply::delete(&context.client, &address).await })
        .buffered(8)
        .collect()
        .await;
    Ok(results.into_iter().collect::<Result<(), _>>()?)
}
