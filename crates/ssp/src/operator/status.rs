//! The status of the SSP object. Pure.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::admission::Cause;
use kit::operator;
use meta::conditions;

use super::names::{CONFIGURATION, DEPLOYMENT};
use crate::object::{SSP, Status};

/// Words of `status.phase`.
pub mod phase {
    pub const DEPLOYING: &str = "Deploying";
    pub const DEPLOYED: &str = "Deployed";
    pub const DELETING: &str = "Deleting";
    pub const DELETED: &str = "Deleted";
}

/// What was seen of what is deployed.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What is to run: the name of each Deployment, and what is seen of it.
    pub deployments: Vec<(&'static str, Option<Deployment>)>,
    /// Names the configuration that it is to be of.
    pub configuration: String,
    /// Everything has been applied.
    pub applied: bool,
    /// The last attempt to apply failed so.
    pub failure: Option<String>,
    /// What the object asks for and nothing acts on, in a sentence each.
    pub remarks: Vec<String>,
}

impl Seen {
    /// What does not run as it is to.
    fn waited_for(&self) -> Vec<&'static str> {
        let is_rolled_out = |deployment: &Deployment| {
            let annotations = deployment.metadata.annotations.as_ref();
            let ours = annotations.and_then(|all| all.get(CONFIGURATION)).is_some_and(|id| *id == self.configuration);
            ours && operator::is_rolled_out(deployment)
        };
        let late = self.deployments.iter().filter(|(_, found)| !found.as_ref().is_some_and(is_rolled_out));
        late.map(|(name, _)| *name).collect()
    }

    /// Whether the Deployment of that name answers.
    pub fn is_answered(&self, name: &str) -> bool {
        let found = self.deployments.iter().find(|(held, _)| *held == name).and_then(|(_, found)| found.as_ref());
        let status = found.and_then(|deployment| deployment.status.as_ref());
        status.is_some_and(|status| status.available_replicas.unwrap_or(0) > 0)
    }
}

/// The status `ssp` should have while it is deployed.
pub fn status(ssp: &SSP, seen: &Seen, version: &str, now: Timestamp) -> Status {
    let mut status = begun(ssp, version);
    let late = seen.waited_for();
    let waiting = (!late.is_empty()).then(|| format!("Waiting for {} to be ready.", late.join(", ")));
    let deployed = seen.applied && waiting.is_none();
    // Once deployed, a validator that restarts degrades the product; it does not undo the deployment.
    let settled = status.observed_version.as_deref() == Some(version);
    // While it is updated, the one before goes on.
    let served = status.observed_version.is_some() && seen.is_answered(DEPLOYMENT);
    if deployed {
        status.observed_version = Some(version.to_owned());
        status.observed_generation = ssp.metadata.generation;
    }
    let phase = if deployed || (settled && seen.failure.is_none()) { phase::DEPLOYED } else { phase::DEPLOYING };
    status.phase = Some(phase.to_owned());
    let waiting = waiting.unwrap_or_else(|| "Reconciling SSP resources".to_owned());
    let available = || {
        let said = ["All SSP resources are available".to_owned()].into_iter().chain(seen.remarks.iter().cloned());
        said.collect::<Vec<_>>().join("; ")
    };
    let (no_progress, no_harm) = ("No SSP resources are progressing", "No SSP resources are degraded");
    let said = match &seen.failure {
        Some(failure) => [
            (served, "DeployFailed", failure.clone()),
            (true, "DeployFailed", failure.clone()),
            (true, "DeployFailed", failure.clone()),
        ],
        None if deployed => [
            (true, "Available", available()),
            (false, "Progressing", no_progress.to_owned()),
            (false, "Degraded", no_harm.to_owned()),
        ],
        None if settled => [
            (served, "ComponentsNotReady", waiting.clone()),
            (false, "Progressing", no_progress.to_owned()),
            (true, "ComponentsNotReady", waiting),
        ],
        None => [
            (served, "Deploying", waiting.clone()),
            (true, "Deploying", waiting),
            (false, "Degraded", no_harm.to_owned()),
        ],
    };
    say(status, said, now)
}

/// The status of an object for which nothing can be done as long as it says what it says.
pub fn refused(ssp: &SSP, causes: &[Cause], version: &str, now: Timestamp) -> Status {
    let mut status = begun(ssp, version);
    status.observed_generation = ssp.metadata.generation;
    let message: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    let message = message.join("; ");
    let available = ssp.is("Available");
    let said = [(available, message.clone()), (false, message.clone()), (true, message)];
    say(status, said.map(|(value, message)| (value, "InvalidSpec", message)), now)
}

/// The status of an object for which nothing is done until the annotation is taken away.
pub fn paused(ssp: &SSP) -> Status {
    let before = ssp.status.clone().unwrap_or_default();
    Status { paused: true, observed_generation: ssp.metadata.generation, ..before }
}

