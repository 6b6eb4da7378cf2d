//! What becomes of a machine whose node does not answer. Pure.
//!
//! ```text
//!            lost                  free, or the administrator's word              pods gone
//!  Running --------> Running       ---------------------------------> Failed ----------------> a new instance, elsewhere
//!                    (Ready=False, says what it waits for)   (NodeUnresponsive; its pod is forgotten)
//!     ^                  |
//!     +--- it answers ---+
//! ```
//! A guest that nobody would start again is left alone: its node may come back with it.

use api::kubevirt::constants::run_strategy;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Node;

use crate::facts::instance::is_final;
use crate::facts::machine;
use crate::facts::nodes::Lost;
use crate::vmi::lost::fence::{self, Backing};

/// What to do about a machine on a lost node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Somebody else sees to it.
    Leave,
    /// Nothing yet, for this reason.
    Wait(String),
    /// Give the machine up, and forget its pod: whatever is left of it can do no harm.
    GiveUp,
}

/// The node agent's word is missing, but the target of a migration has the guest: it takes the machine over.
fn is_received_elsewhere(vmi: &VirtualMachineInstance, node: &str) -> bool {
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    state.is_some_and(|state| {
        let over = state.failed.unwrap_or(false) || state.end_timestamp.is_some() && !state.completed.unwrap_or(false);
        let elsewhere = state.target_node.as_deref().is_some_and(|target| !target.is_empty() && target != node);
        !over && elsewhere && state.target_node_domain_ready_timestamp.is_some()
    })
}

/// Another instance is started when this one ends, or this one is to end anyway.
fn is_replaced(vmi: &VirtualMachineInstance, vm: Option<&VirtualMachine>) -> bool {
    let strategy = vm.map(machine::strategy);
    let restarts = strategy.is_some_and(|word| matches!(word, run_strategy::ALWAYS | run_strategy::RERUN_ON_FAILURE));
    // Sets and pools keep their number by themselves.
    let owners = vmi.metadata.owner_references.iter().flatten();
    let of_a_set = owners.into_iter().any(|owner| owner.kind == "VirtualMachineInstanceReplicaSet");
    restarts || of_a_set || is_final(vmi) || vmi.metadata.deletion_timestamp.is_some()
}

/// The fate of `vmi`, owned by `vm`, whose node `node` is lost and whose written claims lie on `backings`.
pub fn fate(
    vmi: &VirtualMachineInstance,
    vm: Option<&VirtualMachine>,
    node: &str,
    lost: &Lost,
    backings: &[Backing],
    nodes: &[Node],
) -> Fate {
    if is_received_elsewhere(vmi, node) {
        return Fate::Leave;
    }
    if lost.word {
        return Fate::GiveUp;
    }
    if !is_replaced(vmi, vm) {
        return Fate::Wait(format!(
            "node {node} does not answer, and nothing says that the guest is to be started elsewhere: delete this \
             VirtualMachineInstance to give it up, or wait for {node}"
        ));
    }
    let held = backings.iter().find_map(|backing| {
        let hold = fence::hold(backing, node, nodes)?;
        Some(fence::sentence(node, &backing.volume, hold))
    });
    held.map_or(Fate::GiveUp, Fate::Wait)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const UNKNOWN: Lost = Lost { word: false };

    #[track_caller]
    fn check(strategy: &str, vmi: Value, lost: &Lost, backings: &[Backing], expect: &str) {
        let vm = serde_json::from_value(json!({ "spec": { "runStrategy": strategy, "template": {} } })).unwrap();
        let vmi = serde_json::from_value(vmi).unwrap();
        let found = match fate(&vmi, Some(&vm), "node1", lost, backings, &[]) {
            Fate::Leave => "left".to_owned(),
            Fate::GiveUp => "given up".to_owned(),
            Fate::Wait(why) => why,
        };
        assert!(found.starts_with(expect), "{found}");
    }

    #[test]
    fn a_vmi_that_restarts_is_given_up_once_its_disks_are_free() {
        let running = || json!({ "status": { "phase": "Running" } });
        let data = Backing { volume: "data".to_owned(), ..Backing::default() };
        check("Always", running(), &UNKNOWN, &[], "given up");
        check("RerunOnFailure", running(), &UNKNOWN, &[], "given up");
        let waits = "node node1 does not answer, and its guest may still be writing volume data";
        check("Always", running(), &UNKNOWN, std::slice::from_ref(&data), waits);
        check("Always", running(), &Lost { word: true }, &[data], "given up");
    }

    #[test]
    fn a_vmi_that_nothing_restarts_is_left_to_its_node() {
        let nothing = "node node1 does not answer, and nothing says that the guest is to be started elsewhere";
        for strategy in ["Manual", "Once", "Halted"] {
            check(strategy, json!({ "status": { "phase": "Running" } }), &UNKNOWN, &[], nothing);
            check(strategy, json!({ "status": { "phase": "Failed" } }), &UNKNOWN, &[], "given up");
            check(
                strategy,
                json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
                &UNKNOWN,
                &[],
                "given up",
            );
        }
    }

    #[test]
    fn a_guest_that_has_arrived_elsewhere_is_not_given_up() {
        let state = |more: Value| {
            let mut state = json!({ "targetNode": "node2", "targetNodeDomainReadyTimestamp": "2026-01-01T00:00:00Z" });
            state.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "status": { "phase": "Running", "migrationState": state } })
        };
        check("Always", state(json!({})), &UNKNOWN, &[], "left");
        check("Always", state(json!({ "failed": true })), &UNKNOWN, &[], "given up");
        check("Always", state(json!({ "targetNode": "node1" })), &UNKNOWN, &[], "given up");
    }
}
