//! Plans of a job by data.

use serde_json::{Value, json};

use super::*;
use crate::job::index::INDEX;

const NOW: &str = "2026-01-01T01:00:00Z";

fn now() -> Time {
    serde_json::from_value(json!(NOW)).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn job(spec: Value, status: Value) -> Job {
    let mut spec = spec;
    spec["template"] = json!({"spec": {"containers": [], "restartPolicy": "Never"}});
    serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": spec, "status": status})).unwrap()
}

/// `state`, `state!` without the finalizer, `state#index`; named and with uid a, b, c…
fn pods(description: &str) -> Vec<Arc<Pod>> {
    let pod = |(number, word): (usize, &str)| {
        let name = String::from(char::from(b'a' + u8::try_from(number).unwrap()));
        let (state, index) = word.split_once('#').unwrap_or((word, ""));
        let tracked = !state.ends_with('!');
        let phase = match state.trim_end_matches('!') {
            "ok" => "Succeeded",
            "failed" | "justfailed" => "Failed",
            _ => "Running",
        };
        let created = if state.starts_with("just") { "2026-01-01T00:59:57Z" } else { "2026-01-01T00:00:00Z" };
        let mut value = json!({"metadata": {"name": name, "uid": name, "creationTimestamp": created},
            "spec": {"containers": []}, "status": {"phase": phase}});
        if tracked {
            value["metadata"]["finalizers"] = json!([TRACKING]);
        }
        if !index.is_empty() {
            value["metadata"]["annotations"] = json!({INDEX: index});
        }
        if state == "leaving" {
            value["metadata"]["deletionTimestamp"] = json!(NOW);
        }
        Arc::new(serde_json::from_value(value).unwrap())
    };
    description.split_whitespace().enumerate().map(pod).collect()
}

#[track_caller]
fn check(spec: Value, status: Value, description: &str, expect: &str) {
    let plan = plan(&job(spec, status), &pods(description), &now());
    let names = |pods: &[Arc<Pod>]| pods.iter().map(|p| p.metadata.name.clone().unwrap()).collect::<String>();
    let mut text = Vec::new();
    let count = |name: &str, number: Option<i32>| number.filter(|n| *n > 0).map(|n| format!("{name} {n}"));
    text.extend(count("active", plan.status.active));
    text.extend(count("succeeded", plan.status.succeeded));
    text.extend(count("failed", plan.status.failed));
    let uncounted = plan.status.uncounted_terminated_pods.clone().unwrap_or_default();
    text.extend(uncounted.succeeded.map(|uids| format!("+{}", uids.concat())));
    text.extend(uncounted.failed.map(|uids| format!("-{}", uids.concat())));
    for (name, pods) in [("release", &plan.release), ("delete", &plan.delete)] {
        if !pods.is_empty() {
            text.push(format!("{name} {}", names(pods)));
        }
    }
    if !plan.create.is_empty() {
        let one = |index: &Option<i32>| index.map_or("x".to_owned(), |i| i.to_string());
        text.push(format!("create {}", plan.create.iter().map(one).collect::<Vec<_>>().join(",")));
    }
    text.extend(plan.wake.map(|seconds| format!("in {seconds}")));
    text.extend(plan.ended.map(|(reason, _)| reason.to_owned()));
    assert_eq!(text.join("; "), expect);
}

#[test]
fn pods_run_until_enough_succeeded() {
    let three = json!({"completions": 3, "parallelism": 2});
    check(three.clone(), json!({}), "", "create x,x");
    check(three.clone(), json!({}), "running", "active 1; create x");
    check(three.clone(), json!({}), "ok running", "active 1; +a; release a; create x");
    let counted = json!({"uncountedTerminatedPods": {"succeeded": ["a"]}});
    check(three.clone(), counted, "ok! running", "active 1; succeeded 1; create x");
    check(three.clone(), json!({"succeeded": 2}), "running", "active 1; succeeded 2");
    check(three.clone(), json!({"succeeded": 2}), "ok", "succeeded 2; +a; release a");
    let counted = json!({"succeeded": 2, "uncountedTerminatedPods": {"succeeded": ["a"]}});
    check(three, counted, "ok!", "succeeded 3; CompletionsReached");
}

#[test]
fn work_queues_end_when_one_succeeded_and_none_runs() {
    let queue = json!({"parallelism": 2});
    check(queue.clone(), json!({}), "", "create x,x");
    check(queue.clone(), json!({"succeeded": 1}), "running", "active 1; succeeded 1");
    check(queue, json!({"succeeded": 1}), "", "succeeded 1; CompletionsReached");
}

#[test]
fn failures_back_off_and_end_the_job() {
    let one = json!({"completions": 1, "parallelism": 1, "backoffLimit": 1});
    check(one.clone(), json!({}), "failed", "-a; release a; create x");
    check(one.clone(), json!({}), "justfailed", "-a; release a; in 7");
    check(one.clone(), json!({"failed": 1}), "failed! justfailed!", "failed 1; in 17");
    check(one.clone(), json!({"failed": 2}), "running", "active 1; failed 2; delete a");
    check(one.clone(), json!({"failed": 2}), "failed!", "failed 2; BackoffLimitExceeded");
    check(one, json!({}), "leaving", "-a; release a; create x");
}

#[test]
fn deadlines_and_lifetimes() {
    let limited = json!({"completions": 1, "activeDeadlineSeconds": 60});
    let started = |time: &str| json!({"startTime": time});
    check(limited.clone(), started("2026-01-01T00:59:30Z"), "running", "active 1; in 30");
    check(limited.clone(), started("2026-01-01T00:58:00Z"), "running", "active 1; delete a");
    check(limited, started("2026-01-01T00:58:00Z"), "", "DeadlineExceeded");
    let over =
        json!({"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:59:50Z"}]});
    check(json!({"ttlSecondsAfterFinished": 30}), over, "ok", "release a; in 20");
}

