//! Tekton's tasks without Tekton: the steps of a Task as a pod, params and results in their places, as its controller does it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tekton_tasks::manifests;

use crate::Namespace;
use crate::wait::until;

const KVM: &str = "devices.kubevirt.io/kvm";

/// How long the steps may take; an appliance of libguestfs that is emulated takes minutes to start.
const LIMIT: Duration = Duration::from_secs(600);

/// What came of the steps.
#[derive(Debug)]
pub struct Ended {
    /// The code of the step that ended last.
    pub code: i64,
    /// What that printed.
    pub log: String,
    /// Results by name.
    pub results: BTreeMap<String, String>,
}

/// Gives the tasks their rights in `space`. Roles are the cluster's, and other scenarios may be making them.
pub fn grant(space: &Namespace) -> Result<()> {
    let words = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    manifests::rights(space.name()).iter().try_for_each(|manifest| {
        let output = space.feed(&words, manifest.to_string().as_bytes())?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    })
}

/// Runs the steps of `task` in `space`, whose accounts have their rights.
pub fn run(space: &Namespace, task: &str, params: &[(&str, Value)]) -> Result<Ended> {
    let image = |name: &str| format!("ferrovirt.local/{name}:v{}", env!("CARGO_PKG_VERSION"));
    let mut all = manifests::tasks(&image("tekton-tasks"), &image("guestfs"), "v1");
    if !kvm()? {
        manifests::without_kvm(&mut all);
    }
    let spec = &all.iter().find(|one| one["metadata"]["name"] == task).context("there is no such task")?["spec"];
    let values = values(spec, params)?;
    let name = format!("{task}-{:08x}", std::process::id() ^ u32::try_from(values.to_string().len())?);
    let mut steps = filled(&spec["steps"], &values);
    for step in steps.as_array_mut().context("the task has no steps")? {
        let mounts = step["volumeMounts"].as_array_mut().context("a step has no mounts")?;
        mounts.push(json!({ "name": "results", "mountPath": "/tekton/results" }));
        if let Some(resources) = step.as_object_mut().and_then(|step| step.remove("computeResources")) {
            step["resources"] = resources;
        }
    }
    let mut volumes = filled(&spec["volumes"], &values);
    volumes.as_array_mut().context("the task has no volumes")?.push(json!({ "name": "results", "emptyDir": {} }));
    let mut containers = steps.as_array().cloned().unwrap_or_default();
    let last = containers.pop().context("the task has no steps")?;
    let step = last["name"].as_str().context("a step has no name")?.to_owned();
    // Reads the results when the steps have ended.
    let mut reader = json!({ "name": "reader", "image": image("tekton-tasks"), "command": ["sleep", "3600"] });
    reader["securityContext"] = last["securityContext"].clone();
    reader["volumeMounts"] = json!([{ "name": "results", "mountPath": "/tekton/results" }]);
    // Tasks that ask the API server nothing have no account of their own.
    let own = format!("{task}-task");
    let granted = manifests::rights(space.name());
    let has_own = granted.iter().any(|one| one["kind"] == "ServiceAccount" && one["metadata"]["name"] == own.as_str());
    let account = if has_own { own.as_str() } else { "default" };
    space.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never", "serviceAccountName": account, "terminationGracePeriodSeconds": 1,
            "securityContext": { "fsGroup": 1001 },
            "initContainers": containers, "containers": [last, reader], "volumes": volumes,
        },
    }))?;
    let (step, code) = until(&format!("{task} to end"), LIMIT, || ended(&space.get("pod", &name)?, &step))?;
    let log = space.kubectl(&["logs", &name, "-c", &step])?;
    let mut results = BTreeMap::new();
    for result in spec["results"].as_array().into_iter().flatten().filter(|_| code == 0) {
        let result = result["name"].as_str().context("a result has no name")?;
        let text =
            space.kubectl(&["exec", &name, "-c", "reader", "--", "cat", &format!("/tekton/results/{result}")])?;
        results.insert(result.to_owned(), text.trim().to_owned());
    }
    space.kubectl(&["delete", "pod", &name, "--wait=true"])?;
    Ok(Ended { code, log, results })
}

/// Whether a node offers KVM.
fn kvm() -> Result<bool> {
    let nodes: Value = serde_json::from_str(&Namespace::kubectl_in("default", &["get", "nodes", "-o", "json"])?)?;
    let mut all = nodes["items"].as_array().into_iter().flatten();
    Ok(all.any(|node| !matches!(node["status"]["allocatable"][KVM].as_str(), None | Some("0"))))
}

/// The step that ended last and its code: `last`, or one before it that failed.
fn ended(pod: &Value, last: &str) -> Result<Option<(String, i64)>> {
    ensure!(pod["status"]["phase"] != "Failed" || !pod["status"]["containerStatuses"].is_null(), "{}", pod["status"]);
    let of = |list: &str| pod["status"][list].as_array().cloned().unwrap_or_default();
    let code = |one: &Value| {
        let code = one.pointer("/state/terminated/exitCode")?.as_i64()?;
        Some((one["name"].as_str()?.to_owned(), code))
    };
    let failed = of("initContainerStatuses").iter().filter_map(code).find(|(_, code)| *code != 0);
    Ok(failed.or_else(|| of("containerStatuses").iter().filter_map(code).find(|(name, _)| name == last)))
}

/// Every param by name: as it is given, else its default.
fn values(spec: &Value, params: &[(&str, Value)]) -> Result<Value> {
    let mut out = json!({});
    for param in spec["params"].as_array().into_iter().flatten() {
        let name = param["name"].as_str().context("a param has no name")?;
        let given = params.iter().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
        out[name] = given.unwrap_or_else(|| param["default"].clone());
        ensure!(!out[name].is_null(), "param {name} is not given");
    }
    for (name, _) in params {
        ensure!(!out[*name].is_null(), "there is no param {name}");
    }
    Ok(out)
}

/// `value` with params and the paths of results in their places.
fn filled(value: &Value, params: &Value) -> Value {
    match value {
        Value::String(text) => json!(text_of(text, params)),
        Value::Array(items) => {
            let mut out = Vec::new();
            for item in items {
                let name = item.as_str().and_then(|text| text.strip_prefix("$(params.")?.strip_suffix("[*])"));
                match name.map(|name| params[name].as_array().cloned().unwrap_or_default()) {
                    Some(all) => out.extend(all),
                    None => out.push(filled(item, params)),
                }
            }
            Value::Array(out)
        }
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), filled(value, params))).collect())
        }
        other => other.clone(),
    }
}

fn text_of(text: &str, params: &Value) -> String {
    let mut out = text.to_owned();
    for (name, value) in params.as_object().into_iter().flatten() {
        out = out.replace(&format!("$(params.{name})"), value.as_str().unwrap_or_default());
    }
    while let Some((before, rest)) = out.split_once("$(results.") {
        let Some((name, after)) = rest.split_once(".path)") else { return out };
        out = format!("{before}/tekton/results/{name}{after}");
    }
    out
}
