//! What the controllers share: the client, the stores, the queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{
    clone::v1beta1::VirtualMachineClone, kubevirt::constants::device, kubevirt::v1::VirtualMachineInstance,
    migrations::v1alpha1::MigrationPolicy, openshift::Route,
};
use k8s_openapi::api::{
    core::v1::{Node, ObjectReference, Pod},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
};
use kit::{
    events::Recorder,
    queue::Queue,
    store::{Key, Store},
};
use kube::{Client, Resource, ResourceExt};

use crate::{
    ages::{Ages, ages},
    facts::{
        claims::{self, Claims},
        persistent_state,
    },
    renewals::Renewals,
    settings::Settings,
    stores::Stores,
};

/// The images that pods are made of.
#[derive(Clone, Copy, Debug)]
pub struct Images<'a> {
    /// Of guests.
    pub launcher: &'a str,
    /// Of exports.
    pub exporter: &'a str,
}

/// Shared by every worker; cheap to clone.
#[derive(Clone)]
pub struct Context(pub Arc<Inner>);

/// Behind [`Context`].
pub struct Inner {
    /// The API server.
    pub client: Client,
    /// Events.
    pub recorder: Recorder,
    /// Events of exports.
    pub exporting: Recorder,
    /// Where this controller and its KubeVirt object live.
    pub namespace: String,
    /// The launcher's image.
    pub launcher_image: String,
    /// The image of the servers of exports.
    pub exporter_image: String,
    /// What is known of the cluster.
    pub stores: Stores,
    /// Copies of machines.
    pub clones: Store<VirtualMachineClone>,
    /// Pods that serve exports.
    pub exporters: Store<Pod>,
    /// Ways from outside to Services beside this controller.
    pub ingresses: Store<Ingress>,
    /// The same on OpenShift.
    pub routes: Store<Route>,
    /// What administrators say about migrations of some guests.
    pub policies: Store<MigrationPolicy>,
    /// How long migrations took to enter their phases.
    pub migration_ages: Ages,
    /// Budgets of launcher pods.
    pub budgets: Store<PodDisruptionBudget>,
    /// Names of VMs to look at.
    pub vm_queue: Queue<Key>,
    /// Names of VMIs to look at.
    pub vmi_queue: Queue<Key>,
    /// Names of claims whose disks are elsewhere, or may be.
    pub claim_queue: Queue<Key>,
    /// Names of snapshots to look at.
    pub snapshot_queue: Queue<Key>,
    /// Names of restores to look at.
    pub restore_queue: Queue<Key>,
    /// Names of clones to look at.
    pub clone_queue: Queue<Key>,
    /// Names of backups to look at.
    pub backup_queue: Queue<Key>,
    /// Names of trackers to look at.
    pub tracker_queue: Queue<Key>,
    /// Names of exports to look at.
    pub export_queue: Queue<Key>,
    /// Names of nodes to look at.
    pub node_queue: Queue<Key>,
    /// Names of migrations to look at.
    pub migration_queue: Queue<Key>,
    /// Names of VMIs whose budget to look at.
    pub budget_queue: Queue<Key>,
    /// Names of nodes that may have to be emptied.
    pub evacuation_queue: Queue<Key>,
    /// Names of KubeVirt objects whose guests to look at.
    pub update_queue: Queue<Key>,
    /// Whose leases are renewed.
    pub(crate) renewals: Mutex<Renewals>,
}

impl std::ops::Deref for Context {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    /// Nothing known and nothing to do yet.
    pub(crate) fn new(client: Client, namespace: &str, images: Images<'_>, stores: Stores) -> Self {
        Self {
            recorder: Recorder::new(client.clone(), "virtualmachine-controller", ""),
            exporting: Recorder::new(client.clone(), "export-controller", ""),
            client,
            namespace: namespace.to_owned(),
            launcher_image: images.launcher.to_owned(),
            exporter_image: images.exporter.to_owned(),
            stores,
            clones: Store::default(),
            exporters: Store::default(),
            ingresses: Store::default(),
            routes: Store::default(),
            policies: Store::default(),
            migration_ages: ages(),
            budgets: Store::default(),
            vm_queue: Queue::default(),
            vmi_queue: Queue::default(),
            claim_queue: Queue::default(),
            snapshot_queue: Queue::default(),
            restore_queue: Queue::default(),
            clone_queue: Queue::default(),
            backup_queue: Queue::default(),
            tracker_queue: Queue::default(),
            export_queue: Queue::default(),
            node_queue: Queue::default(),
            migration_queue: Queue::default(),
            budget_queue: Queue::default(),
            evacuation_queue: Queue::default(),
            update_queue: Queue::default(),
            renewals: Mutex::default(),
        }
    }

    /// The administrator's choices as they are now.
    pub fn settings(&self) -> Settings {
        Settings::of(self.stores.kubevirts.list().first(), &self.launcher_image)
    }

    /// Whose leases are renewed.
    pub(crate) fn renewals(&self) -> MutexGuard<'_, Renewals> {
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claims that `vmi` names and that exist, and the one that holds its state.
    pub fn claims_of(&self, vmi: &VirtualMachineInstance) -> Claims {
        let namespace = vmi.namespace().unwrap_or_default();
        let found = claims::all(vmi).filter_map(|used| {
            let claim = self.stores.claims.get(&Key::new(namespace.as_str(), used.claim))?;
            Some((used.claim.to_owned(), claim))
        });
        let kept = persistent_state::is_kept_by(vmi);
        let state = kept.then(|| persistent_state::find(&self.stores.claims, &namespace, &vmi.name_any()));
        found.chain(state.flatten().map(|claim| (claim.name_any(), claim))).collect()
    }

    /// True when guests run without KVM: because the administrator wants it, or because no node offers it.
    pub fn emulation(&self, settings: &Settings) -> bool {
        if settings.use_emulation {
            return true;
        }
        let nodes = self.stores.nodes.list();
        !nodes.is_empty() && !nodes.iter().any(offers_kvm)
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

fn offers_kvm(node: &Node) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable.and_then(|all| all.get(device::KVM)).is_some_and(|amount| amount.0 != "0")
}

/// A reference to `object` for events.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}
