//! What deploys the network resources injector. Pure.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kit::operator::manifests::{Program, account, binding, pod, role, rule};
use kit::workload::{self, Placement};
use serde_json::{Value, json};

use super::{BUNDLE, INJECTOR_CERTIFICATE};
use crate::injector::{ANNOTATION, PATH, PROGRAM};

/// The Service in front of it.
pub(super) const SERVICE: &str = "virt-network-resources-injector-service";
const CONFIGURATION: &str = "virt-network-resources-injector-config.k8s.io";
const PORT: u16 = 6443;

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    pub(super) namespace: String,
    pub(super) image: String,
    /// Who vouches for its certificate.
    pub(super) bundle: String,
    pub(super) replicas: i32,
    pub(super) placement: Placement,
}

/// All of it but the configuration.
pub(super) fn render(input: &Input) -> Vec<Value> {
    let namespace = &input.namespace;
    let metadata = json!({ "name": PROGRAM, "namespace": namespace });
    let cluster = json!({ "name": PROGRAM });
    let selector = json!({ "name": PROGRAM });
    let ports = json!([{ "name": "https", "port": 443, "targetPort": "https", "protocol": "TCP" }]);
    let read = rule("k8s.cni.cncf.io", &["network-attachment-definitions"], &["get"]);
    vec![
        account(&metadata),
        role(&cluster, &[read]),
        binding(&cluster, PROGRAM, (namespace, PROGRAM)),
        workload::service(&json!({ "name": SERVICE, "namespace": namespace }), &selector, &ports),
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
            // With one replica a drain goes on: pods of machines wait for the next one.
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector } },
        }),
        deployment(input),
    ]
}

fn deployment(input: &Input) -> Value {
    let program = Program {
        name: PROGRAM,
        account: PROGRAM,
        image: &input.image,
        args: &[],
        env: &[],
        ports: &[("https", PORT)],
        memory: "24Mi",
    };
    let mut pod = pod(&program);
    pod["containers"][0]["volumeMounts"] = json!([
        { "name": "certificate", "mountPath": "/etc/tls", "readOnly": true },
        { "name": "bundle", "mountPath": "/etc/bundle", "readOnly": true },
    ]);
    pod["volumes"] = json!([
        { "name": "certificate", "secret": { "secretName": INJECTOR_CERTIFICATE, "defaultMode": 0o444 } },
        { "name": "bundle", "configMap": { "name": BUNDLE } },
    ]);
    let labels = json!({ "name": PROGRAM });
    if input.replicas > 1 {
        pod["affinity"] = workload::spread(&labels);
    }
    input.placement.place(&mut pod);
    let metadata = json!({ "name": PROGRAM, "namespace": input.namespace });
    workload::deployment(&metadata, input.replicas, &labels, &labels, &pod)
}

/// Has pods judged; it comes when somebody answers, since they are refused from then on while nobody does.
pub(super) fn configuration(input: &Input) -> Value {
    let asks = format!("has(object.metadata.annotations) && '{ANNOTATION}' in object.metadata.annotations");
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": CONFIGURATION },
        "webhooks": [{
            "name": CONFIGURATION,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": { "namespace": input.namespace, "name": SERVICE, "path": PATH, "port": 443 },
                "caBundle": BASE64_STANDARD.encode(&input.bundle),
            },
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": 10,
            "reinvocationPolicy": "IfNeeded",
            "matchConditions": [{ "name": "asks-for-networks", "expression": asks }],
            "namespaceSelector": { "matchExpressions": [
                { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"] },
            ] },
            "objectSelector": { "matchLabels": { "kubevirt.io": "virt-launcher" } },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"], "scope": "Namespaced",
            }],
        }],
    })
}
