//! Brings the cluster to what the KubeVirt object says: certificates and CRDs first, the rest at once, then readiness.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::kubevirt::{
    v1::{KubeVirt, KubeVirtStatus},
    words::finalizer,
};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Node,
};
use kit::{
    Chain,
    apply::{self, Applied},
    clock,
    queue::Next,
    store::{Key, Store},
    tls::Material,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{
    MANAGER, certificates, customize,
    error::Error,
    manifests::{self, Input, Placement, crds},
    remove, rollout,
    status::{self, Seen, Version},
};

/// What the operator was started with.
#[derive(Clone, Debug)]
pub struct Images {
    /// Image of the components.
    pub component: String,
    /// Image of launcher pods.
    pub launcher: String,
    /// Version of the product.
    pub version: String,
}

/// Shared by the workers.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The images to deploy.
    pub images: Images,
    /// KubeVirt objects.
    pub kubevirts: Store<KubeVirt>,
    /// Our Deployments.
    pub deployments: Store<Deployment>,
    /// Our DaemonSet.
    pub daemon_sets: Store<DaemonSet>,
    /// The operator's own certificate.
    pub material: Arc<Material>,
    /// What was applied last.
    pub applied: Applied,
    /// This operator has applied its CRDs.
    pub schemas: AtomicBool,
    /// When everything was last applied, whether it was known to be changed or not.
    pub looked: Mutex<Instant>,
}

/// How often that is.
const LOOK: Duration = Duration::from_secs(600);

/// Brings one KubeVirt object a step further.
pub async fn reconcile(context: Arc<Context>, key: Key) -> Next {
    match sync(&context, &key).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(kubevirt = %key, error = %Chain(&error), "KubeVirt not reconciled");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(kubevirt) = context.kubevirts.get(key) else { return Ok(Next::Wait) };
    let now = clock::seconds(clock::now());
    if kubevirt.metadata.deletion_timestamp.is_some() {
        return remove::sync(context, &kubevirt).await;
    }
    if !active(context, &kubevirt) {
        write(context, &kubevirt, status::duplicate(&kubevirt, now)).await?;
        return Ok(Next::Wait);
    }
    let hold = async {
        if kubevirt.finalizers().iter().any(|name| name == finalizer::KUBEVIRT) {
            return Ok(());
        }
        let mut finalizers = kubevirt.finalizers().to_vec();
        finalizers.push(finalizer::KUBEVIRT.to_owned());
        patch_finalizers(context, &kubevirt, &finalizers).await
    };
    hold.await?;
    let version = version(context, &kubevirt);
    let progress = Seen { created: false, ..seen(context, key) };
    // Whoever waits for an update to be over must see that it has begun.
    let status = kubevirt.status.as_ref();
    let begins = status.is_none_or(|status| status.target_deployment_id.as_ref() != Some(&version.deployment_id));
    if begins || status.is_some_and(|status| status.phase.is_none()) {
        write(context, &kubevirt, status::status(&kubevirt, &progress, &version, now)).await?;
    }
    let applied = install(context, &kubevirt, &version).await;
    let mut seen = seen(context, key);
    let next = match &applied {
        Ok(next) => {
            seen.created = true;
            *next
        }
        Err(error) => {
            seen.failure = Some(format!("An error occurred during deployment: {}", Chain(error)));
            Next::Retry
        }
    };
    // Readiness may have moved while the manifests were sent.
    let current = context.kubevirts.get(key).unwrap_or(kubevirt);
    write(context, &current, status::status(&current, &seen, &version, now)).await?;
    if let Err(error) = applied {
        tracing::warn!(kubevirt = %key, error = %Chain(&error), "not everything could be applied");
    }
    Ok(next)
}

/// The oldest KubeVirt object is the one that counts.
fn active(context: &Context, kubevirt: &KubeVirt) -> bool {
    let order = |kv: &KubeVirt| (kv.metadata.creation_timestamp.as_ref().map(|t| t.0), kv.namespace(), kv.name_any());
    let own = order(kubevirt);
    !context.kubevirts.list().iter().any(|other| order(other) < own)
}

fn seen(context: &Context, key: &Key) -> Seen {
    let ours = |namespace: Option<String>| namespace.as_deref() == Some(key.namespace.as_str());
    Seen {
        deployments: context.deployments.list().into_iter().filter(|d| ours(d.namespace())).collect(),
        daemon_set: context.daemon_sets.list().into_iter().find(|d| ours(d.namespace())),
        created: false,
        failure: None,
    }
}

