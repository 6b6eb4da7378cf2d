//! What is said on a claim of the pod that fills it. Pure.

use api::cdi::constants::annotation;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use meta::text::{STATUS, brief};
use serde_json::Value;

use crate::controller::context::annotation_of;
use crate::controller::labels::of_image;
use crate::controller::write::Changes;

/// Reason of an import whose data are not what was asked for.
pub const CHECKSUM_ERROR: &str = "ChecksumError";

/// What follows from a pod's state.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    /// Annotations of the claim.
    pub annotations: Changes,
    /// Labels of the claim.
    pub labels: Changes,
    /// The pod is of no further use: it is deleted, so that it can be made anew or is gone.
    pub discard: bool,
    /// It has done its work since it was last looked at.
    pub done: bool,
    /// It has failed since then, and why.
    pub failed: Option<String>,
}

/// What the API says of an image that no kubelet and no importer gets.
const PULL_FAILED: &str = "failed to pull image";
/// The reason of such an import.
const IMAGE_PULL_FAILED: &str = "ImagePullFailed";

/// What a worker says when it ends.
struct Report(Value);

impl Report {
    fn of(message: Option<&str>) -> Self {
        Self(message.and_then(|text| serde_json::from_str(text).ok()).filter(Value::is_object).unwrap_or(Value::Null))
    }

    fn text<'a>(&'a self, raw: Option<&'a str>) -> &'a str {
        self.0["message"].as_str().or(if self.0.is_null() { raw } else { None }).unwrap_or_default().trim()
    }
}

/// What is said on `claim` of its `pod`, whose first container does the work.
pub fn seen(claim: &PersistentVolumeClaim, pod: &Pod) -> Seen {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let main = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map_or("", |container| &container.name);
    let mut all = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let worker = all.find(|status| status.name == main);

    let mut seen = Seen::default();
    let mut say = |key: &str, value: &str| {
        // Servers and images are quoted in it.
        seen.annotations.insert(key.to_owned(), Some(brief(value, STATUS).into_owned()));
    };
    let restarts = worker.map_or(0, |worker| worker.restart_count);
    let before: i32 = annotation_of(claim, annotation::POD_RESTARTS).and_then(|text| text.parse().ok()).unwrap_or(0);
    say(annotation::POD_RESTARTS, &restarts.max(before).to_string());
    say(annotation::POD_READY, if worker.is_some_and(|worker| worker.ready) { "true" } else { "false" });
    let Running { status: truth, reason, message } = running(pod, worker);
    say(annotation::RUNNING, truth);
    say(annotation::RUNNING_REASON, &reason);
    say(annotation::RUNNING_MESSAGE, &message);
    match condition(pod, "PodScheduled") {
        Some(("False", "Unschedulable", _)) => say(annotation::POD_SCHEDULABLE, "false"),
        Some(_) if annotation_of(claim, annotation::POD_SCHEDULABLE).is_some() => {
            say(annotation::POD_SCHEDULABLE, "true");
        }
        _ => {}
    }
    if annotation_of(claim, annotation::CHECKPOINT_CURRENT).is_some_and(|name| !name.is_empty()) {
        say(annotation::CHECKPOINT_POD_ID, &pod.uid().unwrap_or_default());
    }

    let ended = worker.and_then(|worker| {
        let now = worker.state.as_ref().and_then(|state| state.terminated.as_ref());
        now.or_else(|| worker.last_state.as_ref()?.terminated.as_ref())
    });
    let raw = ended.and_then(|ended| ended.message.as_deref());
    let report = Report::of(raw);
    let again = restarts > before && ended.is_some_and(|ended| ended.exit_code != 0);
    seen.failed = again.then(|| plain(report.text(raw)));
    let wrong = ["checksum mismatch", "invalid checksum"].iter().any(|words| report.text(raw).contains(words));
    let fatal = phase == "Succeeded" && wrong;
    say(annotation::POD_PHASE, if fatal { "Failed" } else { phase });
    if fatal {
        say(annotation::FATAL_ERROR, "true");
        say(annotation::RUNNING_REASON, CHECKSUM_ERROR);
        say(annotation::RUNNING_MESSAGE, report.text(raw));
    }
    if let Value::Bool(applied) = report.0["preallocationApplied"] {
        say(annotation::PREALLOCATION_APPLIED, if applied { "true" } else { "false" });
    }
    for (key, field) in [(annotation::VDDK_VERSION, "version"), (annotation::VDDK_HOST, "host")] {
        if let Some(value) = report.0["vddkInfo"][field].as_str() {
            say(key, value);
        }
    }
    // Nobody came: another server takes its place.
    let late = phase == "Succeeded" && report.0["deadlinePassed"] == true;
    if late {
        say(annotation::POD_PHASE, "Pending");
    }
    // A worker that is killed for its memory is spared the page cache the next time.
    let killed = ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled"));
    if killed && annotation_of(claim, annotation::REQUIRES_DIRECT_IO) != Some("true") {
        say(annotation::REQUIRES_DIRECT_IO, "true");
        say(annotation::POD_PHASE, "Pending");
        seen.discard = true;
    } else if late {
        seen.discard = true;
    } else if phase == "Succeeded" {
        seen.discard = annotation_of(claim, annotation::POD_RETAIN) != Some("true");
    }
    if phase == "Succeeded" && !fatal && !late {
        seen.done = annotation_of(claim, annotation::POD_PHASE) != Some("Succeeded");
        for (key, value) in report.0["labels"].as_object().into_iter().flatten() {
            // What the user said of the machine stands, and what these controllers say is theirs alone.
            if of_image(key) && !claim.labels().contains_key(key) {
                seen.labels.insert(key.clone(), value.as_str().map(ToOwned::to_owned));
            }
        }
    }
    seen
}

