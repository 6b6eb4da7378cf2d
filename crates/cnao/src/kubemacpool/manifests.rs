//! What deploys the pool. Pure.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kit::operator::manifests::{Program, account, binding, pod, role, rule};
use kit::workload::{self, Placement};
use serde_json::{Value, json};

use super::range::{CONFIG, END, START};
use super::webhook::{MACHINES, MACHINES_LABEL, PODS, PODS_LABEL};

/// The Deployment.
pub const NAME: &str = "kubemacpool-mac-controller-manager";
/// The Service in front of it.
pub const SERVICE: &str = "kubemacpool-service";
/// The Secret with its certificate.
pub const CERTIFICATE: &str = "kubemacpool-service-cert";
/// The ConfigMap with the authorities that verify it.
pub const BUNDLE: &str = "kubemacpool-service-bundle";
/// Key of the bundle in it.
pub const BUNDLE_KEY: &str = "ca-bundle.crt";
const ACCOUNT: &str = "kubemacpool-sa";
const ROLE: &str = "kubemacpool-manager-role";
const CONFIGURATION: &str = "kubemacpool-mutator";
const PROGRAM: &str = super::PROGRAM;

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Namespace of the pool.
    pub namespace: String,
    /// Its image.
    pub image: String,
    /// How it is pulled.
    pub pull_policy: String,
    /// First and last address.
    pub range: (String, String),
    /// Who vouches for its certificate.
    pub ca_bundle: String,
    /// How many replicas serve.
    pub replicas: i32,
    /// Where they run.
    pub placement: Placement,
    /// Somebody answers: machines are refused from then on while nobody does.
    pub answers: bool,
}

/// All of it, the webhook's configuration only where somebody answers.
pub fn render(input: &Input) -> Vec<Value> {
    let here = |name: &str| json!({ "name": name, "namespace": input.namespace });
    let selector = json!({ "control-plane": "mac-controller-manager", "app": PROGRAM });
    let ports = json!([{ "name": "https", "port": 443, "targetPort": "https", "protocol": "TCP" }]);
    let read = &["list", "watch"];
    let rules = [
        rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], read),
        rule("", &["pods"], read),
        rule("", &["namespaces"], &["get"]),
        rule("", &["events"], &["create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ];
    let rules: Vec<Value> = rules.into_iter().chain(kit::served::rules()).collect();
    let own = [
        rule("coordination.k8s.io", &["leases"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
        rule("", &["configmaps"], read),
    ];
    let of = (input.namespace.as_str(), ACCOUNT);
    let mut all = vec![
        account(&here(ACCOUNT)),
        role(&json!({ "name": ROLE }), &rules),
        binding(&json!({ "name": "kubemacpool-manager-rolebinding" }), ROLE, of),
        role(&here(ROLE), &own),
        binding(&here(ROLE), ROLE, of),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": here(CONFIG),
            "data": { (START): input.range.0, (END): input.range.1 },
        }),
        workload::service(&here(SERVICE), &selector, &ports),
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": here(NAME),
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector } },
        }),
        deployment(input, &selector),
    ];
    if input.answers {
        all.push(configuration(input));
    }
    all
}

fn deployment(input: &Input, selector: &Value) -> Value {
    let program = Program {
        name: PROGRAM,
        account: ACCOUNT,
        image: &input.image,
        args: &[],
        env: &[],
        ports: &[("https", 8000)],
        memory: "24Mi",
    };
    let mut pod = pod(&program);
    let container = &mut pod["containers"][0];
    container["imagePullPolicy"] = json!(input.pull_policy);
    container["volumeMounts"] = json!([
        { "name": "certificate", "mountPath": "/tmp/k8s-webhook-server/serving-certs", "readOnly": true },
        { "name": "bundle", "mountPath": "/tmp/k8s-webhook-server/bundle", "readOnly": true },
    ]);
    pod["volumes"] = json!([
        { "name": "certificate", "secret": { "secretName": CERTIFICATE, "defaultMode": 0o444 } },
        { "name": "bundle", "configMap": { "name": BUNDLE } },
    ]);
    if input.replicas > 1 {
        pod["affinity"] = workload::spread(selector);
    }
    input.placement.place(&mut pod);
    let metadata = json!({ "name": NAME, "namespace": input.namespace });
    workload::deployment(&metadata, input.replicas, selector, selector, &pod)
}

/// Has machines and pods judged.
pub fn configuration(input: &Input) -> Value {
    let hook = |name: &str, path: &str, group: &str, resource: &str, operations: &[&str], selector: Value| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": { "namespace": input.namespace, "name": SERVICE, "path": path, "port": 443 },
                "caBundle": BASE64_STANDARD.encode(&input.ca_bundle),
            },
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "NoneOnDryRun", "timeoutSeconds": 10,
            // Interfaces that another webhook adds need an address as well.
            "reinvocationPolicy": "IfNeeded",
            "namespaceSelector": { "matchExpressions": [
                { "key": "runlevel", "operator": "NotIn", "values": ["0", "1"] },
                { "key": "openshift.io/run-level", "operator": "NotIn", "values": ["0", "1"] },
                selector,
            ] },
            "rules": [{
                "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": operations,
                "scope": "Namespaced",
            }],
        })
    };
    let out = json!({ "key": MACHINES_LABEL, "operator": "NotIn", "values": ["ignore"] });
    let into = json!({ "key": PODS_LABEL, "operator": "In", "values": ["allocate"] });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": CONFIGURATION },
        "webhooks": [
            hook(MACHINES_LABEL, MACHINES, "kubevirt.io", "virtualmachines", &["CREATE", "UPDATE"], out),
            hook(PODS_LABEL, PODS, "", "pods", &["CREATE"], into),
        ],
    })
}
