//! template-validator: its account, its rights, its Deployment and Services.

use kit::operator::manifests::{account, binding, role, rule};
use kit::workload;
use serde_json::{Value, json};

use super::Input;
use crate::operator::names::{CONFIGURATION, DEPLOYMENT, SECRET};
use crate::validator::NAME;
use crate::words;

/// What the objects are of.
pub const OPERAND: &str = "template-validator";
/// The account.
pub const ACCOUNT: &str = "template-validator";
/// The port of the webhooks.
pub const WEBHOOKS: u16 = 9443;
/// The port of metrics.
pub const METRICS: u16 = 8443;
/// The Service of metrics.
pub const METRICS_SERVICE: &str = "template-validator-metrics";

const CERTIFICATES: &str = "/etc/webhook/certs";

/// What its pods are found by, which cannot change.
pub fn selector() -> Value {
    json!({ "kubevirt.io": DEPLOYMENT })
}

/// Everything but the webhooks.
pub fn render(input: &Input) -> Vec<Value> {
    let named = |name: &str| json!({ "name": name, "labels": selector() });
    let here = |name: &str| json!({ "name": name, "namespace": input.namespace, "labels": selector() });
    let of = (input.namespace.as_str(), ACCOUNT);
    let mut marked = here(METRICS_SERVICE);
    marked["labels"]["metrics.ssp.kubevirt.io"] = json!(METRICS_SERVICE);
    marked["labels"]["prometheus.ssp.kubevirt.io"] = json!("true");
    let asked = json!([{ "name": "webhook", "port": 443, "targetPort": WEBHOOKS, "protocol": "TCP" }]);
    let scraped = json!([{ "name": "http-metrics", "port": 443, "targetPort": "http-metrics", "protocol": "TCP" }]);
    let mut out = vec![
        account(&here(ACCOUNT)),
        role(&named("template:view"), &cluster_rules()),
        binding(&named(ACCOUNT), "template:view", of),
        role(&here(ACCOUNT), &own_rules()),
        binding(&here(ACCOUNT), ACCOUNT, of),
        workload::service(&here(DEPLOYMENT), &selector(), &asked),
        workload::service(&marked, &selector(), &scraped),
        deployment(input),
    ];
    // Of a single one, none could ever be moved.
    if input.replicas > 1 {
        out.push(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": here(DEPLOYMENT),
            "spec": { "minAvailable": 1, "selector": { "matchLabels": selector() } },
        }));
    }
    out
}

/// What admission looks up: a template that a machine names, who may read it, and the machines of a template that goes.
pub fn cluster_rules() -> Vec<Value> {
    vec![
        rule(words::OPENSHIFT.0, &[words::OPENSHIFT.1], &["get"]),
        rule(words::KUBEVIRT.0, &[words::KUBEVIRT.1], &["get"]),
        rule("kubevirt.io", &["virtualmachines"], &["list"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]
}

/// The TLS that the SSP object asks for.
pub fn own_rules() -> Vec<Value> {
    vec![rule("ssp.kubevirt.io", &["ssps"], &["get", "list", "watch"])]
}

fn deployment(input: &Input) -> Value {
    let probe = |times: [i64; 3]| {
        let mut probe = workload::probe("/readyz", &json!(WEBHOOKS), times);
        probe["timeoutSeconds"] = json!(5);
        probe
    };
    let mut alive = probe([10, 10, 3]);
    alive["httpGet"]["path"] = json!("/livez");
    let mut pod = json!({
        "serviceAccountName": ACCOUNT,
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "CriticalAddonsOnly", "operator": "Exists" }],
        "securityContext": workload::unprivileged_pod(),
        "containers": [{
            "name": "webhook",
            "image": input.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [NAME],
            "args": [
                format!("--webhook-port={WEBHOOKS}"), format!("--metrics-port={METRICS}"),
                format!("--cert-dir={CERTIFICATES}"),
            ],
            "env": [
                workload::field("POD_NAMESPACE", "metadata.namespace"),
                workload::variable("COMMON_TEMPLATES_NAMESPACE", &input.templates),
                workload::one_arena(),
            ],
            "ports": [
                { "name": "webhook", "containerPort": WEBHOOKS, "protocol": "TCP" },
                { "name": "http-metrics", "containerPort": METRICS, "protocol": "TCP" },
            ],
            "resources": { "requests": { "cpu": "10m", "memory": "24Mi" } },
            "readinessProbe": probe([0, 5, 2]),
            "livenessProbe": alive,
            "securityContext": workload::unprivileged_container(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{ "name": "tls", "mountPath": CERTIFICATES, "readOnly": true }],
        }],
        "volumes": [{ "name": "tls", "secret": { "secretName": SECRET, "defaultMode": 0o444 } }],
        "affinity": workload::spread(&selector()),
    });
    let apart = pod["affinity"]["podAntiAffinity"].clone();
    input.placement.place(&mut pod);
    if pod["affinity"]["podAntiAffinity"].is_null() {
        pod["affinity"]["podAntiAffinity"] = apart;
    }
    let mut labels = selector();
    labels["name"] = json!(DEPLOYMENT);
    labels["prometheus.ssp.kubevirt.io"] = json!("true");
    let metadata = json!({
        "name": DEPLOYMENT, "namespace": input.namespace, "labels": { "name": DEPLOYMENT },
        "annotations": { (CONFIGURATION): input.configuration, "openshift.io/required-scc": "restricted-v2" },
    });
    workload::deployment(&metadata, input.replicas, &selector(), &labels, &pod)
}

#[cfg(test)]
mod tests {
    use kit::workload::Placement;

    use super::*;

    #[test]
    fn replicas_stay_apart_wherever_they_are_placed() {
        let affinity = json!({ "nodeAffinity": { "a": 1 } });
        let placement = Placement { affinity, ..Placement::default() };
        let pod = |placement: Placement| {
            deployment(&Input { placement, ..Input::default() })["spec"]["template"]["spec"].clone()
        };
        let placed = pod(placement);
        assert_eq!(placed["affinity"]["nodeAffinity"], json!({ "a": 1 }));
        assert_eq!(placed["affinity"]["podAntiAffinity"], pod(Placement::default())["affinity"]["podAntiAffinity"]);
        assert!(placed["affinity"]["podAntiAffinity"].is_object());
    }

    #[test]
    fn its_account_reads_no_secrets_and_writes_nothing() {
        for rule in cluster_rules().into_iter().chain(own_rules()) {
            let text = rule.to_string();
            assert!(!text.contains("secrets") && !text.contains("\"*\""), "{text}");
            let asks = rule["resources"] == json!(["subjectaccessreviews"]);
            let reads = |verb: &Value| ["get", "list", "watch"].iter().any(|read| verb == read);
            assert!(asks || rule["verbs"].as_array().unwrap().iter().all(reads), "{text}");
        }
    }

    #[test]
    fn a_single_replica_may_be_moved() {
        let budgets = |replicas: i32| {
            let all = render(&Input { replicas, ..Input::default() });
            all.iter().filter(|manifest| manifest["kind"] == "PodDisruptionBudget").count()
        };
        assert_eq!([0, 1, 2].map(budgets), [0, 0, 1]);
    }
}
