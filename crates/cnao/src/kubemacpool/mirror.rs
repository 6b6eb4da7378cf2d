//! What this replica knows of the cluster, by watches: reservations, who has which address, namespaces and the range.

mod kept;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kit::events::{Recorder, Severity};
use kit::queue::Queue;
use kit::store::{self, Change, Key, Store, Watch};
use kit::{Task, served};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};

use super::detect::Running;
use super::mac::Mac;
use super::opting::{Mode, PODS, VIRTUAL_MACHINES};
use super::pool::Pool;
use super::range::{CONFIG, Range};
use super::reservation::{Kind, LABEL, Object, Reservation, reserved_by};
use super::{MANAGER, machine};

/// Copies of what is watched, and what is to be looked at because of it.
pub(super) struct Mirror {
    pub(super) client: Client,
    /// Where the reservations and the range are.
    pub(super) namespace: String,
    pool: Mutex<Pool>,
    /// Why there is no range.
    problem: Mutex<String>,
    leases: Store<Lease>,
    machines: Store<VirtualMachine>,
    instances: Store<VirtualMachineInstance>,
    pods: Store<Pod>,
    namespaces: Store<Namespace>,
    maps: Store<ConfigMap>,
    /// Whether everything was seen once.
    complete: AtomicBool,
    modes: Modes,
    /// Addresses that may have to be given back.
    pub(super) unused: Queue<Mac>,
    /// Addresses that more objects may have, or fewer.
    pub(super) running: Queue<Mac>,
}

/// What is done with namespaces that do not say.
#[derive(Clone, Copy, Debug)]
pub struct Modes {
    /// With their virtual machines.
    pub machines: Mode,
    /// With their pods.
    pub pods: Mode,
}

impl Mirror {
    /// Knows nothing yet.
    pub(super) fn new(client: Client, namespace: &str, modes: Modes) -> Arc<Self> {
        Arc::new(Mirror {
            client,
            namespace: namespace.to_owned(),
            pool: Mutex::default(),
            problem: Mutex::new(format!("ConfigMap {namespace}/{CONFIG} is missing")),
            leases: Store::default(),
            machines: Store::default(),
            instances: Store::default(),
            pods: Store::default(),
            namespaces: Store::default(),
            maps: Store::default(),
            complete: AtomicBool::new(false),
            modes,
            unused: Queue::default(),
            running: Queue::default(),
        })
    }

    /// Follows the cluster for as long as the tasks are held.
    pub(super) fn follow(self: &Arc<Self>, events: &Recorder) -> Vec<Task<()>> {
        let client = &self.client;
        let own = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mirror = self.clone();
        let leases = store::watch(
            Api::namespaced(client.clone(), &self.namespace),
            Watch { config: watcher::Config::default().labels(LABEL), ..Watch::default() },
            self.leases.clone(),
            move |change| mirror.reserved(change.key),
        );
        let mirror = self.clone();
        let machines = served::watch(
            client,
            &ApiResource::erase::<VirtualMachine>(&()),
            Api::all(client.clone()),
            Watch { trim: kept::trim_machine, index: |vm| kept::words(&machine::addresses(vm)), ..Watch::default() },
            self.machines.clone(),
            move |change| mirror.held(Kind::VirtualMachine, &change),
        );
        let mirror = self.clone();
        let instances = served::watch(
            client,
            &ApiResource::erase::<VirtualMachineInstance>(&()),
            Api::all(client.clone()),
            Watch {
                trim: kept::trim_instance,
                index: |vmi| kept::words(&machine::running_addresses(vmi)),
                ..Watch::default()
            },
            self.instances.clone(),
            move |change| mirror.held(Kind::VirtualMachineInstance, &change),
        );
        let mirror = self.clone();
        let pods = store::watch(
            Api::all(client.clone()),
            Watch {
                trim: kept::trim_pod,
                index: |pod: &Pod| kept::words(&kept::pod_addresses(pod)),
                ..Watch::default()
            },
            self.pods.clone(),
            move |change| mirror.held(Kind::Pod, &change),
        );
        let mirror = self.clone();
        let namespaces = store::watch(
            Api::all(client.clone()),
            Watch { trim: kept::trim_namespace, index: kept::opting, ..Watch::default() },
            self.namespaces.clone(),
            move |change| mirror.opted(&change),
        );
        let (mirror, events) = (self.clone(), events.clone());
        let maps = store::watch(
            Api::namespaced(client.clone(), &self.namespace),
            Watch { config: own(CONFIG), ..Watch::default() },
            self.maps.clone(),
            move |change: Change<'_, ConfigMap>| mirror.ranged(change.new, &events),
        );
        vec![leases, machines, instances, pods, namespaces, maps]
    }

    /// Waits until everything was seen once, and has it looked at then.
    pub(super) async fn synced(&self) {
        self.leases.synced().await;
        self.machines.synced().await;
        self.instances.synced().await;
        self.pods.synced().await;
        self.namespaces.synced().await;
        self.maps.synced().await;
        if !self.complete.swap(true, Ordering::AcqRel) {
            self.running.add_all(self.pool().shared());
        }
    }

