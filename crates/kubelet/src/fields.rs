//! Pure: the pod fields and container resources that environments and downward API files may name.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::resources::{limit, milli, request, value};

/// The value of `path` (`metadata.labels['x']`, `status.podIP`, …); `None` when it is no such field.
pub(crate) fn field(pod: &Pod, path: &str, pod_ips: &[String], host_ips: &[String]) -> Option<String> {
    let (meta, spec) = (&pod.metadata, pod.spec.as_ref());
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let map = match map {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => return None,
        };
        return Some(map.and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    Some(match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "spec.hostname" => hostname(pod),
        "status.hostIP" => text(host_ips.first()),
        "status.hostIPs" => host_ips.join(","),
        "status.podIP" => text(pod_ips.first()),
        "status.podIPs" => pod_ips.join(","),
        _ => return None,
    })
}

/// One `key="escaped value"` a line, sorted.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let mut out = String::new();
    for (key, value) in map.into_iter().flatten() {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{key}={}", serde_json::Value::from(value.as_str()));
    }
    out.pop();
    out
}

/// A container's request or limit in units of `divisor` thousandths, rounded up; a missing limit is the node's capacity.
pub(crate) fn resource(container: &Container, name: &str, divisor_milli: i64, node: &NodeAmounts) -> Option<String> {
    let amount = match name {
        "limits.cpu" => limit(container, "cpu").and_then(milli).unwrap_or(node.cpu_milli),
        "requests.cpu" => request(container, "cpu").and_then(milli).unwrap_or(0),
        "limits.memory" => limit(container, "memory").and_then(milli).unwrap_or(node.memory.saturating_mul(1000)),
        "requests.memory" => request(container, "memory").and_then(milli).unwrap_or(0),
        "limits.ephemeral-storage" => {
            limit(container, "ephemeral-storage").and_then(milli).unwrap_or(node.storage.saturating_mul(1000))
        }
        "requests.ephemeral-storage" => request(container, "ephemeral-storage").and_then(milli).unwrap_or(0),
        _ => {
            let (kind, key) = name.split_once('.')?;
            let found = match kind {
                "limits" if key.starts_with("hugepages-") => limit(container, key),
                "requests" if key.starts_with("hugepages-") => request(container, key),
                _ => return None,
            };
            found.and_then(value).unwrap_or(0).saturating_mul(1000)
        }
    };
    Some((amount.saturating_add(divisor_milli - 1) / divisor_milli).to_string())
}

/// What the node has, as far as containers may ask.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeAmounts {
    pub(crate) cpu_milli: i64,
    pub(crate) memory: i64,
    pub(crate) storage: i64,
}

/// The pod's host name: the one it asks for, else its name, cut to what a host name may be.
pub(crate) fn hostname(pod: &Pod) -> String {
    let wanted = pod.spec.as_ref().and_then(|spec| spec.hostname.as_deref()).filter(|name| !name.is_empty());
    if let Some(wanted) = wanted {
        return wanted.to_owned();
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "labels": {"a/b": "x\"y", "c": "1"}},
            "spec": {"containers": [], "nodeName": "node1", "serviceAccountName": "sa"}}))
        .unwrap()
    }

    #[track_caller]
    fn check(path: &str, expect: Option<&str>) {
        let ips = ["10.0.0.1".to_owned(), "fd00::1".to_owned()];
        assert_eq!(field(&pod(), path, &ips, &ips).as_deref(), expect, "{path}");
    }

    #[test]
    fn fields() {
        check("metadata.name", Some("p"));
        check("metadata.labels['a/b']", Some("x\"y"));
        check("metadata.labels['none']", Some(""));
        check("metadata.labels", Some("a/b=\"x\\\"y\"\nc=\"1\""));
        check("status.podIPs", Some("10.0.0.1,fd00::1"));
        check("spec.containers", None);
    }

    #[test]
    fn resources_round_up() {
        let container: Container =
            serde_json::from_value(json!({"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "1000"}}}))
                .unwrap();
        let node = NodeAmounts { cpu_milli: 2000, memory: 1 << 30, storage: 0 };
        assert_eq!(resource(&container, "requests.cpu", 1000, &node).as_deref(), Some("1"));
        assert_eq!(resource(&container, "requests.cpu", 1, &node).as_deref(), Some("100"));
        assert_eq!(resource(&container, "limits.cpu", 1000, &node).as_deref(), Some("2"));
        assert_eq!(resource(&container, "limits.gpu", 1000, &node), None);
    }
}
