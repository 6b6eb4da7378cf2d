//! What Prometheus' operator is told, where there is one: what to scrape, and what to raise an alarm at.

use serde_json::{Value, json};

use super::workload::{METRICS, selector};

/// The version of the kinds of Prometheus' operator.
pub const VERSION: &str = "monitoring.coreos.com/v1";
/// Those of them that are made.
pub const KINDS: [&str; 2] = ["ServiceMonitor", "PrometheusRule"];

const ROLE: &str = "kubemacpool-prometheus";
/// Where Prometheus runs whose account reads what is to be scraped.
const PROMETHEUS: [&str; 2] = ["monitoring", "openshift-monitoring"];
const ALERT: &str = "KubemacpoolMACCollisionDetected";
const RUNBOOKS: &str = "https://kubevirt.io/monitoring/runbooks";

pub(super) fn render(namespace: &str) -> Vec<Value> {
    let metadata = |name: &str, labels: Value| json!({ "name": name, "namespace": namespace, "labels": labels });
    let accounts = PROMETHEUS.map(|at| json!({ "kind": "ServiceAccount", "namespace": at, "name": "prometheus-k8s" }));
    let rule = json!({
        "openshift.io/prometheus-rule-evaluation-scope": "leaf-prometheus", "prometheus.kubemacpool.io": "true",
    });
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata(ROLE, json!({})),
            "rules": [{ "apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata(ROLE, json!({})),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE }, "subjects": accounts,
        }),
        json!({
            "apiVersion": VERSION, "kind": KINDS[0],
            "metadata": metadata("kubemacpool-metrics-monitor", json!({ "openshift.io/cluster-monitoring": "" })),
            "spec": {
                "selector": { "matchLabels": selector() },
                "namespaceSelector": { "matchNames": [namespace] },
                "endpoints": [{ "port": METRICS.0, "scheme": "https", "tlsConfig": { "insecureSkipVerify": true } }],
            },
        }),
        json!({
            "apiVersion": VERSION, "kind": KINDS[1],
            "metadata": metadata("kubemacpool-prometheus-rule", rule),
            "spec": { "groups": [{ "name": "kubemacpool.rules", "rules": [alert()] }] },
        }),
    ]
}

/// Every replica counts; the largest count is the newest or as good.
fn alert() -> Value {
    json!({
        "alert": ALERT, "expr": "max by (mac) (kmp_mac_collisions) > 1", "for": "30s",
        "annotations": {
            "summary": "MAC address {{ $labels.mac }} is that of {{ $value }} running objects",
            "runbook_url": format!("{RUNBOOKS}/{ALERT}"),
        },
        "labels": {
            "severity": "warning", "operator_health_impact": "none",
            "kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": "cluster-network-addons-operator",
        },
    })
}
