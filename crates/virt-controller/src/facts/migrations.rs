//! The phase of a migration, and whom it moves. Pure.

use api::kubevirt::constants::migration_phase as phase;
use api::kubevirt::v1::VirtualMachineInstanceMigration as Migration;
use kit::store::Key;
use kube::ResourceExt;

/// The migration's phase; empty when unset.
pub fn phase_of(migration: &Migration) -> &str {
    migration.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// True for Succeeded and Failed.
pub fn is_final(migration: &Migration) -> bool {
    matches!(phase_of(migration), phase::SUCCEEDED | phase::FAILED)
}

/// True while the migration holds one of the places that the limits grant, as far as its phase tells.
pub fn is_running(migration: &Migration) -> bool {
    !matches!(phase_of(migration), phase::UNSET | phase::PENDING | phase::SUCCEEDED | phase::FAILED)
}

/// The VMI that `migration` moves.
pub(crate) fn moved(migration: &Migration) -> Key {
    Key::new(migration.namespace().unwrap_or_default(), migration.spec.vmi_name.clone().unwrap_or_default())
}