#[test]
fn policies_end_a_job_or_an_index() {
    let ended = |spec: Value, description: &str| {
        let status = json!({"uncountedTerminatedPods": {"failed": ["a"]}, "conditions": [], "failedIndexes": "1"});
        let mut pods = pods(description);
        for pod in &mut pods {
            let mut value = serde_json::to_value(&**pod).unwrap();
            value["status"]["containerStatuses"] = json!([{"name": "main", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"terminated": {"exitCode": 42}}}]);
            *pod = Arc::new(serde_json::from_value(value).unwrap());
        }
        let plan = plan(&job(spec, status), &pods, &now());
        let conditions = plan.status.conditions.unwrap_or_default();
        let reasons = conditions.into_iter().map(|c| format!("{} {}", c.type_, c.reason.unwrap_or_default()));
        (reasons.collect::<Vec<_>>().join(", "), plan.status.failed_indexes, plan.create)
    };
    let rule = json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]});
    let (said, ..) = ended(json!({"completions": 2, "podFailurePolicy": rule}), "ok failed");
    assert_eq!(said, "FailureTarget PodFailurePolicy");
    let each = |more: Value| {
        let mut spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "backoffLimit": 99});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let (said, lost, create) = ended(each(json!({})), "ok#0 failed#2");
    assert_eq!((said.as_str(), lost.as_deref()), ("FailureTarget FailedIndexes", Some("1,2")));
    assert!(create.is_empty());
    let (said, ..) = ended(each(json!({"maxFailedIndexes": 0})), "running#0");
    assert_eq!(said, "FailureTarget MaxFailedIndexesExceeded");
    let (said, lost, create) = ended(each(json!({})), "ok#0");
    assert_eq!((said.as_str(), lost.as_deref(), create), ("", Some("1"), vec![Some(2)]));
    let success = json!({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    let (said, ..) = ended(each(success), "ok#0 running#2");
    assert_eq!(said, "SuccessCriteriaMet SuccessPolicy");
}

#[test]
fn indexes_are_a_set() {
    let indexed = json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"});
    check(indexed.clone(), json!({}), "", "create 0,1");
    check(indexed.clone(), json!({"completedIndexes": "0"}), "running#1", "active 1; succeeded 1; create 2");
    check(indexed.clone(), json!({"completedIndexes": "0"}), "ok#1", "succeeded 2; release a; create 2,3");
    check(indexed, json!({"completedIndexes": "0-2"}), "ok#3", "succeeded 4; release a; CompletionsReached");
}

#[test]
fn suspension_stops_the_pods() {
    check(json!({"completions": 1, "suspend": true}), json!({}), "running", "delete a");
    check(json!({"completions": 1, "suspend": true}), json!({}), "", "");
}
