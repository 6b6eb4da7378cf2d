//! Which claim holds what a guest keeps beside its disks: the variables of its EFI, the state of its TPM, and the layers that
//! track what changes on its devices. Pure.

use std::collections::BTreeMap;

use api::kubevirt::constants::{label, tracking};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceSpec};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Store;
use kube::ResourceExt;

use super::claims::Claims;

/// On a claim: the machine whose state it holds. Names of such claims begin so, too.
pub const LABEL: &str = "persistent-state-for";

/// On a claim: the migration that it was made for.
pub const MIGRATION: &str = label::MIGRATION_NAME;

/// True when the variables of EFI outlive the instance.
pub fn keeps_efi(spec: &VirtualMachineInstanceSpec) -> bool {
    let efi = spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref()?.efi.as_ref());
    efi.is_some_and(|efi| efi.persistent == Some(true))
}

/// True when the state of the TPM does.
pub fn keeps_tpm(spec: &VirtualMachineInstanceSpec) -> bool {
    let tpm = spec.domain.devices.tpm.as_ref();
    tpm.is_some_and(|tpm| tpm.persistent == Some(true) && tpm.enabled != Some(false))
}

/// True when what changes on the disks of `vmi` is tracked, whatever disks it has: one may come that is a device.
pub fn keeps_tracking(vmi: &VirtualMachineInstance) -> bool {
    let known = vmi.status.as_ref().and_then(|status| status.changed_block_tracking.as_ref());
    known.is_some_and(|known| [tracking::INITIALIZING, tracking::ENABLED].contains(&known.state.as_str()))
}

/// True when `vmi` keeps something beside its disks.
pub fn is_kept_by(vmi: &VirtualMachineInstance) -> bool {
    is_kept(&vmi.spec) || keeps_tracking(vmi)
}

/// True when a guest of this specification keeps something that its snapshots have to hold.
pub fn is_kept(spec: &VirtualMachineInstanceSpec) -> bool {
    keeps_efi(spec) || keeps_tpm(spec)
}

/// The index value under which the claims are found that hold the state of the machine called so.
pub(crate) fn word(namespace: &str, machine: &str) -> String {
    format!("state:{namespace}/{machine}")
}

/// The index value under which a claim is found by the migration that it was made for.
pub(crate) fn migration_index(namespace: &str, migration: &str) -> String {
    format!("state-of-migration:{namespace}/{migration}")
}

/// Index values of a claim that holds state.
pub(crate) fn indexes(claim: &PersistentVolumeClaim) -> Vec<String> {
    let (namespace, labels) = (claim.namespace().unwrap_or_default(), claim.labels());
    let machine = labels.get(LABEL).map(|machine| word(&namespace, machine));
    let migration = labels.get(MIGRATION).map(|migration| migration_index(&namespace, migration));
    machine.into_iter().chain(migration).collect()
}

/// The claim among `claims` that holds the state of `vmi`.
pub fn of<'a>(vmi: &VirtualMachineInstance, claims: &'a Claims) -> Option<&'a PersistentVolumeClaim> {
    let own = claims.values().filter(|claim| claim.labels().get(LABEL) == vmi.metadata.name.as_ref());
    newest(own, |claim| claim.labels())
}

/// Of two, one that a migration has just brought counts.
fn newest<T>(claims: impl Iterator<Item = T>, labels: impl Fn(&T) -> &BTreeMap<String, String>) -> Option<T> {
    claims.max_by_key(|claim| labels(claim).contains_key(MIGRATION))
}

/// The claim that holds the state of the machine called so, as far as it is known.
pub(crate) fn find(
    claims: &Store<PersistentVolumeClaim>,
    namespace: &str,
    machine: &str,
) -> Option<PersistentVolumeClaim> {
    let found = claims.by_index(&word(namespace, machine));
    newest(found.into_iter().filter(|claim| claim.metadata.deletion_timestamp.is_none()), |claim| claim.labels())
}
