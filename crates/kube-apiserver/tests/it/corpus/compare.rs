//! In what two answers differ.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::entry::Entry;

/// One difference between our answer and the recorded one.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    pub(super) id: String,
    /// laxer, stricter, code, reason, causes, stored, warnings, type or protobuf.
    pub(super) class: &'static str,
    /// In short, for the list of exceptions.
    pub(super) brief: String,
    pub(super) text: String,
}

/// What the comparison finds.
pub(super) fn differences(entry: &Entry, mine: &Map<String, Value>, body: Option<&Value>) -> Vec<Difference> {
    let mut mine = mine.clone();
    let mut real = entry.real.clone();
    if real.get("same").is_some_and(|same| *same == true) {
        let sent = body.cloned().unwrap_or_default();
        let answered = mine.get("stored").cloned().unwrap_or_default();
        mine.insert("stored".into(), without(answered, &["generation", "namespace"]));
        let managed =
            ["uid", "creationTimestamp", "resourceVersion", "selfLink", "managedFields", "generation", "namespace"];
        real.insert("stored".into(), without(sent, &managed));
    }
    let found = |class, brief: String, text: String| Difference { id: entry.id.clone(), class, brief, text };
    let text =
        |of: &Map<String, Value>, part: &str| of.get(part).and_then(Value::as_str).unwrap_or_default().to_owned();
    let code = |of: &Map<String, Value>| of["code"].as_u64().unwrap_or_default();
    let mut out = Vec::new();
    if entry.checks("code") && code(&mine) != code(&real) {
        let class = match ((200..300).contains(&code(&mine)), (200..300).contains(&code(&real))) {
            (true, false) => "laxer",
            (false, true) => "stricter",
            _ => "code",
        };
        let brief = format!("{} instead of {}", code(&mine), code(&real));
        let words = format!(
            "{brief}\n    here: {}\n    real: {} {}",
            text(&mine, "message"),
            text(&real, "reason"),
            text(&real, "message")
        );
        return vec![found(class, brief, words)];
    }
    if entry.checks("reason") && mine.get("reason") != real.get("reason") {
        let brief = format!("{:?} instead of {:?}", text(&mine, "reason"), text(&real, "reason"));
        out.push(found("reason", brief.clone(), brief));
    }
    if entry.checks("causes") {
        let (here, there) = (causes(&mine), causes(&real));
        if here != there {
            let only =
                |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>().join(", ");
            let brief = format!("only here: {}; only there: {}", only(&here, &there), only(&there, &here));
            let words = format!("{brief}\n    here: {}\n    real: {}", text(&mine, "message"), text(&real, "message"));
            out.push(found("causes", brief, words));
        }
    }
    if entry.checks("stored") && code(&real) < 300 {
        for of in [&mut mine, &mut real] {
            of.get_mut("stored").into_iter().for_each(owners_in_order);
        }
        let mut parts = Vec::new();
        differ(mine.get("stored").unwrap_or(&Value::Null), real.get("stored").unwrap_or(&Value::Null), "", &mut parts);
        if !parts.is_empty() {
            out.push(found("stored", parts[0].clone(), parts.join("; ")));
        }
    }
    for part in ["warnings", "type"] {
        if entry.checks(part) && mine.get(part) != real.get(part) {
            let show = |of: &Map<String, Value>| of.get(part).unwrap_or(&Value::Null).to_string();
            let words = format!("{} instead of {}", show(&mine), show(&real));
            out.push(found(if part == "type" { "type" } else { "warnings" }, words.clone(), words));
        }
    }
    out
}

fn without(mut value: Value, keys: &[&str]) -> Value {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| !keys.contains(&key.as_str()));
    }
    value
}

/// Owners stand in the order of their times, which have seconds: of what was written in one second here, some was written in
/// another one there.
fn owners_in_order(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::Array(owners) if key == "managedFields" => owners.sort_by_key(ToString::to_string),
                    value => owners_in_order(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(owners_in_order),
        _ => {}
    }
}

fn causes(of: &Map<String, Value>) -> BTreeSet<String> {
    let causes = of.get("causes").and_then(Value::as_array).into_iter().flatten();
    causes
        .map(|c| format!("{} {}", c["field"].as_str().unwrap_or_default(), c["reason"].as_str().unwrap_or_default()))
        .collect()
}

pub(super) fn differ(here: &Value, there: &Value, at: &str, out: &mut Vec<String>) {
    match (here, there) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                match (a.get(key), b.get(key)) {
                    (Some(x), Some(y)) => differ(x, y, &path, out),
                    (None, Some(y)) => out.push(format!("{path} is missing, real {}", short(y))),
                    (Some(x), None) => out.push(format!("{path} is {}, real has none", short(x))),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            if a.len() != b.len() {
                out.push(format!("{at} has {} items, real {}", a.len(), b.len()));
            }
            for (i, (x, y)) in a.iter().zip(b).enumerate() {
                differ(x, y, &format!("{at}[{i}]"), out);
            }
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => {}
        (a, b) if a == b => {}
        (a, b) => out.push(format!("{at} is {}, real {}", short(a), short(b))),
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(160).collect()
}
