//! Pure: a pod's requests and limits as cgroup values, its QoS class and its oom score.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meta::quantity::Amount;
use rpc::cri::LinuxContainerResources;

const PERIOD: i64 = 100_000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;

type Amounts = BTreeMap<String, Quantity>;

/// The pod's class: `Guaranteed`, `Burstable` or `BestEffort`.
pub(crate) fn qos_class(spec: &PodSpec) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        for name in ["cpu", "memory"] {
            let request = request(container, name).filter(|q| value(q).unwrap_or(0) > 0);
            let limit = limit(container, name).filter(|q| value(q).unwrap_or(0) > 0);
            any |= request.is_some() || limit.is_some();
            let equal = match (request, limit) {
                (Some(request), Some(limit)) => milli(request) == milli(limit),
                (None, Some(_)) => true,
                _ => false,
            };
            guaranteed &= equal;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// The cgroup values of one container. `memory_capacity` is the node's, for the oom score.
pub(crate) fn of_container(pod: &PodSpec, container: &Container, memory_capacity: i64) -> LinuxContainerResources {
    let cpu_request = request(container, "cpu").or_else(|| limit(container, "cpu")).and_then(milli);
    let cpu_limit = limit(container, "cpu").and_then(milli).unwrap_or(0);
    let memory_limit = limit(container, "memory").and_then(value).unwrap_or(0);
    let mut resources = LinuxContainerResources {
        cpu_shares: shares(cpu_request.unwrap_or(0)),
        memory_limit_in_bytes: memory_limit,
        oom_score_adj: oom_score(pod, container, memory_capacity),
        ..Default::default()
    };
    if cpu_limit > 0 {
        resources.cpu_period = PERIOD;
        resources.cpu_quota = quota(cpu_limit);
    }
    resources
}

/// The values of the pod's own cgroup: sums over its containers, a limit only where every container has one.
pub(crate) fn of_pod(spec: &PodSpec) -> sys::limits::Limits {
    let sum = |name: &str, of: for<'a> fn(&'a Container, &str) -> Option<&'a Quantity>, thousandths: bool| {
        let read = |c: &Container| of(c, name).and_then(|q| if thousandths { milli(q) } else { value(q) });
        let main: Option<i64> = spec.containers.iter().map(read).sum();
        let mut sidecars = Some(0);
        let mut peak = Some(0);
        for container in spec.init_containers.iter().flatten() {
            let own = read(container);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars = sidecars.zip(own).map(|(a, b)| a + b);
                peak = peak.zip(sidecars).map(|(a, b): (i64, i64)| a.max(b));
            } else {
                peak = peak.zip(sidecars).zip(own).map(|((a, b), c)| a.max(b + c));
            }
        }
        main.zip(sidecars).map(|(a, b)| a + b).zip(peak).map(|(a, b)| a.max(b))
    };
    let overhead = |name: &str| spec.overhead.as_ref().and_then(|o| o.get(name));
    let cpu_requests: i64 = spec.containers.iter().filter_map(|c| request(c, "cpu").and_then(milli)).sum();
    let cpu_limit = sum("cpu", limit, true).map(|v| v + overhead("cpu").and_then(milli).unwrap_or(0));
    let memory_limit = sum("memory", limit, false).map(|v| v + overhead("memory").and_then(value).unwrap_or(0));
    sys::limits::Limits {
        cpu_shares: shares(cpu_requests),
        cpu_quota: cpu_limit.filter(|v| *v > 0).map(|v| (quota(v), PERIOD)),
        memory: memory_limit.filter(|v| *v > 0),
    }
}

pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Amounts of extended resources (`vendor/name`) one container asks for.
pub(crate) fn extended(container: &Container) -> Vec<(String, usize)> {
    let Some(resources) = &container.resources else { return Vec::new() };
    let mut amounts: Amounts = resources.limits.clone().unwrap_or_default();
    for (name, amount) in resources.requests.iter().flatten() {
        amounts.entry(name.clone()).or_insert_with(|| amount.clone());
    }
    let is_extended = |name: &str| name.contains('/') && !name.starts_with("kubernetes.io/");
    amounts
        .into_iter()
        .filter(|(name, _)| is_extended(name))
        .filter_map(|(name, amount)| Some((name, usize::try_from(value(&amount)?).ok()?)))
        .filter(|(_, amount)| *amount > 0)
        .collect()
}

