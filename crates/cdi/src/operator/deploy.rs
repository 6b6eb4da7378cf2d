//! Brings the cluster to what the CDI object says: secrets, accounts and CRDs first, the rest at once, then readiness.

use std::sync::Arc;
use std::time::Duration;

use api::cdi::constants::VERBOSE;
use api::cdi::v1beta1::CDI;
use api::kubevirt::v1::CustomizeComponentsPatch;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kit::customize::{self, Patch as Customization, Refusal};
use kit::operator::{self, Phases};
use kit::queue::Next;
use kit::store::Key;
use kit::workload::Placement;
use kit::{Chain, clock};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::context::{Context, PRIORITY};
use super::manifests::{self, Input, constraints, crds, monitoring, workloads};
use super::status::{self, Seen, phase};
use super::{Release, authority, certificates, remove};
use crate::{Error, token};

/// How often what nobody tells of is looked at.
const LOOK: Duration = Duration::from_secs(600);

/// Brings one CDI object a step further.
pub(crate) async fn reconcile(context: Arc<Context>, key: Key) -> Next {
    match sync(&context, &key).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(cdi = key.name, error = %Chain(&error), "CDI not reconciled");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(cdi) = context.cdis.get(key) else { return Ok(Next::Wait) };
    let now = clock::seconds(clock::now());
    if cdi.metadata.deletion_timestamp.is_some() {
        return remove::sync(context, &cdi).await;
    }
    if !context.requests.is_active(&cdi) {
        context.write(&cdi, status::unwanted(&cdi, now)).await?;
        return Ok(Next::Wait);
    }
    context.requests.hold(&cdi).await.map_err(Error::api("patch", "CDI", &key.name))?;
    authority::take(context, &cdi).await?;
    let configuration = configuration(&context.release, &cdi);
    let wanted = |created: bool, failure: Option<String>| {
        let seen = Seen { deployments: context.deployments.list(), created, failure };
        let waiting = status::waiting(&seen, &workloads::DEPLOYMENTS, &configuration);
        move |cdi: &CDI| status::status(cdi, &seen, &waiting, &context.release.version, now)
    };
    // Whoever waits for an update to be over must see that it has begun.
    let known = cdi.status.as_ref().is_some_and(|status| {
        status.target_version.as_ref() == Some(&context.release.version)
            && !matches!(status.phase.as_deref(), None | Some(phase::ERROR))
    });
    if !known {
        context.write(&cdi, wanted(false, None)(&cdi)).await?;
    }
    let applied = install(context, &cdi, &configuration).await;
    let failure = applied.as_ref().err().map(|error| operator::failure(error));
    // Readiness may have moved while the manifests were sent.
    let current = context.cdis.get(key).unwrap_or(cdi);
    context.write(&current, wanted(applied.is_ok(), failure)(&current)).await?;
    applied
}

async fn install(context: &Context, cdi: &CDI, configuration: &str) -> Result<Next, Error> {
    let namespace = &context.release.namespace;
    let labels = manifests::labels(&context.release.version);
    let mut again = LOOK;
    let mut bundle = String::new();
    let mut early = vec![signing_key(context, &labels).await?];
    for ring in certificates::keyrings(namespace, &cdi.spec) {
        let held = ring.read(&context.client, namespace).await;
        let held = held.map_err(Error::api("read", "certificates", &ring.authority))?;
        let renewed = ring.plan(&held, clock::now()).map_err(Error::Certificates)?;
        again = again.min(renewed.again);
        if ring.bundle == certificates::APISERVER_BUNDLE {
            bundle.clone_from(&renewed.bundle);
        }
        early.extend(certificates::manifests(&ring, &renewed, namespace, &labels));
    }
    early.push(owner(cdi, namespace, &labels));
    let mut wanted = input(context, cdi, configuration, bundle);
    let monitors = operator::serves(&context.client, monitoring::VERSION, &monitoring::KINDS).await;
    wanted.monitoring = monitors.map_err(Error::api("look for", monitoring::VERSION, ""))?;
    let (group, kind) = constraints::KIND;
    let constrained = operator::serves(&context.client, group, &[kind]).await;
    wanted.constrained = constrained.map_err(Error::api("look for", group, ""))?;
    let mut all = manifests::render(&wanted);
    customise(&mut all, cdi).map_err(Error::Customize)?;
    // Pods mount certificates and start from accounts: what they need goes first, or they wait for a retry. The webhooks
    // go last: nobody answers them before the Deployments were applied.
    let (accounts, rest) = operator::accounts_first(all);
    early.extend(accounts);
    let phases = Phases { first: &early, definitions: crds::ALL, rest: &rest };
    operator::install(&context.client, &context.applied, phases).await?;
    Ok(Next::After(again))
}

