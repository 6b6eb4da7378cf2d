//! cdi-deployment, cdi-apiserver and cdi-uploadproxy: Services, Deployments and what they mount.

use api::cdi::constants::label;
use kit::workload::{self, field, variable};
use serde_json::{Value, json};

use super::{Input, admission, rbac};
use crate::operator::certificates::APISERVER_BUNDLE;
use crate::operator::status::CONFIGURATION;
use crate::token;

/// The controller's Deployment.
pub const CONTROLLER: &str = "cdi-deployment";
/// Names of the Deployments, whose readiness is the product's.
pub const DEPLOYMENTS: [&str; 3] = [CONTROLLER, "cdi-apiserver", "cdi-uploadproxy"];

const PORT: i64 = 8443;
/// What the port of metrics is called; operators that share a pod have one each.
pub(crate) const METRICS: &str = "cdi-metrics";

/// Everything that runs.
pub fn render(input: &Input) -> Vec<Value> {
    vec![
        service(input, admission::SERVICE, "cdi-apiserver"),
        service(input, "cdi-uploadproxy", "cdi-uploadproxy"),
        metrics_service(input),
        deployment(input, controller(input), input.replicas[0]),
        deployment(input, apiserver(), input.replicas[1]),
        deployment(input, uploadproxy(), input.replicas[2]),
    ]
}

struct Component {
    name: &'static str,
    command: &'static str,
    account: &'static str,
    labels: Value,
    env: Vec<Value>,
    mounts: Vec<Mount>,
    /// Where it says that it serves.
    ready: &'static str,
}

enum Mount {
    Secret(&'static str, &'static str),
    ConfigMap(&'static str, &'static str),
}

fn component(name: &'static str, account: &'static str) -> Component {
    Component {
        name,
        command: name,
        account,
        labels: json!({ "cdi.kubevirt.io": name, "prometheus.cdi.kubevirt.io": "true" }),
        env: Vec::new(),
        mounts: Vec::new(),
        ready: "/readyz",
    }
}

fn controller(input: &Input) -> Component {
    Component {
        command: "cdi-controller",
        labels: json!({ "app": "containerized-data-importer", "prometheus.cdi.kubevirt.io": "true" }),
        env: vec![
            variable("IMPORTER_IMAGE", &input.image),
            variable("CLONER_IMAGE", &input.image),
            variable("UPLOADSERVER_IMAGE", &input.image),
            variable("UPLOADPROXY_SERVICE", "cdi-uploadproxy"),
            variable("PULL_POLICY", &input.pull_policy),
        ],
        mounts: vec![
            Mount::Secret(token::SECRET, "/var/run/cdi/token/keys"),
            Mount::Secret("cdi-uploadserver-signer", "/var/run/certs/cdi-uploadserver-signer"),
            Mount::Secret("cdi-uploadserver-client-signer", "/var/run/certs/cdi-uploadserver-client-signer"),
            Mount::ConfigMap("cdi-uploadserver-signer-bundle", "/var/run/ca-bundle/cdi-uploadserver-signer-bundle"),
            Mount::ConfigMap(
                "cdi-uploadserver-client-signer-bundle",
                "/var/run/ca-bundle/cdi-uploadserver-client-signer-bundle",
            ),
        ],
        ..component(CONTROLLER, rbac::CONTROLLER)
    }
}

fn apiserver() -> Component {
    Component {
        mounts: vec![
            Mount::ConfigMap(APISERVER_BUNDLE, "/var/run/certs/cdi-apiserver-signer-bundle"),
            Mount::Secret("cdi-apiserver-server-cert", "/var/run/certs/cdi-apiserver-server-cert"),
            Mount::Secret(token::SECRET, "/var/run/cdi/token/keys"),
        ],
        ..component("cdi-apiserver", rbac::APISERVER)
    }
}