pub(crate) fn request<'a>(container: &'a Container, name: &str) -> Option<&'a Quantity> {
    container.resources.as_ref()?.requests.as_ref()?.get(name)
}

pub(crate) fn limit<'a>(container: &'a Container, name: &str) -> Option<&'a Quantity> {
    container.resources.as_ref()?.limits.as_ref()?.get(name)
}

/// The quantity in thousandths, rounded up.
pub(crate) fn milli(quantity: &Quantity) -> Option<i64> {
    quantity.0.parse::<Amount>().ok().map(Amount::milli_value)
}

/// The quantity in units, rounded up.
pub(crate) fn value(quantity: &Quantity) -> Option<i64> {
    quantity.0.parse::<Amount>().ok().map(Amount::value)
}

fn shares(milli_cpu: i64) -> i64 {
    (milli_cpu * 1024 / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

fn quota(milli_cpu: i64) -> i64 {
    (milli_cpu * PERIOD / 1000).max(1000)
}

fn oom_score(pod: &PodSpec, container: &Container, memory_capacity: i64) -> i64 {
    match (pod.priority_class_name.as_deref(), qos_class(pod)) {
        (Some("system-node-critical"), _) | (_, "Guaranteed") => -997,
        (_, "BestEffort") => 1000,
        _ => {
            let request = request(container, "memory").and_then(value).unwrap_or(0);
            let score = 1000 - 1000 * i128::from(request) / i128::from(memory_capacity.max(1));
            i64::try_from(score.clamp(3, 999)).unwrap_or(999)
        }
    }
}

/// The pod's cgroup below the node's.
pub(crate) fn cgroup_parent(node: &str, pod: &Pod) -> String {
    format!("/ferrovirt/{node}/pod{}", pod.metadata.uid.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(resources: &[serde_json::Value]) -> PodSpec {
        let containers: Vec<_> =
            resources.iter().enumerate().map(|(i, r)| json!({"name": format!("c{i}"), "resources": r})).collect();
        serde_json::from_value(json!({ "containers": containers })).unwrap()
    }

    #[test]
    fn classes() {
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}});
        assert_eq!(qos_class(&spec(std::slice::from_ref(&full))), "Guaranteed");
        assert_eq!(qos_class(&spec(&[full, json!({})])), "Burstable");
        assert_eq!(qos_class(&spec(&[json!({})])), "BestEffort");
        assert_eq!(qos_class(&spec(&[json!({"requests": {"devices.kubevirt.io/tun": "1"}})])), "BestEffort");
    }

    #[test]
    fn container_values() {
        let spec =
            spec(&[json!({"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}})]);
        let got = of_container(&spec, &spec.containers[0], 4 << 30);
        assert_eq!((got.cpu_shares, got.cpu_quota, got.cpu_period), (102, 200_000, 100_000));
        assert_eq!((got.memory_limit_in_bytes, got.oom_score_adj), (1 << 30, 875));
    }

    #[test]
    fn pod_limits_need_every_container() {
        let limited = json!({"limits": {"memory": "1Gi"}});
        assert_eq!(of_pod(&spec(&[limited.clone(), limited.clone()])).memory, Some(2 << 30));
        assert_eq!(of_pod(&spec(&[limited, json!({})])).memory, None);
    }

    #[test]
    fn extended_resources() {
        let spec = spec(&[json!({"requests": {"cpu": "1", "v.io/a": "2"}, "limits": {"v.io/a": "2", "v.io/b": "0"}})]);
        assert_eq!(extended(&spec.containers[0]), [("v.io/a".to_owned(), 2)]);
    }
}
