//! How Tekton orders the Tasks of a Pipeline: `runAfter` and results say what comes first, `when` guards one Task alone, a Task that fails
//! ends the Pipeline, and `finally` comes in any case. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

/// Results of a Task that went well.
pub(super) type Ended = Option<BTreeMap<String, String>>;

/// What came of a Pipeline.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Tasks that went well, with the params that each was given.
    pub(super) done: Vec<(String, BTreeMap<String, String>)>,
    pub(super) failed: Option<String>,
}

impl Run {
    pub(super) fn names(&self) -> Vec<&str> {
        self.done.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// Runs a Pipeline in `namespace`, one Task at a time.
pub(super) fn run(
    spec: &Value,
    namespace: &str,
    given: &[(&str, &str)],
    play: impl Fn(&Value, &BTreeMap<String, String>) -> Ended,
) -> Run {
    let mut values = BTreeMap::from([("context.pipelineRun.namespace".to_owned(), namespace.to_owned())]);
    for param in spec["params"].as_array().unwrap() {
        let name = param["name"].as_str().unwrap();
        let value = given.iter().find(|(key, _)| *key == name).map(|(_, value)| *value).or(param["default"].as_str());
        values.insert(format!("params.{name}"), value.unwrap_or_else(|| panic!("{name} is not given")).to_owned());
    }
    let tasks = spec["tasks"].as_array().unwrap();
    for task in tasks {
        values.insert(format!("tasks.{}.status", name_of(task)), "None".to_owned());
    }
    let (mut out, mut left) = (Run::default(), tasks.iter().collect::<Vec<_>>());
    while out.failed.is_none() && !left.is_empty() {
        let ready =
            left.iter().position(|task| before(task).iter().all(|name| !left.iter().any(|one| name_of(one) == name)));
        let task = left.remove(ready.expect("Tasks wait for each other"));
        step(task, &mut values, &mut out, &play);
    }
    for task in spec["finally"].as_array().unwrap() {
        step(task, &mut values, &mut out, &play);
    }
    out
}

fn step(
    task: &Value,
    values: &mut BTreeMap<String, String>,
    out: &mut Run,
    play: &impl Fn(&Value, &BTreeMap<String, String>) -> Ended,
) {
    // Who takes a result that is not there is skipped.
    let Some(params) = filled(task, values).filter(|_| holds(task, values)) else { return };
    let name = name_of(task).to_owned();
    let ended = play(task, &params);
    let status = if ended.is_some() { "Succeeded" } else { "Failed" };
    values.insert(format!("tasks.{name}.status"), status.to_owned());
    match ended {
        Some(results) => {
            values.extend(results.into_iter().map(|(result, value)| (format!("tasks.{name}.results.{result}"), value)));
            out.done.push((name, params));
        }
        None => {
            out.failed.get_or_insert(name);
        }
    }
}

fn name_of(task: &Value) -> &str {
    task["name"].as_str().unwrap()
}

/// Tasks that come first.
fn before(task: &Value) -> Vec<String> {
    let text = format!("{}{}", task["params"], task["when"]);
    let taken = text.split("$(tasks.").skip(1).map(|rest| rest.split('.').next().unwrap().to_owned());
    let after = task["runAfter"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap().to_owned());
    taken.chain(after).collect()
}

fn filled(task: &Value, values: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let params = task["params"].as_array().into_iter().flatten();
    params.map(|param| Some((param["name"].as_str()?.to_owned(), text(param["value"].as_str()?, values)?))).collect()
}

fn holds(task: &Value, values: &BTreeMap<String, String>) -> bool {
    task["when"].as_array().into_iter().flatten().all(|guard| {
        let Some(input) = text(guard["input"].as_str().unwrap(), values) else { return false };
        let all = guard["values"].as_array().unwrap().iter();
        let found = all.filter_map(|value| text(value.as_str().unwrap(), values)).any(|value| value == input);
        match guard["operator"].as_str().unwrap() {
            "in" => found,
            "notin" => !found,
            other => panic!("{other}"),
        }
    })
}

/// The text with values in their places, if there are all.
fn text(text: &str, values: &BTreeMap<String, String>) -> Option<String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("$(") {
        let (name, after) = after.split_once(')').unwrap();
        out.push_str(before);
        out.push_str(values.get(name)?);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}
