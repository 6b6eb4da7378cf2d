//! virt-api, virt-controller, virt-exportproxy and virt-handler: Services, Deployments and the DaemonSet.

use api::export::constants::{AUTHORITY as EXPORT_CA, PROXY};
use api::kubevirt::constants::label;
use kit::workload::{self, field, variable};
use serde_json::{Value, json};

use super::{Input, admission};

/// Priority class of all components.
pub const PRIORITY_CLASS: &str = "kubevirt-cluster-critical";
/// ConfigMap with the trust bundle, under the key `ca-bundle`.
pub const CA_BUNDLE: &str = "kubevirt-ca";
/// What virt-handler listens on for virt-api.
pub const CONSOLE_PORT: i64 = 8186;
/// Where virt-handler takes guests from other nodes.
pub const MIGRATION_PORT: i64 = 8187;
const PORT: i64 = 8443;
/// Where virt-handler finds what libvirt told of its node.
const CAPABILITIES_DIR: &str = "/var/lib/kubevirt-node-labeller";
const CA_DIR: &str = "/etc/kubevirt/ca";

/// The interface of virt-handler's pods that guests are moved over, as KubeVirt calls it.
const MIGRATION_INTERFACE: &str = "migration0";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Names of the Deployments and the DaemonSet, whose readiness is the product's.
pub const DEPLOYMENTS: [&str; 3] = ["virt-api", "virt-controller", PROXY];
/// The DaemonSet.
pub const DAEMON_SET: &str = "virt-handler";

/// Everything that runs.
pub fn render(input: &Input) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": PRIORITY_CLASS },
            "value": 1_000_000_000, "globalDefault": false,
            "description": "For the components of virtualization: they must keep running for guests to be managed.",
        }),
        service(
            input,
            admission::API_SERVICE,
            "virt-api",
            &json!([{ "name": "https", "port": 443, "targetPort": PORT }]),
        ),
        service(
            input,
            admission::OPERATOR_SERVICE,
            "virt-operator",
            // The operator's Deployment, which is not rendered here, says which of its ports that is.
            &json!([{ "name": "webhooks", "port": 443, "targetPort": "webhooks" }]),
        ),
        service(input, PROXY, PROXY, &json!([{ "name": "https", "port": 443, "targetPort": PORT }])),
        metrics_service(input),
        deployment(input, "virt-api", "kubevirt-apiserver", &[("GS_IMAGE", &input.guestfs_image)]),
        deployment(
            input,
            "virt-controller",
            "kubevirt-controller",
            &[("LAUNCHER_IMAGE", &input.launcher_image), ("EXPORTER_IMAGE", &input.component_image)],
        ),
        export_proxy(input),
        daemon_set(input),
        budget(input, "virt-api"),
        budget(input, "virt-controller"),
    ]
}

/// Of several replicas one may be evicted at a time; a single one is in nobody's way.
fn budget(input: &Input, name: &str) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": format!("{name}-pdb"), "namespace": input.namespace },
        "spec": {
            "minAvailable": input.replicas.saturating_sub(1).max(0),
            "selector": { "matchLabels": { "kubevirt.io": name } },
        },
    })
}

fn service(input: &Input, name: &str, component: &str, ports: &Value) -> Value {
    let metadata = json!({ "name": name, "namespace": input.namespace });
    workload::service(&metadata, &json!({ "kubevirt.io": component }), ports)
}

fn metrics_service(input: &Input) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubevirt-prometheus-metrics", "namespace": input.namespace,
            "labels": { "prometheus.kubevirt.io": "true" },
        },
        "spec": {
            "clusterIP": "None", "selector": { "prometheus.kubevirt.io": "true" },
            "ports": [{ "name": "metrics", "port": 443, "targetPort": "metrics" }],
        },
    })
}

fn environment(extra: &[(&str, &str)]) -> Vec<Value> {
    let mut out = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_IP", "status.podIP"),
        field("NODE_NAME", "spec.nodeName"),
        workload::one_arena(),
    ];
    out.extend(extra.iter().map(|(name, value)| variable(name, value)));
    out
}

fn probe(path: &str, times: [i64; 3]) -> Value {
    workload::probe(path, &json!(PORT), times)
}

fn template_labels(component: &str) -> Value {
    json!({ "kubevirt.io": component, "prometheus.kubevirt.io": "true", "name": component })
}

fn metadata(input: &Input, name: &str) -> Value {
    json!({
        "name": name, "namespace": input.namespace, "labels": { "kubevirt.io": name },
        "annotations": { (label::INSTALL_STRATEGY): input.deployment_id },
    })
}

fn deployment(input: &Input, name: &str, account: &str, extra: &[(&str, &str)]) -> Value {
    let certificates = format!("/etc/{name}/certificates");
    let secret = certificate_secret(name);
    let mut pod = json!({
        "serviceAccountName": account,
        "priorityClassName": PRIORITY_CLASS,
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "CriticalAddonsOnly", "operator": "Exists" }],
        "securityContext": workload::unprivileged_pod(),
        "imagePullSecrets": input.pull_secrets,
        "terminationGracePeriodSeconds": 10,
        "containers": [{
            "name": name,
            "image": input.component_image,
            "imagePullPolicy": input.pull_policy,
            "command": [name],
            "env": environment(extra),
            "ports": [
                { "name": "metrics", "containerPort": PORT, "protocol": "TCP" },
            ],
            "resources": { "requests": { "cpu": "10m", "memory": "24Mi" } },
            "readinessProbe": probe("/readyz", [0, 2, 3]),
            "livenessProbe": probe("/livez", [15, 30, 4]),
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                { "name": "certificates", "mountPath": certificates, "readOnly": true },
                { "name": "ca", "mountPath": CA_DIR, "readOnly": true },
            ],
        }],
        "volumes": [
            { "name": "certificates", "secret": { "secretName": secret, "defaultMode": 0o444 } },
            { "name": "ca", "configMap": { "name": CA_BUNDLE } },
        ],
    });
    let selector = json!({ "kubevirt.io": name });
    if input.replicas > 1 {
        pod["affinity"] = workload::spread(&selector);
    }
    input.infra.place(&mut pod);
    workload::deployment(&metadata(input, name), input.replicas, &selector, &template_labels(name), &pod)
}

