//! What the operator's workers share.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Container, Node, NodeStatus, NodeSystemInfo, PodSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kit::apply::Applied;
use kit::events;
use kit::operator::Requests;
use kit::store::{Key, Store};
use kube::{Api, Client, Resource, ResourceExt};

use super::Release;
use super::object::{NetworkAddonsConfig, Status};
use super::status;
use crate::Error;

/// What the kubelets of the embedded cluster have in their version: they attach networks themselves.
const OWN_KUBELET: &str = "+ferrovirt";

/// How the marker of ovs-cni names the bridges of a node.
const OVS: &str = "ovs-cni.network.kubevirt.io/";

/// Shared by the workers.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What is deployed.
    pub release: Release,
    /// Says to users what happened.
    pub events: events::Recorder,
    /// The object that counts.
    pub requests: Requests<NetworkAddonsConfig>,
    /// NetworkAddonsConfig objects.
    pub configs: Store<NetworkAddonsConfig>,
    /// Our Deployments.
    pub deployments: Store<Deployment>,
    /// Our DaemonSets.
    pub daemon_sets: Store<DaemonSet>,
    /// The nodes.
    pub nodes: Store<Node>,
    /// What was applied last.
    pub applied: Applied,
}

impl Context {
    /// True when the kubelets of all nodes attach networks themselves, as those of the embedded cluster do.
    pub(super) fn kubelets_attach(&self) -> bool {
        let nodes = self.nodes.list();
        !nodes.is_empty() && nodes.iter().all(|node| version(node).contains(OWN_KUBELET))
    }

    /// True when a node says that it has a bridge of Open vSwitch.
    pub(super) fn has_ovs(&self) -> bool {
        let capacity = |node: Node| node.status.and_then(|status| status.capacity).unwrap_or_default();
        self.nodes.list().into_iter().any(|node| !capacity(node).is_empty())
    }

    /// Whether somebody else brought the kind. What this operator has applied is its own, also when its label was taken away.
    ///
    /// # Errors
    /// When the API server refuses.
    pub(super) async fn is_of_others(&self, definition: &str) -> Result<bool, Error> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let held = api.get_metadata_opt(definition).await.map_err(Error::api("read", "definition", definition))?;
        let labelled = |labels: &BTreeMap<String, String>| {
            labels.get("app.kubernetes.io/managed-by").is_some_and(|manager| manager == super::MANAGER)
        };
        let applied = |all: &[ManagedFieldsEntry]| {
            let ours = |entry: &&ManagedFieldsEntry| entry.manager.as_deref() == Some(super::MANAGER);
            all.iter().filter(ours).any(|entry| entry.operation.as_deref() == Some("Apply"))
        };
        Ok(held.is_some_and(|held| !labelled(held.labels()) && !applied(held.managed_fields())))
    }

    /// True when one copy of a controller is as good as two.
    pub(super) fn has_one_node(&self) -> bool {
        self.nodes.len() < 2
    }

    /// Writes `wanted` if it differs, and says so when it is news.
    pub(super) async fn write(&self, config: &NetworkAddonsConfig, wanted: &Status) -> Result<(), Error> {
        let old = config.status.clone().unwrap_or_default();
        if old == *wanted {
            return Ok(());
        }
        let written = self.requests.write_status(config, wanted).await;
        written.map_err(Error::api("patch", "NetworkAddonsConfig", &config.name_any()))?;
        let object = config.object_ref(&());
        for (reason, bad) in [(status::AVAILABLE, false), (status::DEGRADED, true)] {
            let is = |status: &Status| meta::conditions::is_true(&status.conditions, reason);
            if is(wanted) && !is(&old) {
                let message = meta::conditions::get(&wanted.conditions, reason).and_then(|said| said.message.clone());
                let message = message.unwrap_or_default();
                match bad {
                    true => self.events.warning(&object, "Failed", message),
                    false => self.events.normal(&object, reason, "Configuration is applied on the cluster"),
                }
            }
        }
        Ok(())
    }
}

fn version(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map(|info| info.kubelet_version.as_str()).unwrap_or_default()
}

/// Keeps of a node which kubelet it has, and which bridges of Open vSwitch.
pub(super) fn trim_node(node: &mut Node) {
    node.metadata.annotations = None;
    node.metadata.labels = None;
    node.spec = None;
    let status = node.status.take().unwrap_or_default();
    let capacity = status.capacity.map(|mut all| {
        all.retain(|name, _| name.starts_with(OVS));
        all
    });
    let info = status.node_info;
    let info = info.map(|info| NodeSystemInfo { kubelet_version: info.kubelet_version, ..NodeSystemInfo::default() });
    node.status = Some(NodeStatus { node_info: info, capacity, ..NodeStatus::default() });
}

/// Keeps of a Deployment how many of its pods run, and their containers.
pub(super) fn trim_deployment(deployment: &mut Deployment) {
    trim_pod(deployment.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()));
}

/// The same of a DaemonSet.
pub(super) fn trim_daemon_set(set: &mut DaemonSet) {
    trim_pod(set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()));
}

fn trim_pod(spec: Option<&mut PodSpec>) {
    let Some(spec) = spec else { return };
    spec.volumes = None;
    for container in &mut spec.containers {
        let (name, image) = (std::mem::take(&mut container.name), container.image.take());
        *container = Container { name, image, ..Container::default() };
    }
}

/// The kubelets that were seen last, for who only wants to know when they change.
#[derive(Default)]
pub(super) struct Kubelets(HashMap<Key, (String, bool)>);

impl Kubelets {
    /// Whether the kubelet of the node `key` is another one `now`, or has bridges of Open vSwitch and had none.
    pub(super) fn differs(&mut self, key: &Key, now: Option<&Node>) -> bool {
        let has_ovs = |node: &Node| node.status.iter().flat_map(|status| &status.capacity).any(|all| !all.is_empty());
        match now.map(|node| (version(node).to_owned(), has_ovs(node))) {
            None => self.0.remove(key).is_some(),
            Some(now) => self.0.insert(key.clone(), now.clone()) != Some(now),
        }
    }
}
