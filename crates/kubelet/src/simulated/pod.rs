//! What becomes of a pod on a simulated node. Pure.
//!
//! Annotations of the pod, each a number of seconds, or a number:
//!
//! * `simulated.ferrovirt.io/starts-after`: its containers are being created for so long;
//! * `simulated.ferrovirt.io/runs-for`: then they end, unless the pod is to restart them always;
//! * `simulated.ferrovirt.io/exit-code`: with this code, 0 if it is not given;
//! * `simulated.ferrovirt.io/stops-after`: a deleted pod takes so long to end, at most its grace period.

use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements};
use kube::ResourceExt;
use serde_json::{Value, json};

/// What to do next for a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing before it changes.
    Wait,
    /// Look again after this long.
    After(Duration),
    /// Publish this status.
    Write(Value),
    /// It has ended: let the object go.
    Delete,
}

const STARTS_AFTER: &str = "simulated.ferrovirt.io/starts-after";
const RUNS_FOR: &str = "simulated.ferrovirt.io/runs-for";
const EXIT_CODE: &str = "simulated.ferrovirt.io/exit-code";
const STOPS_AFTER: &str = "simulated.ferrovirt.io/stops-after";

/// The address a pod was given.
pub(crate) fn address(pod: &Pod) -> Option<Ipv4Addr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// A number; what is none counts as absent.
fn number(pod: &Pod, annotation: &str) -> Option<i64> {
    pod.annotations().get(annotation)?.trim_end_matches('s').parse().ok()
}

fn left(since: Timestamp, seconds: i64, now: Timestamp) -> Option<Duration> {
    let passed = now.as_second() - since.as_second();
    u64::try_from(seconds - passed).ok().filter(|left| *left > 0).map(Duration::from_secs)
}

/// Decides; `host` is the node's address and `own` the pod's.
pub(crate) fn step(pod: &Pod, host: Ipv4Addr, own: Ipv4Addr, now: Timestamp) -> Step {
    let Some(spec) = &pod.spec else { return Step::Wait };
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or_default();
    let finished = matches!(phase, "Succeeded" | "Failed");
    if let Some(deadline) = &pod.metadata.deletion_timestamp {
        // The deadline is the deletion and the grace.
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let takes = number(pod, STOPS_AFTER).unwrap_or(0).clamp(0, grace);
        let remaining = left(deadline.0, takes - grace, now).filter(|_| !finished);
        return remaining.map_or(Step::Delete, Step::After);
    }
    if finished {
        return Step::Wait;
    }
    let begun = status.start_time.as_ref().map(|time| time.0);
    let running =
        status.container_statuses.iter().flatten().any(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()));
    if !running {
        let wait = number(pod, STARTS_AFTER).filter(|seconds| *seconds > 0);
        return match (wait, begun) {
            (Some(_), None) => Step::Write(creating(spec, host, now)),
            (Some(seconds), Some(begun)) => match left(begun, seconds, now) {
                Some(left) => Step::After(left),
                None => Step::Write(started(pod, spec, host, own, begun, now)),
            },
            (None, begun) => Step::Write(started(pod, spec, host, own, begun.unwrap_or(now), now)),
        };
    }
    if let Some(resized) = resized(spec, &status, pod.metadata.generation) {
        return Step::Write(resized);
    }
    let since = status
        .container_statuses
        .iter()
        .flatten()
        .find_map(|c| c.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    let since = since.map_or(now, |time| time.0);
    let code = number(pod, EXIT_CODE).unwrap_or(0);
    let ends = match spec.restart_policy.as_deref() {
        Some("Never") => true,
        Some("OnFailure") => code == 0,
        _ => false,
    };
    let takes = number(pod, RUNS_FOR).filter(|_| ends);
    let deadline = spec.active_deadline_seconds;
    match (takes.map(|seconds| left(since, seconds, now)), deadline.map(|s| left(begun.unwrap_or(since), s, now))) {
        (Some(None), _) => Step::Write(ended(pod, spec, since, code, None, now)),
        (_, Some(None)) => {
            let why = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline");
            Step::Write(ended(pod, spec, since, 137, Some(why), now))
        }
        (Some(Some(one)), Some(Some(other))) => Step::After(one.min(other)),
        (Some(Some(left)), None) | (None, Some(Some(left))) => Step::After(left),
        (None, None) => Step::Wait,
    }
}

fn text(time: Timestamp) -> String {
    kit::clock::seconds(time).to_string()
}

