//! What deploys the device plugin, and the CNI plugin beside it, on every node. Pure.

use kit::operator::manifests::account;
use kit::workload;
use serde_json::{Value, json};

use super::PROGRAM;
use crate::base::Base;

/// Its DaemonSet and its account.
const NAME: &str = "macvtap-cni";
/// The ConfigMap that says which links are devices, unless the object names another.
pub const CONFIG: &str = "macvtap-deviceplugin-config";
const KEY: &str = "DP_MACVTAP_CONF";
/// Where it sees the node's directory of plugins.
const TARGET: &str = "/host/cni-bin";

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where it goes, and what it runs.
    pub base: Base,
    /// Name of the ConfigMap.
    pub config: String,
}

/// All of it. A ConfigMap that the object names is its administrator's.
pub fn render(input: &Input) -> Vec<Value> {
    let here = |name: &str| json!({ "name": name, "namespace": input.base.namespace });
    let mut all = vec![account(&here(NAME)), daemon_set(input)];
    if input.config == CONFIG {
        let data = json!({ KEY: "[]" });
        all.push(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": here(CONFIG), "data": data }));
    }
    all
}

fn daemon_set(input: &Input) -> Value {
    let kubelet = rpc::deviceplugin::PLUGIN_DIR;
    let container = |name: &str, command: &[&str], mount: (&str, &str)| {
        json!({
            "name": name,
            "image": input.base.image,
            "imagePullPolicy": input.base.pull_policy,
            "command": command,
            "env": [workload::one_arena()],
            "resources": { "requests": { "cpu": "60m", "memory": "30Mi" } },
            "volumeMounts": [{ "name": mount.0, "mountPath": mount.1 }],
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        })
    };
    let install = ["/usr/bin/ferrovirt-cni", "install", TARGET, "macvtap"];
    let mut serving = container(NAME, &[PROGRAM], ("deviceplugin", kubelet));
    let from = json!({ "configMapKeyRef": { "name": input.config, "key": KEY } });
    if let Some(variables) = serving["env"].as_array_mut() {
        variables.push(json!({ "name": KEY, "valueFrom": from }));
    }
    // It makes links on the node, and nothing else.
    serving["securityContext"]["capabilities"]["add"] = json!(["NET_ADMIN"]);
    let mut pod = json!({
        "serviceAccountName": NAME,
        "automountServiceAccountToken": false,
        // The links are those of the node.
        "hostNetwork": true,
        "priorityClassName": "system-node-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" }],
        // The kubelet's socket and the directory of plugins are the node's root's.
        "securityContext": { "runAsUser": 0, "runAsNonRoot": false, "seccompProfile": { "type": "RuntimeDefault" } },
        "initContainers": [container("install", &install, ("cnibin", TARGET))],
        "containers": [serving],
        "volumes": [
            { "name": "deviceplugin", "hostPath": { "path": kubelet } },
            { "name": "cnibin", "hostPath": { "path": "/opt/cni/bin", "type": "DirectoryOrCreate" } },
        ],
        "terminationGracePeriodSeconds": 10,
    });
    input.base.placement.place(&mut pod);
    let labels = json!({ "name": NAME });
    workload::daemon_set(&json!({ "name": NAME, "namespace": input.base.namespace }), &labels, &labels, &pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_the_administrators_is_used_and_not_written() {
        let of = |config: &str| {
            let all = render(&Input { config: config.into(), ..Input::default() });
            let set = all.iter().find(|manifest| manifest["kind"] == "DaemonSet").unwrap();
            let from =
                &set["spec"]["template"]["spec"]["containers"][0]["env"][1]["valueFrom"]["configMapKeyRef"]["name"];
            (from.clone(), all.iter().filter(|manifest| manifest["kind"] == "ConfigMap").count())
        };
        assert_eq!(of(CONFIG), (json!(CONFIG), 1));
        assert_eq!(of("mine"), (json!("mine"), 0));
    }
}
