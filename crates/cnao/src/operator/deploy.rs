//! Brings the cluster to what the object says.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kit::keyring::Keyring;
use kit::operator::{self, Phases};
use kit::queue::Next;
use kit::store::Key;
use kit::{Chain, clock};
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::context::Context;
use super::object::{NAME, NetworkAddonsConfig};
use super::operands::{self, CLAIMS, DEFINITIONS, Input};
use super::plan::{self, Cluster, Operand, Plan};
use super::remove;
use super::status::{self, Seen};
use crate::ipam;
use crate::kubemacpool::manifests::{self as pool, monitoring};
use crate::kubemacpool::range::CONFIG;
use crate::kubemacpool::{Range, certificates};
use crate::{Error, constraints};

/// How often what nobody tells of is looked at.
const LOOK: Duration = Duration::from_secs(600);

/// Brings one object a step further.
pub(super) async fn reconcile(context: Arc<Context>, key: Key) -> Next {
    match sync(&context, &key).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(networkaddonsconfig = key.name, error = %Chain(&error), "NetworkAddonsConfig not reconciled");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(config) = context.configs.get(key) else { return Ok(Next::Wait) };
    let now = clock::seconds(clock::now());
    if config.metadata.deletion_timestamp.is_some() {
        return remove::sync(context, &config).await;
    }
    if key.name != NAME {
        let message = format!("Ignoring NetworkAddonsConfig without default name: it has to be called {NAME:?}");
        context.write(&config, &status::unwanted(&config, &message, now)).await?;
        return Ok(Next::Wait);
    }
    context.requests.hold(&config).await.map_err(Error::api("patch", "NetworkAddonsConfig", &key.name))?;
    let cluster = look(context).await?;
    let plan = plan::plan(&config, cluster);
    // What is refused changes nothing of what is there.
    let applied = if plan.refused.is_empty() { install(context, &config, &plan, cluster).await } else { Ok(LOOK) };
    let failure = applied.as_ref().err().map(|error| operator::failure(error));
    let current = context.configs.get(key).unwrap_or(config);
    let seen = Seen { deployments: context.deployments.list(), daemon_sets: context.daemon_sets.list(), failure };
    context.write(&current, &status::status(&current, &plan, &seen, &context.release.version, now)).await?;
    applied.map(Next::After)
}

/// What the cluster has.
async fn look(context: &Context) -> Result<Cluster, Error> {
    let has_kind = context.is_of_others(DEFINITIONS[0].0).await?;
    let has_claims = context.is_of_others(CLAIMS.0).await?;
    let openshift = openshift(context).await?;
    Ok(Cluster {
        kubelets_attach: context.kubelets_attach(),
        has_kind,
        has_claims,
        has_ovs: context.has_ovs(),
        openshift,
    })
}

async fn install(
    context: &Context,
    config: &NetworkAddonsConfig,
    plan: &Plan,
    cluster: Cluster,
) -> Result<Duration, Error> {
    let (release, mut again) = (&context.release, LOOK);
    let mut input = Input {
        namespace: release.namespace.clone(),
        image: release.image.clone(),
        version: release.version.clone(),
        replicas: if context.has_one_node() { 1 } else { 2 },
        answers: answers(context, (pool::DEPLOYMENT, pool::MUTATOR)),
        ipam_answers: answers(context, (ipam::manifests::DEPLOYMENT, ipam::names::MUTATOR)),
        openshift: cluster.openshift,
        monitoring: monitoring(context).await?,
        ..Input::default()
    };
    let mut first = Vec::new();
    // What is not valid is refused before this.
    let lifetimes = plan::intervals(&config.spec).lifetimes().unwrap_or_default();
    if plan.operands.contains(&Operand::KubeMacPool) {
        input.range = Some(range(context, config).await?);
        let ring = certificates::keyring(&release.namespace, lifetimes);
        let (bundle, due) = renew(context, &ring, &mut first).await?;
        (input.ca_bundle, again) = (bundle, again.min(due));
    }
    if plan.operands.contains(&Operand::IpamController) {
        let ring = ipam::certificates::keyring(&release.namespace, lifetimes);
        let (bundle, due) = renew(context, &ring, &mut first).await?;
        (input.ipam_ca_bundle, again) = (bundle, again.min(due));
    }
    let rest = operands::render(config, &plan.operands, &input);
    remove::surplus(context, &rest).await?;
    let mut definitions = Vec::new();
    for (name, text) in DEFINITIONS.into_iter().filter(|_| plan.operands.contains(&Operand::Multus)) {
        if !context.is_of_others(name).await? {
            definitions.push((name, text));
        }
    }
    definitions.extend(plan.operands.contains(&Operand::IpamClaims).then_some(CLAIMS));
    let (accounts, rest) = operator::accounts_first(rest);
    first.extend(accounts);
    let phases = Phases { first: &first, definitions: &definitions, rest: &rest };
    operator::install(&context.client, &context.applied, phases).await?;
    Ok(again)
}

/// The bundle of a key ring, and when it is renewed next. `first` gets what is new of it.
async fn renew(context: &Context, ring: &Keyring, first: &mut Vec<Value>) -> Result<(String, Duration), Error> {
    let release = &context.release;
    let held = ring.read(&context.client, &release.namespace).await;
    let held = held.map_err(Error::api("read", "certificates", &ring.authority))?;
    let renewed = ring.plan(&held, clock::now()).map_err(Error::Certificates)?;
    first.extend(ring.manifests(&renewed, &release.namespace, &operands::labels(&release.version)));
    Ok((renewed.bundle, renewed.again))
}

/// Whether there is somebody to tell what to scrape.
async fn monitoring(context: &Context) -> Result<bool, Error> {
    let version = monitoring::VERSION;
    let served = operator::serves(&context.client, version, &monitoring::KINDS).await;
    served.map_err(Error::api("list", "kinds", version))
}

/// Whether pods are admitted as OpenShift admits them.
async fn openshift(context: &Context) -> Result<bool, Error> {
    let (version, kind) = constraints::KIND;
    operator::serves(&context.client, version, &[kind]).await.map_err(Error::api("list", "kinds", version))
}

/// Whether the pods of a Deployment answer its webhook, or did: objects are judged from then on.
fn answers(context: &Context, (deployment, webhook): (&str, &str)) -> bool {
    let rolled_out = |held: &Deployment| held.name_any() == deployment && operator::is_rolled_out(held);
    let judged = |address: &String| address.ends_with(&format!("/mutatingwebhookconfigurations/{webhook}"));
    context.deployments.list().iter().any(rolled_out) || context.applied.addresses().iter().any(judged)
}

/// The addresses of the pool: as the object says, else as they were, else of a prefix that is likely this cluster's alone.
async fn range(context: &Context, config: &NetworkAddonsConfig) -> Result<Range, Error> {
    let said = config.spec.kube_mac_pool.clone().unwrap_or_default();
    let (start, end) = (said.range_start.unwrap_or_default(), said.range_end.unwrap_or_default());
    if let Ok(Some(range)) = Range::asked(&start, &end) {
        return Ok(range);
    }
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.release.namespace);
    let held = api.get_opt(CONFIG).await.map_err(Error::api("read", "configmap", CONFIG))?;
    let held = held.and_then(|held| Range::parse(&held.data.unwrap_or_default()).ok());
    Ok(held.unwrap_or_else(|| Range::prefixed(fastrand::u8(..), fastrand::u8(..))))
}
