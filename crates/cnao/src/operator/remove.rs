//! Takes away what is not asked for any more.

use kit::queue::Next;
use kit::{apply, clock, operator};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::context::Context;
use super::object::{NAME, NetworkAddonsConfig};
use super::{certificates, operands, status};
use crate::Error;
use crate::kubemacpool::manifests as pool;

/// Takes everything away and lets the object go. The kind of networks stays: networks of others are of it.
///
/// # Errors
/// When the API server refuses.
pub(super) async fn sync(context: &Context, config: &NetworkAddonsConfig) -> Result<Next, Error> {
    if !context.requests.is_held(config) {
        return Ok(Next::Wait);
    }
    if config.name_any() == NAME {
        context.write(config, &status::removing(config, clock::seconds(clock::now()))).await?;
        // What is deleted is not put back, whoever deletes it.
        context.applied.forget();
        surplus(context, &[]).await?;
    }
    context.requests.release(config).await.map_err(Error::api("patch", "NetworkAddonsConfig", &config.name_any()))?;
    Ok(Next::Wait)
}

/// Deletes what could be deployed and is not among `wanted`: webhooks first, since machines are refused while nobody answers.
///
/// # Errors
/// When the API server refuses.
pub(super) async fn surplus(context: &Context, wanted: &[Value]) -> Result<(), Error> {
    let namespace = &context.release.namespace;
    let mut wanted: Vec<String> = wanted.iter().map(apply::address).collect();
    let mut every = operands::every(namespace);
    let ring = certificates::kubemacpool(namespace, Default::default());
    let own = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": namespace } });
    let mut keys = vec![own("Secret", &ring.authority), own("ConfigMap", &ring.bundle)];
    keys.extend(ring.leaves.iter().map(|(name, _)| own("Secret", name)));
    // With the pool stay its certificates, and its webhook, which is not rendered while nobody answers.
    let pool = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": pool::NAME, "namespace": namespace } });
    if wanted.contains(&apply::address(&pool)) {
        wanted.push(apply::address(&pool::configuration(&pool::Input::default())));
    } else {
        every.extend(keys);
    }
    every.retain(|manifest| manifest["metadata"]["name"] != pool::CERTIFICATE || !wanted.contains(&apply::address(&pool)));
    let all: Vec<String> = every.iter().map(apply::address).filter(|address| !wanted.contains(address)).collect();
    let (hooks, rest): (Vec<String>, Vec<String>) =
        all.into_iter().partition(|address| address.contains("webhookconfigurations"));
    operator::delete(&context.client, &hooks).await?;
    operator::delete(&context.client, &rest).await?;
    Ok(())
}
