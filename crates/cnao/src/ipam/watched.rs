//! What this replica knows of the cluster, by watches, and which machines are to be looked at because of it.

use std::collections::BTreeMap;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceStatus};
use kit::events::Recorder;
use kit::queue::{self, Queue};
use kit::store::{Change, Key, Store, Watch};
use kit::{Task, served};
use kube::discovery::ApiResource;
use kube::{Api, Client, Resource, ResourceExt};

use super::claim::IPAMClaim;
use super::names::ADDRESSES;
use super::network::NetworkAttachmentDefinition;
use super::{plan, release};

/// Copies of what is watched.
pub(super) struct Watched {
    pub(super) client: Client,
    pub(super) events: Recorder,
    pub(super) vms: Store<VirtualMachine>,
    pub(super) vmis: Store<VirtualMachineInstance>,
    pub(super) definitions: Store<NetworkAttachmentDefinition>,
    pub(super) claims: Store<IPAMClaim>,
    /// Machines to look at, by the name that the machine, its instance and its claims share.
    pub(super) queue: Queue<Key>,
}

impl Watched {
    /// Knows nothing yet.
    pub(super) fn new(client: Client, events: Recorder) -> Self {
        Watched {
            client,
            events,
            vms: Store::default(),
            vmis: Store::default(),
            definitions: Store::default(),
            claims: Store::default(),
            queue: queue::patient(),
        }
    }

    /// Follows the cluster for as long as the tasks are held.
    pub(super) fn follow(&self) -> Vec<Task<()>> {
        let client = &self.client;
        let queue = self.queue.clone();
        let vms = served::watch(
            client,
            &ApiResource::erase::<VirtualMachine>(&()),
            Api::all(client.clone()),
            Watch { trim: trim_machine, ..Watch::default() },
            self.vms.clone(),
            move |change| queue.add(change.key.clone()),
        );
        let queue = self.queue.clone();
        let vmis = served::watch(
            client,
            &ApiResource::erase::<VirtualMachineInstance>(&()),
            Api::all(client.clone()),
            Watch { trim: trim_instance, index: joined, ..Watch::default() },
            self.vmis.clone(),
            move |change| queue.add(change.key.clone()),
        );
        let (queue, users) = (self.queue.clone(), self.vmis.clone());
        let definitions = served::watch(
            client,
            &ApiResource::erase::<NetworkAttachmentDefinition>(&()),
            Api::all(client.clone()),
            Watch {
                index: |one: &NetworkAttachmentDefinition| vec![space(&one.namespace().unwrap_or_default())],
                ..Watch::default()
            },
            self.definitions.clone(),
            move |change: Change<'_, NetworkAttachmentDefinition>| {
                queue.add_all(users.keys_by_index(&change.key.to_string()));
                // It may be, or have been, the primary network of its namespace.
                queue.add_all(users.keys_by_index(&space(&change.key.namespace)));
            },
        );
        let queue = self.queue.clone();
        let claims = served::watch(
            client,
            &ApiResource::erase::<IPAMClaim>(&()),
            Api::all(client.clone()),
            Watch { index: |claim| vec![machine(&Key::of(claim)).to_string()], ..Watch::default() },
            self.claims.clone(),
            move |change| queue.add(machine(change.key)),
        );
        vec![vms, vmis, definitions, claims]
    }

    /// Waits until everything was seen once.
    pub(super) async fn synced(&self) {
        self.vms.synced().await;
        self.vmis.synced().await;
        self.definitions.synced().await;
        self.claims.synced().await;
    }

    /// Has every machine be looked at that may have claims.
    pub(super) fn look_at_all(&self) {
        self.queue.add_all(self.vmis.keys());
        self.queue.add_all(self.claims.keys().iter().map(machine));
    }

    /// The definitions that `vmi` names, as far as they are there, and all of its namespace.
    pub(super) fn networks(
        &self,
        vmi: &VirtualMachineInstance,
    ) -> (BTreeMap<Key, NetworkAttachmentDefinition>, Vec<NetworkAttachmentDefinition>) {
        let namespace = vmi.namespace().unwrap_or_default();
        let named = vmi.spec.networks.iter().filter_map(|network| plan::definition(network, &namespace));
        let named = named.filter_map(|key| self.definitions.get(&key).map(|found| (key, found)));
        (named.collect(), self.definitions.by_index(&space(&namespace)))
    }
}

/// The machine of a claim.
fn machine(claim: &Key) -> Key {
    Key::new(claim.namespace.as_str(), release::machine(&claim.name))
}

/// What is found by its namespace; no key of an object looks like it.
fn space(namespace: &str) -> String {
    format!("{namespace}/")
}

/// The definitions that an instance names, and its namespace where its pod's own network is one of its own.
fn joined(vmi: &VirtualMachineInstance) -> Vec<String> {
    let namespace = vmi.namespace().unwrap_or_default();
    let all = vmi.spec.networks.iter();
    all.filter_map(|network| match plan::definition(network, &namespace) {
        Some(key) => Some(key.to_string()),
        None => network.pod.as_ref().map(|_| space(&namespace)),
    })
    .collect()
}

/// Of a machine, that it is there is all that counts.
fn trim_machine(machine: &mut VirtualMachine) {
    let mut trimmed = VirtualMachine::default();
    identify(machine, &mut trimmed);
    *machine = trimmed;
}

fn trim_instance(vmi: &mut VirtualMachineInstance) {
    let mut trimmed = VirtualMachineInstance::default();
    identify(vmi, &mut trimmed);
    trimmed.metadata.annotations = vmi.metadata.annotations.take().map(|mut all| {
        all.retain(|key, _| key == ADDRESSES);
        all
    });
    trimmed.spec.networks = std::mem::take(&mut vmi.spec.networks);
    trimmed.spec.domain.devices.interfaces = std::mem::take(&mut vmi.spec.domain.devices.interfaces);
    trimmed.status = vmi.status.take().map(|status| {
        let (phase, active_pods) = (status.phase, status.active_pods);
        Box::new(VirtualMachineInstanceStatus { phase, active_pods, ..Default::default() })
    });
    *vmi = trimmed;
}

fn identify<K: Resource>(from: &K, to: &mut K) {
    let (from, to) = (from.meta(), to.meta_mut());
    to.name.clone_from(&from.name);
    to.namespace.clone_from(&from.namespace);
    to.uid.clone_from(&from.uid);
    to.resource_version.clone_from(&from.resource_version);
    to.owner_references.clone_from(&from.owner_references);
    to.deletion_timestamp.clone_from(&from.deletion_timestamp);
}