/// The status while everything is taken away.
pub fn deleting(ssp: &SSP, done: bool, now: Timestamp) -> Status {
    let mut status = ssp.status.clone().unwrap_or_default();
    status.phase = Some(if done { phase::DELETED } else { phase::DELETING }.to_owned());
    let said = [false, !done, false].map(|value| (value, "Deleting", "Deleting SSP resources".to_owned()));
    say(status, said, now)
}

/// The status of a second object.
pub fn unwanted(ssp: &SSP, active: &str, now: Timestamp) -> Status {
    let message = format!("SSP {active} counts, and one does: change that one, and delete this one");
    useless(ssp, "AnotherCounts", &message, now)
}

/// The status of an object in another namespace.
pub fn elsewhere(ssp: &SSP, namespace: &str, now: Timestamp) -> Status {
    let message =
        format!("the operator works for an SSP in namespace {namespace}: create it there, and delete this one");
    useless(ssp, "WrongNamespace", &message, now)
}

fn useless(ssp: &SSP, reason: &'static str, message: &str, now: Timestamp) -> Status {
    let said = [false, false, true].map(|value| (value, reason, message.to_owned()));
    say(ssp.status.clone().unwrap_or_default(), said, now)
}

fn begun(ssp: &SSP, version: &str) -> Status {
    let mut status = ssp.status.clone().unwrap_or_default();
    status.paused = false;
    status.operator_version = Some(version.to_owned());
    status.target_version = Some(version.to_owned());
    status
}

fn say(mut status: Status, said: [(bool, &'static str, String); 3], now: Timestamp) -> Status {
    for (kind, (value, reason, message)) in ["Available", "Progressing", "Degraded"].into_iter().zip(said) {
        let value = if value { "True" } else { "False" };
        conditions::set(&mut status.conditions, kind, value, Some(reason), Some(&message), &Time(now));
    }
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn validator(available: i32) -> Deployment {
        serde_json::from_value(json!({
            "metadata": { "generation": 1, "annotations": { (CONFIGURATION): "c" } },
            "spec": { "replicas": 2, "selector": {}, "template": {} },
            "status": { "observedGeneration": 1, "updatedReplicas": 2, "availableReplicas": available },
        }))
        .unwrap()
    }

    /// `observed` is the version that ran before; the conditions are Available, Progressing, Degraded.
    #[track_caller]
    fn check(observed: Option<&str>, available: i32, failure: Option<&str>, phase: &str, expect: [&str; 3]) {
        let before = Status { observed_version: observed.map(str::to_owned), ..Status::default() };
        let ssp = SSP { status: Some(before), ..SSP::default() };
        let seen = Seen {
            deployments: vec![(DEPLOYMENT, Some(validator(available)))],
            configuration: "c".into(),
            applied: failure.is_none(),
            failure: failure.map(str::to_owned),
            remarks: Vec::new(),
        };
        let status = status(&ssp, &seen, "v2", Timestamp::UNIX_EPOCH);
        assert_eq!(status.phase.as_deref(), Some(phase));
        let found: Vec<&str> = status.conditions.iter().map(|condition| condition.status.as_str()).collect();
        assert_eq!(found, expect);
        let observed = if failure.is_none() && available == 2 { Some("v2") } else { observed };
        assert_eq!(status.observed_version.as_deref(), observed);
    }

    #[test]
    fn it_is_available_when_the_validator_is() {
        check(None, 0, None, "Deploying", ["False", "True", "False"]);
        check(None, 2, None, "Deployed", ["True", "False", "False"]);
        check(Some("v2"), 1, None, "Deployed", ["True", "False", "True"]);
        check(Some("v2"), 0, None, "Deployed", ["False", "False", "True"]);
        check(Some("v1"), 1, None, "Deploying", ["True", "True", "False"]);
        check(Some("v1"), 0, None, "Deploying", ["False", "True", "False"]);
        check(None, 2, Some("it is full"), "Deploying", ["False", "True", "True"]);
        check(Some("v2"), 2, Some("it is full"), "Deploying", ["True", "True", "True"]);
    }

    #[test]
    fn a_validator_of_another_configuration_is_waited_for() {
        let deployments = vec![(DEPLOYMENT, Some(validator(2))), ("vm-console-proxy", None)];
        let seen = |configuration: &str| Seen {
            deployments: deployments.clone(),
            configuration: configuration.into(),
            applied: true,
            ..Seen::default()
        };
        let said = |configuration: &str| {
            let status = status(&SSP::default(), &seen(configuration), "v1", Timestamp::UNIX_EPOCH);
            status.conditions[0].message.clone().unwrap()
        };
        assert_eq!(said("d"), "Waiting for virt-template-validator, vm-console-proxy to be ready.");
        assert_eq!(said("c"), "Waiting for vm-console-proxy to be ready.");
    }

    #[test]
    fn an_unchanged_status_keeps_its_times() {
        let ssp = SSP::default();
        let first = unwanted(&ssp, "a", Timestamp::UNIX_EPOCH);
        let ssp = SSP { status: Some(first.clone()), ..ssp };
        assert_eq!(unwanted(&ssp, "a", "2026-01-01T00:00:00Z".parse().unwrap()), first);
    }
}