struct Running {
    status: &'static str,
    reason: String,
    message: String,
}

/// What went wrong, and before it, where it is one of the usual causes, the words by which clients know it.
fn plain(text: &str) -> String {
    let full = [
        "is larger than the reported available",
        "no space left on device",
        "No space left on device",
        "the volume is full",
    ];
    let small = "DataVolume too small to contain image";
    if full.iter().any(|words| text.contains(words)) { format!("{small}: {text}") } else { text.to_owned() }
}

/// The reason of a worker that ended with `text`.
fn reason_of<'a>(text: &str, other: &'a str) -> &'a str {
    if text.contains(PULL_FAILED) { IMAGE_PULL_FAILED } else { other }
}

/// The image that the kubelet cannot pull.
fn unpulled(pod: &Pod) -> Option<&str> {
    let all = pod.status.as_ref()?.container_statuses.as_ref()?;
    let waits = |status: &&ContainerStatus| {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        matches!(reason, Some("ImagePullBackOff" | "ErrImagePull" | "InvalidImageName"))
    };
    all.iter().find(waits).map(|status| status.image.as_str())
}

fn running(pod: &Pod, worker: Option<&ContainerStatus>) -> Running {
    let no = |reason: &str, message: &str| Running {
        status: "false",
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let Some(state) = worker.and_then(|worker| worker.state.as_ref()) else {
        // Where there is no node for it, what the scheduler says.
        let (_, reason, message) = condition(pod, "PodScheduled").unwrap_or_default();
        return no(reason, message);
    };
    // An image that is pulled by the kubelet is that of another container, without which this one works in vain.
    if let Some(image) = unpulled(pod) {
        return no(IMAGE_PULL_FAILED, &format!("{PULL_FAILED}: {image}"));
    }
    match state {
        ContainerState { running: Some(_), .. } => {
            Running { status: "true", reason: "Pod is running".to_owned(), message: String::new() }
        }
        ContainerState { terminated: Some(ended), .. } => {
            let report = Report::of(ended.message.as_deref());
            let text = report.text(ended.message.as_deref());
            no(reason_of(text, ended.reason.as_deref().unwrap_or("Completed")), &plain(text))
        }
        ContainerState { waiting: Some(waiting), .. } => {
            let last = worker.and_then(|worker| worker.last_state.as_ref()?.terminated.as_ref());
            let raw = last.and_then(|last| last.message.as_deref());
            let report = Report::of(raw);
            // Why it failed says more than that it will be tried again.
            match report.text(raw) {
                "" => no(waiting.reason.as_deref().unwrap_or_default(), waiting.message.as_deref().unwrap_or_default()),
                why => no(reason_of(why, "Error"), &plain(why)),
            }
        }
        ContainerState { .. } => no("", ""),
    }
}

/// Status, reason and message of a pod's condition.
fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let all = pod.status.as_ref()?.conditions.as_ref()?;
    let found = all.iter().find(|one| one.type_ == kind)?;
    let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
    Some((found.status.as_str(), text(&found.reason), text(&found.message)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn of(claim: Value, phase: &str, status: Value) -> Seen {
        let claim = serde_json::from_value(json!({ "metadata": { "annotations": claim } })).unwrap();
        let mut status = status;
        for (key, value) in [
            ("name", json!("importer")),
            ("image", json!("")),
            ("imageID", json!("")),
            ("ready", json!(false)),
            ("restartCount", json!(2)),
        ] {
            status[key] = value;
        }
        let pod = json!({ "metadata": { "uid": "p" }, "spec": { "containers": [{ "name": "importer" }] },
            "status": { "phase": phase, "containerStatuses": [status] } });
        seen(&claim, &serde_json::from_value(pod).unwrap())
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(phase: &str, state: Value, last: Value, expect: (&str, &str, &str), discard: bool) {
        let found = of(json!({}), phase, json!({ "state": state, "lastState": last }));
        let get = |key: &str| found.annotations.get(key).cloned().flatten().unwrap_or_default();
        let said = (get(annotation::POD_PHASE), get(annotation::RUNNING_REASON), get(annotation::RUNNING_MESSAGE));
        assert_eq!((said.0.as_str(), said.1.as_str(), said.2.as_str()), expect);
        assert_eq!(found.discard, discard);
    }

    #[test]
    fn a_pod_is_told_on_its_claim() {
        let message = |text: &str| json!({ "message": text }).to_string();
        check("Running", json!({ "running": {} }), json!({}), ("Running", "Pod is running", ""), false);
        let waiting = json!({ "waiting": { "reason": "ContainerCreating" } });
        check("Pending", waiting, json!({}), ("Pending", "ContainerCreating", ""), false);
        let done =
            json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": message("Import Complete") } });
        check("Succeeded", done, json!({}), ("Succeeded", "Completed", "Import Complete"), true);
        let failed = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message("Unable to process data: no") } });
        let again = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off" } });
        check("Running", again, failed, ("Running", "Error", "Unable to process data: no"), false);
        let wrong = json!({ "terminated": { "exitCode": 0, "message": message("checksum mismatch: a is not b") } });
        check("Succeeded", wrong, json!({}), ("Failed", "ChecksumError", "checksum mismatch: a is not b"), true);
        let none =
            json!({ "terminated": { "exitCode": 0, "message": message("invalid checksum: x names no algorithm") } });
        check(
            "Succeeded",
            none,
            json!({}),
            ("Failed", "ChecksumError", "invalid checksum: x names no algorithm"),
            true,
        );
        let small = "Unable to process data: Virtual image size is larger than the reported available storage.";
        let full = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message(small) } });
        let told = format!("DataVolume too small to contain image: {small}");
        check("Running", json!({ "waiting": {} }), full, ("Running", "Error", &told), false);
        let nowhere = "Unable to connect to registry data source: failed to pull image: no such host";
        let lost = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message(nowhere) } });
        check("Running", json!({ "waiting": {} }), lost, ("Running", "ImagePullFailed", nowhere), false);
        let raw = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": "panicked" } });
        check("Failed", raw, json!({}), ("Failed", "Error", "panicked"), false);
        // A registry answers with what clears the screen of whoever asks why.
        let evil = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message("denied: \x1b[2J\u{202e}") } });
        check("Failed", evil, json!({}), ("Failed", "Error", "denied: \\u001b[2J\\u202e"), false);
    }

    #[test]
    fn a_pod_without_a_node_says_what_the_scheduler_says() {
        let why = "0/1 nodes are available: 1 Insufficient memory.";
        let scheduled = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why });
        let pod = json!({ "spec": { "containers": [{ "name": "importer" }] }, "status": { "phase": "Pending", "conditions": [scheduled] } });
        let found = seen(&PersistentVolumeClaim::default(), &serde_json::from_value(pod).unwrap()).annotations;
        for (key, value) in [
            (annotation::POD_SCHEDULABLE, "false"),
            (annotation::RUNNING_REASON, "Unschedulable"),
            (annotation::RUNNING_MESSAGE, why),
        ] {
            assert_eq!(found[key].as_deref(), Some(value));
        }
    }

    #[test]
    fn an_image_that_the_kubelet_cannot_pull_is_named() {
        let container = |name: &str, image: &str, state: Value| json!({ "name": name, "image": image, "imageID": "", "ready": false, "restartCount": 0, "state": state });
        let pod = json!({ "spec": { "containers": [{ "name": "importer" }] }, "status": { "phase": "Pending", "containerStatuses": [
            container("importer", "cdi:1", json!({ "running": {} })),
            container("server", "r/i:gone", json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } })),
        ] } });
        let found = seen(&PersistentVolumeClaim::default(), &serde_json::from_value(pod).unwrap()).annotations;
        let said = [annotation::RUNNING, annotation::RUNNING_REASON, annotation::RUNNING_MESSAGE]
            .map(|key| found[key].as_deref());
        assert_eq!(said, [Some("false"), Some("ImagePullFailed"), Some("failed to pull image: r/i:gone")]);
    }

    #[test]
    fn failures_and_results_are_reported_once() {
        let message = json!({ "message": "no route" }).to_string();
        let failed =
            json!({ "state": { "waiting": {} }, "lastState": { "terminated": { "exitCode": 1, "message": message } } });
        assert_eq!(of(json!({}), "Running", failed.clone()).failed.as_deref(), Some("no route"));
        assert_eq!(of(json!({ annotation::POD_RESTARTS: "2" }), "Running", failed).failed, None);
        let done = json!({ "state": { "terminated": { "exitCode": 0, "message": "Import Complete" } } });
        assert!(of(json!({}), "Succeeded", done.clone()).done);
        assert!(!of(json!({ annotation::POD_PHASE: "Succeeded" }), "Succeeded", done).done);
    }

    #[test]
    fn a_server_that_nobody_came_to_has_stored_nothing() {
        let late = json!({ "message": "Deadline Passed", "deadlinePassed": true }).to_string();
        let late = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": late } });
        check("Succeeded", late, json!({}), ("Pending", "Completed", "Deadline Passed"), true);
    }

    #[test]
    fn instance_type_labels_of_an_image_become_labels() {
        let labels = json!({
            "instancetype.kubevirt.io/default-instancetype": "u1.small", "test.kubevirt.io/of": "mine",
            "cdi.kubevirt.io/dataImportCron": "x", "evil": "x",
        });
        let done = json!({ "message": "Import Complete", "labels": labels }).to_string();
        let found =
            of(json!({}), "Succeeded", json!({ "state": { "terminated": { "exitCode": 0, "message": done } } }));
        let kept = ["instancetype.kubevirt.io/default-instancetype", "test.kubevirt.io/of"];
        assert_eq!(found.labels.keys().collect::<Vec<_>>(), kept);
    }

    #[test]
    fn a_worker_that_took_too_much_memory_goes_without_the_page_cache() {
        let killed = json!({ "state": { "waiting": {} }, "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } });
        let found = of(json!({}), "Running", killed.clone());
        assert_eq!(found.annotations[annotation::REQUIRES_DIRECT_IO].as_deref(), Some("true"));
        assert!(found.discard);
        assert!(!of(json!({ annotation::REQUIRES_DIRECT_IO: "true" }), "Running", killed).discard);
    }

    #[test]
    fn restarts_are_never_forgotten() {
        let found = of(json!({ annotation::POD_RESTARTS: "5" }), "Running", json!({ "state": { "running": {} } }));
        assert_eq!(found.annotations[annotation::POD_RESTARTS].as_deref(), Some("5"));
    }
}
