//! What a migration says of itself. Pure.

use api::kubevirt::constants::{migration_condition as condition, migration_phase as phase};
use api::kubevirt::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhaseTransitionTimestamp as Transition,
    VirtualMachineInstanceMigrationStatus as Status,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions::{remove, set};

use super::plan::Plan;
use super::waiting::UTILITY_VOLUMES;
use crate::facts::migration_state;
use crate::facts::migrations::is_final;

/// The status `migration` should have. `over_quota` says why its target pod was refused, when a quota was the reason.
pub fn status(
    migration: &Migration,
    vmi: Option<&VirtualMachineInstance>,
    plan: &Plan,
    over_quota: Option<&str>,
    now: Timestamp,
) -> Status {
    let mut status = migration.status.clone().unwrap_or_default();
    for entered in &plan.phases {
        status.phase = Some((*entered).to_owned());
        let times = &mut status.phase_transition_timestamps;
        if times.iter().all(|time| time.phase.as_deref() != Some(entered)) {
            let at = Some(Time(now));
            times.push(Transition { phase: Some((*entered).to_owned()), phase_transition_timestamp: at });
        }
    }
    if plan.abort_requested {
        set(&mut status.conditions, condition::ABORT_REQUESTED, "True", None, None, &Time(now));
    }
    match over_quota {
        Some(why) => {
            set(&mut status.conditions, condition::REJECTED_BY_QUOTA, "True", None, Some(why), &Time(now));
        }
        None if plan.phases.contains(&phase::SCHEDULING) => {
            remove(&mut status.conditions, condition::REJECTED_BY_QUOTA);
        }
        None => {}
    }
    match &plan.waits {
        Some(waits) => {
            let (reason, message) = (Some(waits.reason), Some(waits.message.as_str()));
            set(&mut status.conditions, condition::WAITING, "True", reason, message, &Time(now));
        }
        None => remove(&mut status.conditions, condition::WAITING),
    }
    let blocked = plan.waits.as_ref().filter(|waits| waits.reason == UTILITY_VOLUMES);
    match blocked {
        Some(waits) => {
            let (reason, message) = (Some(waits.reason), Some(waits.message.as_str()));
            set(&mut status.conditions, condition::BLOCKED_BY_UTILITY_VOLUMES, "True", reason, message, &Time(now));
        }
        None => remove(&mut status.conditions, condition::BLOCKED_BY_UTILITY_VOLUMES),
    }
    let over = is_final(migration) || matches!(plan.phases.last(), Some(&(phase::SUCCEEDED | phase::FAILED)));
    let uid = migration.metadata.uid.as_deref().unwrap_or_default();
    if let Some(own) = vmi.and_then(|vmi| migration_state::ours(vmi, uid)).filter(|_| over) {
        // The VMI forgets it with its next migration.
        status.migration_state = Some(Box::new(own.clone()));
    }
    status
}
