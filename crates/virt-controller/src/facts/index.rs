//! The keys under which the stores find objects by what they say of others.

use api::kubevirt::{
    v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration},
    words::label,
};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use kit::store::Key;
use kube::ResourceExt;

use super::{claims, data_volumes, migrations, persistent_state, stand_ins};

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
pub(crate) fn migration_words(migration: &Migration) -> Vec<String> {
    let mut words = vec![job_word(&migration.uid().unwrap_or_default()), migration_word(&migrations::moved(migration))];
    if !migrations::is_final(migration) {
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

/// Index words of a claim: of a stand-in, whom it stands in for, its guest and its migration; of one that holds a machine's
/// state, which machine's.
pub(crate) fn claim_words(claim: &PersistentVolumeClaim) -> Vec<String> {
    let Some(root) = stand_ins::stands_in_for(claim) else { return persistent_state::words(claim) };
    let mut words = vec![stand_in_word(&claim.namespace().unwrap_or_default(), root)];
    words.extend(claim.labels().get(label::CREATED_BY).map(|uid| owner_word(uid)));
    words.extend(claim.labels().get(label::MIGRATION_JOB).map(|uid| job_word(uid)));
    words
}
