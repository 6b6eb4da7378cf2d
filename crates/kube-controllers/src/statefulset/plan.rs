//! Which pods of a StatefulSet to create, replace and delete, in the order of their numbers. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::controller::pod;

use crate::revision::HASH_LABEL;

/// What the plan looks at.
pub(crate) struct Observed<'a> {
    pub(crate) set: &'a StatefulSet,
    pub(crate) pods: &'a [Arc<Pod>],
    /// Hash of the template's revision, the one pods are updated to.
    pub(crate) update: &'a str,
    /// Hash of the revision pods below the partition keep.
    pub(crate) current: &'a str,
    pub(crate) now: &'a Time,
}

/// What to do.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Numbers to create, each with the revision's hash.
    pub(crate) create: Vec<(i32, String)>,
    /// Pods to delete.
    pub(crate) delete: Vec<Arc<Pod>>,
}

pub(crate) fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

fn first(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.ordinals.as_ref()?.start).unwrap_or(0)
}

/// The numbers the set shall have.
pub(crate) fn wanted(set: &StatefulSet) -> std::ops::Range<i32> {
    first(set)..first(set).saturating_add(replicas(set))
}

/// The number at the end of a pod's name.
pub(crate) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let name = pod.metadata.name.as_deref()?;
    name.strip_prefix(set.metadata.name.as_deref()?)?.strip_prefix('-')?.parse().ok()
}

fn hash(pod: &Pod) -> &str {
    pod::labels(&pod.metadata).get(HASH_LABEL).map_or("", String::as_str)
}

fn by_ordinal<'a>(observed: &Observed<'a>) -> BTreeMap<i32, &'a Arc<Pod>> {
    observed.pods.iter().filter_map(|pod| Some((ordinal(observed.set, pod)?, pod))).collect()
}

/// The steps to take now.
pub(crate) fn steps(observed: &Observed<'_>) -> Steps {
    let mut steps = Steps::default();
    let set = observed.set;
    let Some(spec) = set.spec.as_ref().filter(|_| set.metadata.deletion_timestamp.is_none()) else { return steps };
    let parallel = spec.pod_management_policy.as_deref() == Some("Parallel");
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let healthy = |pod: &Pod| !pod::is_terminating(pod) && pod::available_in(pod, min_ready, observed.now) == Some(0);
    let strategy = spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|s| s.type_.as_deref()) != Some("OnDelete");
    let partition = strategy.and_then(|s| s.rolling_update.as_ref()?.partition).unwrap_or(0);
    let pods = by_ordinal(observed);
    let std::ops::Range { start: from, end: to } = wanted(set);
    for number in from..to {
        match pods.get(&number) {
            None => {
                // Who deletes a pod by hand under `OnDelete` does it to get a new one.
                let hash = if !rolling || number >= partition { observed.update } else { observed.current };
                steps.create.push((number, hash.to_owned()));
                if !parallel {
                    return steps;
                }
            }
            Some(pod) if pod::is_finished(pod) && !pod::is_terminating(pod) => {
                steps.delete.push(Arc::clone(pod));
                if !parallel {
                    return steps;
                }
            }
            Some(pod) if !healthy(pod) && !parallel => {
                // A broken pod of an old template must not block the update that repairs it; everything else waits.
                let stale = rolling && number >= partition && hash(pod) != observed.update;
                if stale && !pod::is_terminating(pod) && !pod::is_ready(pod) {
                    steps.delete.push(Arc::clone(pod));
                }
                return steps;
            }
            Some(_) => {}
        }
    }
    let surplus: Vec<_> = pods.iter().rev().filter(|(number, _)| !(from..to).contains(*number)).collect();
    for (_, pod) in &surplus {
        if !pod::is_terminating(pod) {
            steps.delete.push(Arc::clone(pod));
        }
        if !parallel {
            return steps;
        }
    }
    if !rolling || !steps.create.is_empty() || !steps.delete.is_empty() {
        return steps;
    }
    for (_, pod) in pods.range(from.max(partition)..to.max(from.max(partition))).rev() {
        if pod::is_terminating(pod) {
            return steps;
        }
        if hash(pod) != observed.update {
            steps.delete.push(Arc::clone(pod));
            return steps;
        }
        if !healthy(pod) {
            return steps;
        }
    }
    steps
}

