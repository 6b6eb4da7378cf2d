//! What puts the CNI plugins `bridge` and `tuning` on every node, under these names and as `cnv-bridge` and `cnv-tuning`. Pure.
//!
//! They stay on the nodes when it goes: pods that have interfaces of them need them to end.

use kit::operator::manifests::account;
use kit::workload;
use serde_json::{Value, json};

use crate::base::Base;
use crate::constraints;

/// Its DaemonSet.
const NAME: &str = "kube-cni-linux-bridge-plugin";
/// Its account, and the constraints that its pods are admitted under.
pub(crate) const ACCOUNT: &str = "linux-bridge";
/// Its program in the image.
const PROGRAM: &str = "/usr/bin/ferrovirt-cni";
/// Where it sees the node's directory.
const TARGET: &str = "/host/cni-bin";
/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where it goes, and what it runs.
    pub base: Base,
    /// The cluster is one of OpenShift: plugins lie elsewhere, and pods are admitted by constraints.
    pub openshift: bool,
}

/// All of it.
pub fn render(input: &Input) -> Vec<Value> {
    let mut all = vec![account(&json!({ "name": ACCOUNT, "namespace": input.base.namespace })), daemon_set(input)];
    if input.openshift {
        all.extend(constraints::grant(ACCOUNT, &input.base.namespace));
        all.push(constraints());
    }
    all
}

/// Where the container runtime looks for plugins.
fn directory(openshift: bool) -> &'static str {
    if openshift { "/var/lib/cni/bin" } else { "/opt/cni/bin" }
}

fn daemon_set(input: &Input) -> Value {
    let container = |name: &str, words: &[&str]| {
        let command = [&[PROGRAM][..], words].concat();
        json!({
            "name": name,
            "image": input.base.image,
            "imagePullPolicy": input.base.pull_policy,
            "command": command,
            "env": [workload::one_arena()],
            "resources": { "requests": { "cpu": "10m", "memory": "15Mi" } },
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        })
    };
    // A pod is ready only once the plugins are in their places.
    let mut first = container("install", &["install", TARGET, "bridge", "tuning"]);
    first["volumeMounts"] = json!([{ "name": "cnibin", "mountPath": TARGET }]);
    let mut pod = json!({
        "serviceAccountName": ACCOUNT,
        "automountServiceAccountToken": false,
        // Without it, pods with networks of these plugins do not start on the node.
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" }],
        // The directory is the node's root's, who needs no capability to write there.
        "securityContext": { "runAsUser": 0, "runAsNonRoot": false, "seccompProfile": { "type": "RuntimeDefault" } },
        "initContainers": [first],
        "containers": [container(NAME, &["wait"])],
        "volumes": [{ "name": "cnibin", "hostPath": { "path": directory(input.openshift), "type": "DirectoryOrCreate" } }],
        "terminationGracePeriodSeconds": 10,
    });
    if input.openshift {
        // What writes there under SELinux.
        pod["securityContext"]["seLinuxOptions"] = json!({ "type": "spc_t" });
    }
    input.base.placement.place(&mut pod);
    let labels = json!({ "name": NAME });
    workload::daemon_set(&json!({ "name": NAME, "namespace": input.base.namespace }), &labels, &labels, &pod)
}

/// What its pods may be: root's, with the directory of the node, and nothing else.
pub(crate) fn constraints() -> Value {
    constraints::of(
        ACCOUNT,
        &json!({
            "allowHostDirVolumePlugin": true,
            "runAsUser": { "type": "RunAsAny" },
            "seLinuxContext": { "type": "MustRunAs", "seLinuxOptions": { "type": "spc_t" } },
            "volumes": ["hostPath", "configMap", "secret", "emptyDir"],
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(openshift: bool) -> Value {
        let input = Input { openshift, ..Input::default() };
        let all = render(&input);
        let set = all.iter().find(|manifest| manifest["kind"] == "DaemonSet").unwrap();
        assert_eq!(set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], "10%");
        set["spec"]["template"]["spec"].clone()
    }

    #[test]
    fn each_kind_of_cluster_has_its_directory() {
        assert_eq!(pod(false)["volumes"][0]["hostPath"]["path"], "/opt/cni/bin");
        assert_eq!(pod(true)["volumes"][0]["hostPath"]["path"], "/var/lib/cni/bin");
        assert_eq!(pod(false)["securityContext"].get("seLinuxOptions"), None);
    }

    /// Whoever gets hold of the pod that waits has nothing of the node, and no token.
    #[test]
    fn what_waits_has_no_part_of_the_node() {
        let pod = pod(true);
        assert_eq!(pod["containers"][0].get("volumeMounts"), None);
        assert_eq!(pod["automountServiceAccountToken"], false);
        for container in [&pod["containers"][0], &pod["initContainers"][0]] {
            let context = &container["securityContext"];
            assert_eq!(
                (&context["readOnlyRootFilesystem"], &context["allowPrivilegeEscalation"]),
                (&json!(true), &json!(false))
            );
            assert_eq!(container["resources"]["requests"], json!({ "cpu": "10m", "memory": "15Mi" }));
        }
    }
}
