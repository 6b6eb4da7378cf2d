//! Pods: quality of service, validation of specs, what an update may change.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{invalid, one_of, required};
use crate::error::Cause;
use crate::registry::defaults::child;
use crate::registry::quantity::nanos;
use crate::schema::validate::cause;

pub(super) fn prepare_create(pod: &mut Value) {
    let class = quality(&pod["spec"]);
    pod["status"] = json!({"phase": "Pending", "qosClass": class});
    super::scheduling::complete_affinity(pod);
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        let message = "Scheduling is blocked due to non-empty scheduling gates";
        pod["status"]["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}]);
    }
}

/// A pod keeps its quality of service and the node it has.
pub(super) fn prepare_update(old: &Value, new: &mut Value) {
    if let Some(class) = old["status"].get("qosClass") {
        child(new, "status")["qosClass"] = class.clone();
    }
}

/// The class of a pod: Guaranteed when every container's limits equal its requests for cpu and memory, BestEffort when
/// there are none of either, Burstable otherwise.
fn quality(spec: &Value) -> &'static str {
    let containers = || {
        let lists = [&spec["initContainers"], &spec["containers"]];
        lists.into_iter().filter_map(Value::as_array).flatten()
    };
    let amount =
        |container: &Value, part: &str, name: &str| container["resources"][part][name].as_str().and_then(nanos);
    let mut any = false;
    let mut all = true;
    for container in containers() {
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount(container, "requests", name), amount(container, "limits", name));
            any |= request.is_some_and(|n| n > 0) || limit.is_some_and(|n| n > 0);
            all &= limit.is_some_and(|n| n > 0) && request.or(limit) == limit;
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Checks a pod spec, alone or in a template.
pub(super) fn validate(spec: &Value, at: &str, causes: &mut Vec<Cause>) {
    let volumes = volumes(spec, at, causes);
    super::scheduling::pod(spec, at, causes);
    let mut names = HashSet::new();
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        required(&format!("{at}.containers"), causes);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            self::container(container, &format!("{at}.{list}[{index}]"), &volumes, &mut names, causes);
        }
    }
    one_of(&format!("{at}.restartPolicy"), &spec["restartPolicy"], &["Always", "OnFailure", "Never"], causes);
    let dns = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(&format!("{at}.dnsPolicy"), &spec["dnsPolicy"], &dns, causes);
    if let Some(seconds) = spec["terminationGracePeriodSeconds"].as_i64().filter(|seconds| *seconds < 0) {
        invalid(
            &format!("{at}.terminationGracePeriodSeconds"),
            &seconds.into(),
            "must be greater than or equal to 0",
            causes,
        );
    }
}

fn volumes(spec: &Value, at: &str, causes: &mut Vec<Cause>) -> HashSet<String> {
    let mut names = HashSet::new();
    for (index, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        let field = format!("{at}.volumes[{index}]");
        let name = volume["name"].as_str().unwrap_or_default();
        check_label(&format!("{field}.name"), name, causes);
        if !name.is_empty() && !names.insert(name.to_owned()) {
            causes.push(cause("FieldValueDuplicate", &format!("{field}.name"), format!("Duplicate value: {name:?}")));
        }
        let sources = volume.as_object().map_or(0, |map| map.len().saturating_sub(1));
        if sources > 1 {
            let message = "Forbidden: may not specify more than 1 volume type".to_owned();
            causes.push(cause("FieldValueForbidden", &field, message));
        }
    }
    names
}

fn is_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn check_label(field: &str, name: &str, causes: &mut Vec<Cause>) {
    if name.is_empty() {
        required(field, causes);
    } else if !is_label(name) {
        let why = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        invalid(field, &json!(name), why, causes);
    }
}

