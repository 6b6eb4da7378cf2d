//! What the VMI says of its tracked changes and of the backup that runs. Pure.
//!
//! virt-controller enters a backup's name and takes it away again; what happens to that backup is entered here, from what
//! the launcher tells. A launcher's word of another backup is old.

use api::kubevirt::constants::tracking;
use api::kubevirt::v1::VirtualMachineInstanceStatus;

use super::Observed;

/// Enters what is known of tracking into the status of a guest that runs.
pub(super) fn tracking(status: &mut VirtualMachineInstanceStatus, seen: &Observed) {
    let Some(known) = status.changed_block_tracking.as_mut() else { return };
    if known.state == tracking::INITIALIZING {
        tracking::ENABLED.clone_into(&mut known.state);
    }
    let told = seen.domain.as_ref().and_then(|state| state.backup.clone());
    let (Some(told), Some(held)) = (told, known.backup_status.as_mut()) else { return };
    if told.backup_name == held.backup_name && told.start_timestamp == held.start_timestamp {
        **held = told;
    }
}

#[cfg(test)]
mod tests {
    use rpc::launcher::DomainState;
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(held: Value, told: Value, expect: Value) {
        let mut status = VirtualMachineInstanceStatus {
            changed_block_tracking: serde_json::from_value(held).unwrap(),
            ..VirtualMachineInstanceStatus::default()
        };
        let domain = DomainState { backup: told.to_string(), ..DomainState::default() };
        tracking(&mut status, &Observed { domain: Some(domain.into()), ..Observed::default() });
        assert_eq!(json!(status.changed_block_tracking), expect);
    }

    #[test]
    fn a_guest_that_runs_is_tracked() {
        check(json!(null), json!({}), json!(null));
        check(json!({ "state": "Initializing" }), json!({}), json!({ "state": "Enabled" }));
        check(json!({ "state": "Disabled" }), json!({}), json!({ "state": "Disabled" }));
    }

    #[test]
    fn only_the_backup_that_was_entered_is_told_of() {
        let at = "2026-01-31T13:59:59Z";
        let held = || json!({ "state": "Enabled", "backupStatus": { "backupName": "b", "startTimestamp": at } });
        let told = json!({ "backupName": "b", "startTimestamp": at, "completed": true });
        check(held(), told.clone(), json!({ "state": "Enabled", "backupStatus": told }));
        let older = json!({ "backupName": "b", "startTimestamp": "2026-01-30T13:59:59Z", "completed": true });
        check(held(), older, held());
        check(json!({ "state": "Enabled" }), told, json!({ "state": "Enabled" }));
    }
}