/// The status, and in how many seconds a pod becomes available by itself.
pub(crate) fn status(observed: &Observed<'_>, revisions: (&str, &str)) -> (StatefulSetStatus, Option<i64>) {
    let set = observed.set;
    let old = set.status.clone().unwrap_or_default();
    let min_ready = set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
    let alive: Vec<_> = observed.pods.iter().filter(|p| !pod::is_finished(p)).collect();
    let count =
        |predicate: &dyn Fn(&Pod) -> bool| i32::try_from(alive.iter().filter(|p| predicate(p)).count()).unwrap_or(0);
    let staying = |p: &Pod| !pod::is_terminating(p);
    let waits: Vec<i64> =
        alive.iter().filter(|p| staying(p)).filter_map(|p| pod::available_in(p, min_ready, observed.now)).collect();
    let updated = count(&|p| staying(p) && hash(p) == observed.update);
    let positive = |n: i32| (n > 0).then_some(n);
    let wanted = replicas(set);
    let ready = count(&|p| staying(p) && pod::is_ready(p));
    // The update is over when every pod has it: then it is the current revision.
    let strategy = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()?.type_.as_deref());
    let complete = (strategy != Some("OnDelete") || revisions.0 == revisions.1)
        && updated == wanted
        && count(&|_| true) == wanted
        && ready == wanted;
    let current_name = if complete { revisions.1 } else { revisions.0 };
    let current = if complete { updated } else { count(&|p| staying(p) && hash(p) == observed.current) };
    let status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(&|_| true),
        ready_replicas: positive(ready),
        available_replicas: Some(i32::try_from(waits.iter().filter(|w| **w == 0).count()).unwrap_or(0)),
        current_replicas: positive(current),
        updated_replicas: positive(updated),
        current_revision: Some(current_name.to_owned()),
        update_revision: Some(revisions.1.to_owned()),
        collision_count: Some(old.collision_count.unwrap_or(0)),
        conditions: old.conditions,
    };
    (status, waits.into_iter().filter(|w| *w > 0).min())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn set(replicas: i32, extra: Value) -> StatefulSet {
        let mut spec = json!({"replicas": replicas, "selector": {}, "serviceName": "s", "template": {}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap()
    }

    /// `number:hash:state`
    fn pods(description: &str) -> Vec<Arc<Pod>> {
        let pod = |word: &str| {
            let parts: Vec<_> = word.split(':').collect();
            let mut value = json!({"metadata": {"name": format!("s-{}", parts[0]), "labels": {HASH_LABEL: parts[1]}},
                "status": {"phase": "Running"}});
            match parts[2] {
                "ready" | "fresh" => {
                    let since = if parts[2] == "fresh" {
                        kit::clock::time()
                    } else {
                        Time("2026-01-01T00:00:00Z".parse().unwrap())
                    };
                    value["status"]["conditions"] =
                        json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
                }
                "failed" => value["status"]["phase"] = json!("Failed"),
                "leaving" => value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
                _ => {}
            }
            Arc::new(serde_json::from_value(value).unwrap())
        };
        description.split_whitespace().map(pod).collect()
    }

    #[track_caller]
    fn check(replicas: i32, extra: Value, description: &str, expect: &str) {
        let (set, pods, now) = (set(replicas, extra), pods(description), kit::clock::time());
        let steps = steps(&Observed { set: &set, pods: &pods, update: "new", current: "old", now: &now });
        let create = steps.create.iter().map(|(number, hash)| format!("+{number}:{hash}"));
        let delete = steps.delete.iter().map(|p| p.metadata.name.clone().unwrap().replace("s", ""));
        assert_eq!(create.chain(delete).collect::<Vec<_>>().join(" "), expect);
    }

    #[test]
    fn pods_come_and_go_in_order() {
        check(2, json!({}), "", "+0:new");
        check(2, json!({}), "0:new:starting", "");
        check(2, json!({}), "0:new:ready", "+1:new");
        check(2, json!({}), "0:new:failed", "-0");
        check(1, json!({}), "0:new:ready 1:new:ready 2:new:ready", "-2");
        check(1, json!({}), "0:new:ready 1:new:ready 2:new:leaving", "");
        check(2, json!({"podManagementPolicy": "Parallel"}), "", "+0:new +1:new");
        check(0, json!({"podManagementPolicy": "Parallel"}), "0:new:ready 1:new:ready", "-1 -0");
        check(1, json!({"ordinals": {"start": 5}}), "", "+5:new");
    }

    #[test]
    fn updates_go_down_one_by_one() {
        check(2, json!({}), "0:old:ready 1:old:ready", "-1");
        check(2, json!({}), "0:old:ready 1:new:starting", "");
        check(2, json!({}), "0:old:ready 1:new:ready", "-0");
        check(2, json!({}), "0:old:starting 1:old:ready", "-0");
        let partition = json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}});
        check(2, partition.clone(), "0:old:ready 1:new:ready", "");
        check(2, partition, "1:new:ready", "+0:old");
        let by_hand = json!({"updateStrategy": {"type": "OnDelete"}});
        check(1, by_hand.clone(), "0:old:ready", "");
        check(2, by_hand, "0:old:ready", "+1:new");
    }

    #[test]
    fn a_pod_counts_when_it_was_ready_long_enough() {
        let slow = json!({"minReadySeconds": 60});
        check(2, slow.clone(), "0:new:fresh", "");
        check(2, slow.clone(), "0:new:ready", "+1:new");
        check(2, slow.clone(), "0:old:ready 1:new:fresh", "");
        check(2, json!({}), "0:old:ready 1:new:fresh", "-0");
        check(1, slow, "0:new:fresh 1:new:ready", "");
    }
}
