//! What the controllers share: the client, the stores, the queues.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::{
    backup::v1alpha1::{VirtualMachineBackup, VirtualMachineBackupTracker},
    cdi::v1beta1::DataVolume,
    clone::v1beta1::VirtualMachineClone,
    export::v1::VirtualMachineExport,
    kubevirt::{
        v1::{
            KubeVirt, KubeVirtStatus, VMIMConfigurationOptions, VirtualMachine, VirtualMachineInstance,
            VirtualMachineInstanceMigration,
        },
        words::{device, label},
    },
    migrations::v1alpha1::MigrationPolicy,
    snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot},
};
use k8s_openapi::api::{
    core::v1::{Container, Node, NodeSpec, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};
use kit::{
    events::Recorder,
    queue::Queue,
    store::{Key, Store},
};
use kube::{Client, Resource, ResourceExt};

use crate::{
    export::Route,
    migration::{
        configuration,
        metrics::{Ages, ages},
        plan,
    },
    node::{loss::Lost, pulse::Pulse},
    settings::Settings,
    snapshot::kinds::{VolumeSnapshot, VolumeSnapshotClass},
    start::Images,
    vm::data_volumes,
    vmi::{
        claims::{self, Claims},
        state as vmi_state,
    },
    workload_update::LastBatch,
};

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
    /// VirtualMachines.
    pub vms: Store<VirtualMachine>,
    /// VirtualMachineInstances.
    pub vmis: Store<VirtualMachineInstance>,
    /// Launcher pods.
    pub pods: Store<Pod>,
    /// Pods that have volumes for running guests.
    pub attachments: Store<Pod>,
    /// Claims that disks may lie on.
    pub claims: Store<PersistentVolumeClaim>,
    /// Data volumes, where there are any.
    pub data_volumes: Store<DataVolume>,
    /// Snapshots of machines.
    pub snapshots: Store<VirtualMachineSnapshot>,
    /// Machines that are brought back to snapshots.
    pub restores: Store<VirtualMachineRestore>,
    /// Backups of machines.
    pub backups: Store<VirtualMachineBackup>,
    /// What is known of the last backups of machines.
    pub trackers: Store<VirtualMachineBackupTracker>,
    /// Snapshots of volumes, where there are any.
    pub volume_snapshots: Store<VolumeSnapshot>,
    /// How drivers make snapshots of volumes, where any do.
    pub snapshot_classes: Store<VolumeSnapshotClass>,
    /// Which driver makes the volumes of claims.
    pub storage_classes: Store<StorageClass>,
    /// Copies of machines.
    pub clones: Store<VirtualMachineClone>,
    /// Exports of volumes and machines.
    pub exports: Store<VirtualMachineExport>,
    /// Pods that serve exports.
    pub exporters: Store<Pod>,
    /// Ways from outside to Services beside this controller.
    pub ingresses: Store<Ingress>,
    /// The same on OpenShift.
    pub routes: Store<Route>,
    /// Volumes that are put back under the names of claims.
    pub put_backs: Store<PersistentVolume>,
    /// Nodes that virt-handler has labelled.
    pub nodes: Store<Node>,
    /// The KubeVirt object.
    pub kubevirts: Store<KubeVirt>,
    /// Migrations.
    pub migrations: Store<VirtualMachineInstanceMigration>,
    /// What administrators say about migrations of some guests.
    pub policies: Store<MigrationPolicy>,
    /// How long migrations took to enter their phases.
    pub migration_ages: Ages,
    /// Held while it is decided whether a migration starts.
    pub starting: tokio::sync::Mutex<()>,
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
    /// When guests were last ended for a new launcher.
    pub last_batch: LastBatch,
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
    /// Nothing known and nothing to do yet.
    pub(crate) fn new(client: Client, namespace: &str, images: Images<'_>) -> Self {
        Self {
            recorder: Recorder::new(client.clone(), "virtualmachine-controller", ""),
            exporting: Recorder::new(client.clone(), "export-controller", ""),
            client,
            namespace: namespace.to_owned(),
            launcher_image: images.launcher.to_owned(),
            exporter_image: images.exporter.to_owned(),
            vms: Store::default(),
            vmis: Store::default(),
            pods: Store::default(),
            attachments: Store::default(),
            claims: Store::default(),
            data_volumes: Store::default(),
            snapshots: Store::default(),
            restores: Store::default(),
            backups: Store::default(),
            trackers: Store::default(),
            volume_snapshots: Store::default(),
            snapshot_classes: Store::default(),
            storage_classes: Store::default(),
            clones: Store::default(),
            exports: Store::default(),
            exporters: Store::default(),
            ingresses: Store::default(),
            routes: Store::default(),
            put_backs: Store::default(),
            nodes: Store::default(),
            kubevirts: Store::default(),
            migrations: Store::default(),
            policies: Store::default(),
            migration_ages: ages(),
            starting: tokio::sync::Mutex::default(),
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
            last_batch: LastBatch::default(),
            pulse: Mutex::default(),
            lost: Mutex::default(),
        }
    }

    /// The administrator's choices as they are now.
    pub fn settings(&self) -> Settings {
        Settings::of(self.kubevirts.list().first(), &self.launcher_image)
    }

    /// Has every migration that waits for its turn look again.
    pub(crate) fn wake_waiting(&self) {
        for migration in self.migrations.by_word(UNFINISHED) {
            if !plan::is_running(&migration) {
                self.migration_queue.add(Key::of(&migration));
            }
        }
    }

    /// What holds for migrations that no policy is about.
    pub fn migration_configuration(&self) -> VMIMConfigurationOptions {
        configuration::of_cluster(self.kubevirts.list().first())
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
    pub(crate) fn set_lost(&self, node: &str, lost: Option<&Lost>) -> bool {
        let mut nodes = self.lost_nodes();
        let before = match lost {
            Some(lost) => nodes.insert(node.to_owned(), lost.clone()),
            None => nodes.remove(node),
        };
        before.as_ref() != lost
    }

    /// The claims that `vmi` names and that exist, and the one that holds its state.
    pub fn claims_of(&self, vmi: &VirtualMachineInstance) -> Claims {
        let namespace = vmi.namespace().unwrap_or_default();
        let found = claims::all(vmi).filter_map(|used| {
            let claim = self.claims.get(&Key::new(namespace.as_str(), used.claim))?;
            Some((used.claim.to_owned(), claim))
        });
        let kept = vmi_state::is_kept_by(vmi);
        let state = kept.then(|| vmi_state::find(&self.claims, &namespace, &vmi.name_any()));
        found.chain(state.flatten().map(|claim| (claim.name_any(), claim))).collect()
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

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("namespace", &self.namespace).finish_non_exhaustive()
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

/// The word under which a pod is found by the migration it was made for, and that migration by its UID.
pub(crate) fn job_word(uid: &str) -> String {
    format!("job:{uid}")
}

/// The word of every migration that is not over.
pub(crate) const UNFINISHED: &str = "unfinished";

/// The word under which a migration is found by its VMI.
pub(crate) fn migration_word(vmi: &Key) -> String {
    format!("moves:{vmi}")
}

/// The VMI that `migration` moves.
pub(crate) fn moved(migration: &VirtualMachineInstanceMigration) -> Key {
    Key::new(migration.namespace().unwrap_or_default(), migration.spec.vmi_name.clone().unwrap_or_default())
}

/// The word under which VMIs are found by a claim of theirs.
pub(crate) fn claim_word(namespace: &str, claim: &str) -> String {
    format!("claim:{namespace}/{claim}")
}

/// The word under which VMs are found by a data volume of theirs.
pub(crate) fn data_word(namespace: &str, data: &str) -> String {
    format!("data:{namespace}/{data}")
}

/// Index words of a VM: its data volumes, and the claims its disks lie on.
pub(crate) fn vm_words(vm: &VirtualMachine) -> Vec<String> {
    let namespace = vm.namespace().unwrap_or_default();
    let data = data_volumes::names(vm).map(|name| data_word(&namespace, name));
    let volumes = vm.spec.template.spec.iter().flat_map(|spec| &spec.volumes);
    let claims = volumes.filter_map(claims::of_volume).map(|used| claim_word(&namespace, used.claim));
    data.chain(claims).collect()
}

/// The word under which a claim's stand-ins are found.
pub(crate) fn stand_in_word(namespace: &str, claim: &str) -> String {
    format!("stand-in:{namespace}/{claim}")
}

/// The word under which the volume is found that is put back under a claim's name.
pub(crate) fn put_back_word(namespace: &str, claim: &str) -> String {
    format!("put-back:{namespace}/{claim}")
}

/// Index words of a disruption budget: the VMI that owns it, if one does.
pub(crate) fn budget_words(budget: &PodDisruptionBudget) -> Vec<String> {
    let ours = budget.owner_references().iter().find(|owner| owner.kind == "VirtualMachineInstance");
    ours.map(|owner| vec![owner_word(&owner.uid)]).unwrap_or_default()
}

/// Index words of a launcher pod.
pub(crate) fn pod_words(pod: &Pod) -> Vec<String> {
    let labels = pod.labels();
    let owner = labels.get(label::CREATED_BY).map(|uid| owner_word(uid));
    owner.into_iter().chain(labels.get(label::MIGRATION_JOB).map(|uid| job_word(uid))).collect()
}

/// Index words of a migration: its UID, its guest, and whether it is over.
pub(crate) fn migration_words(migration: &VirtualMachineInstanceMigration) -> Vec<String> {
    let mut words = vec![job_word(&migration.uid().unwrap_or_default()), migration_word(&moved(migration))];
    if !plan::is_final(migration) {
        words.push(UNFINISHED.to_owned());
    }
    words
}

/// Index words of a VMI: its UID, its node, and its claims.
pub(crate) fn vmi_words(vmi: &VirtualMachineInstance) -> Vec<String> {
    let mut words = vec![owner_word(&vmi.uid().unwrap_or_default())];
    if let Some(node) = vmi.status.as_ref().and_then(|status| status.node_name.as_deref()).filter(|n| !n.is_empty()) {
        words.push(node_word(node));
    }
    let namespace = vmi.namespace().unwrap_or_default();
    words.extend(claims::all(vmi).map(|used| claim_word(&namespace, used.claim)));
    words
}

/// Drops from a launcher pod everything these controllers never read; most of a pod is its spec.
pub(crate) fn trim_pod(pod: &mut Pod) {
    if let Some(spec) = pod.spec.take() {
        let launcher = spec.containers.into_iter().find(|container| container.name == "compute");
        let launcher = launcher.map(|c| Container { name: c.name, image: c.image, ..Default::default() });
        // A guest that was moved here goes on with the processor it was started with: only its pods remember which.
        let selector = spec
            .node_selector
            .map(|all| all.into_iter().filter(|(key, _)| key.contains(".node.kubevirt.io/")).collect());
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            containers: launcher.into_iter().collect(),
            node_selector: selector.filter(|left: &BTreeMap<_, _>| !left.is_empty()),
            volumes: spec
                .volumes
                .map(|all| all.into_iter().filter(|volume| volume.persistent_volume_claim.is_some()).collect())
                .filter(|claimed: &Vec<_>| !claimed.is_empty()),
            ..Default::default()
        });
    }
    pod.metadata.annotations = None;
    if let Some(labels) = &mut pod.metadata.labels {
        labels.retain(|key, _| key == label::CREATED_BY || key == label::MIGRATION_JOB);
    }
    pod.metadata.generate_name = None;
}

/// Drops from a disruption budget all but what its owner is and how many pods it keeps.
pub(crate) fn trim_budget(budget: &mut PodDisruptionBudget) {
    budget.status = None;
    budget.metadata.annotations = None;
}

/// Drops from the KubeVirt object's status all but whether it is deployed and how many guests are outdated.
pub(crate) fn trim_kubevirt(kubevirt: &mut KubeVirt) {
    kubevirt.status = kubevirt.status.take().map(|status| {
        Box::new(KubeVirtStatus {
            phase: status.phase,
            observed_deployment_id: status.observed_deployment_id,
            target_deployment_id: status.target_deployment_id,
            outdated_virtual_machine_instance_workloads: status.outdated_virtual_machine_instance_workloads,
            ..Default::default()
        })
    });
}

/// Drops from a node everything but its labels, its taints, its heartbeat, its readiness and what it offers.
pub(crate) fn trim_node(node: &mut Node) {
    node.spec = node
        .spec
        .take()
        .and_then(|spec| spec.taints)
        .map(|taints| NodeSpec { taints: Some(taints), ..Default::default() });
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
