//! Brings the cluster to what the KubeVirt object says: certificates and CRDs first, the rest at once, then readiness.

use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::v1::KubeVirt;
use k8s_openapi::api::core::v1::Node;
use kit::operator::{self, Phases};
use kit::queue::Next;
use kit::store::Key;
use kit::workload::Placement;
use kit::{Chain, clock};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::error::Error;
use crate::manifests::{self, Input, constraints, crds};
use crate::status::{self, Seen, Version};
use crate::{certificates, customize, remove, rollout};

/// How often what nobody tells of is looked at: how many nodes there are.
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
    if !context.requests.is_active(&kubevirt) {
        context.write(&kubevirt, status::duplicate(&kubevirt, now)).await?;
        return Ok(Next::Wait);
    }
    context.requests.hold(&kubevirt).await.map_err(Error::api("patch", "kubevirt", &key.name))?;
    let version = version(context, &kubevirt);
    let progress = Seen { created: false, ..seen(context, key) };
    // Whoever waits for an update to be over must see that it has begun.
    let status = kubevirt.status.as_ref();
    let begins = status.is_none_or(|status| status.target_deployment_id.as_ref() != Some(&version.deployment_id));
    if begins || status.is_some_and(|status| status.phase.is_none()) {
        context.write(&kubevirt, status::status(&kubevirt, &progress, &version, now)).await?;
    }
    let applied = install(context, &kubevirt, &version).await;
    let mut seen = seen(context, key);
    let next = match &applied {
        Ok(next) => {
            seen.created = true;
            *next
        }
        Err(error) => {
            seen.failure = Some(operator::failure(error));
            Next::Retry
        }
    };
    // Readiness may have moved while the manifests were sent.
    let current = context.kubevirts.get(key).unwrap_or(kubevirt);
    context.write(&current, status::status(&current, &seen, &version, now)).await?;
    if let Err(error) = applied {
        tracing::warn!(kubevirt = %key, error = %Chain(&error), "not everything could be applied");
    }
    Ok(next)
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
    let mut early = ring.manifests(&renewed, &namespace, &certificates::labels());
    early.extend(exports.manifests(&signing, &namespace, &certificates::labels()));
    // No machine is ever written that the webhooks have not seen: they are there before the kind is. What they note is believed.
    let goes_first = |kind: &str| {
        matches!(kind, "ServiceAccount" | "PriorityClass" | "ClusterRole" | "Role")
            || kind.ends_with("WebhookConfiguration")
    };
    let (foundation, others): (Vec<Value>, Vec<Value>) =
        first.into_iter().partition(|m| m["kind"].as_str().is_some_and(goes_first));
    early.extend(foundation);
    let mut late = rollout::now(rest, &seen(context, &Key::of(kubevirt)), &version.deployment_id);
    late.extend(others);
    let phases = Phases { first: &early, definitions: crds::ALL, rest: &late };
    operator::install(&context.client, &context.applied, phases).await?;
    Ok(Next::After(renewed.again.min(signing.again).min(LOOK)))
}

async fn input(context: &Context, kubevirt: &KubeVirt, version: &Version, ca_bundle: String) -> Result<Input, Error> {
    let spec = &kubevirt.spec;
    let infra = spec.infra.clone().unwrap_or_default();
    let replicas = match infra.replicas {
        Some(replicas) => replicas,
        None => replicas(context).await?,
    };
    let (group, kind) = constraints::KIND;
    let constrained =
        operator::serves(&context.client, group, &[kind]).await.map_err(Error::api("look for", group, ""))?;
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
        component_image: image(&context.release.component, spec.image_registry.as_deref(), spec.image_tag.as_deref()),
        launcher_image: image(&context.release.launcher, spec.image_registry.as_deref(), spec.image_tag.as_deref()),
        guestfs_image: image(&context.release.guestfs, spec.image_registry.as_deref(), spec.image_tag.as_deref()),
        pull_policy: spec.image_pull_policy.clone().filter(|p| !p.is_empty()).unwrap_or("IfNotPresent".into()),
        pull_secrets: spec.image_pull_secrets.clone(),
        replicas,
        infra: placement(spec.infra.as_ref()),
        workloads: placement(spec.workloads.as_ref()),
        migration_network: migration_network(kubevirt).map(str::to_owned),
        ca_bundle,
        constrained,
        deployment_id: version.deployment_id.clone(),
        version: context.release.version.clone(),
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
    let component = image(&context.release.component, spec.image_registry.as_deref(), spec.image_tag.as_deref());
    let registry = component.rsplit_once('/').map(|(registry, _)| registry.to_owned()).unwrap_or_default();
    let launcher = image(&context.release.launcher, spec.image_registry.as_deref(), spec.image_tag.as_deref());
    let mut config =
        vec![json!(component), json!(launcher), json!(spec.image_pull_policy), json!(context.release.version)];
    config.extend(migration_network(kubevirt).map(|network| json!(network)));
    let config = json!(config).to_string();
    let deployment_id = Sha256::digest(config.as_bytes()).iter().take(20).map(|byte| format!("{byte:02x}")).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Version { version: context.release.version.clone(), registry, deployment_id, architecture: architecture.to_owned() }
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
