//! What a set says of itself. Pure.

use std::collections::BTreeSet;

use api::kubevirt::v1::{
    VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet, VirtualMachineInstanceReplicaSetStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::Chain;
use meta::conditions;

use super::plan::{active, is_ready};
use crate::error::Error;
use crate::replicas::{counted, written};

const PAUSED: &str = "ReplicaPaused";
const FAILURE: &str = "ReplicaFailure";

/// Why there are not as many as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    reason: &'static str,
    message: String,
}

impl Failure {
    /// Something could not be done.
    pub(crate) fn of(reason: &'static str, error: &Error) -> Self {
        Failure { reason, message: Chain(error).to_string() }
    }

    /// The next is made later.
    pub fn held(until: Timestamp) -> Self {
        let until = kit::clock::seconds(until);
        Failure { reason: "BackOff", message: format!("instances keep ending: the next one is made at {until}") }
    }
}

/// The status of `set` with these instances of its own, of which some were told to go.
pub fn status(
    set: &ReplicaSet,
    owned: &[VirtualMachineInstance],
    going: &BTreeSet<String>,
    failure: Option<&Failure>,
    now: &Time,
) -> VirtualMachineInstanceReplicaSetStatus {
    let active = active(owned, going);
    let mut status = VirtualMachineInstanceReplicaSetStatus {
        replicas: Some(counted(active.len())),
        ready_replicas: Some(counted(active.iter().filter(|vmi| is_ready(vmi)).count())),
        label_selector: written(&set.spec.selector),
        conditions: set.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default(),
    };
    let list = &mut status.conditions;
    if set.spec.paused == Some(true) {
        // Nothing was tried, so what failed before stands.
        conditions::set(list, PAUSED, "True", Some("Paused"), Some("Controller got paused"), now);
        return status;
    }
    conditions::remove(list, PAUSED);
    match failure {
        Some(Failure { reason, message }) => {
            conditions::set(list, FAILURE, "True", Some(reason), Some(message), now);
        }
        None => conditions::remove(list, FAILURE),
    }
    status
}

/// The event that a change of the status is told with.
pub fn turned(
    old: &VirtualMachineInstanceReplicaSetStatus,
    new: &VirtualMachineInstanceReplicaSetStatus,
) -> Option<(&'static str, &'static str)> {
    let paused = |status: &VirtualMachineInstanceReplicaSetStatus| conditions::is_true(&status.conditions, PAUSED);
    match (paused(old), paused(new)) {
        (false, true) => Some(("SuccessfulPaused", "Paused")),
        (true, false) => Some(("SuccessfulResumed", "Resumed")),
        _ => None,
    }
}
