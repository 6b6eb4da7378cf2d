//! The cluster as policies see it: the policies, the namespaces' labels, the pods' labels and addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::runtime::{reflector, watcher};
use tokio::sync::watch;

use crate::followed::{changes, is_ready};
use crate::proxy::ports::Protocol;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// All policies.
    pub policies: Vec<Arc<NetworkPolicy>>,
    /// Labels by namespace.
    pub namespaces: BTreeMap<String, Labels>,
    /// All pods that have a network of their own and have not ended.
    pub pods: Vec<Member>,
}

/// A pod, as far as policies look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its named ports.
    pub ports: Vec<(String, Protocol, u16)>,
    /// The node it runs on.
    pub node: String,
}

impl Member {
    /// What policies see of a pod.
    pub fn of(pod: &Pod) -> Self {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let status = pod.status.as_ref();
        let listed = status.and_then(|status| status.pod_ips.as_ref());
        let addresses = match listed {
            Some(ips) => ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect(),
            None => status.and_then(|status| status.pod_ip.as_ref()?.parse().ok()).into_iter().collect(),
        };
        Self {
            uid: text(&pod.metadata.uid),
            namespace: text(&pod.metadata.namespace),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            addresses,
            ports: pod.spec.as_ref().map(named_ports).unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        }
    }
}

/// Ports by name; also those of sidecars, which are init containers that stay.
fn named_ports(spec: &PodSpec) -> Vec<(String, Protocol, u16)> {
    let stays =
        |container: &&k8s_openapi::api::core::v1::Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(stays);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let named = |port: &k8s_openapi::api::core::v1::ContainerPort| {
        let protocol = Protocol::parse(port.protocol.as_deref())?;
        Some((port.name.clone()?, protocol, u16::try_from(port.container_port).ok()?))
    };
    ports.filter_map(named).collect()
}

/// Policies are about pods with a network of their own; an address of one that ended may be another's by now.
fn is_subject(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.spec.as_ref().and_then(|spec| spec.host_network) != Some(true) && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// What the watches hold, to be read as a [`View`] when it is needed. Cheap to clone.
#[derive(Clone)]
pub struct Stores {
    policies: reflector::Store<NetworkPolicy>,
    namespaces: reflector::Store<Namespace>,
    /// None as long as there is no policy, which is when nobody asks for pods.
    pods: Option<reflector::Store<Pod>>,
}

impl Stores {
    /// The cluster as it is now.
    pub fn view(&self) -> View {
        let Some(pods) = &self.pods else { return View::default() };
        let labels = |namespace: Arc<Namespace>| {
            (namespace.metadata.name.clone().unwrap_or_default(), namespace.metadata.labels.clone().unwrap_or_default())
        };
        let mut pods: Vec<_> = pods.state().into_iter().filter(|pod| is_subject(pod)).collect();
        // Where two claim one address, the younger has it.
        pods.sort_by(|a, b| a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp));
        View {
            policies: self.policies.state(),
            namespaces: self.namespaces.state().into_iter().map(labels).collect(),
            pods: pods.iter().map(|pod| Member::of(pod)).collect(),
        }
    }

    fn are_complete(&self) -> bool {
        is_ready(&self.policies) && is_ready(&self.namespaces) && self.pods.as_ref().is_none_or(is_ready)
    }
}

/// Watches policies and namespaces, and pods as long as there are policies; publishes after every change. Nothing is
/// published before all lists are complete. The second value does the work and must be polled; it ends when nobody
/// receives any more.
pub fn watch(client: kube::Client) -> (watch::Receiver<Option<Stores>>, impl Future<Output = ()> + Send) {
    let (publish, views) = watch::channel(None);
    let (policies, policy_writer) = reflector::store();
    let (namespaces, namespace_writer) = reflector::store();
    let mut stores = Stores { policies, namespaces, pods: None };
    let work = async move {
        let policies_changed =
            changes(Api::<NetworkPolicy>::all(client.clone()), watcher::Config::default(), policy_writer, |_| {});
        let namespaces_changed =
            changes(Api::<Namespace>::all(client.clone()), watcher::Config::default(), namespace_writer, |_| {});
        let mut others = std::pin::pin!(futures::stream::select(policies_changed, namespaces_changed));
        let mut pods = futures::stream::pending().boxed();
        loop {
            let changed = tokio::select! {
                changed = others.next() => changed,
                changed = pods.next() => changed,
            };
            if changed.is_none() {
                return;
            }
            let wanted = !stores.policies.is_empty();
            if wanted && stores.pods.is_none() {
                let (store, writer) = reflector::store();
                pods = changes(Api::<Pod>::all(client.clone()), watcher::Config::default(), writer, trim).boxed();
                stores.pods = Some(store);
            } else if !wanted && stores.pods.is_some() {
                pods = futures::stream::pending().boxed();
                stores.pods = None;
            }
            if stores.are_complete() && publish.send(Some(stores.clone())).is_err() {
                return;
            }
        }
    };
    (views, work)
}

/// Each node's agent holds all pods of the cluster, and needs little of them.
fn trim(pod: &mut Pod) {
    let spec = pod.spec.take().unwrap_or_default();
    let bare = |containers: Vec<k8s_openapi::api::core::v1::Container>| {
        let keep = |c: k8s_openapi::api::core::v1::Container| k8s_openapi::api::core::v1::Container {
            name: c.name,
            ports: c.ports,
            restart_policy: c.restart_policy,
            ..Default::default()
        };
        containers.into_iter().map(keep).collect::<Vec<_>>()
    };
    pod.spec = Some(PodSpec {
        containers: bare(spec.containers),
        init_containers: spec.init_containers.map(bare),
        host_network: spec.host_network,
        node_name: spec.node_name,
        ..PodSpec::default()
    });
    if let Some(status) = pod.status.take() {
        pod.status = Some(k8s_openapi::api::core::v1::PodStatus {
            phase: status.phase,
            pod_ip: status.pod_ip,
            pod_ips: status.pod_ips,
            ..Default::default()
        });
    }
}