    /// What is known of addresses. Not to be held while anything is waited for.
    pub(super) fn pool(&self) -> MutexGuard<'_, Pool> {
        // A poisoned lock only means that another reader panicked; the pool itself is whole after each statement.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there is no range.
    pub(super) fn problem(&self) -> String {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The API server answered with this Lease: it counts before the watch tells of it.
    pub(super) fn answered(&self, lease: &Lease) {
        self.leases.put(lease, Vec::new());
        self.reserved(&Key::of(lease));
    }

    fn reserved(&self, key: &Key) {
        let Some(mac) = reserved_by(&key.name) else { return };
        // Read while the pool is locked, so that what is read last is told last.
        let mut pool = self.pool();
        match self.leases.get(key).as_ref().and_then(Reservation::read) {
            Some(reservation) => pool.reserved(reservation),
            None => pool.forget(mac),
        }
        drop(pool);
        self.unused.add(mac);
    }

    /// What runs in a namespace that is served from now on, or no more, collides anew.
    fn opted(&self, change: &Change<'_, Namespace>) {
        if change.was != change.is && self.complete.load(Ordering::Acquire) {
            self.running.add_all(self.pool().shared());
        }
    }

    fn held<K>(&self, kind: Kind, change: &Change<'_, K>) {
        let Key { namespace, name } = change.key.clone();
        let (was, is) = (kept::read(change.was), kept::read(change.is));
        if was != is {
            self.pool().held(&Object { namespace, kind, name }, &was, &is);
            self.unused.add_all(was.iter().copied());
        }
        if kind != Kind::VirtualMachine {
            self.running.add_all(was.into_iter().chain(is));
        }
    }

    fn ranged(&self, map: Option<&ConfigMap>, events: &Recorder) {
        let place = format!("ConfigMap {}/{CONFIG}", self.namespace);
        let Some(map) = map else {
            tracing::warn!("{place} is gone: the range stays as it was");
            return;
        };
        match Range::parse(map.data.as_ref().unwrap_or(&BTreeMap::new())) {
            Ok(range) => {
                let mut pool = self.pool();
                if pool.range() != Some(range) {
                    tracing::info!(%range, "addresses are taken from");
                    pool.set_range(range);
                }
            }
            Err(error) => {
                *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = format!("{place}: {error}");
                let now = self
                    .pool()
                    .range()
                    .map_or("there is no range".to_owned(), |range| format!("the range stays {range}"));
                tracing::error!("{place}: {error}; {now}");
                events.record(MANAGER, map, Severity::Warning, "InvalidRange", format!("{error}; {now}"));
            }
        }
    }

    /// True when the virtual machines of `namespace` are served.
    ///
    /// # Errors
    /// When the namespace is not known yet and cannot be read.
    pub(super) async fn serves_machines(&self, namespace: &str) -> kube::Result<bool> {
        let labels = self.labels(namespace).await?;
        Ok(labels.is_some_and(|labels| self.modes.machines.serves(VIRTUAL_MACHINES, &labels)))
    }

    /// True when the pods of `namespace` are served.
    ///
    /// # Errors
    /// When the namespace is not known yet and cannot be read.
    pub(super) async fn serves_pods(&self, namespace: &str) -> kube::Result<bool> {
        let labels = self.labels(namespace).await?;
        Ok(labels.is_some_and(|labels| self.modes.pods.serves(PODS, &labels)))
    }

    /// The labels of a namespace; none when there is none of this name.
    async fn labels(&self, namespace: &str) -> kube::Result<Option<BTreeMap<String, String>>> {
        if let Some(known) = self.namespaces.get(&Key::new("", namespace)) {
            return Ok(Some(known.metadata.labels.unwrap_or_default()));
        }
        // It may have been made a moment ago.
        let found = Api::<Namespace>::all(self.client.clone()).get_metadata_opt(namespace).await?;
        Ok(found.map(|found| found.metadata.labels.unwrap_or_default()))
    }

    /// True when there is a virtual machine of this name.
    ///
    /// # Errors
    /// When it is not known and cannot be read.
    pub(super) async fn is_machine(&self, namespace: &str, name: &str) -> kube::Result<bool> {
        if self.machines.contains(&Key::new(namespace, name)) {
            return Ok(true);
        }
        let api: Api<VirtualMachine> = Api::namespaced(self.client.clone(), namespace);
        Ok(api.get_metadata_opt(name).await?.is_some())
    }

    /// The objects of served namespaces that run with `mac`.
    pub(super) fn running(&self, mac: Mac) -> Vec<Running> {
        let word = mac.to_string();
        let labels = |namespace: &str| {
            let known = self.namespaces.get(&Key::new("", namespace))?;
            Some(known.metadata.labels.unwrap_or_default())
        };
        let serves = |mode: Mode, label: &str, namespace: &str| {
            labels(namespace).is_some_and(|labels| mode.serves(label, &labels))
        };
        let instances = self.instances.by_index(&word).into_iter().filter_map(|vmi| kept::running_instance(&vmi, mac));
        let instances = instances.filter(|one| serves(self.modes.machines, VIRTUAL_MACHINES, &one.object.namespace));
        let pods = self
            .pods
            .by_index(&word)
            .into_iter()
            .filter(|pod| !self.is_launcher(pod))
            .filter_map(|pod| kept::running_pod(&pod));
        instances.chain(pods.filter(|one| serves(self.modes.pods, PODS, &one.object.namespace))).collect()
    }

    /// True when a virtual machine instance that is there controls `pod`: its addresses are the instance's.
    fn is_launcher(&self, pod: &Pod) -> bool {
        let controller = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
        controller.filter(|owner| owner.kind == "VirtualMachineInstance").is_some_and(|owner| {
            let instance = self.instances.get(&Key::new(pod.namespace().unwrap_or_default(), &owner.name));
            instance.is_some_and(|instance| instance.uid().as_ref() == Some(&owner.uid))
        })
    }
}
