//! Everything that the pool is, as manifests. Pure: the same input is always the same manifests.

mod admission;
pub mod monitoring;
mod rbac;
mod workload;

use kit::operator;
use kit::workload::Placement;
use serde_json::{Value, json};

use super::opting::Mode;
use super::range::{CONFIG, END, Range, START};

/// The Deployment of the replicas.
pub const DEPLOYMENT: &str = "kubemacpool-mac-controller-manager";
/// The configuration of the webhooks.
pub const MUTATOR: &str = "kubemacpool-mutator";
/// Replicas, so that one serves while the other is exchanged.
pub const REPLICAS: i32 = 2;

/// What the manifests are made from.
#[derive(Clone, Debug)]
pub struct Input {
    /// Namespace of the pool.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// Its pull policy.
    pub pull_policy: String,
    /// Where addresses are taken from.
    pub range: Range,
    /// Where the replicas run.
    pub infra: Placement,
    /// How many there are.
    pub replicas: i32,
    /// The bundle that verifies the webhooks, in PEM.
    pub ca_bundle: String,
    /// Least version of TLS, as in `VersionTLS12`.
    pub tls_min_version: String,
    /// Ciphers of TLS 1.2 by their names; none are all.
    pub tls_cipher_suites: Vec<String>,
    /// Labels of everything, which say of which version it is.
    pub labels: Value,
    /// Whether virtual machines of namespaces that do not say get addresses.
    pub virtual_machines: Mode,
    /// Whether pods of namespaces that do not say get addresses.
    pub pods: Mode,
    /// Whether the cluster knows the kinds of Prometheus' operator.
    pub monitoring: bool,
}

impl Input {
    /// For `image` in `namespace`, as the pool is deployed when nothing else is asked for.
    pub fn new(namespace: &str, image: &str, range: Range) -> Self {
        Input {
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            range,
            infra: Placement::default(),
            replicas: REPLICAS,
            ca_bundle: String::new(),
            tls_min_version: "VersionTLS13".to_owned(),
            tls_cipher_suites: Vec::new(),
            labels: json!({}),
            virtual_machines: Mode::OptOut,
            pods: Mode::OptIn,
            monitoring: false,
        }
    }
}