async fn install(context: &Context, kubevirt: &KubeVirt, version: &Version) -> Result<Next, Error> {
    {
        let mut looked = context.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() >= LOOK {
            context.applied.forget();
            *looked = Instant::now();
        }
    }
    let namespace = kubevirt.namespace().unwrap_or_default();
    let ring = certificates::keyring(&namespace, certificates::lifetimes(&kubevirt.spec));
    let held = ring.read(&context.client, &namespace).await.map_err(Error::api("read", "certificates", &namespace))?;
    let renewed = ring.plan(&held, clock::now()).map_err(Error::Certificates)?;
    let exports = certificates::exports(certificates::lifetimes(&kubevirt.spec));
    let signing =
        exports.read(&context.client, &namespace).await.map_err(Error::api("read", "certificates", &namespace))?;
    let signing = exports.plan(&signing, clock::now()).map_err(Error::Certificates)?;
    if let Some(own) = renewed.leaves.get(certificates::OWN)
        && let Err(error) = context.material.set(own)
    {
        tracing::warn!(error = %Chain(&error), "own certificate not used");
    }
    let input = input(context, kubevirt, version, renewed.bundle.clone()).await?;
    // Pods mount certificates and start from accounts: what they need goes first, or they wait for a retry.
    let mut all = manifests::render(&input);
    if let Some(wanted) = &kubevirt.spec.customize_components {
        customize::apply(&mut all, wanted).map_err(Error::Customize)?;
    }
    let (first, rest): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|m| !matches!(m["kind"].as_str(), Some("Deployment" | "DaemonSet")));
    let labels = json!({ "app.kubernetes.io/managed-by": MANAGER, "kubevirt.io": "" });
    let mut early = ring.manifests(&renewed, &namespace, &labels);
    early.extend(exports.manifests(&signing, &namespace, &labels));
    // No machine is ever written that the webhooks have not seen: they are there before the kind is. What they note is believed.
    let goes_first = |kind: &str| {
        matches!(kind, "ServiceAccount" | "PriorityClass" | "ClusterRole" | "Role")
            || kind.ends_with("WebhookConfiguration")
    };
    let (foundation, others): (Vec<Value>, Vec<Value>) =
        first.into_iter().partition(|m| m["kind"].as_str().is_some_and(goes_first));
    early.extend(foundation);
    apply::all(&context.client, &context.applied, &early).await?;
    let schemas = async {
        // Once by each operator, because its version may differ; and again when somebody deleted one.
        if context.schemas.load(Ordering::Acquire) && installed(&context.client).await {
            return Ok::<(), apply::Error>(());
        }
        apply::crds(&context.client, MANAGER, crds::ALL).await?;
        context.schemas.store(true, Ordering::Release);
        Ok(())
    };
    let mut late = rollout::now(rest, &seen(context, &Key::of(kubevirt)), &version.deployment_id);
    late.extend(others);
    let (schemas, workloads) = tokio::join!(schemas, apply::all(&context.client, &context.applied, &late));
    schemas?;
    workloads?;
    Ok(Next::After(renewed.again.min(signing.again).min(LOOK)))
}

/// True when every CRD is there.
async fn installed(client: &Client) -> bool {
    let api: Api<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> =
        Api::all(client.clone());
    let Ok(list) = api.list_metadata(&ListParams::default().labels("operator.kubevirt.io")).await else { return false };
    crds::ALL.iter().all(|(name, _)| {
        list.items
            .iter()
            .any(|found| found.metadata.name.as_deref() == Some(*name) && found.metadata.deletion_timestamp.is_none())
    })
}

async fn input(context: &Context, kubevirt: &KubeVirt, version: &Version, ca_bundle: String) -> Result<Input, Error> {
    let spec = &kubevirt.spec;
    let infra = spec.infra.clone().unwrap_or_default();
    let replicas = match infra.replicas {
        Some(replicas) => replicas,
        None => replicas(context).await?,
    };
    let placement = |config: Option<&api::kubevirt::v1::ComponentConfig>| {
        let placement = config.and_then(|config| config.node_placement.clone()).unwrap_or_default();
        Placement {
            node_selector: placement.node_selector,
            affinity: placement.affinity.map_or(Value::Null, |affinity| json!(affinity)),
            tolerations: json!(placement.tolerations),
        }
    };
    Ok(Input {
        namespace: kubevirt.namespace().unwrap_or_default(),
        component_image: image(&context.images.component, spec.image_registry.as_deref(), spec.image_tag.as_deref()),
        launcher_image: image(&context.images.launcher, spec.image_registry.as_deref(), spec.image_tag.as_deref()),
        pull_policy: spec.image_pull_policy.clone().filter(|p| !p.is_empty()).unwrap_or("IfNotPresent".into()),
        pull_secrets: spec.image_pull_secrets.clone(),
        replicas,
        infra: placement(spec.infra.as_ref()),
        workloads: placement(spec.workloads.as_ref()),
        migration_network: migration_network(kubevirt).map(str::to_owned),
        ca_bundle,
        deployment_id: version.deployment_id.clone(),
        version: context.images.version.clone(),
    })
}

