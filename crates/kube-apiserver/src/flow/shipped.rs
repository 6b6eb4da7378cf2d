//! The FlowSchemas and PriorityLevelConfigurations that every cluster has, as Kubernetes names and numbers them.
//!
//! `exempt` and `catch-all` of both kinds are mandatory: they say what they say here. The others are suggested.

use serde_json::{Value, json};

use super::{CATCH_ALL, EXEMPT, GROUP};

/// Says whether a shipped object is kept as it is shipped.
pub(crate) const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Whether an object of this name says what is shipped, and nothing else.
pub(crate) fn is_mandatory(name: &str) -> bool {
    matches!(name, EXEMPT | CATCH_ALL)
}

/// The levels.
pub(crate) fn levels() -> Vec<Value> {
    let limited = |shares: u32, lent: u32, response: Value| {
        json!({"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "lendablePercent": lent,
            "limitResponse": response}})
    };
    let queue = |queues: u32, hand: u32| json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}});
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    [
        (EXEMPT, exempt),
        (CATCH_ALL, limited(5, 0, json!({"type": "Reject"}))),
        ("system", limited(30, 33, queue(64, 6))),
        ("node-high", limited(40, 25, queue(64, 6))),
        ("leader-election", limited(10, 0, queue(16, 4))),
        ("workload-high", limited(40, 50, queue(128, 6))),
        ("workload-low", limited(100, 90, queue(128, 6))),
        ("global-default", limited(20, 50, queue(128, 6))),
    ]
    .into_iter()
    .map(|(name, spec)| object("PriorityLevelConfiguration", name, spec))
    .collect()
}

/// The schemas.
pub(crate) fn schemas() -> Vec<Value> {
    let groups = |names: &[&str]| names.iter().map(|name| group(name)).collect::<Vec<_>>();
    let anybody = || groups(&["system:unauthenticated", "system:authenticated"]);
    let (manager, scheduler) = (user("system:kube-controller-manager"), user("system:kube-scheduler"));
    let nodes = || groups(&["system:nodes"]);
    let system_accounts = account("*");
    let endpoints = vec![manager.clone(), account("endpoint-controller"), account("endpointslicemirroring-controller")];
    let elects = ["get", "create", "update"];
    let leases = |verbs: &[&str]| resources(verbs, "coordination.k8s.io", &["leases"], false);
    let configured = resources(&elects, "", &["endpoints", "configmaps"], false);
    let probes = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]});
    let own_node = resources(&["*"], "", &["nodes", "nodes/status"], true);
    let electors = vec![manager.clone(), scheduler.clone(), system_accounts.clone()];
    vec![
        schema(EXEMPT, EXEMPT, 1, "", everything(&groups(&["system:masters"]))),
        schema("probes", EXEMPT, 2, "", json!({"subjects": anybody(), "nonResourceRules": [probes]})),
        schema("system-leader-election", "leader-election", 100, "ByUser", only(&electors, &[leases(&elects)])),
        schema(
            "endpoint-controller",
            "workload-high",
            150,
            "ByUser",
            only(&endpoints, &[resources(&elects, "", &["endpoints"], false)]),
        ),
        schema(
            "workload-leader-election",
            "leader-election",
            200,
            "ByUser",
            only(std::slice::from_ref(&system_accounts), &[configured, leases(&elects)]),
        ),
        schema("system-node-high", "node-high", 400, "ByUser", only(&nodes(), &[own_node, leases(&["*"])])),
        schema("system-nodes", "system", 500, "ByUser", everything(&nodes())),
        schema("kube-controller-manager", "workload-high", 800, "ByNamespace", everything(&[manager])),
        schema("kube-scheduler", "workload-high", 800, "ByNamespace", everything(&[scheduler])),
        schema("kube-system-service-accounts", "workload-high", 900, "ByNamespace", everything(&[system_accounts])),
        schema("service-accounts", "workload-low", 9000, "ByUser", everything(&groups(&["system:serviceaccounts"]))),
        schema("global-default", "global-default", 9900, "ByUser", everything(&anybody())),
        schema(CATCH_ALL, CATCH_ALL, 10000, "ByUser", everything(&anybody())),
    ]
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    let mut object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {"name": name, "annotations": {AUTOUPDATE: "true"}}});
    object["spec"] = spec;
    object
}

fn schema(name: &str, level: &str, precedence: u32, distinguisher: &str, rule: Value) -> Value {
    let mut spec = json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence});
    if !distinguisher.is_empty() {
        spec["distinguisherMethod"] = json!({"type": distinguisher});
    }
    spec["rules"] = [rule].into_iter().collect();
    object("FlowSchema", name, spec)
}

fn only(subjects: &[Value], rules: &[Value]) -> Value {
    json!({"subjects": subjects, "resourceRules": rules})
}

fn everything(subjects: &[Value]) -> Value {
    json!({"subjects": subjects, "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]})
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], cluster: bool) -> Value {
    let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
    if cluster {
        rule["clusterScope"] = true.into();
    }
    rule
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "group": {"name": name}})
}

fn account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": name}})
}