/// All manifests but what is secret, in an order in which they can be applied: the webhooks last.
///
/// The reservations are not among them: whoever removes the pool deletes the Leases of its namespace that have the label
/// [`LABEL`](super::reservation::LABEL).
pub fn render(input: &Input) -> Vec<Value> {
    let mut out = rbac::render(&input.namespace);
    out.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": CONFIG, "namespace": input.namespace },
        "data": { START: input.range.start().to_string(), END: input.range.end().to_string() },
    }));
    out.extend(workload::render(input));
    if input.monitoring {
        out.extend(monitoring::render(&input.namespace));
    }
    out.push(admission::render(input));
    for manifest in &mut out {
        operator::label(manifest, &input.labels);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use clap::Parser;

    use super::super::Args;
    use super::super::names::{BUNDLE_KEY, SERVICE};
    use super::*;

    fn input() -> Input {
        let range = Range::new("02:00:00:00:00:00".parse().unwrap(), "02:00:00:ff:ff:ff".parse().unwrap()).unwrap();
        let labels = json!({ "app.kubernetes.io/version": "v1" });
        Input { monitoring: true, labels, ca_bundle: "pem".into(), ..Input::new("ns", "image:v1", range) }
    }

    fn find<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
        all.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name).unwrap()
    }

    #[test]
    fn every_manifest_has_a_name_and_the_labels_of_the_version() {
        let all = render(&input());
        let mut seen = BTreeSet::new();
        for manifest in &all {
            let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let id = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
            assert!(!id.2.is_empty() && !id.0.is_empty(), "{manifest}");
            assert_eq!(text("/metadata/labels/app.kubernetes.io~1version"), "v1", "{id:?}");
            assert!(seen.insert(id.clone()), "twice: {id:?}");
        }
        // The webhook's configuration is of no use before it is answered.
        assert_eq!(all.last().unwrap()["kind"], "MutatingWebhookConfiguration");
        assert_eq!(find(&all, "ConfigMap", CONFIG)["data"]["RANGE_END"], "02:00:00:ff:ff:ff");
        let plain = render(&Input { monitoring: false, ..input() });
        assert!(plain.iter().all(|one| one["apiVersion"] != "monitoring.coreos.com/v1"));
    }

    #[test]
    fn the_pods_are_restricted_and_never_all_away() {
        let all = render(&input());
        let deployment = find(&all, "Deployment", DEPLOYMENT);
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
        assert_eq!(deployment["spec"]["replicas"], 2);
        assert_eq!(deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        for (kind, name, pointer) in [
            ("PodDisruptionBudget", DEPLOYMENT, "/spec/selector/matchLabels"),
            ("Service", SERVICE, "/spec/selector"),
            ("Deployment", DEPLOYMENT, "/spec/selector/matchLabels"),
        ] {
            let selector = find(&all, kind, name).pointer(pointer).unwrap().as_object().unwrap();
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
        let tls_cipher_suites = vec!["A".to_owned(), "B".to_owned()];
        let all =
            render(&Input { tls_cipher_suites, pods: Mode::OptOut, tls_min_version: "VersionTLS12".into(), ..input() });
        let pod = &find(&all, "Deployment", DEPLOYMENT)["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let args = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
        let Program { args } = Program::try_parse_from(std::iter::once("kubemacpool").chain(args)).unwrap();
        assert_eq!((args.virtual_machines, args.pods, args.wait_time), (Mode::OptOut, Mode::OptOut, 600));
        assert_eq!(
            (args.tls_min_version.as_str(), args.tls_cipher_suites),
            ("VersionTLS12", vec!["A".into(), "B".into()])
        );
        // What it does not tell is what the program takes for granted.
        let ports = [0, 1].map(|at| container["ports"][at]["containerPort"].as_u64().unwrap());
        assert_eq!(ports, [u64::from(args.port), u64::from(args.metrics_port)]);
        let mounted = |at: usize| PathBuf::from(container["volumeMounts"][at]["mountPath"].as_str().unwrap());
        assert_eq!((mounted(0), mounted(1).join(BUNDLE_KEY)), (args.cert_dir, args.ca_bundle));
    }

    #[test]
    fn replicas_are_spread_wherever_they_are_to_run() {
        let near = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [] } });
        let infra = Placement { affinity: near.clone(), ..Placement::default() };
        let all = render(&Input { infra, ..input() });
        let affinity = &find(&all, "Deployment", DEPLOYMENT)["spec"]["template"]["spec"]["affinity"];
        assert_eq!(affinity["nodeAffinity"], near["nodeAffinity"]);
        assert!(affinity["podAntiAffinity"].is_object());
        let own = json!({ "podAntiAffinity": {} });
        let infra = Placement { affinity: own.clone(), ..Placement::default() };
        let all = render(&Input { infra, ..input() });
        assert_eq!(find(&all, "Deployment", DEPLOYMENT)["spec"]["template"]["spec"]["affinity"], own);
    }

    #[test]
    fn the_webhooks_select_namespaces_as_they_say() {
        let all = render(&input());
        let hooks = find(&all, "MutatingWebhookConfiguration", MUTATOR)["webhooks"].as_array().unwrap();
        let names: Vec<&str> = hooks.iter().map(|hook| hook["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["mutatevirtualmachines.kubemacpool.io", "mutatepods.kubemacpool.io"]);
        for hook in hooks {
            assert_eq!((&hook["failurePolicy"], &hook["sideEffects"]), (&json!("Fail"), &json!("NoneOnDryRun")));
            assert_eq!(hook["clientConfig"]["caBundle"], "cGVt");
        }
        let last = |hook: usize, at: usize| hooks[hook]["namespaceSelector"]["matchExpressions"][at].clone();
        let out = json!({ "key": names[0], "operator": "NotIn", "values": ["ignore"] });
        let opted = json!({ "key": names[1], "operator": "In", "values": ["allocate"] });
        assert_eq!((last(0, 2), last(1, 2)), (out, opted));
        // The pods of the pool itself are made while nobody answers.
        assert_eq!(last(1, 3), json!({ "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["ns"] }));
    }
}