/// The key of tokens, made once: whoever holds a token signed with it may go on.
async fn signing_key(context: &Context, labels: &Value) -> Result<Value, Error> {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &context.release.namespace);
    let held = api.get_opt(token::SECRET).await.map_err(Error::api("read", "secret", token::SECRET))?;
    let data = held.and_then(|secret| secret.data).unwrap_or_default();
    let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    let good = |(private, public): &(String, String)| {
        token::Signer::new(private).is_ok() && token::Verifier::new(public).is_ok()
    };
    let pair = match text(token::PRIVATE).zip(text(token::PUBLIC)).filter(good) {
        Some(pair) => pair,
        None => tokio::task::spawn_blocking(token::generate)
            .await
            .map_err(Error::setup("make the key of tokens"))?
            .map_err(Error::setup("make the key of tokens"))?,
    };
    Ok(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": token::SECRET, "namespace": context.release.namespace, "labels": labels },
        "data": {
            (token::PRIVATE): BASE64_STANDARD.encode(pair.0), (token::PUBLIC): BASE64_STANDARD.encode(pair.1),
        },
    }))
}

/// The ConfigMap by which upgrades and other tools know the CDI object that counts.
fn owner(cdi: &CDI, namespace: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "cdi-config", "namespace": namespace, "labels": labels,
            "ownerReferences": [{
                "apiVersion": CDI::api_version(&()), "kind": CDI::kind(&()), "name": cdi.name_any(),
                "uid": cdi.uid().unwrap_or_default(), "controller": true, "blockOwnerDeletion": true,
            }],
        },
    })
}

/// What is wrong with the customisation whatever it is applied to.
pub(crate) fn refused(cdi: &CDI) -> Vec<Refusal> {
    let wanted = cdi.spec.customize_components.clone().unwrap_or_default();
    let flags = wanted.flags.unwrap_or_default();
    let set = [("api", &flags.api), ("controller", &flags.controller), ("uploadProxy", &flags.upload_proxy)];
    let mut out: Vec<Refusal> = set
        .into_iter()
        .filter(|(_, set)| !set.is_empty())
        .map(|(name, _)| {
            let why = "flags cannot be set in this version: change the workload with customizeComponents.patches";
            customize::refuse(format!("spec.customizeComponents.flags.{name}"), why)
        })
        .collect();
    out.extend(customize::check(&patches(&wanted.patches)));
    out
}

fn patches(wanted: &[CustomizeComponentsPatch]) -> Vec<Customization> {
    let one = |patch: &CustomizeComponentsPatch| Customization {
        resource_type: patch.resource_type.clone(),
        resource_name: patch.resource_name.clone(),
        kind: patch.type_.clone(),
        patch: patch.patch.clone(),
    };
    wanted.iter().map(one).collect()
}

fn customise(all: &mut [Value], cdi: &CDI) -> Result<(), Refusal> {
    if let Some(refusal) = refused(cdi).into_iter().next() {
        return Err(refusal);
    }
    let wanted = cdi.spec.customize_components.as_ref();
    customize::apply(all, &patches(wanted.map(|wanted| wanted.patches.as_slice()).unwrap_or_default()))
}

fn input(context: &Context, cdi: &CDI, configuration: &str, ca_bundle: String) -> Input {
    let infra = cdi.spec.infra.as_deref().cloned().unwrap_or_default();
    let config = cdi.spec.config.as_deref().cloned().unwrap_or_default();
    let usual = context.priorities.contains(&Key::new("", PRIORITY)).then(|| PRIORITY.to_owned());
    let replicas = [infra.deployment_replicas, infra.api_server_replicas, infra.upload_proxy_replicas];
    Input {
        namespace: context.release.namespace.clone(),
        image: context.release.image.clone(),
        pull_policy: pull_policy(cdi),
        pull_secrets: config.image_pull_secrets,
        priority_class: cdi.spec.priority_class.clone().filter(|class| !class.is_empty()).or(usual),
        replicas: replicas.map(|replicas| replicas.unwrap_or(1)),
        infra: Placement {
            node_selector: infra.node_selector,
            affinity: json!(infra.affinity),
            tolerations: json!(infra.tolerations),
        },
        log: if config.log_verbosity.is_some_and(|level| level >= VERBOSE) {
            "debug".to_owned()
        } else {
            String::new()
        },
        ca_bundle,
        version: context.release.version.clone(),
        monitoring: false,
        constrained: false,
        configuration: configuration.to_owned(),
        render_claims: config.webhook_pvc_rendering.as_deref() != Some("Disabled"),
    }
}

fn pull_policy(cdi: &CDI) -> String {
    cdi.spec.image_pull_policy.clone().filter(|policy| !policy.is_empty()).unwrap_or("IfNotPresent".into())
}

/// Names what the Deployments are made from.
fn configuration(release: &Release, cdi: &CDI) -> String {
    let config = json!([release.image, release.version, pull_policy(cdi)]).to_string();
    Sha256::digest(config.as_bytes()).iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}