/// What the administrator named, in the namespace of the KubeVirt object.
fn migration_network(kubevirt: &KubeVirt) -> Option<&str> {
    let migrations = kubevirt.spec.configuration.as_ref()?.migrations.as_ref()?;
    migrations.network.as_deref().filter(|network| !network.is_empty())
}

/// Two replicas as soon as two nodes can take them.
async fn replicas(context: &Context) -> Result<i32, Error> {
    let api: Api<Node> = Api::all(context.client.clone());
    let nodes = api.list_metadata(&ListParams::default().limit(2)).await.map_err(Error::api("list", "nodes", ""))?;
    Ok(if nodes.items.len() > 1 { 2 } else { 1 })
}

/// `image` from another registry or with another tag, when the KubeVirt object names one.
fn image(image: &str, registry: Option<&str>, tag: Option<&str>) -> String {
    let (path, own_tag) = match image.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (image, None),
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    let path = match registry.filter(|registry| !registry.is_empty()) {
        Some(registry) => format!("{}/{name}", registry.trim_end_matches('/')),
        None => path.to_owned(),
    };
    match tag.filter(|tag| !tag.is_empty()).or(own_tag) {
        Some(tag) => format!("{path}:{tag}"),
        None => path,
    }
}

fn version(context: &Context, kubevirt: &KubeVirt) -> Version {
    let spec = &kubevirt.spec;
    let component = image(&context.images.component, spec.image_registry.as_deref(), spec.image_tag.as_deref());
    let registry = component.rsplit_once('/').map(|(registry, _)| registry.to_owned()).unwrap_or_default();
    let launcher = image(&context.images.launcher, spec.image_registry.as_deref(), spec.image_tag.as_deref());
    let mut config =
        vec![json!(component), json!(launcher), json!(spec.image_pull_policy), json!(context.images.version)];
    config.extend(migration_network(kubevirt).map(|network| json!(network)));
    let config = json!(config).to_string();
    let deployment_id = Sha256::digest(config.as_bytes()).iter().take(20).map(|byte| format!("{byte:02x}")).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Version { version: context.images.version.clone(), registry, deployment_id, architecture: architecture.to_owned() }
}

/// Writes `wanted` if it differs.
pub(crate) async fn write(context: &Context, kubevirt: &KubeVirt, wanted: KubeVirtStatus) -> Result<(), Error> {
    let old = kubevirt.status.as_deref().cloned().unwrap_or_default();
    if old == wanted {
        return Ok(());
    }
    let (namespace, name) = (kubevirt.namespace().unwrap_or_default(), kubevirt.name_any());
    let api: Api<KubeVirt> = Api::namespaced(context.client.clone(), &namespace);
    let patch = Patch::Merge(json!({ "status": wanted }));
    match api.patch_status(&name, &PatchParams::default(), &patch).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            context.kubevirts.put(&written, Vec::new());
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", "kubevirt", &name)(error)),
    }
}

pub(crate) async fn patch_finalizers(
    context: &Context,
    kubevirt: &KubeVirt,
    finalizers: &[String],
) -> Result<(), Error> {
    let (namespace, name) = (kubevirt.namespace().unwrap_or_default(), kubevirt.name_any());
    let api: Api<KubeVirt> = Api::namespaced(context.client.clone(), &namespace);
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", "kubevirt", &name)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::image;

    #[test]
    fn images_follow_the_object() {
        let own = "ferrovirt.local/component:v0.1.0";
        assert_eq!(image(own, None, None), own);
        assert_eq!(image(own, Some("r.example:5000/x"), None), "r.example:5000/x/component:v0.1.0");
        assert_eq!(image(own, None, Some("v2")), "ferrovirt.local/component:v2");
        assert_eq!(image("r:5000/component", None, None), "r:5000/component");
    }
}