fn container(
    container: &Value,
    at: &str,
    volumes: &HashSet<String>,
    names: &mut HashSet<String>,
    causes: &mut Vec<Cause>,
) {
    let name = container["name"].as_str().unwrap_or_default();
    check_label(&format!("{at}.name"), name, causes);
    if !name.is_empty() && !names.insert(name.to_owned()) {
        causes.push(cause("FieldValueDuplicate", &format!("{at}.name"), format!("Duplicate value: {name:?}")));
    }
    if container["image"].as_str().unwrap_or_default().is_empty() {
        required(&format!("{at}.image"), causes);
    }
    one_of(
        &format!("{at}.imagePullPolicy"),
        &container["imagePullPolicy"],
        &["Always", "IfNotPresent", "Never"],
        causes,
    );
    let policies = ["File", "FallbackToLogsOnError"];
    one_of(&format!("{at}.terminationMessagePolicy"), &container["terminationMessagePolicy"], &policies, causes);
    for (index, mount) in container["volumeMounts"].as_array().into_iter().flatten().enumerate() {
        mounted(mount, "mountPath", &format!("{at}.volumeMounts[{index}]"), volumes, causes);
    }
    for (index, device) in container["volumeDevices"].as_array().into_iter().flatten().enumerate() {
        mounted(device, "devicePath", &format!("{at}.volumeDevices[{index}]"), volumes, causes);
    }
    for (index, port) in container["ports"].as_array().into_iter().flatten().enumerate() {
        let field = format!("{at}.ports[{index}]");
        for (key, least) in [("containerPort", 1), ("hostPort", 0)] {
            if let Some(number) = port[key].as_i64().filter(|n| !(least..=65535).contains(n)) {
                let why = "must be between 1 and 65535, inclusive";
                invalid(&format!("{field}.{key}"), &number.into(), why, causes);
            }
        }
        one_of(&format!("{field}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"], causes);
    }
    for (index, env) in container["env"].as_array().into_iter().flatten().enumerate() {
        if env["name"].as_str().unwrap_or_default().is_empty() {
            required(&format!("{at}.env[{index}].name"), causes);
        }
    }
    resources(&container["resources"], &format!("{at}.resources"), causes);
}

fn mounted(mount: &Value, path: &str, at: &str, volumes: &HashSet<String>, causes: &mut Vec<Cause>) {
    let name = mount["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        required(&format!("{at}.name"), causes);
    } else if !volumes.contains(name) {
        causes.push(cause("FieldValueNotFound", &format!("{at}.name"), format!("Not found: {name:?}")));
    }
    if mount[path].as_str().unwrap_or_default().is_empty() {
        required(&format!("{at}.{path}"), causes);
    }
}

const QUANTITY: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The text of a quantity; a number is written as one.
fn amount(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => nanos(text),
        Value::Number(number) => nanos(&number.to_string()),
        _ => None,
    }
}

fn resources(resources: &Value, at: &str, causes: &mut Vec<Cause>) {
    for part in ["limits", "requests"] {
        for (name, value) in resources[part].as_object().into_iter().flatten() {
            match amount(value) {
                None => invalid(&format!("{at}.{part}[{name}]"), value, QUANTITY, causes),
                Some(n) if n < 0 => {
                    invalid(&format!("{at}.{part}[{name}]"), value, "must be greater than or equal to 0", causes);
                }
                Some(_) => {}
            }
        }
    }
    for (name, request) in resources["requests"].as_object().into_iter().flatten() {
        let Some(limit) = resources["limits"].get(name) else { continue };
        if let (Some(wanted), Some(allowed)) = (amount(request), amount(limit)) {
            let extended = name.contains('/') && !name.starts_with("kubernetes.io/") || name.starts_with("hugepages-");
            let shown = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
            if wanted > allowed {
                let why = format!("must be less than or equal to {name} limit of {shown}");
                invalid(&format!("{at}.requests"), request, &why, causes);
            } else if extended && wanted != allowed {
                let why = format!("must be equal to {name} limit of {shown}");
                invalid(&format!("{at}.requests"), request, &why, causes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let of = |resources: Value| quality(&json!({"containers": [{"resources": resources}]}));
        assert_eq!(of(json!({})), "BestEffort");
        assert_eq!(of(json!({"requests": {"cpu": "1"}})), "Burstable");
        let both = json!({"cpu": "1000m", "memory": "1Gi"});
        assert_eq!(of(json!({"limits": both, "requests": {"cpu": "1", "memory": "1024Mi"}})), "Guaranteed");
        assert_eq!(of(json!({"limits": {"cpu": "1"}})), "Burstable");
    }
}