fn condition(type_: &str, holds: bool, reason: Option<&str>, since: Timestamp) -> Value {
    let status = if holds { "True" } else { "False" };
    json!({"type": type_, "status": status, "reason": reason, "lastProbeTime": null, "lastTransitionTime": text(since)})
}

fn addresses(host: Ipv4Addr) -> Value {
    json!({"hostIP": host, "hostIPs": [{"ip": host}]})
}

fn creating(spec: &PodSpec, host: Ipv4Addr, now: Timestamp) -> Value {
    let waiting = |container: &Container| {
        json!({"name": container.name, "image": container.image, "imageID": "", "ready": false, "started": false,
            "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}, "lastState": {}})
    };
    let mut status = addresses(host);
    status["phase"] = "Pending".into();
    status["startTime"] = text(now).into();
    status["containerStatuses"] = spec.containers.iter().map(waiting).collect();
    status["conditions"] = json!([
        condition("PodReadyToStartContainers", false, None, now),
        condition("Initialized", true, None, now),
        condition("Ready", false, Some("ContainersNotReady"), now),
        condition("ContainersReady", false, Some("ContainersNotReady"), now),
    ]);
    status
}

fn container_id(pod: &Pod, name: &str) -> String {
    let uid =
        uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, format!("{}/{name}", pod.uid().unwrap_or_default()).as_bytes());
    format!("simulated://{}{}", uid.simple(), uid.simple())
}

fn describe(pod: &Pod, container: &Container, state: &Value) -> Value {
    let running = state.get("running").is_some();
    json!({"name": container.name, "image": container.image, "imageID": container.image, "restartCount": 0,
        "containerID": container_id(pod, &container.name), "ready": running, "started": running, "state": state,
        "lastState": {}, "resources": size(container), "allocatedResources": size(container).requests})
}

fn size(container: &Container) -> ResourceRequirements {
    container.resources.clone().unwrap_or_default()
}

/// The statuses of containers that are to be of another size: a node of no substance has room for everything.
fn resized(spec: &PodSpec, status: &PodStatus, generation: Option<i64>) -> Option<Value> {
    let of = |containers: &[Container], statuses: &Option<Vec<ContainerStatus>>| -> Vec<ContainerStatus> {
        let mut statuses = statuses.clone().unwrap_or_default();
        for status in &mut statuses {
            if let Some(container) = containers.iter().find(|container| container.name == status.name) {
                status.resources = Some(size(container));
                status.allocated_resources = size(container).requests;
            }
        }
        statuses
    };
    let containers = of(&spec.containers, &status.container_statuses);
    let inits = of(spec.init_containers.as_deref().unwrap_or_default(), &status.init_container_statuses);
    let same = |new: &[ContainerStatus], old: &Option<Vec<ContainerStatus>>| new == old.as_deref().unwrap_or_default();
    if same(&containers, &status.container_statuses) && same(&inits, &status.init_container_statuses) {
        return None;
    }
    let mut status = json!({"containerStatuses": containers, "observedGeneration": generation});
    if !inits.is_empty() {
        status["initContainerStatuses"] = json!(inits);
    }
    Some(status)
}

fn started(pod: &Pod, spec: &PodSpec, host: Ipv4Addr, own: Ipv4Addr, begun: Timestamp, now: Timestamp) -> Value {
    let running = json!({"running": {"startedAt": text(now)}});
    let init = |container: &Container| {
        if container.restart_policy.as_deref() == Some("Always") {
            return describe(pod, container, &running);
        }
        let exit = json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": text(now), "finishedAt": text(now),
            "containerID": container_id(pod, &container.name)}});
        let mut status = describe(pod, container, &exit);
        status["ready"] = true.into();
        status
    };
    let own = if spec.host_network == Some(true) { host } else { own };
    let mut status = addresses(host);
    status["phase"] = "Running".into();
    status["podIP"] = json!(own);
    status["podIPs"] = json!([{"ip": own}]);
    status["startTime"] = text(begun).into();
    status["containerStatuses"] = spec.containers.iter().map(|container| describe(pod, container, &running)).collect();
    if spec.init_containers.as_ref().is_some_and(|list| !list.is_empty()) {
        status["initContainerStatuses"] = spec.init_containers.iter().flatten().map(init).collect();
    }
    let gates = spec.readiness_gates.iter().flatten();
    let open = |type_: &String| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|c| c.type_ == *type_ && c.status == "True")
    };
    let ready = gates.into_iter().all(|gate| open(&gate.condition_type));
    status["conditions"] = json!([
        condition("PodReadyToStartContainers", true, None, now),
        condition("Initialized", true, None, now),
        condition("Ready", ready, (!ready).then_some("ReadinessGatesNotReady"), now),
        condition("ContainersReady", true, None, now),
    ]);
    status
}

