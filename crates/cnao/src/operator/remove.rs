//! Takes away what is not asked for any more.

use k8s_openapi::api::coordination::v1::Lease;
use kit::keyring::{Keyring, Lifetimes};
use kit::queue::Next;
use kit::{apply, clock, operator};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::context::Context;
use super::object::{NAME, NetworkAddonsConfig};
use super::operands::CLAIMS;
use super::{operands, status};
use crate::bridge_marker::manifests as marker;
use crate::ipam::claim::IPAMClaim;
use crate::kubemacpool::reservation::LABEL;
use crate::kubemacpool::{certificates, manifests as pool};
use crate::{Error, ipam, linux_bridge};

/// Takes everything away and lets the object go. The kinds of networks and of pools stay: those of others are of them.
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
        undefine_claims(context).await?;
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
    every.extend([linux_bridge::constraints(), marker::constraints()]);
    let ring = certificates::keyring(namespace, Lifetimes::default());
    let stays = with_webhook(namespace, (pool::DEPLOYMENT, pool::MUTATOR), &ring, &mut every, &mut wanted);
    let ring = ipam::certificates::keyring(namespace, Lifetimes::default());
    let controller = (ipam::manifests::DEPLOYMENT, ipam::names::MUTATOR);
    let keeps_claims = with_webhook(namespace, controller, &ring, &mut every, &mut wanted);
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
    if !keeps_claims {
        let_claims_go(context).await?;
    }
    Ok(())
}

/// Adds the certificates of a webhook to what can be there, and where its `deployment` is wanted to what is: with it stay its certificates,
/// and its configuration, which is not rendered while nobody answers. Whether it is.
fn with_webhook(
    namespace: &str,
    (deployment, webhook): (&str, &str),
    ring: &Keyring,
    every: &mut Vec<Value>,
    wanted: &mut Vec<String>,
) -> bool {
    let own = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": namespace } });
    let mut keys = vec![own("Secret", &ring.authority), own("ConfigMap", &ring.bundle)];
    keys.extend(ring.leaves.iter().map(|(name, _)| own("Secret", name)));
    every.extend(keys.iter().cloned());
    let metadata = json!({ "name": deployment, "namespace": namespace });
    let stays = wanted
        .contains(&apply::address(&json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata })));
    if stays {
        wanted.extend(keys.iter().map(apply::address));
        let hook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": { "name": webhook },
        });
        wanted.push(apply::address(&hook));
    }
    stays
}

/// Takes the kind of claims away, unless there are claims: their machines keep their addresses.
async fn undefine_claims(context: &Context) -> Result<(), Error> {
    let all: Api<IPAMClaim> = Api::all(context.client.clone());
    let is_used = match all.list_metadata(&ListParams::default().limit(1)).await {
        Ok(claims) => !claims.items.is_empty(),
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(Error::api("list", "IPAMClaims", "")(error)),
    };
    if is_used || context.is_of_others(CLAIMS.0).await? {
        return Ok(());
    }
    let metadata = json!({ "name": CLAIMS.0 });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata,
    });
    Ok(operator::delete(&context.client, &[apply::address(&definition)]).await?)
}

/// Nobody would let claims go any more, and their machines and namespaces could not be deleted to the end.
async fn let_claims_go(context: &Context) -> Result<(), Error> {
    let all: Api<IPAMClaim> = Api::all(context.client.clone());
    let claims = match all.list(&ListParams::default()).await {
        Ok(claims) => claims,
        // The kind is not there.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(Error::api("list", "IPAMClaims", "")(error)),
    };
    for claim in claims.iter().filter(|claim| ipam::release::is_held(claim)) {
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let rest: Vec<&String> = claim.finalizers().iter().filter(|one| *one != ipam::names::FINALIZER).collect();
        let version = &claim.metadata.resource_version;
        let change = Patch::Merge(json!({ "metadata": { "finalizers": rest, "resourceVersion": version } }));
        let api: Api<IPAMClaim> = Api::namespaced(context.client.clone(), &namespace);
        match api.patch(&name, &PatchParams::default(), &change).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(Error::api("let go", "IPAMClaim", &format!("{namespace}/{name}"))(error)),
        }
    }
    Ok(())
}
