//! How many pods a ReplicaSet lacks or has too many of, which go first, and its status. Pure.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::controller::owner::has_all;
use kit::controller::pod;

/// What to do about the pods.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// As wanted.
    Nothing,
    /// So many are missing.
    Create(usize),
    /// These are too many.
    Delete(Vec<Arc<Pod>>),
}

/// Compares the pods a set owns with its wish. At most `BURST` at a time; the rest follows when these are known.
pub(crate) fn step(set: &ReplicaSet, pods: &[Arc<Pod>]) -> Step {
    const BURST: usize = 500;
    if set.metadata.deletion_timestamp.is_some() {
        return Step::Nothing;
    }
    let mut active: Vec<_> = pods.iter().filter(|p| pod::is_active(p)).cloned().collect();
    let wanted = wanted(set);
    match active.len().cmp(&wanted) {
        std::cmp::Ordering::Equal => Step::Nothing,
        std::cmp::Ordering::Less => Step::Create((wanted - active.len()).min(BURST)),
        std::cmp::Ordering::Greater => {
            let surplus = (active.len() - wanted).min(BURST);
            active.sort_by(|a, b| pod::by_deletion_preference(a, b));
            active.truncate(surplus);
            Step::Delete(active)
        }
    }
}

/// `spec.replicas`, 1 when unset.
pub(crate) fn wanted(set: &ReplicaSet) -> usize {
    let replicas = set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
    usize::try_from(replicas).unwrap_or(0)
}

/// The status, and in how many seconds a pod becomes available without any change being announced.
pub(crate) fn status(
    set: &ReplicaSet,
    pods: &[Arc<Pod>],
    failure: Option<(&'static str, String)>,
    now: &Time,
) -> (ReplicaSetStatus, Option<i64>) {
    let spec = set.spec.as_ref();
    let min_ready = spec.and_then(|s| s.min_ready_seconds).unwrap_or(0);
    let template_labels = spec.and_then(|s| s.template.as_ref()?.metadata.as_ref()?.labels.clone()).unwrap_or_default();
    let active: Vec<_> = pods.iter().filter(|p| pod::is_active(p)).collect();
    let count = |predicate: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|p| predicate(p)).count()).unwrap_or(i32::MAX)
    };
    let waits: Vec<i64> = active.iter().filter_map(|p| pod::available_in(p, min_ready, now)).collect();
    let available = i32::try_from(waits.iter().filter(|w| **w == 0).count()).unwrap_or(i32::MAX);
    let positive = |n: i32| (n > 0).then_some(n);
    let status = ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: positive(count(&|p| has_all(pod::labels(&p.metadata), &template_labels))),
        ready_replicas: positive(count(&pod::is_ready)),
        available_replicas: positive(available),
        observed_generation: set.metadata.generation,
        conditions: conditions(set, failure, now),
        terminating_replicas: None,
    };
    (status, waits.into_iter().filter(|w| *w > 0).min())
}

fn conditions(
    set: &ReplicaSet,
    failure: Option<(&'static str, String)>,
    now: &Time,
) -> Option<Vec<ReplicaSetCondition>> {
    let old = set.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut conditions: Vec<_> = old.iter().filter(|c| c.type_ != "ReplicaFailure").cloned().collect();
    if let Some((reason, message)) = failure {
        let known = old.into_iter().find(|c| c.type_ == "ReplicaFailure" && c.reason.as_deref() == Some(reason));
        conditions.push(known.unwrap_or_else(|| ReplicaSetCondition {
            type_: "ReplicaFailure".into(),
            status: "True".into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_transition_time: Some(now.clone()),
        }));
    }
    (!conditions.is_empty()).then_some(conditions)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods(description: &str) -> Vec<Arc<Pod>> {
        let pod = |(index, word): (usize, &str)| {
            let mut value = json!({"metadata": {"name": format!("p{index}"), "labels": {"app": "a"}},
                "spec": {"containers": [], "nodeName": "n"}, "status": {"phase": "Running"}});
            match word {
                "ready" => {
                    value["status"]["conditions"] = json!([{"type": "Ready", "status": "True",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
                }
                "pending" => value["status"]["phase"] = json!("Pending"),
                "unbound" => value["spec"] = json!({"containers": []}),
                "failed" => value["status"]["phase"] = json!("Failed"),
                "leaving" => value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
                _ => {}
            }
            Arc::new(serde_json::from_value(value).unwrap())
        };
        description.split_whitespace().enumerate().map(pod).collect()
    }

    fn set(replicas: i32) -> ReplicaSet {
        serde_json::from_value(json!({"metadata": {"name": "s", "generation": 3}, "spec": {"replicas": replicas,
            "selector": {}, "template": {"metadata": {"labels": {"app": "a"}}}}}))
        .unwrap()
    }

    #[track_caller]
    fn check(replicas: i32, description: &str, expect: &str) {
        let text = match step(&set(replicas), &pods(description)) {
            Step::Nothing => "nothing".to_owned(),
            Step::Create(count) => format!("create {count}"),
            Step::Delete(pods) => {
                let names: Vec<_> = pods.iter().map(|p| p.metadata.name.clone().unwrap()).collect();
                format!("delete {}", names.join(" "))
            }
        };
        assert_eq!(text, expect);
    }

    #[test]
    fn steps() {
        check(2, "", "create 2");
        check(2, "ready running", "nothing");
        check(2, "ready failed", "create 1");
        check(2, "ready leaving", "create 1");
        check(1, "ready pending", "delete p1");
        check(1, "ready unbound pending", "delete p1 p2");
        check(0, "ready running", "delete p1 p0");
    }

    #[test]
    fn status_counts_active_pods() {
        let now = serde_json::from_value(json!("2026-01-01T00:00:10Z")).unwrap();
        let mut set = set(3);
        set.spec.as_mut().unwrap().min_ready_seconds = Some(15);
        let (status, wake) = status(&set, &pods("ready running failed leaving"), None, &now);
        assert_eq!((status.replicas, status.ready_replicas, status.available_replicas), (2, Some(1), None));
        assert_eq!((status.fully_labeled_replicas, status.observed_generation, wake), (Some(2), Some(3), Some(5)));
    }
}
