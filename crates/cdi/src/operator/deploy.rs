//! Brings the cluster to what the CDI object says: secrets, accounts and CRDs first, the rest at once, then readiness.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::cdi::v1beta1::{CDI, CDIStatus};
use api::kubevirt::v1::CustomizeComponentsPatch;
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kit::customize::{self, Patch as Customization, Refusal};
use kit::queue::Next;
use kit::store::{Key, Store};
use kit::{Chain, clock, events};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::manifests::{self, Input, Placement, crds, workloads};
use super::status::{self, Seen, phase};
use super::{MANAGER, Release, authority, certificates, remove};
use crate::controller::settings::VERBOSE;
use crate::{Error, token};

/// The finalizer that holds the CDI object until everything is taken away.
pub(super) const FINALIZER: &str = "operator.cdi.kubevirt.io";
/// How long until what is there is compared with what should be, though nobody said that it changed.
const LOOK: Duration = Duration::from_secs(600);

/// The class of the components where the object names none and this one is there: OpenShift's for what its users count on.
pub(super) const PRIORITY: &str = "openshift-user-critical";

/// Shared by the workers.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What is deployed.
    pub release: Release,
    /// Says to users what happened.
    pub events: events::Recorder,
    /// CDI objects.
    pub cdis: Store<CDI>,
    /// Our Deployments.
    pub deployments: Store<Deployment>,
    /// The class that is taken when none is named, where it is there.
    pub priorities: Store<PriorityClass>,
    /// What was applied last.
    pub applied: Applied,
    /// This operator has applied its CRDs.
    pub schemas: AtomicBool,
}

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
    if !active(context, &cdi) {
        write(context, &cdi, status::unwanted(&cdi, now)).await?;
        return Ok(Next::Wait);
    }
    if !cdi.finalizers().iter().any(|name| name == FINALIZER) {
        let mut finalizers = cdi.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        patch_finalizers(context, &cdi, &finalizers).await?;
    }
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
        write(context, &cdi, wanted(false, None)(&cdi)).await?;
    }
    let applied = install(context, &cdi, &configuration).await;
    let failure = applied.as_ref().err().map(|error| format!("An error occurred during deployment: {}", Chain(error)));
    // Readiness may have moved while the manifests were sent.
    let current = context.cdis.get(key).unwrap_or(cdi);
    write(context, &current, wanted(applied.is_ok(), failure)(&current)).await?;
    applied
}

/// The one that is deployed already counts, else the oldest.
fn active(context: &Context, cdi: &CDI) -> bool {
    let order = |cdi: &CDI| {
        let deployed = cdi.finalizers().iter().any(|name| name == FINALIZER);
        (!deployed, cdi.metadata.creation_timestamp.as_ref().map(|time| time.0), cdi.name_any())
    };
    let own = order(cdi);
    !context.cdis.list().iter().any(|other| order(other) < own)
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
    wanted.monitoring = monitored(&context.client).await?;
    let mut all = manifests::render(&wanted);
    customise(&mut all, cdi).map_err(Error::Customize)?;
    // Pods mount certificates and start from accounts: what they need goes first, or they wait for a retry. The webhooks
    // go last: nobody answers them before the Deployments were applied.
    let kind = |manifest: &Value, kinds: &[&str]| manifest["kind"].as_str().is_some_and(|kind| kinds.contains(&kind));
    let (accounts, rest): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|manifest| kind(manifest, &["ServiceAccount", "ClusterRole", "Role"]));
    early.extend(accounts);
    let (client, applied) = (&context.client, &context.applied);
    apply::all(client, applied, &early).await?;
    let schemas = async {
        // Once by each operator, because its version may differ; and again when somebody deleted one.
        if context.schemas.load(Ordering::Acquire) && installed(client).await {
            return Ok::<(), apply::Error>(());
        }
        apply::crds(client, MANAGER, crds::ALL).await?;
        context.schemas.store(true, Ordering::Release);
        Ok(())
    };
    let (schemas, workloads) = tokio::join!(schemas, apply::all(client, applied, &rest));
    schemas?;
    workloads?;
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

/// True when the cluster knows the kinds of Prometheus' operator.
async fn monitored(client: &Client) -> Result<bool, Error> {
    match client.list_api_group_resources("monitoring.coreos.com/v1").await {
        Ok(known) => {
            let has = |kind: &str| known.resources.iter().any(|resource| resource.kind == kind);
            Ok(has("ServiceMonitor") && has("PrometheusRule"))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(Error::api("look for", "monitoring.coreos.com/v1", "")(error)),
    }
}

/// True when every CRD is there.
async fn installed(client: &Client) -> bool {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let Ok(list) = api.list_metadata(&ListParams::default().labels(FINALIZER)).await else { return false };
    let there = |name: &str| {
        list.items.iter().any(|found| found.name_any() == name && found.metadata.deletion_timestamp.is_none())
    };
    crds::ALL.iter().all(|(name, _)| there(name))
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
            affinity: infra.affinity,
            tolerations: infra.tolerations,
        },
        log: if config.log_verbosity.is_some_and(|level| level >= VERBOSE) {
            "debug".to_owned()
        } else {
            String::new()
        },
        ca_bundle,
        version: context.release.version.clone(),
        monitoring: false,
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

/// Writes `wanted` if it differs, and says so when it is news.
pub(crate) async fn write(context: &Context, cdi: &CDI, wanted: CDIStatus) -> Result<(), Error> {
    let old = cdi.status.clone().unwrap_or_default();
    if old == wanted {
        return Ok(());
    }
    let api: Api<CDI> = Api::all(context.client.clone());
    let news = old.phase != wanted.phase;
    let patch = Patch::Merge(json!({ "status": wanted }));
    match api.patch(&cdi.name_any(), &PatchParams::default(), &patch).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            context.cdis.put(&written, Vec::new());
            if news {
                announce(context, cdi, &wanted);
            }
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", "CDI", &cdi.name_any())(error)),
    }
}

fn announce(context: &Context, cdi: &CDI, status: &CDIStatus) {
    let (object, recorder) = (cdi.object_ref(&()), &context.events);
    match status.phase.as_deref() {
        Some(phase::DEPLOYING) => recorder.normal(&object, "DeployStarted", "Started Deployment"),
        Some(phase::UPGRADING) => {
            let version = status.target_version.as_deref().unwrap_or_default();
            recorder.normal(&object, "UpgradeStarted", format!("Started upgrade to version {version}"));
        }
        Some(phase::DEPLOYED) => recorder.normal(&object, "DeployCompleted", "Deployment Completed"),
        Some(phase::ERROR) => recorder.warning(&object, "ConfigError", status::UNWANTED),
        _ => {}
    }
}

pub(crate) async fn patch_finalizers(context: &Context, cdi: &CDI, finalizers: &[String]) -> Result<(), Error> {
    let api: Api<CDI> = Api::all(context.client.clone());
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
    match api.patch(&cdi.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", "CDI", &cdi.name_any())(error)),
    }
}
