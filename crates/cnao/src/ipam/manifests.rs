//! Everything that the controller is, as manifests. Pure: the same input is always the same manifests.

mod admission;
mod rbac;

use kit::workload::{self, field};
use serde_json::{Value, json};

use super::names::{ACCOUNT, BUNDLE, BUNDLE_KEY, PROGRAM, SECRET, SERVICE};
use crate::base::Base;

/// The Deployment of the replicas.
pub const DEPLOYMENT: &str = ACCOUNT;
/// The port of the webhook and of health.
pub const PORT: u16 = 9443;
/// Where the certificate is.
pub const CERTIFICATE: &str = "/tmp/k8s-webhook-server/serving-certs";
/// Where the authorities are, as a file.
pub const AUTHORITIES: &str = "/tmp/k8s-webhook-server/ca/ca-bundle.crt";
/// Where OVN-Kubernetes has the definition of the pod's own network, unless somebody says otherwise.
pub const DEFAULT_NETWORK_NAMESPACE: &str = "ovn-kubernetes";
const PORT_NAME: &str = "webhook-server";

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where it goes, and what it runs.
    pub base: Base,
    /// How many there are.
    pub replicas: i32,
    /// The bundle that verifies the webhook, in PEM.
    pub ca_bundle: String,
    /// Namespace of the definition of the pod's own network; empty is OVN-Kubernetes' own.
    pub default_network_namespace: String,
    /// Least version of TLS and ciphers of TLS 1.2, where they are said.
    pub tls: Option<(String, Vec<String>)>,
}

/// All manifests but what is secret, in an order in which they can be applied: the webhook last.
pub fn render(input: &Input) -> Vec<Value> {
    let mut out = rbac::render(&input.base.namespace);
    out.extend(replicas(input));
    out.extend(admission::policy());
    out.push(admission::webhook(input));
    out
}

/// What Services and the budget know the pods by.
fn selector() -> Value {
    json!({ "control-plane": "manager", "app": PROGRAM })
}

fn replicas(input: &Input) -> [Value; 3] {
    let metadata = |name: &str| json!({ "name": name, "namespace": input.base.namespace, "labels": selector() });
    let service = workload::service(
        &metadata(SERVICE),
        &selector(),
        &json!([{ "port": 443, "targetPort": PORT_NAME, "protocol": "TCP" }]),
    );
    let mut deployment =
        workload::deployment(&metadata(DEPLOYMENT), input.replicas, &selector(), &selector(), &pod(input));
    deployment["spec"]["strategy"] =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(DEPLOYMENT),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector() } },
    });
    [service, deployment, budget]
}

fn args(input: &Input) -> Vec<String> {
    let mut args = Vec::new();
    if !input.default_network_namespace.is_empty() {
        args.push(format!("--default-network-nad-namespace={}", input.default_network_namespace));
    }
    if let Some((least, ciphers)) = &input.tls {
        args.push(format!("--tls-min-version={least}"));
        if !ciphers.is_empty() {
            args.push(format!("--tls-cipher-suites={}", ciphers.join(",")));
        }
    }
    args
}

fn pod(input: &Input) -> Value {
    let port = json!(PORT_NAME);
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
            "image": input.base.image,
            "imagePullPolicy": input.base.pull_policy,
            "command": [PROGRAM],
            "args": args(input),
            "env": [
                field("POD_NAME", "metadata.name"),
                field("POD_NAMESPACE", "metadata.namespace"),
                workload::one_arena(),
            ],
            "ports": [{ "name": PORT_NAME, "containerPort": PORT, "protocol": "TCP" }],
            "resources": { "requests": { "cpu": "10m", "memory": "24Mi" } },
            "readinessProbe": workload::probe("/readyz", &port, [0, 2, 3]),
            "livenessProbe": workload::probe("/livez", &port, [15, 30, 3]),
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                { "name": "tls-key-pair", "mountPath": CERTIFICATE, "readOnly": true },
                { "name": "ca-bundle", "mountPath": AUTHORITIES.trim_end_matches(BUNDLE_KEY).trim_end_matches('/'), "readOnly": true },
            ],
        }],
        "volumes": [
            { "name": "tls-key-pair", "secret": { "secretName": SECRET, "defaultMode": 0o444 } },
            { "name": "ca-bundle", "configMap": { "name": BUNDLE, "items": [{ "key": BUNDLE_KEY, "path": BUNDLE_KEY }] } },
        ],
    });
    input.base.placement.place(&mut pod);
    if pod["affinity"]["podAntiAffinity"].is_null() {
        pod["affinity"]["podAntiAffinity"] = workload::spread(&selector())["podAntiAffinity"].clone();
    }
    pod
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::super::Args;
    use super::*;

    fn input() -> Input {
        Input { replicas: 2, ..Input::default() }
    }

    fn find<'a>(all: &'a [Value], kind: &str) -> &'a Value {
        all.iter().find(|one| one["kind"] == kind).unwrap()
    }

    #[test]
    fn the_pods_are_restricted_and_never_all_away() {
        let all = render(&input());
        // The webhook's configuration is of no use before it is answered.
        assert_eq!(all.last().unwrap()["kind"], "MutatingWebhookConfiguration");
        let deployment = find(&all, "Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["containers"][0]["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        assert!(deployment["spec"]["replicas"] == 2 && pod["affinity"]["podAntiAffinity"].is_object());
        assert_eq!(deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        for (kind, pointer) in [
            ("PodDisruptionBudget", "/spec/selector/matchLabels"),
            ("Service", "/spec/selector"),
            ("Deployment", "/spec/selector/matchLabels"),
        ] {
            let selector = find(&all, kind).pointer(pointer).unwrap().as_object().unwrap();
            assert!(selector.iter().all(|(key, value)| &labels[key] == value), "{kind}");
        }
    }

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_program_understands_what_the_deployment_tells_it() {
        let tls = Some(("VersionTLS12".to_owned(), vec!["A".to_owned(), "B".to_owned()]));
        let all = render(&Input { default_network_namespace: "ovn".into(), tls, ..input() });
        let container = &find(&all, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        let args = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
        let Program { args } = Program::try_parse_from(std::iter::once(PROGRAM).chain(args)).unwrap();
        assert_eq!(
            (args.default_network_nad_namespace.as_str(), args.tls_min_version.as_str()),
            ("ovn", "VersionTLS12")
        );
        assert_eq!(args.tls_cipher_suites, ["A", "B"]);
        // What it does not tell is what the program takes for granted.
        assert_eq!(container["ports"][0]["containerPort"].as_u64(), Some(u64::from(args.port)));
        let mounted = |at: usize| PathBuf::from(container["volumeMounts"][at]["mountPath"].as_str().unwrap());
        assert_eq!((mounted(0), mounted(1).join(BUNDLE_KEY)), (args.cert_dir, args.ca_bundle));
    }
}
