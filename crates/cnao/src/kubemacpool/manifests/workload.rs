//! The replicas, and the Services in front of them.

use kit::workload::{self, field};
use serde_json::{Value, json};

use super::{DEPLOYMENT, Input};
use crate::kubemacpool::names::{ACCOUNT, BUNDLE, BUNDLE_KEY, SECRET, SERVICE};

/// The port of the webhooks and of health, by name and number.
pub(super) const WEBHOOK: (&str, u16) = ("webhook-server", 8000);
/// The port of the metrics.
pub(super) const METRICS: (&str, u16) = ("metrics", 8443);
/// The Service in front of the metrics.
pub(super) const METRICS_SERVICE: &str = "kubemacpool-metrics-service";
const CERTIFICATE: &str = "/tmp/k8s-webhook-server/serving-certs";
const AUTHORITIES: &str = "/tmp/k8s-webhook-server/ca";

/// What Services and the budget know the pods by. A Deployment's selector cannot change: this is the one it has always had.
pub(super) fn selector() -> Value {
    json!({ "control-plane": "mac-controller-manager", "controller-tools.k8s.io": "1.0" })
}

pub(super) fn render(input: &Input) -> Vec<Value> {
    let metadata = |name: &str| json!({ "name": name, "namespace": input.namespace });
    let marked = |name: &str| json!({ "name": name, "namespace": input.namespace, "labels": selector() });
    let port = |name: &str, (target, port): (&str, u16)| json!({ "name": name, "port": port, "targetPort": target, "protocol": "TCP" });
    let mut service = workload::service(
        &metadata(SERVICE),
        &selector(),
        &json!([{ "port": 443, "targetPort": WEBHOOK.0, "protocol": "TCP" }]),
    );
    // An earlier version had requests sent to pods that could not answer yet.
    service["spec"]["publishNotReadyAddresses"] = json!(false);
    let metrics = workload::service(&marked(METRICS_SERVICE), &selector(), &json!([port(METRICS.0, METRICS)]));
    let mut labels = selector();
    labels["app"] = json!("kubemacpool");
    let mut deployment = workload::deployment(&marked(DEPLOYMENT), input.replicas, &selector(), &labels, &pod(input));
    deployment["spec"]["strategy"] =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(DEPLOYMENT),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector() } },
    });
    vec![service, metrics, deployment, budget]
}

fn pod(input: &Input) -> Value {
    let port = json!(WEBHOOK.0);
    let mut args = vec![
        format!("--virtual-machines={}", input.virtual_machines.name()),
        format!("--pods={}", input.pods.name()),
        format!("--tls-min-version={}", input.tls_min_version),
    ];
    if !input.tls_cipher_suites.is_empty() {
        args.push(format!("--tls-cipher-suites={}", input.tls_cipher_suites.join(",")));
    }
    let ports =
        [WEBHOOK, METRICS].map(|(name, port)| json!({ "name": name, "containerPort": port, "protocol": "TCP" }));
    let mut pod = json!({
        "serviceAccountName": ACCOUNT,
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        // A lost node is noticed in a minute, not in five: until then half of all requests may be sent to its replica.
        "tolerations": [
            { "key": "CriticalAddonsOnly", "operator": "Exists" },
            { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 },
            { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 },
        ],
        "securityContext": workload::unprivileged_pod(),
        "containers": [{
            "name": "manager",
            "image": input.image,
            "imagePullPolicy": input.pull_policy,
            "command": ["kubemacpool"],
            "args": args,
            "env": [
                field("POD_NAME", "metadata.name"),
                field("POD_NAMESPACE", "metadata.namespace"),
                workload::one_arena(),
            ],
            "ports": ports,
            "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
            "readinessProbe": workload::probe("/readyz", &port, [0, 2, 3]),
            "livenessProbe": workload::probe("/livez", &port, [15, 30, 3]),
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                { "name": "tls-key-pair", "mountPath": CERTIFICATE, "readOnly": true },
                { "name": "ca-bundle", "mountPath": AUTHORITIES, "readOnly": true },
            ],
        }],
        "volumes": [
            { "name": "tls-key-pair", "secret": { "secretName": SECRET, "defaultMode": 0o444 } },
            { "name": "ca-bundle", "configMap": { "name": BUNDLE, "items": [{ "key": BUNDLE_KEY, "path": BUNDLE_KEY }] } },
        ],
    });
    input.infra.place(&mut pod);
    if pod["affinity"]["podAntiAffinity"].is_null() {
        pod["affinity"]["podAntiAffinity"] = workload::spread(&selector())["podAntiAffinity"].clone();
    }
    pod
}
