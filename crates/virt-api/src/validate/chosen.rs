//! Instance types and preferences themselves.

use kit::admission::{Cause, Request, Verdict};
use serde_json::Value;

use super::{deleting, invalid};

/// Deprecated names of topologies, each with the one that is meant.
const DEPRECATED: [(&str, &str); 5] = [
    ("preferSockets", "sockets"),
    ("preferCores", "cores"),
    ("preferThreads", "threads"),
    ("preferSpread", "spread"),
    ("preferAny", "any"),
];

/// `/virtualmachine[cluster]instancetypes-validate`.
pub fn instancetype(request: &Request) -> Verdict {
    if deleting(&request.object) {
        return Verdict::allow();
    }
    let spec = &request.object["spec"];
    let memory = &spec["memory"];
    let percent = memory["overcommitPercent"].as_i64().unwrap_or(0);
    let mut causes = Vec::new();
    if !(0..=100).contains(&percent) {
        let message = format!("spec.memory.overcommitPercent '{percent}': must be in range between 0 and 100.");
        causes.push(invalid("spec.memory.overcommitPercent".to_owned(), message));
    }
    if percent != 0 && !memory["hugepages"].is_null() {
        let message = "spec.memory.overcommitPercent and spec.memory.hugepages should not be requested together.";
        causes.push(invalid("spec.memory.overcommitPercent".to_owned(), message.to_owned()));
    }
    if spec["cpu"]["guest"].as_i64().is_some_and(|vcpus| vcpus < 1) {
        let message = "spec.cpu.guest must be at least 1: a guest has at least one virtual CPU".to_owned();
        causes.push(invalid("spec.cpu.guest".to_owned(), message));
    }
    if !causes.is_empty() {
        return Verdict::Invalid(causes);
    }
    let encrypts = !spec["launchSecurity"].is_null();
    let warning = "launchSecurity is deprecated and will be removed in a future release. Use preference instead.";
    Verdict::Allow { warnings: encrypts.then(|| warning.to_owned()).into_iter().collect() }
}

/// `/virtualmachine[cluster]preferences-validate`.
pub fn preference(request: &Request) -> Verdict {
    if deleting(&request.object) {
        return Verdict::allow();
    }
    let spec = &request.object["spec"];
    let mut causes = Vec::new();
    let mut warnings = Vec::new();
    let topology = spec["cpu"]["preferredCPUTopology"].as_str().unwrap_or_default();
    let deprecated = DEPRECATED.iter().find(|(old, _)| *old == topology);
    if let Some((old, new)) = deprecated {
        warnings.push(format!(
            "PreferredCPUTopology {old} is deprecated for removal in a future release, please use {new} instead"
        ));
    } else if !topology.is_empty() && !DEPRECATED.iter().any(|(_, known)| *known == topology) {
        let message = format!("unknown preferredCPUTopology {topology}: use sockets, cores, threads, spread or any");
        causes.push(invalid("spec.cpu.preferredCPUTopology".to_owned(), message));
    }
    if matches!(topology, "spread" | "preferSpread") {
        causes.extend(spread(spec));
    }
    if causes.is_empty() { Verdict::Allow { warnings } } else { Verdict::Invalid(causes) }
}

fn spread(spec: &Value) -> Option<Cause> {
    let options = &spec["cpu"]["spreadOptions"];
    let ratio = [&options["ratio"], &spec["preferSpreadSocketToCoreRatio"]].into_iter().find_map(Value::as_i64);
    let field = |name: &str| format!("spec.cpu.spreadOptions.{name}");
    match options["across"].as_str().unwrap_or_default() {
        "" | "SocketsCores" | "SocketsCoresThreads" => {}
        "CoresThreads" if ratio.is_none_or(|ratio| ratio == 2) => {}
        "CoresThreads" => {
            let message = "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads";
            return Some(invalid(field("ratio"), message.to_owned()));
        }
        other => {
            let message =
                format!("across {other} is not supported: use SocketsCores, CoresThreads or SocketsCoresThreads");
            return Some(invalid(field("across"), message));
        }
    }
    ratio.is_some_and(|ratio| ratio < 1).then(|| invalid(field("ratio"), "the ratio must be at least 1".to_owned()))
}

