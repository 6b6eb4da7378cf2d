//! What a pool says of itself. Pure.

use api::kubevirt::v1::VirtualMachine;
use api::pool::v1beta1::{VirtualMachinePool, VirtualMachinePoolStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::Chain;
use meta::conditions;

use super::plan::is_ready;
use crate::error::Error;
use crate::replicas::{counted, written};

const PAUSED: &str = "ReplicaPaused";
const FAILURE: &str = "ReplicaFailure";

/// Why the machines are not as wanted.
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
        Failure { reason: "BackOff", message: format!("machines keep failing: the next one is made at {until}") }
    }
}

/// The status of `pool` with these machines that count.
pub fn status(
    pool: &VirtualMachinePool,
    active: &[&VirtualMachine],
    failure: Option<&Failure>,
    now: &Time,
) -> VirtualMachinePoolStatus {
    let mut status = VirtualMachinePoolStatus {
        replicas: Some(counted(active.len())),
        ready_replicas: Some(counted(active.iter().filter(|vm| is_ready(vm)).count())),
        label_selector: written(&pool.spec.selector),
        conditions: pool.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default(),
    };
    let list = &mut status.conditions;
    if pool.spec.paused == Some(true) {
        conditions::set(list, PAUSED, "True", Some("SuccessfulPaused"), Some("Pool controller is paused"), now);
    } else {
        conditions::remove(list, PAUSED);
    }
    match failure {
        Some(Failure { reason, message }) => {
            conditions::set(list, FAILURE, "True", Some(reason), Some(message), now);
        }
        None => conditions::remove(list, FAILURE),
    }
    status
}

/// The event that a change of the status is told with.
pub fn turned(old: &VirtualMachinePoolStatus, new: &VirtualMachinePoolStatus) -> Option<(&'static str, &'static str)> {
    let paused = |status: &VirtualMachinePoolStatus| conditions::is_true(&status.conditions, PAUSED);
    match (paused(old), paused(new)) {
        (false, true) => Some(("SuccessfulPaused", "Pool is paused")),
        (true, false) => Some(("SuccessfulResume", "Pool is unpaused")),
        _ => None,
    }
}
