//! The status of the NetworkAddonsConfig object. Pure.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kit::operator;
use meta::conditions;

use super::object::{Container, NetworkAddonsConfig, Status};
use super::plan::Plan;

/// Types of conditions.
pub const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
/// Something that was asked for is not there.
pub const DEGRADED: &str = "Degraded";
const UPGRADEABLE: &str = "Upgradeable";

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The Deployments of the namespace.
    pub deployments: Vec<Deployment>,
    /// Its DaemonSets.
    pub daemon_sets: Vec<DaemonSet>,
    /// Why the last attempt to apply failed.
    pub failure: Option<String>,
}

/// The status that `config` should have.
pub fn status(config: &NetworkAddonsConfig, plan: &Plan, seen: &Seen, version: &str, now: Timestamp) -> Status {
    let mut status = config.status.clone().unwrap_or_default();
    let waiting = waiting(seen);
    status.operator_version = Some(version.to_owned());
    status.target_version = Some(version.to_owned());
    status.containers = containers(seen);
    let mut set = |type_: &str, value: bool, reason: &str, message: &str| {
        let text = if value { "True" } else { "False" };
        conditions::set(&mut status.conditions, type_, text, Some(reason), Some(message), &Time(now));
    };
    set(UPGRADEABLE, true, "", "");
    if !plan.refused.is_empty() {
        let message = format!("invalid configuration:\n{}", plan.refused.join("\n"));
        set(DEGRADED, true, "InvalidConfiguration", &message);
        set(PROGRESSING, false, "InvalidConfiguration", "");
        set(AVAILABLE, false, "InvalidConfiguration", &message);
        return status;
    }
    let unfinished = format!("Waiting for {} to be ready.", waiting.join(", "));
    let done = waiting.is_empty() && seen.failure.is_none();
    match (&seen.failure, plan.missing.is_empty()) {
        (Some(failure), _) => set(DEGRADED, true, "FailedToApply", failure),
        (None, false) => set(DEGRADED, true, "NotAvailable", &plan.missing.join("; ")),
        (None, true) => set(DEGRADED, false, "", ""),
    }
    set(PROGRESSING, !waiting.is_empty(), if done { "" } else { "Deploying" }, if done { "" } else { &unfinished });
    let notes = plan.notes.join("; ");
    match done && plan.missing.is_empty() {
        true => set(AVAILABLE, true, "Applied", &notes),
        false => set(AVAILABLE, false, "NotReady", if done { "what is Degraded is missing" } else { &unfinished }),
    }
    if done {
        status.observed_version = Some(version.to_owned());
    }
    status
}

/// Names of what does not run yet as it is to.
fn waiting(seen: &Seen) -> Vec<String> {
    let name = |metadata: &ObjectMeta| metadata.name.clone().unwrap_or_default();
    let deployments = seen.deployments.iter().filter(|deployment| !operator::is_rolled_out(deployment));
    let late = |set: &&DaemonSet| {
        let (ready, wanted) = operator::rolled_out_on(set);
        let known = set.status.as_ref().is_some_and(|status| status.observed_generation >= set.metadata.generation);
        !known || ready < wanted
    };
    let sets = seen.daemon_sets.iter().filter(late);
    deployments.map(|deployment| name(&deployment.metadata)).chain(sets.map(|set| name(&set.metadata))).collect()
}

fn containers(seen: &Seen) -> Vec<Container> {
    let of = |kind: &'static str, metadata: &ObjectMeta, spec: Option<&PodSpec>| -> Vec<Container> {
        let name = metadata.name.clone().unwrap_or_default();
        let one = |container: &k8s_openapi::api::core::v1::Container| Container {
            image: container.image.clone().unwrap_or_default(),
            name: container.name.clone(),
            parent_kind: kind.to_owned(),
            parent_name: name.clone(),
        };
        spec.into_iter().flat_map(|spec| &spec.containers).map(one).collect()
    };
    let deployments = seen.deployments.iter().flat_map(|deployment| {
        let spec = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        of("Deployment", &deployment.metadata, spec)
    });
    let sets = seen
        .daemon_sets
        .iter()
        .flat_map(|set| of("DaemonSet", &set.metadata, set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref())));
    let mut all: Vec<Container> = deployments.chain(sets).collect();
    all.sort_by(|one, other| (&one.parent_name, &one.name).cmp(&(&other.parent_name, &other.name)));
    all
}