#[cfg(test)]
mod tests {
    use ::instancetype::Chosen;
    use serde_json::json;
    use virt_operator::manifests::instancetypes;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(review: fn(&Request) -> Verdict, spec: Value, expect: &[&str]) {
        let request = Request { operation: "CREATE".into(), object: json!({ "spec": spec }), ..Request::default() };
        let found: Vec<String> = match review(&request) {
            Verdict::Allow { warnings } => warnings.into_iter().map(|warning| format!("warning: {warning}")).collect(),
            Verdict::Invalid(causes) => causes.into_iter().map(|cause| cause.message).collect(),
            other => vec![format!("{other:?}")],
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn an_instance_type_gives_what_can_be_had() {
        let memory = |memory: Value| json!({ "cpu": { "guest": 1 }, "memory": memory });
        check(instancetype, memory(json!({ "guest": "1Gi", "overcommitPercent": 50 })), &[]);
        let range = "spec.memory.overcommitPercent '101': must be in range between 0 and 100.";
        check(instancetype, memory(json!({ "guest": "1Gi", "overcommitPercent": 101 })), &[range]);
        let both = "spec.memory.overcommitPercent and spec.memory.hugepages should not be requested together.";
        let pages = json!({ "guest": "1Gi", "overcommitPercent": 5, "hugepages": { "pageSize": "2Mi" } });
        check(instancetype, memory(pages), &[both]);
        let none = "spec.cpu.guest must be at least 1: a guest has at least one virtual CPU";
        check(instancetype, json!({ "cpu": { "guest": 0 }, "memory": { "guest": "1Gi" } }), &[none]);
        let mut encrypted = memory(json!({ "guest": "1Gi" }));
        encrypted["launchSecurity"] = json!({ "sev": {} });
        let old =
            "warning: launchSecurity is deprecated and will be removed in a future release. Use preference instead.";
        check(instancetype, encrypted, &[old]);
    }

    #[test]
    fn a_preference_prefers_what_is_known() {
        let topology =
            |name: &str, options: Value| json!({ "cpu": { "preferredCPUTopology": name, "spreadOptions": options } });
        check(preference, json!({}), &[]);
        check(preference, topology("cores", Value::Null), &[]);
        let old = "warning: PreferredCPUTopology preferCores is deprecated for removal in a future release, please use cores instead";
        check(preference, topology("preferCores", Value::Null), &[old]);
        let unknown = "unknown preferredCPUTopology towers: use sockets, cores, threads, spread or any";
        check(preference, topology("towers", Value::Null), &[unknown]);
        check(preference, topology("spread", json!({ "across": "SocketsCores", "ratio": 3 })), &[]);
        let two = "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads";
        check(preference, topology("spread", json!({ "across": "CoresThreads", "ratio": 3 })), &[two]);
        let across = "across All is not supported: use SocketsCores, CoresThreads or SocketsCoresThreads";
        check(preference, topology("spread", json!({ "across": "All" })), &[across]);
    }

    #[test]
    fn the_common_ones_pass_and_a_large_machine_can_be_of_each() {
        let all = instancetypes::render(&json!({}));
        let (types, preferences): (Vec<Value>, Vec<Value>) =
            all.into_iter().partition(|one| one["kind"] == instancetypes::INSTANCETYPES.0);
        for one in &types {
            check(instancetype, one["spec"].clone(), &[]);
        }
        let large = types.iter().find(|one| one["metadata"]["name"] == "u1.8xlarge").map(|one| one["spec"].clone());
        for one in &preferences {
            check(preference, one["spec"].clone(), &[]);
            let chosen = Chosen { instancetype: large.clone(), preference: Some(one["spec"].clone()) };
            let guest = json!({ "architecture": one["spec"]["preferredArchitecture"], "domain": { "devices": {} } });
            let machine = json!({ "spec": { "template": { "spec": guest } } });
            assert_eq!(::instancetype::problems(&machine, &chosen), [], "{}", one["metadata"]["name"]);
        }
    }
}
