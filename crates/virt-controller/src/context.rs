//! What the controllers share: the client, the stores, the queues.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::kubevirt::{
    v1::{KubeVirt, VirtualMachine, VirtualMachineInstance},
    words::{device, label},
};
use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolumeClaim, Pod};
use kit::{
    events::Recorder,
    queue::Queue,
    store::{Key, Store},
};
use kube::{Client, Resource, ResourceExt};

use crate::node::{loss::Lost, pulse::Pulse};
use crate::settings::Settings;
use crate::vmi::claims::{self, Claims};

/// Shared by every worker; cheap to clone.
#[derive(Clone)]
pub struct Context(pub Arc<Inner>);

/// Behind [`Context`].
pub struct Inner {
    /// The API server.
    pub client: Client,
    /// Events.
    pub recorder: Recorder,
    /// Where this controller and its KubeVirt object live.
    pub namespace: String,
    /// The launcher's image.
    pub launcher_image: String,
    /// VirtualMachines.
    pub vms: Store<VirtualMachine>,
    /// VirtualMachineInstances.
    pub vmis: Store<VirtualMachineInstance>,
    /// Launcher pods.
    pub pods: Store<Pod>,
    /// Claims that disks may lie on.
    pub claims: Store<PersistentVolumeClaim>,
    /// Nodes that virt-handler has labelled.
    pub nodes: Store<Node>,
    /// The KubeVirt object.
    pub kubevirts: Store<KubeVirt>,
    /// Names of VMs to look at.
    pub vm_queue: Queue<Key>,
    /// Names of VMIs to look at.
    pub vmi_queue: Queue<Key>,
    /// Names of nodes to look at.
    pub node_queue: Queue<Key>,
    /// Whose leases are renewed.
    pub(crate) pulse: Mutex<Pulse>,
    /// Nodes that do not answer.
    pub(crate) lost: Mutex<BTreeMap<String, Lost>>,
}

impl std::ops::Deref for Context {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    /// The administrator's choices as they are now.
    pub fn settings(&self) -> Settings {
        Settings::of(self.kubevirts.list().first(), &self.launcher_image)
    }

    /// Whose leases are renewed.
    pub(crate) fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost_nodes(&self) -> MutexGuard<'_, BTreeMap<String, Lost>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of `node` when it is lost.
    pub(crate) fn lost(&self, node: &str) -> Option<Lost> {
        self.lost_nodes().get(node).cloned()
    }

    /// Remembers whether `node` is lost; true when that is news.
    pub(crate) fn set_lost(&self, node: &str, lost: Option<Lost>) -> bool {
        let mut nodes = self.lost_nodes();
        let before = match lost.clone() {
            Some(lost) => nodes.insert(node.to_owned(), lost),
            None => nodes.remove(node),
        };
        before != lost
    }

    /// The claims that `vmi` names and that exist.
    pub fn claims_of(&self, vmi: &VirtualMachineInstance) -> Claims {
        let namespace = vmi.namespace().unwrap_or_default();
        let found = claims::of(vmi).filter_map(|used| {
            let claim = self.claims.get(&Key::new(namespace.as_str(), used.claim))?;
            Some((used.claim.to_owned(), claim))
        });
        found.collect()
    }

    /// True when guests run without KVM: because the administrator wants it, or because no node offers it.
    pub fn emulation(&self, settings: &Settings) -> bool {
        if settings.use_emulation {
            return true;
        }
        let nodes = self.nodes.list();
        !nodes.is_empty() && !nodes.iter().any(offers_kvm)
    }
}

fn offers_kvm(node: &Node) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable.and_then(|all| all.get(device::KVM)).is_some_and(|amount| amount.0 != "0")
}

/// The word under which a pod is found by its VMI.
pub(crate) fn owner_word(uid: &str) -> String {
    format!("vmi:{uid}")
}

/// The word under which a VMI is found by its node.
pub(crate) fn node_word(node: &str) -> String {
    format!("node:{node}")
}

/// The word under which VMIs are found by a claim of theirs.
pub(crate) fn claim_word(namespace: &str, claim: &str) -> String {
    format!("claim:{namespace}/{claim}")
}

/// Index words of a launcher pod.
pub(crate) fn pod_words(pod: &Pod) -> Vec<String> {
    pod.labels().get(label::CREATED_BY).map(|uid| vec![owner_word(uid)]).unwrap_or_default()
}

/// Index words of a VMI: its UID, its node, and its claims.
pub(crate) fn vmi_words(vmi: &VirtualMachineInstance) -> Vec<String> {
    let mut words = vec![owner_word(&vmi.uid().unwrap_or_default())];
    if let Some(node) = vmi.status.as_ref().and_then(|status| status.node_name.as_deref()).filter(|n| !n.is_empty()) {
        words.push(node_word(node));
    }
    let namespace = vmi.namespace().unwrap_or_default();
    words.extend(claims::of(vmi).map(|used| claim_word(&namespace, used.claim)));
    words
}

/// Drops from a launcher pod everything these controllers never read; most of a pod is its spec.
pub(crate) fn trim_pod(pod: &mut Pod) {
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(k8s_openapi::api::core::v1::PodSpec {
            node_name: spec.node_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            ..Default::default()
        });
    }
    pod.metadata.annotations = None;
    if let Some(labels) = &mut pod.metadata.labels {
        labels.retain(|key, _| key == label::CREATED_BY);
    }
    pod.metadata.generate_name = None;
}

/// Drops from a node everything but its labels, its heartbeat, its taints, its readiness and what it offers.
pub(crate) fn trim_node(node: &mut Node) {
    node.spec =
        node.spec.take().map(|spec| k8s_openapi::api::core::v1::NodeSpec { taints: spec.taints, ..Default::default() });
    if let Some(status) = node.status.take() {
        node.status = Some(k8s_openapi::api::core::v1::NodeStatus {
            allocatable: status.allocatable.map(|all| all.into_iter().filter(|(k, _)| k == device::KVM).collect()),
            conditions: status.conditions.map(|all| all.into_iter().filter(|c| c.type_ == "Ready").collect()),
            ..Default::default()
        });
    }
}

/// A reference to `object` for events.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}
