//! Takes away what is not asked for any more.

use kit::queue::Next;
use kit::{apply, clock, operator};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::context::Context;
use super::object::{NAME, NetworkAddonsConfig};
use super::{certificates, operands, status};
use crate::Error;

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
    // The pool is the one operand that leaves something, and all of it goes together.
    if !wanted.is_empty() {
        return Ok(());
    }
    let mut every = operands::every(namespace);
    let ring = certificates::kubemacpool(namespace, Default::default());
    let own = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": namespace } });
    every.extend([own("Secret", &ring.authority), own("ConfigMap", &ring.bundle)]);
    every.extend(ring.leaves.iter().map(|(name, _)| own("Secret", name)));
    let all: Vec<String> = every.iter().map(apply::address).collect();
    let (hooks, rest): (Vec<String>, Vec<String>) =
        all.into_iter().partition(|address| address.contains("webhookconfigurations"));
    operator::delete(&context.client, &hooks).await?;
    operator::delete(&context.client, &rest).await?;
    Ok(())
}