fn ended(pod: &Pod, spec: &PodSpec, since: Timestamp, code: i64, why: Option<(&str, &str)>, now: Timestamp) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    let exit = |container: &Container| {
        let state = json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": text(since),
            "finishedAt": text(now), "containerID": container_id(pod, &container.name)}});
        describe(pod, container, &state)
    };
    let done = if code == 0 { "PodCompleted" } else { "PodFailed" };
    let mut status = json!({"phase": if code == 0 { "Succeeded" } else { "Failed" },
    "containerStatuses": spec.containers.iter().map(exit).collect::<Vec<_>>(),
    "conditions": [
        condition("PodReadyToStartContainers", false, None, now),
        condition("Initialized", true, Some(done), now),
        condition("Ready", false, Some(done), now),
        condition("ContainersReady", false, Some(done), now),
    ]});
    if let Some((reason, message)) = why {
        status["reason"] = reason.into();
        status["message"] = message.into();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// The steps of a pod over time, in words.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(annotations: Value, policy: &str, expect: &str) {
        let mut pod = json!({"metadata": {"name": "p", "uid": "u", "annotations": annotations},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]}});
        let (mut now, mut words) = (0, Vec::new());
        for _ in 0..6 {
            let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
            match step(&typed, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, at(now)) {
                Step::Write(status) => {
                    words.push(status["phase"].as_str().unwrap().to_owned());
                    for (field, value) in status.as_object().unwrap() {
                        pod["status"][field] = value.clone();
                    }
                }
                Step::After(delay) => {
                    words.push(format!("{}s", delay.as_secs()));
                    now += i64::try_from(delay.as_secs()).unwrap();
                }
                Step::Wait => break,
                Step::Delete => words.push("gone".into()),
            }
        }
        assert_eq!(words.join(" "), expect);
    }

    #[test]
    fn lives() {
        check(json!({}), "Always", "Running");
        check(json!({RUNS_FOR: "5"}), "Always", "Running");
        check(json!({RUNS_FOR: "5s"}), "Never", "Running 5s Succeeded");
        check(json!({RUNS_FOR: "5", EXIT_CODE: "3"}), "Never", "Running 5s Failed");
        check(json!({STARTS_AFTER: "2", RUNS_FOR: "0"}), "OnFailure", "Pending 2s Running Succeeded");
    }

    #[test]
    fn containers_become_as_large_as_they_are_to_be() {
        let pod = |wanted: &str, has: &str| -> Pod {
            let (wanted, has) = (json!({"requests": {"cpu": wanted}}), json!({"requests": {"cpu": has}}));
            let status = json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": at(0).to_string()}}, "lastState": {}, "resources": has,
                "allocatedResources": has["requests"]});
            serde_json::from_value(json!({"metadata": {"name": "p", "generation": 2},
                "spec": {"containers": [{"name": "c", "resources": wanted}]}, "status": {"containerStatuses": [status]}}))
            .unwrap()
        };
        let next = |pod: &Pod| step(pod, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, at(1));
        let Step::Write(status) = next(&pod("2", "1")) else { panic!("nothing is told") };
        let container = &status["containerStatuses"][0];
        assert_eq!(
            (&container["resources"]["requests"]["cpu"], &container["allocatedResources"]["cpu"]),
            (&json!("2"), &json!("2"))
        );
        assert_eq!(status["observedGeneration"], 2);
        assert_eq!(next(&pod("2", "2")), Step::Wait);
    }

    #[test]
    fn deleted_pods_end_within_their_grace() {
        let check = |stops: &str, now: i64, expect: Step| {
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "annotations": {STOPS_AFTER: stops},
                "deletionTimestamp": at(30).to_string(), "deletionGracePeriodSeconds": 30}, "spec": {"containers": []}}))
            .unwrap();
            assert_eq!(step(&pod, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, at(now)), expect);
        };
        check("0", 0, Step::Delete);
        check("10", 0, Step::After(Duration::from_secs(10)));
        check("10", 10, Step::Delete);
        check("600", 0, Step::After(Duration::from_secs(30)));
    }
}
