//! The pod row: what `kubectl get pods` says about a pod in one word.

use serde_json::{Value, json};

use super::duration;
use super::view::{NONE, View};

pub(super) fn row(view: View<'_>) -> Vec<Value> {
    let sidecars = restartable(view);
    let mut total = view.list("/spec/containers").len();
    let (mut ready, mut restarts, mut last_restart) = (0, 0, None);
    let mut tally = |status: &Value| {
        restarts += status["restartCount"].as_i64().unwrap_or(0);
        let finished = duration::parse(&status["lastState"]["terminated"]["finishedAt"]);
        last_restart = last_restart.max(finished);
    };
    let initializing = init_reason(view, &sidecars);
    let mut reason = phase(view);
    total += sidecars.len();
    for status in view.list("/status/initContainerStatuses") {
        if sidecars.iter().any(|name| status["name"] == *name) {
            tally(status);
            ready += usize::from(status["ready"] == true && status["state"].get("running").is_some());
        } else if initializing.is_some() {
            tally(status);
        }
    }
    if let Some(waiting) = &initializing {
        reason.clone_from(waiting);
    }
    let mut running = false;
    for status in view.list("/status/containerStatuses").iter().rev() {
        if initializing.is_none() {
            tally(status);
        }
        let state = &status["state"];
        running |= status["ready"] == true && state.get("running").is_some();
        ready += usize::from(status["ready"] == true && state.get("running").is_some());
        if initializing.is_some() {
            continue;
        }
        if let Some(word) = state["waiting"]["reason"].as_str().filter(|word| !word.is_empty()) {
            word.clone_into(&mut reason);
        } else if let Some(end) = state.get("terminated") {
            reason = ending(end);
        }
    }
    if reason == "Completed" && running {
        reason = if condition(view, "Ready") { "Running" } else { "NotReady" }.to_owned();
    }
    if !view.at("/metadata/deletionTimestamp").is_null() {
        let lost = view.text("/status/reason") == "NodeLost";
        let over = matches!(view.text("/status/phase"), "Succeeded" | "Failed");
        if lost {
            reason = "Unknown".to_owned();
        } else if !over {
            reason = "Terminating".to_owned();
        }
    }
    let restarts = match last_restart {
        Some(at) if restarts > 0 => {
            format!("{restarts} ({} ago)", duration::human(view.now.duration_since(at).as_secs()))
        }
        _ => restarts.to_string(),
    };
    vec![
        view.name(),
        format!("{ready}/{total}").into(),
        reason.into(),
        restarts.into(),
        view.age(),
        view.or_none("/status/podIP"),
        view.or_none("/spec/nodeName"),
        view.or_none("/status/nominatedNodeName"),
        gates(view),
    ]
}

fn phase(view: View<'_>) -> String {
    let gated = |c: &&Value| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated";
    let word = match view.text("/status/reason") {
        "" if view.list("/status/conditions").iter().any(|c| gated(&c)) => "SchedulingGated",
        "" => view.text("/status/phase"),
        reason => reason,
    };
    word.to_owned()
}

/// Names of the init containers that keep running.
fn restartable(view: View<'_>) -> Vec<&str> {
    let always = view.list("/spec/initContainers").iter().filter(|c| c["restartPolicy"] == "Always");
    always.filter_map(|c| c["name"].as_str()).collect()
}

/// What the first unfinished init container is doing; None when all are through.
fn init_reason(view: View<'_>, sidecars: &[&str]) -> Option<String> {
    let statuses = view.list("/status/initContainerStatuses");
    for (index, status) in statuses.iter().enumerate() {
        let state = &status["state"];
        let sidecar = sidecars.iter().any(|name| status["name"] == *name);
        if state["terminated"]["exitCode"] == 0 || sidecar && status["started"] == true {
            continue;
        }
        if let Some(end) = state.get("terminated") {
            return Some(format!("Init:{}", ending(end)));
        }
        return Some(match state["waiting"]["reason"].as_str() {
            Some(word) if !word.is_empty() && word != "PodInitializing" => format!("Init:{word}"),
            _ => format!("Init:{index}/{}", view.list("/spec/initContainers").len()),
        });
    }
    None
}

fn ending(end: &Value) -> String {
    match (end["reason"].as_str().unwrap_or_default(), end["signal"].as_i64().unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", end["exitCode"].as_i64().unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn condition(view: View<'_>, type_: &str) -> bool {
    view.list("/status/conditions").iter().any(|c| c["type"] == type_ && c["status"] == "True")
}

fn gates(view: View<'_>) -> Value {
    let gates = view.list("/spec/readinessGates");
    if gates.is_empty() {
        return NONE.into();
    }
    let open = gates.iter().filter(|gate| gate["conditionType"].as_str().is_some_and(|type_| condition(view, type_)));
    json!(format!("{}/{}", open.count(), gates.len()))
}
