//! The status of the CDI object. Pure.

use api::cdi::v1beta1::{CDI, CDICondition, CDIStatus};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::operator;
use meta::conditions;

/// Annotation of a Deployment that names the configuration it was made from.
pub const CONFIGURATION: &str = "operator.cdi.kubevirt.io/configuration";

/// Words of `status.phase`.
pub mod phase {
    pub const DEPLOYING: &str = "Deploying";
    pub const DEPLOYED: &str = "Deployed";
    pub const UPGRADING: &str = "Upgrading";
    pub const DELETING: &str = "Deleting";
    pub const DELETED: &str = "Deleted";
    pub const ERROR: &str = "Error";
}

/// What was seen of the components.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The Deployments of the namespace.
    pub deployments: Vec<Deployment>,
    /// Everything has been applied.
    pub created: bool,
    /// The last attempt to apply failed so.
    pub failure: Option<String>,
}

/// Names of the Deployments that are not ready yet as `configuration` has them.
pub fn waiting(seen: &Seen, wanted: &[&str], configuration: &str) -> Vec<String> {
    let ready = |name: &str| {
        let found = seen.deployments.iter().find(|found| found.metadata.name.as_deref() == Some(name));
        found.is_some_and(|deployment| {
            let annotations = deployment.metadata.annotations.as_ref();
            let ours = annotations.and_then(|all| all.get(CONFIGURATION)).is_some_and(|id| id == configuration);
            ours && operator::is_rolled_out(deployment)
        })
    };
    wanted.iter().filter(|name| !ready(name)).map(|name| (*name).to_owned()).collect()
}

/// The status `cdi` should have while it is installed; `waiting` are the Deployments that are not ready.
pub fn status(cdi: &CDI, seen: &Seen, waiting: &[String], version: &str, now: Timestamp) -> CDIStatus {
    let mut status = cdi.status.clone().unwrap_or_default();
    let deployed = seen.created && waiting.is_empty();
    let before = status.observed_version.clone();
    let upgrade = before.as_deref().is_some_and(|before| before != version);
    // Once deployed, a component that restarts degrades the product; it does not undo the deployment.
    let settled = before.as_deref() == Some(version);
    status.operator_version = Some(version.to_owned());
    status.target_version = Some(version.to_owned());
    if deployed {
        status.observed_version = Some(version.to_owned());
    }
    let phase = match (deployed || settled, upgrade) {
        (true, _) => phase::DEPLOYED,
        (false, true) => phase::UPGRADING,
        (false, false) => phase::DEPLOYING,
    };
    status.phase = Some(phase.to_owned());
    let missing = format!("Waiting for {} to be ready.", waiting.join(", "));
    let completed = ("DeployCompleted", "Deployment Completed");
    let (available, progressing, degraded) = if let Some(failure) = &seen.failure {
        let said = ("DeployFailed", failure.as_str());
        ((settled || upgrade, said), (true, said), (true, said))
    } else if deployed {
        ((true, completed), (false, ("", "")), (false, ("", "")))
    } else if settled {
        let api = !waiting.iter().any(|name| name == "cdi-apiserver");
        ((api, ("ComponentsNotReady", missing.as_str())), (false, ("", "")), (true, ("ComponentsNotReady", &*missing)))
    } else if upgrade {
        let message = format!("Started upgrade to version {version}");
        return set_all(status, [true, true, true], "UpgradeStarted", &message, now);
    } else {
        let started = ("DeployStarted", "Started Deployment");
        ((false, started), (true, started), (false, ("", "")))
    };
    for (kind, (value, (reason, message))) in
        [("Available", available), ("Progressing", progressing), ("Degraded", degraded)]
    {
        set(&mut status.conditions, kind, value, reason, message, now);
    }
    status
}

fn set_all(mut status: CDIStatus, values: [bool; 3], reason: &str, message: &str, now: Timestamp) -> CDIStatus {
    for (kind, value) in ["Available", "Progressing", "Degraded"].into_iter().zip(values) {
        set(&mut status.conditions, kind, value, reason, message, now);
    }
    status
}

/// The status while everything is taken away.
pub fn deleting(cdi: &CDI, done: bool, now: Timestamp) -> CDIStatus {
    let mut status = cdi.status.clone().unwrap_or_default();
    status.phase = Some(if done { phase::DELETED } else { phase::DELETING }.to_owned());
    set_all(status, [false, !done, false], "DeleteStarted", "Started deletion", now)
}

/// A second CDI object: only one per cluster is deployed.
pub fn unwanted(cdi: &CDI, now: Timestamp) -> CDIStatus {
    let mut status = cdi.status.clone().unwrap_or_default();
    status.phase = Some(phase::ERROR.to_owned());
    set_all(status, [false, false, true], "ConfigError", UNWANTED, now)
}

/// What a second CDI object is told.
pub const UNWANTED: &str = "Reconciling to error state, unwanted CDI object";

fn set(held: &mut Vec<CDICondition>, kind: &str, value: bool, reason: &str, message: &str, now: Timestamp) {
    let status = if value { "True" } else { "False" };
    conditions::set(held, kind, status, Some(reason), Some(message), &Time(now));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `observed` is the version that ran before; the conditions are Available, Progressing, Degraded.
    #[track_caller]
    fn check(observed: Option<&str>, waiting: &[&str], failure: Option<&str>, phase: &str, expect: [&str; 3]) {
        let before = CDIStatus { observed_version: observed.map(str::to_owned), ..CDIStatus::default() };
        let cdi = CDI { status: Some(before), ..CDI::default() };
        let seen = Seen { created: failure.is_none(), failure: failure.map(str::to_owned), ..Seen::default() };
        let waiting: Vec<String> = waiting.iter().map(|name| (*name).to_owned()).collect();
        let status = status(&cdi, &seen, &waiting, "v2", Timestamp::UNIX_EPOCH);
        assert_eq!(status.phase.as_deref(), Some(phase));
        let found: Vec<&str> = status.conditions.iter().map(|condition| condition.status.as_str()).collect();
        assert_eq!(found, expect);
        assert!(status.conditions.iter().all(|condition| condition.last_transition_time.is_some()));
        let observed = if failure.is_none() && waiting.is_empty() { Some("v2") } else { observed };
        assert_eq!(status.observed_version.as_deref(), observed);
    }

    #[test]
    fn available_when_every_component_is() {
        check(None, &["cdi-apiserver"], None, "Deploying", ["False", "True", "False"]);
        check(None, &[], None, "Deployed", ["True", "False", "False"]);
        check(Some("v2"), &["cdi-uploadproxy"], None, "Deployed", ["True", "False", "True"]);
        check(Some("v2"), &["cdi-apiserver"], None, "Deployed", ["False", "False", "True"]);
        check(Some("v1"), &["cdi-apiserver"], None, "Upgrading", ["True", "True", "True"]);
        check(None, &[], Some("it is full"), "Deploying", ["False", "True", "True"]);
    }

    #[test]
    fn an_unchanged_status_keeps_its_times() {
        let cdi = CDI::default();
        let first = unwanted(&cdi, Timestamp::UNIX_EPOCH);
        let cdi = CDI { status: Some(first.clone()), ..cdi };
        assert_eq!(unwanted(&cdi, "2026-01-01T00:00:00Z".parse().unwrap()), first);
    }
}
