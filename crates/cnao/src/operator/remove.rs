//! Takes away what is not asked for any more.

use k8s_openapi::api::coordination::v1::Lease;
use kit::keyring::Lifetimes;
use kit::queue::Next;
use kit::{apply, clock, operator};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::context::Context;
use super::object::{NAME, NetworkAddonsConfig};
use super::{operands, status};
use crate::kubemacpool::reservation::LABEL;
use crate::kubemacpool::{certificates, manifests as pool};
use crate::{Error, linux_bridge};

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
    every.push(linux_bridge::constraints());
    let ring = certificates::keyring(namespace, Lifetimes::default());
    let own = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": namespace } });
    let mut keys = vec![own("Secret", &ring.authority), own("ConfigMap", &ring.bundle)];
    keys.extend(ring.leaves.iter().map(|(name, _)| own("Secret", name)));
    every.extend(keys.iter().cloned());
    let metadata = json!({ "name": pool::DEPLOYMENT, "namespace": namespace });
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata });
    let stays = wanted.contains(&apply::address(&deployment));
    if stays {
        // With the pool stay its certificates, and its webhook, which is not rendered while nobody answers.
        wanted.extend(keys.iter().map(apply::address));
        let hook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": pool::MUTATOR },
        });
        wanted.push(apply::address(&hook));
    }
    let all = every.iter().map(apply::address).filter(|address| !wanted.contains(address));
    let (hooks, rest): (Vec<String>, Vec<String>) = all.partition(|address| address.contains("webhookconfigurations"));
    operator::delete(&context.client, &hooks).await?;
    operator::delete(&context.client, &rest).await?;
    if !stays {
        let leases: Api<Lease> = Api::namespaced(context.client.clone(), namespace);
        let reserved = ListParams::default().labels(LABEL);
        let deleted = leases.delete_collection(&DeleteParams::default(), &reserved).await;
        deleted.map_err(Error::api("delete", "leases", LABEL))?;
    }
    Ok(())
}