/// It believes the authority of export servers, and no other.
fn export_proxy(input: &Input) -> Value {
    let mut out = deployment(input, PROXY, "kubevirt-exportproxy", &[]);
    let pod = &mut out["spec"]["template"]["spec"];
    pod["volumes"][1] = json!({ "name": "ca", "configMap": { "name": EXPORT_CA } });
    pod["containers"][0]["volumeMounts"][1]["mountPath"] = json!(format!("/etc/{PROXY}/exportca"));
    out
}

/// The Secret with the certificate of a component.
pub fn certificate_secret(component: &str) -> String {
    match component {
        "virt-controller" => "kubevirt-controller-certs".to_owned(),
        "virt-operator" => "kubevirt-operator-certs".to_owned(),
        PROXY => "kubevirt-exportproxy-certs".to_owned(),
        other => format!("kubevirt-{other}-certs"),
    }
}

fn daemon_set(input: &Input) -> Value {
    let name = DAEMON_SET;
    let mounts = [
        ("kubelet-pods", "/var/lib/kubelet/pods", "Directory", Some("Bidirectional")),
        ("device-plugin", "/var/lib/kubelet/device-plugins", "DirectoryOrCreate", None),
        ("virt-share-dir", "/var/run/kubevirt", "DirectoryOrCreate", Some("Bidirectional")),
        ("virt-lib-dir", "/var/lib/kubevirt", "DirectoryOrCreate", None),
    ];
    let mut volume_mounts = vec![
        json!({ "name": "certificates", "mountPath": "/etc/virt-handler/certificates", "readOnly": true }),
        json!({ "name": "ca", "mountPath": CA_DIR, "readOnly": true }),
    ];
    let mut volumes = vec![
        json!({ "name": "certificates", "secret": { "secretName": certificate_secret(name) } }),
        json!({ "name": "ca", "configMap": { "name": CA_BUNDLE } }),
    ];
    for (volume, path, kind, propagation) in mounts {
        let mut mount = json!({ "name": volume, "mountPath": path });
        if let Some(propagation) = propagation {
            mount["mountPropagation"] = json!(propagation);
        }
        volume_mounts.push(mount);
        volumes.push(json!({ "name": volume, "hostPath": { "path": path, "type": kind } }));
    }
    let capabilities = json!({ "name": "node-labeller", "mountPath": CAPABILITIES_DIR });
    volume_mounts.push(capabilities.clone());
    volumes.push(json!({ "name": "node-labeller", "emptyDir": {} }));
    let mut pod = json!({
        "serviceAccountName": "kubevirt-handler",
        "priorityClassName": PRIORITY_CLASS,
        "hostPID": true,
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "operator": "Exists" }],
        "imagePullSecrets": input.pull_secrets,
        "terminationGracePeriodSeconds": 10,
        // What guests can have here is asked of the very libvirt and QEMU that they will have.
        "initContainers": [{
            "name": "virt-launcher",
            "image": input.launcher_image,
            "imagePullPolicy": input.pull_policy,
            "command": ["/usr/bin/virt-node-capabilities", "--output", format!("{CAPABILITIES_DIR}/capabilities.json")],
            "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
            "securityContext": { "privileged": true, "runAsUser": 0, "runAsNonRoot": false },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [capabilities],
        }],
        "containers": [{
            "name": name,
            "image": input.component_image,
            "imagePullPolicy": input.pull_policy,
            "command": [name],
            "env": environment(&[("LAUNCHER_IMAGE", &input.launcher_image)]),
            "ports": [
                { "name": "metrics", "containerPort": PORT, "protocol": "TCP" },
                { "name": "console", "containerPort": CONSOLE_PORT, "protocol": "TCP" },
                { "name": "migration", "containerPort": MIGRATION_PORT, "protocol": "TCP" },
            ],
            "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
            "readinessProbe": probe("/readyz", [0, 2, 5]),
            "livenessProbe": probe("/livez", [15, 30, 4]),
            "securityContext": { "privileged": true, "runAsUser": 0 },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": volume_mounts,
        }],
        "volumes": volumes,
    });
    input.workloads.place(&mut pod);
    let selector = json!({ "kubevirt.io": name });
    let mut set = workload::daemon_set(&metadata(input, name), &selector, &template_labels(name), &pod);
    if let Some(network) = &input.migration_network {
        set["spec"]["template"]["metadata"]["annotations"] =
            json!({ (NETWORKS): format!("{network}@{MIGRATION_INTERFACE}") });
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migration_network_is_the_node_agents_alone() {
        let check = |network: Option<&str>, expect: Value| {
            let input = Input { migration_network: network.map(str::to_owned), replicas: 1, ..Input::default() };
            let rendered = render(&input);
            let templates = rendered.iter().filter_map(|manifest| {
                let annotations = manifest.pointer("/spec/template/metadata/annotations").cloned();
                Some((manifest["metadata"]["name"].as_str()?.to_owned(), annotations?))
            });
            assert_eq!(json!(templates.collect::<Vec<_>>()), expect);
        };
        check(None, json!([]));
        check(Some("mig"), json!([["virt-handler", { "k8s.v1.cni.cncf.io/networks": "mig@migration0" }]]));
    }
}
