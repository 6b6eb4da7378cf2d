//! Brings the cluster to what the SSP object says: certificates and rights first, the rest at once, boot sources, then the webhooks
//! when somebody answers them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::cdi::v1beta1::{DataImportCron, DataSource};
use api::hco::CERTIFICATES_OF_SSP;
use api::kubevirt::constants::device;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kit::operator::{self, Phases};
use kit::queue::Next;
use kit::store::Key;
use kit::workload::Placement;
use kit::{Chain, apply, clock};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::architectures::Architectures;
use super::context::Context;
use super::manifests::{self, Input, admission, monitoring, tekton, tokens};
use super::names::{DEPLOYMENT, PROXY_SECRET};
use super::sources::{self, Step};
use super::status::{self, Seen};
use super::{Release, certificates, check, remove, templates};
use crate::object::SSP;
use crate::words::IMAGES;
use crate::{Error, console_proxy};

/// How often what nobody tells of is looked at.
const LOOK: Duration = Duration::from_secs(600);
/// How often the validator runs unless it is said.
const REPLICAS: i32 = 2;
/// Where boot sources are served.
const CDI: (&str, [&str; 2]) = ("cdi.kubevirt.io/v1beta1", ["DataSource", "DataImportCron"]);

/// Brings one SSP object a step further.
pub(super) async fn reconcile(context: Arc<Context>, key: Key) -> Next {
    match sync(&context, &key).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(ssp = %key.name, error = %Chain(&error), "SSP not reconciled");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let now = clock::seconds(clock::now());
    if let Some(ssp) = context.elsewhere.get(key) {
        let wanted = status::elsewhere(&ssp, &context.release.namespace, now);
        return context.write(&ssp, wanted).await.map(|()| Next::Wait);
    }
    let Some(ssp) = context.ssps.get(key) else { return Ok(Next::Wait) };
    if ssp.metadata.deletion_timestamp.is_some() {
        return remove::sync(context, &ssp).await;
    }
    if let Some(active) = context.requests.active().filter(|active| active.uid() != ssp.uid()) {
        context.write(&ssp, status::unwanted(&ssp, &active.name_any(), now)).await?;
        return Ok(Next::Wait);
    }
    if ssp.is_paused() {
        context.write(&ssp, status::paused(&ssp)).await?;
        return Ok(Next::Wait);
    }
    context.requests.hold(&ssp).await.map_err(Error::api("patch", "SSP", &key.name))?;
    let version = &context.release.version;
    let causes = check::refusals(&ssp.spec);
    if !causes.is_empty() {
        context.metrics.reconciled(false);
        context.write(&ssp, status::refused(&ssp, &causes, version, now)).await?;
        return Ok(Next::Wait);
    }
    let configuration = configuration(&context.release, &ssp);
    let names = [DEPLOYMENT].into_iter().chain(ssp.wants_tokens().then_some(console_proxy::NAME));
    let find = |name| (name, context.deployments.get(&Key::new(context.release.namespace.as_str(), name)));
    let seen = |applied: bool, failure: Option<String>, remarks: Vec<String>| Seen {
        deployments: names.clone().map(find).collect(),
        configuration: configuration.clone(),
        applied,
        failure,
        remarks,
    };
    // Whoever waits for an update to be over must see that it has begun.
    let known = ssp.status.as_ref().is_some_and(|status| {
        status.target_version.as_ref() == Some(version) && status.phase.is_some() && !status.paused
    });
    if !known {
        context.write(&ssp, status::status(&ssp, &seen(false, None, Vec::new()), version, now)).await?;
    }
    let done = install(context, &ssp, &configuration, &seen(false, None, Vec::new())).await;
    context.metrics.reconciled(done.is_ok());
    let (applied, failure, remarks) = match &done {
        Ok(done) => (done.whole, None, done.remarks.clone()),
        Err(error) => (false, Some(operator::failure(error)), Vec::new()),
    };
    // Readiness may have moved while the manifests were sent.
    let current = context.ssps.get(key).unwrap_or(ssp);
    context.write(&current, status::status(&current, &seen(applied, failure, remarks), version, now)).await?;
    Ok(Next::After(done?.again))
}

