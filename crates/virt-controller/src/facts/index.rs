//! The keys under which the stores find objects by what they say of others.

use api::kubevirt::constants::label;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kit::controller::owner;
use kit::store::Key;
use kube::{Resource, ResourceExt};

use super::{claims, data_volumes, migrations, persistent_state, stand_ins};

/// The kind of sets of instances.
pub(crate) const SET: &str = "VirtualMachineInstanceReplicaSet";

/// The kind of pools of machines.
pub(crate) const POOL: &str = "VirtualMachinePool";

/// The index value under which a pod is found by its VMI.
pub(crate) fn owner_index(uid: &str) -> String {
    format!("vmi:{uid}")
}

/// The index value under which a VMI is found by its node.
pub(crate) fn node_index(node: &str) -> String {
    format!("node:{node}")
}

/// The index value under which a pod is found by the migration it was made for, and that migration by its UID.
pub(crate) fn job_index(uid: &str) -> String {
    format!("job:{uid}")
}

/// The index value of every migration that is not over.
pub(crate) const UNFINISHED: &str = "unfinished";

/// The index value under which a migration is found by its VMI.
pub(crate) fn migration_index(vmi: &Key) -> String {
    format!("moves:{vmi}")
}

/// The VMI that has this index value.
pub(crate) fn of_migration(word: &str) -> Option<Key> {
    key(word.strip_prefix("moves:")?)
}

/// The index value under which the replicas of a set or a pool are found.
pub(crate) fn replica_index(kind: &str, of: &Key) -> String {
    format!("replica:{kind}:{of}")
}

/// The set or pool of this kind whose replica has this index value.
pub(crate) fn of_replica(kind: &str, word: &str) -> Option<Key> {
    key(word.strip_prefix("replica:")?.strip_prefix(kind)?.strip_prefix(':')?)
}

/// The index value of instances in a namespace that have no controller.
pub(crate) fn orphan_index(namespace: &str) -> String {
    format!("orphan:{namespace}")
}

/// The namespace of an instance with this index value.
pub(crate) fn of_orphan(word: &str) -> Option<&str> {
    word.strip_prefix("orphan:")
}

/// Whose replica an object is, if it is the replica of a `kind`.
fn replica_of<K: Resource>(kind: &str, object: &K) -> Option<String> {
    let owner = owner::controller_of(object.meta()).filter(|owner| owner.kind == kind)?;
    Some(replica_index(kind, &Key::new(object.namespace().unwrap_or_default(), owner.name.as_str())))
}

/// The index value under which VMIs are found by a claim of theirs.
pub(crate) fn claim_index(namespace: &str, claim: &str) -> String {
    format!("claim:{namespace}/{claim}")
}

/// The claim that has this index value.
pub(crate) fn of_claim(word: &str) -> Option<Key> {
    key(word.strip_prefix("claim:")?)
}

/// The index value under which VMs are found by a data volume of theirs.
pub(crate) fn data_index(namespace: &str, data: &str) -> String {
    format!("data:{namespace}/{data}")
}

/// Index values of a VM: its data volumes, the claims its disks lie on, and its pool.
pub(crate) fn vm_indexes(vm: &VirtualMachine) -> Vec<String> {
    let namespace = vm.namespace().unwrap_or_default();
    let data = data_volumes::names(vm).map(|name| data_index(&namespace, name));
    let volumes = vm.spec.template.spec.iter().flat_map(|spec| &spec.volumes);
    let claims = volumes.filter_map(claims::of_volume).map(|used| claim_index(&namespace, used.claim));
    data.chain(claims).chain(replica_of(POOL, vm)).collect()
}

/// The index value under which a claim's stand-ins are found.
pub(crate) fn stand_in_index(namespace: &str, claim: &str) -> String {
    format!("stand-in:{namespace}/{claim}")
}

/// The claim whose stand-ins have this index value.
pub(crate) fn of_stand_in(word: &str) -> Option<Key> {
    key(word.strip_prefix("stand-in:")?)
}

/// The index value under which the volume is found that is put back under a claim's name.
pub(crate) fn put_back_index(namespace: &str, claim: &str) -> String {
    format!("put-back:{namespace}/{claim}")
}

/// The claim under whose name a volume with this index value is put back.
pub(crate) fn of_put_back(word: &str) -> Option<Key> {
    key(word.strip_prefix("put-back:")?)
}

fn key(word: &str) -> Option<Key> {
    let (namespace, name) = word.split_once('/')?;
    Some(Key::new(namespace, name))
}

/// Index values of a disruption budget: the VMI that owns it, if one does.
pub(crate) fn budget_indexes(budget: &PodDisruptionBudget) -> Vec<String> {
    let ours = budget.owner_references().iter().find(|owner| owner.kind == "VirtualMachineInstance");
    ours.map(|owner| vec![owner_index(&owner.uid)]).unwrap_or_default()
}

/// Index values of a launcher pod.
pub(crate) fn pod_indexes(pod: &Pod) -> Vec<String> {
    let labels = pod.labels();
    let owner = labels.get(label::CREATED_BY).map(|uid| owner_index(uid));
    owner.into_iter().chain(labels.get(label::MIGRATION_JOB).map(|uid| job_index(uid))).collect()
}

/// Index values of an attachment pod: its guest.
pub(crate) fn attachment_indexes(pod: &Pod) -> Vec<String> {
    pod.labels().get(api::kubevirt::hotplug::GUEST).map(|uid| owner_index(uid)).into_iter().collect()
}

/// Index values of a migration: its UID, its guest, and whether it is over.
pub(crate) fn migration_indexes(migration: &Migration) -> Vec<String> {
    let mut words =
        vec![job_index(&migration.uid().unwrap_or_default()), migration_index(&migrations::moved(migration))];
    if !migrations::is_final(migration) {
        words.push(UNFINISHED.to_owned());
    }
    words
}

/// Index values of a VMI: its UID, its node, its claims, and its set.
pub(crate) fn vmi_indexes(vmi: &VirtualMachineInstance) -> Vec<String> {
    let mut words = vec![owner_index(&vmi.uid().unwrap_or_default())];
    if let Some(node) = vmi.status.as_ref().and_then(|status| status.node_name.as_deref()).filter(|n| !n.is_empty()) {
        words.push(node_index(node));
    }
    let namespace = vmi.namespace().unwrap_or_default();
    words.extend(claims::all(vmi).map(|used| claim_index(&namespace, used.claim)));
    words.extend(replica_of(SET, vmi));
    if owner::controller_of(&vmi.metadata).is_none() {
        words.push(orphan_index(&namespace));
    }
    words
}

/// Index values of a claim: of a stand-in, whom it stands in for, its guest and its migration; of one that holds a machine's
/// state, which machine's.
pub(crate) fn claim_indexes(claim: &PersistentVolumeClaim) -> Vec<String> {
    let Some(root) = stand_ins::stands_in_for(claim) else { return persistent_state::indexes(claim) };
    let mut words = vec![stand_in_index(&claim.namespace().unwrap_or_default(), root)];
    words.extend(claim.labels().get(label::CREATED_BY).map(|uid| owner_index(uid)));
    words.extend(claim.labels().get(label::MIGRATION_JOB).map(|uid| job_index(uid)));
    words
}
