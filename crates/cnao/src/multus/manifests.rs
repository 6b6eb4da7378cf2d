//! What deploys Multus on every node. Pure.

use kit::operator::manifests::{account, binding, role, rule};
use kit::workload;
use serde_json::{Value, json};

use super::PROGRAM;
use crate::base::Base;

/// Name of the DaemonSet and what belongs to it.
pub const NAME: &str = "multus";
/// Where container runtimes read their CNI configuration.
pub const CONFIG_DIR: &str = "/etc/cni/net.d";
/// Where CNI plugins are.
pub const BIN_DIR: &str = "/opt/cni/bin";
/// Port for health, on the loopback device of the node.
pub const HEALTH: u16 = 8087;

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where it goes, and what it runs.
    pub base: Base,
    /// Interfaces of pods that run follow their annotation.
    pub dynamic_networks: bool,
}

/// All of it, but the definitions of the kinds.
pub fn render(input: &Input) -> Vec<Value> {
    let here = json!({ "name": NAME, "namespace": input.base.namespace });
    let everywhere = [
        rule("", &["pods"], &["get", "list", "watch"]),
        rule("", &["pods/status"], &["patch"]),
        rule("", &["nodes"], &["get"]),
        rule("", &["events"], &["create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        rule("k8s.cni.cncf.io", &["network-attachment-definitions", "ipamclaims"], &["get"]),
        rule("k8s.cni.cncf.io", &["ipamclaims/status"], &["patch"]),
        // They are in the namespace where the Whereabouts plugin keeps them, in which an operator of networks has no rights.
        rule("whereabouts.cni.cncf.io", &["ippools"], &["get", "create", "update"]),
    ];
    let own = json!({
        "apiGroups": ["apps"], "resources": ["daemonsets"], "resourceNames": [NAME], "verbs": ["get"],
    });
    let account_of = (input.base.namespace.as_str(), NAME);
    vec![
        account(&here),
        role(&json!({ "name": NAME }), &everywhere),
        binding(&json!({ "name": NAME }), NAME, account_of),
        role(&here, &[own]),
        binding(&here, NAME, account_of),
        daemon_set(input),
    ]
}

fn daemon_set(input: &Input) -> Value {
    let probe = |period: i64| {
        let mut probe = workload::probe("/livez", &json!(HEALTH), [5, period, 3]);
        // It listens where the node alone reaches it.
        probe["httpGet"]["host"] = json!("127.0.0.1");
        probe
    };
    let mut ready = probe(5);
    ready["httpGet"]["path"] = json!("/readyz");
    let mut args = vec!["--root=/hostroot"];
    if input.dynamic_networks {
        args.push("--dynamic-networks");
    }
    let mut pod = json!({
        "serviceAccountName": NAME,
        // Pods get their network from it, so it cannot have one from itself.
        "hostNetwork": true,
        "priorityClassName": "system-node-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        // A node without networks for its pods is not ready.
        "tolerations": [{ "operator": "Exists" }],
        "terminationGracePeriodSeconds": 30,
        "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": PROGRAM,
            "image": input.base.image,
            "imagePullPolicy": input.base.pull_policy,
            "command": [PROGRAM],
            "args": args,
            "env": [
                workload::field("NODE_NAME", "spec.nodeName"),
                workload::field("NAMESPACE", "metadata.namespace"),
                workload::one_arena(),
            ],
            "resources": { "requests": { "cpu": "10m", "memory": "15Mi" } },
            "livenessProbe": probe(30),
            "readinessProbe": ready,
            // Plugins run as the node's own programs: they make devices and change the network of the node.
            "securityContext": { "privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{ "name": "root", "mountPath": "/hostroot", "mountPropagation": "HostToContainer" }],
        }],
        "volumes": [{ "name": "root", "hostPath": { "path": "/", "type": "Directory" } }],
    });
    input.base.placement.place(&mut pod);
    let labels = json!({ "name": NAME });
    let mut set =
        workload::daemon_set(&json!({ "name": NAME, "namespace": input.base.namespace }), &labels, &labels, &pod);
    set["spec"]["updateStrategy"] = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } });
    set
}
