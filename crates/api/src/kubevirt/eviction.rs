//! What the eviction strategy of a virtual machine instance comes to. Pure.
//!
//! | strategy | pod protected | moved when evicted |
//! |---|---|---|
//! | None | no | no: the pod goes, the run strategy decides |
//! | LiveMigrate | yes | yes |
//! | LiveMigrateIfPossible | while it can move | while it can move |
//! | External | yes | by somebody else, who sees `status.evacuationNodeName` |

use super::constants::{condition, eviction_strategy, migration_phase};
use super::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};

/// The strategy of `vmi`: its own, else the cluster's.
pub fn strategy<'a>(vmi: &'a VirtualMachineInstance, cluster: &'a str) -> &'a str {
    vmi.spec.eviction_strategy.as_deref().filter(|own| !own.is_empty()).unwrap_or(cluster)
}

/// virt-handler found nothing that keeps the guest on its node.
pub fn can_move(vmi: &VirtualMachineInstance) -> bool {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|known| known.type_ == condition::LIVE_MIGRATABLE && known.status == "True")
}

/// An eviction of its pod is to move the guest.
pub fn wants_to_move(vmi: &VirtualMachineInstance, cluster: &str) -> bool {
    match strategy(vmi, cluster) {
        eviction_strategy::LIVE_MIGRATE => true,
        eviction_strategy::LIVE_MIGRATE_IF_POSSIBLE => can_move(vmi),
        _ => false,
    }
}

/// Its pod must not be evicted.
pub fn is_protected(vmi: &VirtualMachineInstance, cluster: &str) -> bool {
    strategy(vmi, cluster) == eviction_strategy::EXTERNAL || wants_to_move(vmi, cluster)
}

/// Somebody asked for its pod's eviction, and it is still there.
pub fn is_marked(vmi: &VirtualMachineInstance) -> bool {
    let status = vmi.status.as_deref();
    let node = status.and_then(|status| status.node_name.as_deref()).filter(|node| !node.is_empty());
    node.is_some() && status.and_then(|status| status.evacuation_node_name.as_deref()) == node
}

/// The migration has not ended.
pub fn is_unfinished(migration: &VirtualMachineInstanceMigration) -> bool {
    !matches!(phase_of(migration), migration_phase::SUCCEEDED | migration_phase::FAILED)
}

/// The migration's phase; empty when unset.
pub fn phase_of(migration: &VirtualMachineInstanceMigration) -> &str {
    migration.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(own: Option<&str>, cluster: &str, movable: bool, expect: (bool, bool)) {
        let status = if movable { "True" } else { "False" };
        let vmi = json!({
            "spec": { "evictionStrategy": own },
            "status": { "conditions": [{ "type": "LiveMigratable", "status": status }] },
        });
        let vmi = serde_json::from_value(vmi).unwrap();
        assert_eq!((is_protected(&vmi, cluster), wants_to_move(&vmi, cluster)), expect, "{own:?} {cluster} {movable}");
    }

    #[test]
    fn strategies() {
        for movable in [true, false] {
            check(None, "None", movable, (false, false));
            check(Some("None"), "LiveMigrate", movable, (false, false));
            check(None, "LiveMigrate", movable, (true, true));
            check(Some("LiveMigrate"), "None", movable, (true, true));
            check(Some("LiveMigrateIfPossible"), "None", movable, (movable, movable));
            check(Some("External"), "None", movable, (true, false));
        }
    }
}
