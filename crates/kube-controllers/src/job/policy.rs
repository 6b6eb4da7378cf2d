//! What a failed pod means for its job, and when enough indexes succeeded, by the policies of the job. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{JobSpec, PodFailurePolicyRule};
use k8s_openapi::api::core::v1::Pod;
use kit::controller::pod;

use super::index;
use super::index::completion_index;

/// On a pod of an indexed job: how many pods of its index failed before it.
pub(crate) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// The same of those failures that a policy ignored.
pub(crate) const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// What a failure counts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// One towards the limit.
    Count,
    /// Nothing.
    Ignore,
    /// The whole index.
    FailIndex,
    /// The whole job, for this reason.
    FailJob(String),
}

/// The first rule that matches a failed pod decides.
pub(crate) fn verdict(spec: &JobSpec, pod: &Pod) -> Verdict {
    let rules = spec.pod_failure_policy.iter().flat_map(|policy| policy.rules.iter().enumerate());
    for (number, rule) in rules {
        let Some(why) = matches(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => Verdict::Ignore,
            "FailIndex" if spec.backoff_limit_per_index.is_some() => Verdict::FailIndex,
            "FailJob" => Verdict::FailJob(format!("{why} matching FailJob rule at index {number}")),
            _ => Verdict::Count,
        };
    }
    Verdict::Count
}

/// What of a pod a rule matches.
fn matches(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let meta = &pod.metadata;
    let name =
        format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    if let Some(codes) = &rule.on_exit_codes {
        let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let fits = |code: i32| match codes.operator.as_str() {
            "In" => codes.values.contains(&code),
            _ => !codes.values.contains(&code),
        };
        let ended = containers.filter(|c| codes.container_name.as_ref().is_none_or(|wanted| *wanted == c.name));
        let codes = ended.filter_map(|c| Some((&c.name, c.state.as_ref()?.terminated.as_ref()?.exit_code)));
        let (container, code) = codes.into_iter().find(|(_, code)| *code != 0 && fits(*code))?;
        return Some(format!("Container {container} for pod {name} failed with exit code {code}"));
    }
    let found = rule.on_pod_conditions.iter().flatten().find(|pattern| {
        let state = if pattern.status.is_empty() { "True" } else { pattern.status.as_str() };
        pod::condition(pod, &pattern.type_).is_some_and(|condition| condition.status == state)
    })?;
    Some(format!("Pod {name} has condition {}", found.type_))
}

/// How often pods of an index failed, and how many of the failures were ignored, counting all that `pods` still shows.
pub(crate) fn failures(spec: &JobSpec, pods: &[Arc<Pod>], index: i32) -> (i32, i32) {
    let number = |pod: &Pod, key: &str| -> i32 {
        pod.metadata.annotations.as_ref().and_then(|all| all.get(key)?.parse().ok()).unwrap_or(0)
    };
    let failed = pods.iter().filter(|pod| completion_index(pod) == Some(index) && pod::phase(pod) == "Failed");
    let counts = failed.map(|pod| {
        let ignored = verdict(spec, pod) == Verdict::Ignore;
        (number(pod, FAILURES) + i32::from(!ignored), number(pod, IGNORED) + i32::from(ignored))
    });
    counts.max_by_key(|(failures, ignored)| failures + ignored).unwrap_or_default()
}

/// Whether a failed pod leaves no further try to its index.
pub(crate) fn index_is_lost(spec: &JobSpec, pods: &[Arc<Pod>], pod: &Pod, index: i32) -> bool {
    let Some(limit) = spec.backoff_limit_per_index else { return false };
    match verdict(spec, pod) {
        Verdict::FailIndex | Verdict::FailJob(_) => true,
        Verdict::Ignore => false,
        Verdict::Count => failures(spec, pods, index).0 > limit,
    }
}

/// The first rule of the success policy that the completed indexes meet.
pub(crate) fn met(spec: &JobSpec, completed: &BTreeSet<i32>) -> Option<String> {
    let rules = &spec.success_policy.as_ref()?.rules;
    let met = rules.iter().position(|rule| {
        let wanted = rule.succeeded_indexes.as_deref().map(index::parse);
        let have = wanted.as_ref().map_or(completed.len(), |wanted| wanted.intersection(completed).count());
        let count = rule.succeeded_count.and_then(|count| usize::try_from(count).ok());
        match (count, wanted) {
            (Some(count), _) => have >= count,
            (None, Some(wanted)) => have == wanted.len(),
            (None, None) => false,
        }
    })?;
    Some(format!("Matched rules at index {met}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(value: Value) -> JobSpec {
        let mut value = value;
        value["template"] = json!({});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_first_rule_decides() {
        let spec = spec(json!({"backoffLimitPerIndex": 1, "podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 42]}}]}}));
        let check = |container: &str, code: i32, disrupted: bool, expect: Verdict| {
            let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": "Failed",
                "conditions": if disrupted { json!([{"type": "DisruptionTarget", "status": "True"}]) } else { json!([]) },
                "containerStatuses": [{"name": container, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": code}}}]}});
            assert_eq!(verdict(&spec, &serde_json::from_value(pod).unwrap()), expect);
        };
        let why = "Container main for pod n/p failed with exit code 42 matching FailJob rule at index 1";
        check("main", 42, false, Verdict::FailJob(why.into()));
        check("main", 42, true, Verdict::Ignore);
        check("side", 42, false, Verdict::Count);
        check("side", 1, false, Verdict::Count);
        check("side", 7, false, Verdict::FailIndex);
        check("side", 0, false, Verdict::Count);
    }

    #[test]
    fn success_is_met_by_indexes_and_counts() {
        let check = |rules: Value, completed: &str, expect: Option<usize>| {
            let spec = spec(json!({"successPolicy": {"rules": rules}}));
            let expect = expect.map(|rule| format!("Matched rules at index {rule}"));
            assert_eq!(met(&spec, &index::parse(completed)), expect);
        };
        check(json!([{"succeededIndexes": "0,2"}]), "0", None);
        check(json!([{"succeededIndexes": "0,2"}]), "0-2", Some(0));
        check(json!([{"succeededIndexes": "0-5", "succeededCount": 2}]), "1,7", None);
        check(json!([{"succeededIndexes": "9"}, {"succeededIndexes": "0-5", "succeededCount": 2}]), "1,2", Some(1));
        check(json!([{"succeededCount": 2}]), "1,7", Some(0));
    }
}