/// Makes the namespace of boot sources where nobody has, such as on clusters that the operator came to as a package of OLM.
async fn ensure_namespace(context: &Context) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let found = namespaces.get_metadata_opt(IMAGES).await.map_err(Error::api("look for", "Namespace", IMAGES))?;
    if found.is_some() {
        return Ok(());
    }
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(IMAGES.to_owned());
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        made => made.map(drop).map_err(Error::api("create", "Namespace", IMAGES)),
    }
}

/// Whether machines run on nodes of which none has KVM. As long as no node offers devices, nobody knows.
async fn emulated(context: &Context) -> Result<bool, Error> {
    let nodes = Api::<Node>::all(context.client.clone()).list(&ListParams::default().match_any()).await;
    let nodes = nodes.map_err(Error::api("list", "Node", ""))?.items;
    let offered = |device: &str| {
        let allocatable = |node: &Node| node.status.as_ref()?.allocatable.as_ref()?.get(device).map(|all| all.0 != "0");
        nodes.iter().any(|node| allocatable(node) == Some(true))
    };
    Ok(offered(device::TUN) && !offered(device::KVM))
}

/// What an installation came to.
struct Done {
    /// When it has to be looked at again.
    again: Duration,
    /// Nothing is left to be applied once somebody answers the webhooks.
    whole: bool,
    remarks: Vec<String>,
}

