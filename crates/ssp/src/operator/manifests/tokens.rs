//! vm-console-proxy: its account, its rights, its Deployment, and its place in the API.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kit::operator::manifests::{account, binding, role, rule};
use kit::workload;
use serde_json::{Value, json};

use super::{Input, network};
use crate::console_proxy::{GROUP, NAME, VERSION};
use crate::operator::names::{CONFIGURATION, PROXY_SECRET};

/// What the objects are of.
pub const OPERAND: &str = NAME;
/// Who may be given a token for the screen of a machine.
pub const GENERATE: &str = "token.kubevirt.io:generate";
/// The port that the API server asks.
pub const PORT: u16 = 8768;
/// The role by which an aggregated API learns how the API server vouches for users.
pub const READER: &str = "extension-apiserver-authentication-reader";

const CERTIFICATES: &str = "/tmp/vm-console-proxy-cert";
const RBAC: &str = "rbac.authorization.k8s.io";

/// What its pods are found by, which cannot change.
pub fn selector() -> Value {
    json!({ "kubevirt.io": NAME })
}

/// Everything but its place in the API.
pub fn render(input: &Input) -> Vec<Value> {
    let named = |name: &str| json!({ "name": name, "labels": selector() });
    let here = |name: &str| json!({ "name": name, "namespace": input.namespace, "labels": selector() });
    let of = (input.namespace.as_str(), NAME);
    let asked = json!([{ "name": "api", "port": 443, "targetPort": PORT, "protocol": "TCP" }]);
    let pods = json!({ "matchLabels": selector() });
    let ingress = json!({ "ingress": [{ "ports": [network::tcp(PORT)] }] });
    vec![
        account(&here(NAME)),
        role(&named(NAME), &cluster_rules()),
        binding(&named(NAME), NAME, of),
        role(&named(GENERATE), &[rule(GROUP, &["virtualmachines/vnc"], &["get"])]),
        role(&here(NAME), &own_rules()),
        binding(&here(NAME), NAME, of),
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
            "metadata": { "name": NAME, "namespace": "kube-system", "labels": selector() },
            "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": READER },
            "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": input.namespace }],
        }),
        workload::service(&here(NAME), &selector(), &asked),
        network::policy(
            &input.namespace,
            "vm-console-proxy-allow-cluster-services",
            &pods,
            network::cluster_services(),
        ),
        network::policy(&input.namespace, "vm-console-proxy-allow-ingress", &pods, ingress),
        deployment(input),
    ]
}

/// Its place in the API. While nobody answers there, namespaces do not end: it is given when somebody does.
pub fn api_service(input: &Input) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": format!("{VERSION}.{GROUP}"), "labels": selector() },
        "spec": {
            "service": { "namespace": input.namespace, "name": NAME, "port": 443 },
            "group": GROUP, "version": VERSION, "caBundle": BASE64_STANDARD.encode(&input.ca_bundle),
            "groupPriorityMinimum": 2000, "versionPriority": 10,
        },
    })
}

/// What it does in the namespaces of machines: the account of a machine, and the token of that account.
fn cluster_rules() -> Vec<Value> {
    vec![
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        rule("kubevirt.io", &["virtualmachines"], &["get"]),
        rule("", &["serviceaccounts"], &["get", "create", "patch"]),
        rule("", &["serviceaccounts/token"], &["create"]),
        rule(RBAC, &["roles", "rolebindings"], &["get", "create", "patch"]),
        // Nobody grants what he has not.
        rule("subresources.kubevirt.io", &["virtualmachineinstances/vnc"], &["get"]),
    ]
}

/// The TLS that the SSP object asks for.
fn own_rules() -> Vec<Value> {
    vec![rule("ssp.kubevirt.io", &["ssps"], &["get", "list", "watch"])]
}

fn deployment(input: &Input) -> Value {
    let probe = |path: &str, times: [i64; 3]| {
        let mut probe = workload::probe(path, &json!(PORT), times);
        probe["timeoutSeconds"] = json!(5);
        probe
    };
    let mut pod = json!({
        "serviceAccountName": NAME,
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "CriticalAddonsOnly", "operator": "Exists" }],
        "securityContext": workload::unprivileged_pod(),
        "containers": [{
            "name": NAME,
            "image": input.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [NAME],
            "args": [format!("--port={PORT}"), format!("--cert-dir={CERTIFICATES}")],
            "env": [workload::field("POD_NAMESPACE", "metadata.namespace"), workload::one_arena()],
            "ports": [{ "name": "api", "containerPort": PORT, "protocol": "TCP" }],
            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            "readinessProbe": probe("/readyz", [0, 5, 2]),
            "livenessProbe": probe("/livez", [10, 10, 3]),
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{ "name": "tls", "mountPath": CERTIFICATES, "readOnly": true }],
        }],
        "volumes": [{ "name": "tls", "secret": { "secretName": PROXY_SECRET, "defaultMode": 0o444 } }],
    });
    input.placement.place(&mut pod);
    let mut labels = selector();
    labels["name"] = json!(NAME);
    let metadata = json!({
        "name": NAME, "namespace": input.namespace, "labels": { "name": NAME },
        "annotations": { (CONFIGURATION): input.configuration, "openshift.io/required-scc": "restricted-v2" },
    });
    workload::deployment(&metadata, 1, &selector(), &labels, &pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_account_reads_no_secrets_and_deletes_nothing() {
        for rule in cluster_rules().into_iter().chain(own_rules()) {
            let text = rule.to_string();
            let much = ["secrets", "\"*\"", "delete", "bind\"", "escalate"];
            assert!(much.iter().all(|word| !text.contains(word)), "{text}");
        }
    }
}
