//! What Prometheus' operator is told, where there is one: what to scrape, and what to raise an alarm at.

use api::cdi::constants::label;
use serde_json::{Value, json};

use super::Input;

/// The version of the kinds of Prometheus' operator.
pub const VERSION: &str = "monitoring.coreos.com/v1";
/// Those of them that are made.
pub const KINDS: [&str; 2] = ["ServiceMonitor", "PrometheusRule"];

const NAME: &str = "cdi-monitoring";
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

const ALERTS: [Alert; 8] = [
    Alert {
        name: "CDIOperatorDown",
        expression: "kubevirt_cdi_operator_up == 0",
        minutes: 5,
        summary: "No cdi-operator answers: CDI is neither updated nor repaired",
        severity: "warning",
        impact: "critical",
    },
    Alert {
        name: "CDINotReady",
        expression: "kubevirt_cdi_cr_ready == 0",
        minutes: 5,
        summary: "CDI is not available: volumes are neither imported, uploaded nor cloned",
        severity: "warning",
        impact: "critical",
    },
    Alert {
        name: "CDIDataVolumeUnusualRestartCount",
        expression: "kubevirt_cdi_import_pods_high_restart > 0 or kubevirt_cdi_upload_pods_high_restart > 0 or kubevirt_cdi_clone_pods_high_restart > 0",
        minutes: 5,
        summary: "Pods that fill volumes were restarted again and again: they probably fail for good",
        severity: "warning",
        impact: "warning",
    },
    Alert {
        name: "CDIStorageProfilesIncomplete",
        expression: "sum by (storageclass, provisioner) (kubevirt_cdi_storageprofile_info{complete=\"false\"} > 0)",
        minutes: 5,
        summary: "StorageProfile {{ $labels.storageclass }} lacks access and volume modes: claims of the class have to name them",
        severity: "info",
        impact: "none",
    },
    Alert {
        name: "CDIDataImportCronOutdated",
        expression: "sum by (ns, cron_name) (kubevirt_cdi_dataimportcron_outdated{pending=\"false\"}) > 0",
        minutes: 15,
        summary: "DataImportCron {{ $labels.ns }}/{{ $labels.cron_name }} does not bring its golden image up to date",
        severity: "info",
        impact: "warning",
    },
    Alert {
        name: "CDINoDefaultStorageClass",
        expression: "sum(kubevirt_cdi_storageprofile_info{default=\"true\"} or on() vector(0)) + sum(kubevirt_cdi_storageprofile_info{virtdefault=\"true\"} or on() vector(0)) + (count(kubevirt_cdi_datavolume_pending == 0) or on() vector(0)) == 0",
        minutes: 5,
        summary: "A DataVolume waits for a default storage class, and there is none, for virtualization or otherwise",
        severity: "warning",
        impact: "none",
    },
    Alert {
        name: "CDIMultipleDefaultVirtStorageClasses",
        expression: "sum(kubevirt_cdi_storageprofile_info{virtdefault=\"true\"} or on() vector(0)) > 1",
        minutes: 5,
        summary: "Several storage classes are marked as the default of virtualization",
        severity: "warning",
        impact: "none",
    },
    Alert {
        name: "CDIDefaultStorageClassDegraded",
        expression: "sum(kubevirt_cdi_storageprofile_info{default=\"true\",rwx=\"true\",smartclone=\"true\"} or on() vector(0)) + sum(kubevirt_cdi_storageprofile_info{virtdefault=\"true\",rwx=\"true\",smartclone=\"true\"} or on() vector(0)) + on() (0 * (sum(kubevirt_cdi_storageprofile_info{default=\"true\"}) or sum(kubevirt_cdi_storageprofile_info{virtdefault=\"true\"}))) == 0",
        minutes: 5,
        summary: "The default storage class offers neither clones by its driver nor ReadWriteMany",
        severity: "warning",
        impact: "none",
    },
];

/// What is scraped and watched, and the right to find it.
pub fn render(input: &Input) -> Vec<Value> {
    let namespace = &input.namespace;
    let marked = json!({ (label::PROMETHEUS): "true" });
    let metadata = |name: &str| json!({ "name": name, "namespace": namespace, "labels": marked });
    let mut monitor = metadata("service-monitor-cdi");
    monitor["labels"]["openshift.io/cluster-monitoring"] = json!("");
    let accounts = PROMETHEUS.map(|at| json!({ "kind": "ServiceAccount", "namespace": at, "name": "prometheus-k8s" }));
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata(NAME),
            "rules": [{ "apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata(NAME),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME }, "subjects": accounts,
        }),
        json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": monitor,
            "spec": {
                "selector": { "matchLabels": marked },
                "namespaceSelector": { "matchNames": [namespace] },
                "endpoints": [{ "port": "metrics", "scheme": "https", "tlsConfig": { "insecureSkipVerify": true } }],
            },
        }),
        json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata("prometheus-cdi-rules"),
            "spec": { "groups": [
                { "name": "recordingRules.rules", "rules": recorded(namespace) },
                { "name": "alerts.rules", "rules": ALERTS.iter().map(alert).collect::<Vec<_>>() },
            ] },
        }),
    ]
}

/// What is added up, under its older name where it has one.
fn recorded(namespace: &str) -> Vec<Value> {
    let up = format!("sum(up{{namespace='{namespace}', pod=~'cdi-operator-.*'}} or vector(0))");
    let mut rules = vec![
        json!({ "record": "kubevirt_cdi_operator_up", "expr": up }),
        json!({ "record": "cluster:kubevirt_cdi_operator_up:sum", "expr": up }),
    ];
    for metric in RESTARTED {
        // Measured by the controller itself, under the older name.
        let all = format!("sum({metric}) or on() vector(0)");
        rules.push(json!({ "record": format!("cluster:{metric}:count"), "expr": all }));
    }
    rules
}

const RESTARTED: [&str; 3] = [
    "kubevirt_cdi_import_pods_high_restart",
    "kubevirt_cdi_upload_pods_high_restart",
    "kubevirt_cdi_clone_pods_high_restart",
];

fn alert(alert: &Alert) -> Value {
    json!({
        "alert": alert.name, "expr": alert.expression, "for": format!("{}m", alert.minutes),
        "annotations": { "summary": alert.summary, "runbook_url": format!("{RUNBOOKS}/{}", alert.name) },
        "labels": {
            "severity": alert.severity, "operator_health_impact": alert.impact,
            "kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": "containerized-data-importer",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of metrics that stand in `text`.
    fn metrics(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        words.filter(|word| word.starts_with("kubevirt_cdi_"))
    }

    #[test]
    fn alerts_are_raised_at_what_is_measured() {
        let measured = concat!(include_str!("../metrics.rs"), include_str!("../../controller/metrics.rs"));
        for alert in &ALERTS {
            for metric in metrics(alert.expression).filter(|metric| *metric != "kubevirt_cdi_operator_up") {
                assert!(measured.contains(&format!("\"{metric}\"")), "{}: {metric}", alert.name);
            }
        }
    }
}