/// The status of an object that does not count.
pub fn unwanted(config: &NetworkAddonsConfig, message: &str, now: Timestamp) -> Status {
    let mut status = config.status.clone().unwrap_or_default();
    for (type_, value) in [(AVAILABLE, "False"), (PROGRESSING, "False"), (DEGRADED, "True")] {
        conditions::set(&mut status.conditions, type_, value, Some("InvalidConfiguration"), Some(message), &Time(now));
    }
    status
}

/// The status while everything is taken away.
pub fn removing(config: &NetworkAddonsConfig, now: Timestamp) -> Status {
    let mut status = config.status.clone().unwrap_or_default();
    for (type_, value) in [(AVAILABLE, "False"), (PROGRESSING, "True")] {
        let message = "what was deployed is being removed";
        conditions::set(&mut status.conditions, type_, value, Some("Deleting"), Some(message), &Time(now));
    }
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(available: i32) -> Deployment {
        serde_json::from_value(json!({
            "metadata": { "name": "pool" },
            "spec": { "replicas": 2, "selector": {}, "template": { "spec": { "containers": [{ "name": "c", "image": "i" }] } } },
            "status": { "updatedReplicas": 2, "availableReplicas": available },
        }))
        .unwrap()
    }

    fn set(available: i32) -> DaemonSet {
        let status = json!({
            "desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": available,
            "updatedNumberScheduled": 2, "numberAvailable": available,
        });
        serde_json::from_value(
            json!({ "metadata": { "name": "marker" }, "spec": { "selector": {}, "template": {} }, "status": status }),
        )
        .unwrap()
    }

    #[track_caller]
    fn check(plan: &Plan, available: i32, failure: Option<&str>, expect: [&str; 3]) -> Status {
        let seen = Seen {
            deployments: vec![deployment(available)],
            daemon_sets: vec![set(available)],
            failure: failure.map(str::to_owned),
        };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let found = status(&NetworkAddonsConfig::default(), plan, &seen, "v1", now);
        let said = |type_: &str| conditions::get(&found.conditions, type_).unwrap().status.clone();
        assert_eq!([AVAILABLE, PROGRESSING, DEGRADED].map(said), expect.map(str::to_owned));
        found
    }

    #[test]
    fn the_object_is_available_when_all_that_it_asks_for_is_there() {
        let found = check(&Plan::default(), 2, None, ["True", "False", "False"]);
        assert_eq!(found.observed_version.as_deref(), Some("v1"));
        assert_eq!((found.containers[0].image.as_str(), found.containers[0].parent_name.as_str()), ("i", "pool"));
        assert_eq!(check(&Plan::default(), 1, None, ["False", "True", "False"]).observed_version, None);
        check(&Plan::default(), 2, Some("refused"), ["False", "False", "True"]);
        let missing = Plan { missing: vec!["ovs: no".to_owned()], ..Plan::default() };
        let found = check(&missing, 2, None, ["False", "False", "True"]);
        assert!(conditions::get(&found.conditions, DEGRADED).unwrap().message.as_deref().unwrap().contains("ovs: no"));
        let refused = Plan { refused: vec!["bad".to_owned()], ..Plan::default() };
        let found = check(&refused, 2, None, ["False", "False", "True"]);
        assert_eq!(
            conditions::get(&found.conditions, DEGRADED).unwrap().message.as_deref(),
            Some("invalid configuration:\nbad")
        );
    }
}