fn uploadproxy() -> Component {
    let key = json!({
        "name": "APISERVER_PUBLIC_KEY",
        "valueFrom": { "secretKeyRef": { "name": token::SECRET, "key": token::PUBLIC } },
    });
    Component {
        ready: "/healthz",
        env: vec![key],
        mounts: vec![
            Mount::Secret("cdi-uploadproxy-server-cert", "/var/run/certs/cdi-uploadproxy-server-cert"),
            Mount::Secret("cdi-uploadserver-client-cert", "/var/run/certs/cdi-uploadserver-client-cert"),
            Mount::ConfigMap("cdi-uploadserver-signer-bundle", "/var/run/ca-bundle/cdi-uploadserver-signer-bundle"),
        ],
        ..component("cdi-uploadproxy", rbac::UPLOADPROXY)
    }
}

fn service(input: &Input, name: &str, component: &str) -> Value {
    let metadata = json!({ "name": name, "namespace": input.namespace, "labels": { "cdi.kubevirt.io": component } });
    let ports = json!([{ "port": 443, "targetPort": PORT, "protocol": "TCP" }]);
    workload::service(&metadata, &json!({ "cdi.kubevirt.io": component }), &ports)
}

fn metrics_service(input: &Input) -> Value {
    let labels = json!({ "prometheus.cdi.kubevirt.io": "true" });
    let metadata = json!({ "name": "cdi-prometheus-metrics", "namespace": input.namespace, "labels": labels });
    let ports = json!([{ "name": "metrics", "port": PORT, "targetPort": METRICS, "protocol": "TCP" }]);
    workload::service(&metadata, &labels, &ports)
}

fn probe(path: &str, delay: i64, period: i64) -> Value {
    workload::probe(path, &json!(PORT), [delay, period, 3])
}

fn deployment(input: &Input, component: Component, replicas: i32) -> Value {
    let mut env =
        vec![field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"), workload::one_arena()];
    if !input.log.is_empty() {
        env.push(variable("FERROVIRT_LOG", &input.log));
    }
    env.extend(component.env);
    let (mut mounts, mut volumes) = (Vec::new(), Vec::new());
    for mount in component.mounts {
        let (name, path, volume) = match mount {
            Mount::Secret(name, path) => {
                (name, path, json!({ "secret": { "secretName": name, "defaultMode": 0o444 } }))
            }
            Mount::ConfigMap(name, path) => (name, path, json!({ "configMap": { "name": name } })),
        };
        mounts.push(json!({ "name": name, "mountPath": path, "readOnly": true }));
        let mut volume = volume;
        volume["name"] = json!(name);
        volumes.push(volume);
    }
    let mut pod = json!({
        "serviceAccountName": component.account,
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "CriticalAddonsOnly", "operator": "Exists" }],
        "imagePullSecrets": input.pull_secrets,
        "securityContext": workload::unprivileged_pod(),
        "containers": [{
            "name": component.command,
            "image": input.image,
            "imagePullPolicy": input.pull_policy,
            "command": [component.command],
            "env": env,
            "ports": [{ "name": METRICS, "containerPort": PORT, "protocol": "TCP" }],
            "resources": { "requests": { "cpu": "10m", "memory": "24Mi" } },
            "readinessProbe": probe(component.ready, 0, 2),
            "livenessProbe": probe("/healthz", 15, 30),
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        }],
        "volumes": volumes,
    });
    if let Some(class) = &input.priority_class {
        pod["priorityClassName"] = json!(class);
    }
    if replicas > 1 {
        pod["affinity"] = workload::spread(&component.labels);
    }
    input.infra.place(&mut pod);
    // The selector cannot change: what only policies of the network look at is the pods' alone.
    let mut labels = component.labels.clone();
    labels[label::CLUSTER_SERVICES] = json!("true");
    if component.name == CONTROLLER {
        labels[label::COMPONENT] = json!(CONTROLLER);
    }
    let metadata = json!({
        "name": component.name, "namespace": input.namespace, "labels": component.labels,
        "annotations": { (CONFIGURATION): input.configuration },
    });
    workload::deployment(&metadata, replicas, &component.labels, &labels, &pod)
}
