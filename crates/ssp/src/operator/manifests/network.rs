//! Who may connect to whom, for clusters whose namespaces are closed unless a policy opens them.

use serde_json::{Value, json};

use super::{Input, validator};

/// Where clusters serve their API; behind a Service, some policies see one port and some the other.
const CLUSTER: [u16; 4] = [443, 6443, 8443, 16443];
/// Where DNS is served, by OpenShift's pods at the second.
const DNS: [u16; 2] = [53, 5353];

/// The policies of the validator.
pub fn render(input: &Input) -> Vec<Value> {
    let pods = json!({ "matchLabels": validator::selector() });
    let served = [validator::WEBHOOKS, validator::METRICS].map(tcp);
    let ingress = json!({ "ingress": [{ "ports": served }] });
    [
        ("virt-template-validator-allow-cluster-services", cluster_services()),
        ("virt-template-validator-allow-ingress", ingress),
    ]
    .into_iter()
    .map(|(name, rules)| policy(&input.namespace, name, &pods, rules))
    .collect()
}

/// The way to the API server and to DNS.
pub(super) fn cluster_services() -> Value {
    let mut ports: Vec<Value> = CLUSTER.into_iter().map(tcp).collect();
    ports.extend(DNS.into_iter().flat_map(|port| [tcp(port), json!({ "port": port, "protocol": "UDP" })]));
    json!({ "egress": [{ "ports": ports }] })
}

pub(super) fn tcp(port: u16) -> Value {
    json!({ "port": port, "protocol": "TCP" })
}

/// A policy of the pods that `pods` selects.
pub(super) fn policy(namespace: &str, name: &str, pods: &Value, rules: Value) -> Value {
    let types = [("ingress", "Ingress"), ("egress", "Egress")];
    let types: Vec<&str> =
        types.into_iter().filter(|(key, _)| rules.get(key).is_some()).map(|(_, kind)| kind).collect();
    let mut spec = rules;
    spec["podSelector"] = pods.clone();
    spec["policyTypes"] = json!(types);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": namespace }, "spec": spec,
    })
}
