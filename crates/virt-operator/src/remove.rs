//! Takes everything away again: the machines first (their CRDs, while their controllers still run), then the rest, then what
//! the components wrote on objects of others.

use std::time::Duration;

use api::kubevirt::v1::KubeVirt;
use kit::keyring::Lifetimes;
use kit::queue::Next;
use kit::{apply, clock, operator};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::manifests::{self, Input, crds};
use crate::{certificates, status, traces};

/// One step of removal.
///
/// # Errors
/// When the API server refuses.
pub(crate) async fn sync(context: &Context, kubevirt: &KubeVirt) -> Result<Next, Error> {
    if !context.requests.is_held(kubevirt) {
        return Ok(Next::Wait);
    }
    let now = clock::seconds(clock::now());
    context.write(kubevirt, status::deleting(kubevirt, false, now)).await?;
    let definitions: Vec<&str> = crds::ALL.iter().map(|(name, _)| *name).collect();
    // What is deleted is not put back, whoever deletes it.
    context.applied.forget();
    if !operator::definitions_are_gone(&context.client, &definitions).await? {
        // Their objects are being finished by the controllers; there is nothing to watch that is cheaper than a look.
        return Ok(Next::After(Duration::from_millis(500)));
    }
    let namespace = kubevirt.namespace().unwrap_or_default();
    everything_else(context, &namespace).await?;
    if traces::are_being_left(context, &namespace, now).await? {
        return Ok(Next::After(Duration::from_millis(500)));
    }
    traces::remove(context, &namespace).await?;
    context.write(kubevirt, status::deleting(kubevirt, true, now)).await?;
    context.requests.release(kubevirt).await.map_err(Error::api("patch", "kubevirt", &kubevirt.name_any()))?;
    Ok(Next::Wait)
}

async fn everything_else(context: &Context, namespace: &str) -> Result<(), Error> {
    let input = Input { namespace: namespace.to_owned(), constrained: true, ..Default::default() };
    let mut all: Vec<String> = manifests::render(&input).iter().map(apply::address).collect();
    // Webhooks go first: nothing answers them any more.
    all.sort_by_key(|address| !address.contains("webhookconfigurations"));
    for ring in [certificates::keyring(namespace, Lifetimes::default()), certificates::exports(Lifetimes::default())] {
        for secret in ring.leaves.into_iter().map(|(name, _)| name).chain([ring.authority]) {
            all.push(format!("/api/v1/namespaces/{namespace}/secrets/{secret}"));
        }
        all.push(format!("/api/v1/namespaces/{namespace}/configmaps/{}", ring.bundle));
    }
    Ok(operator::delete(&context.client, &all).await?)
}
