//! What Prometheus' operator is told, where there is one: what to scrape, and what to raise an alarm at. Pure.

use serde_json::{Value, json};

use super::MANAGER;
use super::settings::{Settings, labels};

/// The port of metrics, by name and number.
pub(crate) const PORT: (&str, u16) = ("hpp-metrics", 8443);
/// What the Service calls it.
const SERVED: &str = "metrics";
/// On pods whose metrics are scraped.
pub(crate) const SCRAPED: &str = "prometheus.hostpathprovisioner.kubevirt.io";
/// Whether the provisioner is available.
pub(crate) const READY: &str = "kubevirt_hpp_cr_ready";
/// Whether a pool takes the space of the node's own file system.
pub(crate) const ON_ROOT: &str = "kubevirt_hpp_pool_path_shared_with_os";
/// How many operators answer.
const UP: &str = "kubevirt_hpp_operator_up";
/// Where Prometheus runs whose account reads what is to be scraped.
const PROMETHEUS: [&str; 2] = ["monitoring", "openshift-monitoring"];
const NAME: &str = "hostpath-provisioner-monitoring";
const RUNBOOKS: &str = "https://kubevirt.io/monitoring/runbooks";

/// What is scraped and watched, and the right to find it.
pub(crate) fn render(settings: &Settings) -> Vec<Value> {
    let namespace = &settings.namespace;
    let metadata = |name: &str| {
        let mut labels = labels(MANAGER);
        labels[SCRAPED] = json!("true");
        json!({ "name": name, "namespace": namespace, "labels": labels })
    };
    let mut monitor = metadata("service-monitor-hpp");
    monitor["labels"]["openshift.io/cluster-monitoring"] = json!("");
    let accounts = PROMETHEUS.map(|at| json!({ "kind": "ServiceAccount", "namespace": at, "name": "prometheus-k8s" }));
    vec![
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata("hpp-prometheus-metrics"),
            "spec": {
                "selector": { SCRAPED: "true" }, "clusterIP": "None",
                "ports": [{ "name": SERVED, "port": PORT.1, "targetPort": PORT.0, "protocol": "TCP" }],
            },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata(NAME), "rules": [finding()],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata(NAME),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME }, "subjects": accounts,
        }),
        json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": monitor,
            "spec": {
                "selector": { "matchLabels": { SCRAPED: "true" } },
                "namespaceSelector": { "matchNames": [namespace] },
                "endpoints": [{ "port": SERVED, "scheme": "https", "tlsConfig": { "insecureSkipVerify": true } }],
            },
        }),
        json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata("prometheus-hpp-rules"),
            "spec": { "groups": [
                { "name": "recordingRules.rules", "rules": [{
                    "record": UP, "expr": format!("sum(up{{namespace='{namespace}', pod=~'{MANAGER}-.*'}} or vector(0))"),
                }] },
                { "name": "alerts.rules", "rules": alerts() },
            ] },
        }),
    ]
}

/// What Prometheus needs to find what it scrapes. Who gives this away must have it.
pub(crate) fn finding() -> Value {
    json!({ "apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"] })
}

fn alerts() -> [Value; 3] {
    let alert = |name: &str, metric: &str, value: u8, minutes: u8, impact: &str, summary: &str| {
        json!({
            "alert": name, "expr": format!("{metric} == {value}"), "for": format!("{minutes}m"),
            "annotations": { "summary": summary, "runbook_url": format!("{RUNBOOKS}/{name}") },
            "labels": {
                "severity": "warning", "operator_health_impact": impact,
                "kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": MANAGER,
            },
        })
    };
    let shared = "A pool lies on the file system of the node's own system: its volumes can fill that";
    [
        alert("HPPOperatorDown", UP, 0, 5, "critical", "No operator of the hostpath provisioner answers"),
        alert("HPPNotReady", READY, 0, 5, "critical", "The hostpath provisioner is not available: no volumes are made"),
        alert("HPPSharingPoolPathWithOS", ON_ROOT, 1, 1, "warning", shared),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_monitor_finds_the_service_and_its_pods() {
        let settings = Settings { namespace: "hpp".into(), image: "i".into(), ..Settings::default() };
        let all = render(&settings);
        let kinds: Vec<_> = all.iter().map(|manifest| manifest["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["Service", "Role", "RoleBinding", "ServiceMonitor", "PrometheusRule"]);
        // By one label the service finds the pods, and the monitor the service.
        assert_eq!(all[0]["spec"]["selector"][SCRAPED], "true");
        assert_eq!(all[0]["metadata"]["labels"][SCRAPED], all[3]["spec"]["selector"]["matchLabels"][SCRAPED]);
        let rules = &all[4]["spec"]["groups"][1]["rules"];
        assert_eq!(rules[1]["expr"], "kubevirt_hpp_cr_ready == 0");
        assert_eq!(rules[2]["expr"], "kubevirt_hpp_pool_path_shared_with_os == 1");
    }
}
