//! Rows of what runs pods.

use serde_json::{Value, json};

use super::duration;
use super::view::{NONE, View, pairs, selector};

pub(super) fn row(plural: &str, view: View<'_>) -> Vec<Value> {
    let (name, age) = (view.name(), view.age());
    let n = |pointer: &str| json!(view.number(pointer));
    let [containers, images] = pods(view, "/spec/template/spec/containers");
    let ready = || {
        json!(format!("{}/{}", view.number("/status/readyReplicas"), view.at("/spec/replicas").as_i64().unwrap_or(1)))
    };
    let chosen = || Value::from(selector(view.at("/spec/selector")));
    match plural {
        "deployments" => {
            let (updated, available) = (n("/status/updatedReplicas"), n("/status/availableReplicas"));
            vec![name, ready(), updated, available, age, containers, images, chosen()]
        }
        "replicasets" => {
            let (desired, current) = (n("/spec/replicas"), n("/status/replicas"));
            vec![name, desired, current, n("/status/readyReplicas"), age, containers, images, chosen()]
        }
        "replicationcontrollers" => {
            let (desired, current) = (n("/spec/replicas"), n("/status/replicas"));
            let chosen = pairs(view.at("/spec/selector")).into();
            vec![name, desired, current, n("/status/readyReplicas"), age, containers, images, chosen]
        }
        "statefulsets" => vec![name, ready(), age, containers, images],
        "daemonsets" => vec![
            name,
            n("/status/desiredNumberScheduled"),
            n("/status/currentNumberScheduled"),
            n("/status/numberReady"),
            n("/status/updatedNumberScheduled"),
            n("/status/numberAvailable"),
            pairs(view.at("/spec/template/spec/nodeSelector")).into(),
            age,
            containers,
            images,
            chosen(),
        ],
        "jobs" => {
            vec![name, job_status(view).into(), completions(view).into(), took(view), age, containers, images, chosen()]
        }
        "cronjobs" => cron(view),
        "controllerrevisions" => {
            let owner = view.list("/metadata/ownerReferences").iter().find(|o| o["controller"] == true);
            let owner = owner.map_or(NONE.to_owned(), |o| {
                let (group, _) = o["apiVersion"].as_str().and_then(|v| v.split_once('/')).unwrap_or_default();
                let kind = o["kind"].as_str().unwrap_or_default().to_lowercase();
                let name = o["name"].as_str().unwrap_or_default();
                if group.is_empty() { format!("{kind}/{name}") } else { format!("{kind}.{group}/{name}") }
            });
            vec![name, owner.into(), n("/revision"), age]
        }
        "podtemplates" => {
            let [containers, images] = pods(view, "/template/spec/containers");
            vec![name, containers, images, pairs(view.at("/template/metadata/labels")).into()]
        }
        "poddisruptionbudgets" => {
            let budget = |pointer: &str| match view.at(pointer) {
                Value::Null => "N/A".into(),
                Value::String(text) => text.as_str().into(),
                number => Value::from(number.to_string()),
            };
            vec![
                name,
                budget("/spec/minAvailable"),
                budget("/spec/maxUnavailable"),
                n("/status/disruptionsAllowed"),
                age,
            ]
        }
        _ => {
            let target =
                format!("{}/{}", view.text("/spec/scaleTargetRef/kind"), view.text("/spec/scaleTargetRef/name"));
            let minimum =
                view.at("/spec/minReplicas").as_i64().map_or("<unset>".into(), |n| Value::from(n.to_string()));
            let (maximum, current) = (n("/spec/maxReplicas"), n("/status/currentReplicas"));
            vec![name, target.into(), targets(view).into(), minimum, maximum, current, age]
        }
    }
}

/// What an autoscaler measures beside what it aims at: `cpu: 40%/80%, 3/10 (avg) + 1 more...`.
fn targets(view: View<'_>) -> String {
    const SHOWN: usize = 2;
    let (specs, measured) = (view.list("/spec/metrics"), view.list("/status/currentMetrics"));
    if specs.is_empty() {
        return NONE.to_owned();
    }
    let shown: Vec<String> =
        specs.iter().take(SHOWN).enumerate().map(|(at, spec)| target(spec, measured.get(at))).collect();
    let more = if specs.len() > SHOWN { format!(" + {} more...", specs.len() - SHOWN) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

fn target(spec: &Value, measured: Option<&Value>) -> String {
    const UNKNOWN: &str = "<unknown>";
    let type_ = spec["type"].as_str().unwrap_or_default();
    let part = match type_ {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let aim = &spec[part]["target"];
    let current = measured.map(|measured| &measured[part]["current"]);
    let text = |node: Option<&Value>, field: &str| {
        let value = node.map(|node| &node[field]).filter(|value| !value.is_null());
        value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    let named = if part.ends_with("esource") {
        format!("{}: ", spec[part]["name"].as_str().unwrap_or_default())
    } else {
        String::new()
    };
    let pair = |field: &str, unit: &str, note: &str| {
        let wanted = text(Some(aim), field)?;
        let is = text(current, field).map_or(UNKNOWN.to_owned(), |is| format!("{is}{unit}"));
        Some(format!("{named}{is}/{wanted}{unit}{note}"))
    };
    let average = if type_ == "External" || type_ == "Object" { " (avg)" } else { "" };
    pair("averageValue", "", average)
        .or_else(|| pair("averageUtilization", "%", ""))
        .or_else(|| pair("value", "", ""))
        .unwrap_or_else(|| format!("{named}{UNKNOWN}/<auto>"))
}

fn pods(view: View<'_>, pointer: &str) -> [Value; 2] {
    ["name", "image"].map(|key| {
        let words: Vec<&str> = view.list(pointer).iter().filter_map(|c| c[key].as_str()).collect();
        words.join(",").into()
    })
}

fn job_status(view: View<'_>) -> &'static str {
    let has = |type_: &str| view.list("/status/conditions").iter().any(|c| c["type"] == type_ && c["status"] == "True");
    match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if !view.at("/metadata/deletionTimestamp").is_null() => "Terminating",
        () if has("Suspended") => "Suspended",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(view: View<'_>) -> String {
    let done = view.number("/status/succeeded");
    match view.at("/spec/completions").as_i64() {
        Some(wanted) => format!("{done}/{wanted}"),
        None => match view.at("/spec/parallelism").as_i64() {
            Some(parallel) if parallel > 1 => format!("{done}/1 of {parallel}"),
            _ => format!("{done}/1"),
        },
    }
}

fn took(view: View<'_>) -> Value {
    let Some(start) = duration::parse(view.at("/status/startTime")) else { return "".into() };
    let end = duration::parse(view.at("/status/completionTime")).unwrap_or(view.now);
    duration::human(end.duration_since(start).as_secs()).into()
}

fn cron(view: View<'_>) -> Vec<Value> {
    let last = match view.at("/status/lastScheduleTime") {
        Value::Null => NONE.into(),
        _ => view.since("/status/lastScheduleTime"),
    };
    let [containers, images] = pods(view, "/spec/jobTemplate/spec/template/spec/containers");
    vec![
        view.name(),
        view.at("/spec/schedule").clone(),
        view.or_none("/spec/timeZone"),
        json!(view.at("/spec/suspend").as_bool().unwrap_or(false)),
        json!(view.list("/status/active").len()),
        last,
        view.age(),
        containers,
        images,
        selector(view.at("/spec/jobTemplate/spec/selector")).into(),
    ]
}
