//! What deploys the marker on every node. Pure.

use kit::operator::manifests::{account, binding, role, rule};
use kit::workload;
use serde_json::{Value, json};

use super::PROGRAM;
use super::plan::PREFIX;
use crate::base::Base;
use crate::constraints;

const ROLE: &str = "bridge-marker-cr";
const POLICY: &str = "bridge-marker-own-node";
const PORT: u16 = 8081;

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where it goes, and what it runs.
    pub base: Base,
    /// Pods are admitted by constraints.
    pub openshift: bool,
}

/// All of it.
pub fn render(input: &Input) -> Vec<Value> {
    let here = json!({ "name": PROGRAM, "namespace": input.base.namespace });
    let rules = [rule("", &["nodes"], &["get"]), rule("", &["nodes/status"], &["patch"])];
    let mut all = vec![
        account(&here),
        role(&json!({ "name": ROLE }), &rules),
        binding(&json!({ "name": "bridge-marker-crb" }), ROLE, (&input.base.namespace, PROGRAM)),
        daemon_set(input),
    ];
    all.extend(policy(&input.base.namespace));
    if input.openshift {
        all.extend(constraints::grant(PROGRAM, &input.base.namespace));
        all.push(constraints());
    }
    all
}

/// What its pods may be: in the network of their node, and nothing else of it.
pub(crate) fn constraints() -> Value {
    constraints::of(
        PROGRAM,
        &json!({
            "allowHostNetwork": true, "allowHostPorts": true,
            "runAsUser": { "type": "MustRunAsNonRoot" },
            "volumes": ["configMap", "emptyDir", "projected"],
        }),
    )
}

fn daemon_set(input: &Input) -> Value {
    let probe = |period: i64| {
        let mut probe = workload::probe("/livez", &json!(PORT), [5, period, 3]);
        // It listens where the node alone reaches it.
        probe["httpGet"]["host"] = json!("127.0.0.1");
        probe
    };
    let mut pod = json!({
        "serviceAccountName": PROGRAM,
        // The bridges are those of the node.
        "hostNetwork": true,
        "priorityClassName": "system-node-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" }],
        "securityContext": workload::unprivileged_pod(),
        "containers": [{
            "name": PROGRAM,
            "image": input.base.image,
            "imagePullPolicy": input.base.pull_policy,
            "command": [PROGRAM],
            "env": [workload::field("NODE_NAME", "spec.nodeName"), workload::one_arena()],
            "resources": { "requests": { "cpu": "10m", "memory": "15Mi" } },
            "livenessProbe": probe(30),
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }],
    });
    input.base.placement.place(&mut pod);
    let labels = json!({ "name": PROGRAM });
    workload::daemon_set(&json!({ "name": PROGRAM, "namespace": input.base.namespace }), &labels, &labels, &pod)
}

/// Its token writes the marks of its own node and nothing else of any.
fn policy(namespace: &str) -> [Value; 2] {
    let user = format!("system:serviceaccount:{namespace}:{PROGRAM}");
    let key = "authentication.kubernetes.io/node-name";
    let bound = format!("has(request.userInfo.extra) && '{key}' in request.userInfo.extra");
    let own = format!("object.metadata.name == request.userInfo.extra['{key}'][0]");
    // Every other amount is what it was, in both directions.
    let kept = |from: &str, to: &str| {
        format!(
            "!has({from}.status.capacity) || {from}.status.capacity.all(name, name.startsWith('{PREFIX}') || \
             (has({to}.status.capacity) && name in {to}.status.capacity && \
             string({to}.status.capacity[name]) == string({from}.status.capacity[name])))"
        )
    };
    let same = ["allocatable", "conditions", "addresses", "nodeInfo", "images", "volumesAttached", "volumesInUse"].map(
        |field| {
            format!(
                "has(object.status.{field}) == has(oldObject.status.{field}) && (!has(object.status.{field}) || \
             object.status.{field} == oldObject.status.{field})"
            )
        },
    );
    let said = |expression: String, message: &str| json!({ "expression": expression, "message": message });
    let marks = "bridge-marker may write only the marks of bridges";
    let mut validations = vec![
        said(bound, "the token of bridge-marker is not bound to a node"),
        said(own, "bridge-marker may write only the node it runs on"),
        said(kept("object", "oldObject"), marks),
        said(kept("oldObject", "object"), marks),
    ];
    validations.extend(same.into_iter().map(|expression| said(expression, marks)));
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": POLICY },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes/status"],
                }] },
                "matchConditions": [{ "name": "is-bridge-marker", "expression": format!("request.userInfo.username == '{user}'") }],
                "validations": validations,
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": POLICY }, "spec": { "policyName": POLICY, "validationActions": ["Deny"] },
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_pods_are_admitted_where_constraints_are_and_have_of_the_node_the_network_alone() {
        let render = |openshift| render(&Input { openshift, ..Input::default() });
        let kinds = |all: &[Value]| all.iter().filter(|one| one["kind"] == constraints::KIND.1).count();
        let (plain, all) = (render(false), render(true));
        assert_eq!((kinds(&plain), kinds(&all)), (0, 1));
        let held = constraints();
        for (field, allowed) in held.as_object().unwrap().iter().filter(|(field, _)| field.starts_with("allow")) {
            let expect = matches!(field.as_str(), "allowHostNetwork" | "allowHostPorts");
            assert_eq!(allowed.as_bool().unwrap_or_default(), expect, "{field}");
        }
        assert_eq!(held["runAsUser"]["type"], "MustRunAsNonRoot");
        // A token is a projected volume, and there is no other.
        assert_eq!(held["volumes"], json!(["configMap", "emptyDir", "projected"]));
        let grant = all.iter().find(|one| one["metadata"]["name"] == "bridge-marker-scc-use").unwrap();
        assert_eq!(grant["rules"][0]["resourceNames"], json!([PROGRAM]));
        let set = all.iter().find(|one| one["kind"] == "DaemonSet").unwrap();
        assert_eq!(set["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"], true);
    }
}
