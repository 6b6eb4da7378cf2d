//! Manifests of what runs: Deployments, DaemonSets, Services, and what their pods have in common. Pure.
//!
//! A pod that is built here runs as nobody, with a read-only root and without capabilities, unless its operator says otherwise.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Where pods run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Labels the node must have, beside those that the pod asks for itself.
    pub node_selector: BTreeMap<String, String>,
    /// Affinity; null for none.
    pub affinity: Value,
    /// Tolerations beside the pod's own; null for none.
    pub tolerations: Value,
}

impl Placement {
    /// Places `pod`, the spec of a template.
    pub fn place(&self, pod: &mut Value) {
        for (key, value) in &self.node_selector {
            pod["nodeSelector"][key] = json!(value);
        }
        if !self.affinity.is_null() {
            pod["affinity"] = self.affinity.clone();
        }
        if let (Some(all), Some(more)) = (pod["tolerations"].as_array_mut(), self.tolerations.as_array()) {
            all.extend(more.iter().cloned());
        }
    }
}

/// An environment variable.
pub fn variable(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

/// An environment variable with a field of the pod.
pub fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } } })
}

/// Components are small processes that mostly wait: more allocation arenas would only hold memory.
pub fn one_arena() -> Value {
    variable("MALLOC_ARENA_MAX", "1")
}

/// A probe by HTTPS: `delay` and `period` in seconds. Liveness waits: a component that is just starting is not to be suspected
/// of having died.
pub fn probe(path: &str, port: &Value, [delay, period, failures]: [i64; 3]) -> Value {
    json!({
        "httpGet": { "path": path, "port": port, "scheme": "HTTPS" },
        "initialDelaySeconds": delay, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5,
    })
}

/// The security context of a pod that needs no rights on its node. Which user it is, the image says: OpenShift gives each namespace users of
/// its own, and admits no pod that names another.
pub fn unprivileged_pod() -> Value {
    json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } })
}

/// The security context of its containers.
pub fn unprivileged_container() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
    })
}

/// Affinity by which replicas prefer to run on different nodes.
pub fn spread(labels: &Value) -> Value {
    json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 1,
        "podAffinityTerm": { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": labels } },
    }] } })
}

/// A Deployment whose pods are found by `selector`, which cannot change; `labels` are the pods', among them the selector's.
pub fn deployment(metadata: &Value, replicas: i32, selector: &Value, labels: &Value, pod: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": selector },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    })
}

/// A DaemonSet that is exchanged on a tenth of the nodes at a time.
pub fn daemon_set(metadata: &Value, selector: &Value, labels: &Value, pod: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata,
        "spec": {
            "selector": { "matchLabels": selector },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    })
}

/// A Service of the cluster's own addresses in front of the pods of `selector`.
pub fn service(metadata: &Value, selector: &Value, ports: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": { "selector": selector, "ports": ports, "type": "ClusterIP" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_adds_to_what_the_pod_asks_for() {
        let mut pod = json!({
            "nodeSelector": { "kubernetes.io/os": "linux" }, "tolerations": [{ "key": "a", "operator": "Exists" }],
        });
        Placement::default().place(&mut pod);
        assert_eq!(pod["affinity"], Value::Null);
        let placement = Placement {
            node_selector: BTreeMap::from([("infra".to_owned(), "yes".to_owned())]),
            affinity: json!({ "nodeAffinity": {} }),
            tolerations: json!([{ "key": "b", "operator": "Exists" }]),
        };
        placement.place(&mut pod);
        let expect = json!({
            "nodeSelector": { "kubernetes.io/os": "linux", "infra": "yes" },
            "affinity": { "nodeAffinity": {} },
            "tolerations": [{ "key": "a", "operator": "Exists" }, { "key": "b", "operator": "Exists" }],
        });
        assert_eq!(pod, expect);
    }
}
