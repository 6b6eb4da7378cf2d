//! What Prometheus' operator is told, where there is one: what to scrape, and what to raise an alarm at.

use serde_json::{Value, json};

use super::{Input, validator};
use crate::operator::MANAGER;
use crate::operator::names::{DEPLOYMENT, METRICS_SERVICE};

/// The version of the kinds of Prometheus' operator.
pub const VERSION: &str = "monitoring.coreos.com/v1";
/// Those of them that are made.
pub const KINDS: [&str; 2] = ["ServiceMonitor", "PrometheusRule"];

const ROLE: &str = "prometheus-k8s-ssp";
/// Where Prometheus runs whose account reads what is to be scraped.
const PROMETHEUS: [&str; 2] = ["monitoring", "openshift-monitoring"];
const RUNBOOKS: &str = "https://kubevirt.io/monitoring/runbooks";

struct Alert {
    name: &'static str,
    expression: &'static str,
    minutes: u8,
    summary: &'static str,
    severity: &'static str,
    /// What it says of the product's health.
    impact: &'static str,
}

const ALERTS: [Alert; 5] = [
    Alert {
        name: "SSPDown",
        expression: "cluster:kubevirt_ssp_operator_up:sum == 0",
        minutes: 5,
        summary: "No ssp-operator answers: templates and boot sources are neither updated nor repaired",
        severity: "critical",
        impact: "critical",
    },
    Alert {
        name: "SSPTemplateValidatorDown",
        expression: "cluster:kubevirt_ssp_template_validator_up:sum == 0",
        minutes: 5,
        summary: "No template-validator answers: machines with rules can be neither made nor changed",
        severity: "critical",
        impact: "critical",
    },
    Alert {
        name: "SSPFailingToReconcile",
        expression: "(cluster:kubevirt_ssp_operator_reconcile_succeeded:sum == 0) and (cluster:kubevirt_ssp_operator_up:sum > 0)",
        minutes: 5,
        summary: "The ssp-operator fails again and again to bring about what the SSP object says",
        severity: "critical",
        impact: "critical",
    },
    Alert {
        name: "SSPHighRateRejectedVms",
        expression: "cluster:kubevirt_ssp_template_validator_rejected:increase1h > 5",
        minutes: 5,
        summary: "Many machines are refused by the rules of their templates",
        severity: "warning",
        impact: "warning",
    },
    Alert {
        name: "SSPCommonTemplatesModificationReverted",
        expression: "cluster:kubevirt_ssp_common_templates_restored:increase1h > 0",
        minutes: 0,
        summary: "A common template was changed by hand, and the change was undone",
        severity: "warning",
        impact: "none",
    },
];

/// What is scraped and watched, and the right to find it.
pub fn render(input: &Input) -> Vec<Value> {
    let namespace = &input.namespace;
    let marked = json!({ "prometheus.ssp.kubevirt.io": "true" });
    let metadata = |name: &str| json!({ "name": name, "namespace": namespace, "labels": marked });
    let monitor = |service: &str| {
        let mut metadata = metadata(service);
        metadata["labels"]["openshift.io/cluster-monitoring"] = json!("true");
        metadata["labels"]["k8s-app"] = json!("kubevirt");
        json!({
            "apiVersion": VERSION, "kind": "ServiceMonitor", "metadata": metadata,
            "spec": {
                "selector": { "matchLabels": { "metrics.ssp.kubevirt.io": service } },
                "namespaceSelector": { "matchNames": [namespace] },
                "endpoints": [{
                    "port": "http-metrics", "scheme": "https", "honorLabels": true,
                    "tlsConfig": { "insecureSkipVerify": true },
                }],
            },
        })
    };
    let accounts = PROMETHEUS.map(|at| json!({ "kind": "ServiceAccount", "namespace": at, "name": "prometheus-k8s" }));
    let mut rules = metadata("prometheus-k8s-rules-cnv");
    for (key, value) in [("prometheus", "k8s"), ("role", "alert-rules"), ("kubevirt.io", "prometheus-rules")] {
        rules["labels"][key] = json!(value);
    }
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata(ROLE),
            "rules": [{ "apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata(ROLE),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE }, "subjects": accounts,
        }),
        monitor(METRICS_SERVICE),
        monitor(validator::METRICS_SERVICE),
        json!({
            "apiVersion": VERSION, "kind": "PrometheusRule", "metadata": rules,
            "spec": { "groups": [
                { "name": "recordingRules.rules", "rules": recorded(namespace) },
                { "name": "alerts.rules", "rules": ALERTS.iter().map(alert).collect::<Vec<_>>() },
            ] },
        }),
    ]
}

/// What is added up, under its older name, too.
fn recorded(namespace: &str) -> Vec<Value> {
    let up = |pods: &str| format!("sum(up{{namespace='{namespace}', pod=~'{pods}-.*'}}) OR on() vector(0)");
    let increase = |metric: &str| format!("sum(increase({metric}_total[1h])) OR on() vector(0)");
    let all = [
        ("kubevirt_ssp_operator_up", "sum", up(MANAGER)),
        ("kubevirt_ssp_template_validator_up", "sum", up(DEPLOYMENT)),
        (
            "kubevirt_ssp_operator_reconcile_succeeded",
            "sum",
            "sum(kubevirt_ssp_operator_reconcile_succeeded) OR on() vector(0)".to_owned(),
        ),
        (
            "kubevirt_ssp_template_validator_rejected",
            "increase1h",
            increase("kubevirt_ssp_template_validator_rejected"),
        ),
        ("kubevirt_ssp_common_templates_restored", "increase1h", increase("kubevirt_ssp_common_templates_restored")),
    ];
    let rules = all.into_iter().flat_map(|(name, how, expression)| {
        let older = match how {
            "sum" if name.ends_with("reconcile_succeeded") => format!("{name}_aggregated"),
            "sum" => name.to_owned(),
            _ => format!("{name}_increase"),
        };
        [format!("cluster:{name}:{how}"), older].map(|record| json!({ "record": record, "expr": expression }))
    });
    rules.collect()
}

fn alert(alert: &Alert) -> Value {
    let mut out = json!({
        "alert": alert.name, "expr": alert.expression,
        "annotations": { "summary": alert.summary, "runbook_url": format!("{RUNBOOKS}/{}", alert.name) },
        "labels": {
            "severity": alert.severity, "operator_health_impact": alert.impact,
            "kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": MANAGER,
        },
    });
    if alert.minutes > 0 {
        out["for"] = json!(format!("{}m", alert.minutes));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_raised_at_what_is_recorded_of_what_is_measured() {
        let recorded = recorded("ns");
        let names: Vec<&str> = recorded.iter().map(|rule| rule["record"].as_str().unwrap()).collect();
        for alert in &ALERTS {
            let words = alert.expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
            for word in words.filter(|word| word.contains("kubevirt_ssp_")) {
                assert!(names.contains(&word), "{}: {word}", alert.name);
            }
        }
        let measured = concat!(include_str!("../metrics.rs"), include_str!("../../validator.rs"));
        for rule in &recorded {
            let expression = rule["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            for word in words.filter(|word| word.starts_with("kubevirt_ssp_")) {
                let name = word.trim_end_matches("_total");
                assert!(measured.contains(&format!("\"{name}\"")), "{word}");
            }
        }
    }
}