async fn install(context: &Context, ssp: &SSP, configuration: &str, seen: &Seen) -> Result<Done, Error> {
    ensure_namespace(context).await?;
    let namespace = &context.release.namespace;
    let mut input = input(context, ssp, configuration);
    let labels = manifests::labels(manifests::validator::OPERAND, manifests::TEMPLATING, &input.labels);
    let (lifetimes, complaint) =
        match certificates::lifetimes(ssp.annotations().get(CERTIFICATES_OF_SSP).map(String::as_str)) {
            Ok(asked) => (asked, None),
            Err(why) => (certificates::USUAL, Some(why)),
        };
    let ring = certificates::keyring(namespace, input.tokens, lifetimes);
    let held = ring.read(&context.client, namespace).await;
    let held = held.map_err(Error::api("read", "certificates", &ring.authority))?;
    let renewed = ring.plan(&held, clock::now()).map_err(Error::Certificates)?;
    input.ca_bundle.clone_from(&renewed.bundle);
    let serves = async |version: &str, kinds: &[&str]| {
        operator::serves(&context.client, version, kinds).await.map_err(Error::api("look for", version, ""))
    };
    input.monitoring = serves(monitoring::VERSION, &monitoring::KINDS).await?;
    if serves(tekton::VERSION, &tekton::KINDS).await? {
        input.steps = Some(context.release.steps.clone());
        input.emulated = emulated(context).await?;
    }
    // A webhook that nobody answers refuses every machine. Once there, it stays while the validator is away: so it is asked for.
    let hooks = admission::addresses(&input);
    let there = context.applied.addresses();
    let wanted = input.replicas > 0;
    let asked = |addresses: &[String]| addresses.iter().any(|address| there.contains(address));
    input.answered = wanted && (seen.is_answered(DEPLOYMENT) || asked(&hooks));
    let api = [apply::address(&tokens::api_service(&input))];
    input.tokens_answered = input.tokens && (seen.is_answered(console_proxy::NAME) || asked(&api));

    let mut early = ring.manifests(&renewed, namespace, &labels);
    // Pods mount certificates and start from accounts: what they need goes first, or they wait for a retry.
    let first = |manifest: &Value| matches!(manifest["kind"].as_str(), Some("ServiceAccount" | "ClusterRole" | "Role"));
    let (accounts, mut rest): (Vec<Value>, Vec<Value>) = manifests::render(&input).into_iter().partition(first);
    early.extend(accounts);
    let architectures = Architectures::of(&ssp.spec, context.release.architecture);
    let kinds = templates::served(&context.client).await.map_err(Error::api("look for", "templates", ""))?;
    let common = &ssp.spec.common_templates.namespace;
    let rendered = templates::render(&kinds, common, &architectures, &input.labels);
    let restored = context.templates.restored(&rendered, &there);
    rest.extend(rendered.iter().cloned());
    operator::install(&context.client, &context.applied, Phases { first: &early, definitions: &[], rest: &rest })
        .await?;
    context.metrics.restored.inc_by(restored);
    templates::tidy(context, &kinds, common, &architectures, &rendered).await?;
    let mut superfluous = Vec::new();
    if !wanted {
        superfluous.extend(hooks);
    }
    if input.replicas < 2 {
        superfluous.push(format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{DEPLOYMENT}"));
    }
    if !input.tokens {
        superfluous.extend(api);
        superfluous.extend(tokens::render(&input).iter().map(apply::address));
        superfluous.push(format!("/api/v1/namespaces/{namespace}/secrets/{PROXY_SECRET}"));
    }
    context.prune(superfluous).await?;
    let mut remarks = check::remarks(&ssp.spec);
    remarks.extend(complaint);
    if serves(CDI.0, &CDI.1).await? {
        boot_sources(context, ssp, &architectures).await?;
    } else {
        remarks.push("CDI is not there: no boot sources are made".to_owned());
    }
    if kinds.is_empty() {
        remarks.push("the cluster serves no kind of templates: none are made".to_owned());
    }
    let whole = (input.answered || !wanted) && input.tokens_answered == input.tokens;
    Ok(Done { again: LOOK.min(renewed.again), whole, remarks })
}

async fn boot_sources(context: &Context, ssp: &SSP, architectures: &Architectures) -> Result<(), Error> {
    let labels = Context::labels(ssp);
    let wanted = sources::wanted(&ssp.spec.common_templates, architectures, &labels);
    let claims: BTreeSet<String> = context.claims.keys().into_iter().map(|key| key.name).collect();
    let (there, crons) = (context.sources.list(), context.crons.list());
    let seen = sources::Seen { sources: &there, crons: &crons, claims: &claims };
    for step in sources::plan(&wanted, &seen, &labels) {
        take(context, &step).await?;
    }
    Ok(())
}

/// Takes one step, and remembers what came of it at once.
async fn take(context: &Context, step: &Step) -> Result<(), Error> {
    let (Step::Create(object) | Step::Merge(object, _) | Step::Delete(object)) = step;
    match (step, object["kind"].as_str()) {
        (Step::Delete(object), _) => Ok(apply::delete(&context.client, &apply::address(object)).await?),
        (_, Some("DataSource")) => {
            let done = write::<DataSource>(context, step).await?;
            context.sources.put(&done, Vec::new());
            Ok(())
        }
        _ => {
            let done = write::<DataImportCron>(context, step).await?;
            context.crons.put(&done, Vec::new());
            Ok(())
        }
    }
}

async fn write<K>(context: &Context, step: &Step) -> Result<K, Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug,
{
    let (Step::Create(object) | Step::Merge(object, _) | Step::Delete(object)) = step;
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    let place = format!("{namespace}/{name}");
    match step {
        Step::Merge(_, change) => {
            let done = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
            done.map_err(Error::api("change", &K::kind(&()), &place))
        }
        _ => {
            let made: K = serde_json::from_value(object.clone()).map_err(Error::setup("render a boot source"))?;
            api.create(&PostParams::default(), &made).await.map_err(Error::api("create", &K::kind(&()), &place))
        }
    }
}

fn input(context: &Context, ssp: &SSP, configuration: &str) -> Input {
    let validator = ssp.spec.template_validator.clone().unwrap_or_default();
    let placement = validator.placement.unwrap_or_default();
    Input {
        namespace: context.release.namespace.clone(),
        image: context.release.image.clone(),
        replicas: validator.replicas.unwrap_or(REPLICAS),
        placement: Placement {
            node_selector: placement.node_selector.unwrap_or_default(),
            affinity: json!(placement.affinity),
            tolerations: json!(placement.tolerations),
        },
        templates: ssp.spec.common_templates.namespace.clone(),
        configuration: configuration.to_owned(),
        labels: Context::labels(ssp),
        tokens: ssp.wants_tokens(),
        version: context.release.version.clone(),
        ..Input::default()
    }
}

/// Names what the validator is made from.
fn configuration(release: &Release, ssp: &SSP) -> String {
    let config = json!([release.image, release.version, ssp.spec.common_templates.namespace]).to_string();
    Sha256::digest(config.as_bytes()).iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}
