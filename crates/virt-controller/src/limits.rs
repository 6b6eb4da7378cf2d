//! Limits of pods in a namespace whose ResourceQuotas count them: there, a pod with a container without limits is refused.

use std::collections::BTreeMap;

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{Container, Namespace, Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt as _};
use kube::{Api, ResourceExt};
use meta::quantity::Amount;

use crate::context::Context;
use crate::error::Error;
use crate::resources;

/// On a namespace: its guests' memory limits are this many times their requests.
const RATIO: &str = "alpha.kubevirt.io/auto-memory-limits-ratio";
/// The same in percent, where nobody says.
const PERCENT: i64 = 200;
/// What the container beside a guest may use of a CPU, in thousandths: enough for the container runtime's own start.
const BESIDE: i64 = 100;
/// The least that a container may use of memory: the container runtime's own start needs it.
const MEMORY: i64 = 40_000_000;

/// What is limited in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// CPUs.
    pub cpu: bool,
    /// Memory, at this percentage of what is requested.
    pub memory: Option<i64>,
}

impl Limited {
    /// What `quotas` of `namespace` count, and the administrator's `selector` of namespaces whose guests' CPUs are limited.
    pub fn of(quotas: &[ResourceQuota], namespace: &Namespace, selector: Option<&LabelSelector>) -> Self {
        let counts = |name: &str| quotas.iter().any(|quota| counts(quota, name));
        let selector = selector.and_then(|selector| Selector::try_from(selector.clone()).ok());
        let ratio = namespace.labels().get(RATIO).and_then(|ratio| ratio.parse::<f64>().ok());
        let percent =
            ratio.filter(|ratio| (1.0..=100.0).contains(ratio)).map_or(PERCENT, |r| (r * 100.0).round() as i64);
        Limited {
            cpu: counts("limits.cpu") || selector.is_some_and(|selector| selector.matches(namespace.labels())),
            memory: counts("limits.memory").then_some(percent),
        }
    }
}

fn counts(quota: &ResourceQuota, name: &str) -> bool {
    quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()).is_some_and(|hard| hard.contains_key(name))
}

/// Gives each container of `pod` the limits that it lacks; that of the guest may use as many CPUs as the guest has.
pub fn complete(pod: &mut Pod, limited: Limited, vcpus: i64) {
    let Some(spec) = &mut pod.spec else { return };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let cpu = if container.name == "compute" { vcpus.saturating_mul(1000) } else { BESIDE };
        if limited.cpu {
            let cpu = cpu.max(requested(container, "cpu").milli_value());
            limit(container, "cpu", || format!("{cpu}m").parse().unwrap_or(Amount::ZERO).to_decimal());
        }
        if let Some(percent) = limited.memory {
            let bytes = i128::from(requested(container, "memory").value()) * i128::from(percent) / 100;
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX).max(MEMORY);
            limit(container, "memory", || Amount::from_integer(bytes).to_binary());
        }
    }
}

fn requested(container: &Container, name: &str) -> Amount {
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    requests.and_then(|requests| Amount::try_from(requests.get(name)?).ok()).unwrap_or(Amount::ZERO)
}

fn limit(container: &mut Container, name: &str, amount: impl FnOnce() -> Quantity) {
    let limits: &mut BTreeMap<_, _> = container.resources.get_or_insert_default().limits.get_or_insert_default();
    limits.entry(name.to_owned()).or_insert_with(amount);
}

/// Gives `pod`, which is to be made in `namespace`, what its quotas ask for.
///
/// # Errors
/// When they cannot be read.
pub(crate) async fn meet(context: &Context, pod: &mut Pod, namespace: &str, vcpus: i64) -> Result<(), Error> {
    let quotas: Api<ResourceQuota> = Api::namespaced(context.client.clone(), namespace);
    let quotas = quotas.list(&ListParams::default()).await;
    let quotas = quotas.map_err(Error::api("list", "resourcequotas of", "", namespace))?.items;
    let kubevirts = context.stores.kubevirts.list();
    let configuration = kubevirts.first().and_then(|kubevirt| kubevirt.spec.configuration.as_deref());
    let selector = configuration.and_then(|all| all.auto_cpu_limit_namespace_label_selector.as_ref());
    if selector.is_none() && quotas.is_empty() {
        return Ok(());
    }
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let found = namespaces.get_opt(namespace).await.map_err(Error::api("read", "namespace", "", namespace))?;
    complete(pod, Limited::of(&quotas, &found.unwrap_or_default(), selector), vcpus);
    Ok(())
}

/// How many CPUs the pod of `vmi` may use.
pub(crate) fn vcpus(vmi: &VirtualMachineInstance) -> i64 {
    resources::vcpus(&vmi.spec.domain)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn limited(hard: Value, labels: Value, selector: Option<Value>) -> Limited {
        let quota = serde_json::from_value(json!({ "spec": { "hard": hard } })).unwrap();
        let namespace = serde_json::from_value(json!({ "metadata": { "labels": labels } })).unwrap();
        let selector = selector.map(|selector| serde_json::from_value(selector).unwrap());
        Limited::of(&[quota], &namespace, selector.as_ref())
    }

    #[test]
    fn resources_counted_by_a_quota_get_limits() {
        assert_eq!(limited(json!({ "pods": "1", "requests.memory": "1Gi" }), json!({}), None), Limited::default());
        let both = limited(json!({ "limits.cpu": "4", "limits.memory": "4Gi" }), json!({}), None);
        assert_eq!(both, Limited { cpu: true, memory: Some(200) });
        for (ratio, percent) in [("1.2", 120), ("3.2", 320), ("0.5", 200), ("much", 200)] {
            let found = limited(json!({ "limits.memory": "4Gi" }), json!({ RATIO: ratio }), None);
            assert_eq!(found, Limited { cpu: false, memory: Some(percent) }, "{ratio}");
        }
        let selector = json!({ "matchLabels": { "limited": "yes" } });
        assert!(limited(json!({}), json!({ "limited": "yes" }), Some(selector.clone())).cpu);
        assert!(!limited(json!({}), json!({ "limited": "no" }), Some(selector)).cpu);
    }

    #[test]
    fn limits_are_given_where_there_are_none_and_cover_the_requests() {
        let mut pod: Pod = serde_json::from_value(json!({ "spec": {
            "initContainers": [{ "name": "binary", "resources": { "limits": { "memory": "40M" } } }],
            "containers": [
                { "name": "compute", "resources": { "requests": { "cpu": "100m", "memory": "300Mi" } } },
                { "name": "disk", "resources": { "requests": { "cpu": "1m", "memory": "1M" }, "limits": { "cpu": "2" } } },
                { "name": "busy", "resources": { "requests": { "cpu": "3" } } },
            ],
        } }))
        .unwrap();
        let before = pod.clone();
        complete(&mut pod, Limited::default(), 2);
        assert_eq!(pod, before);
        complete(&mut pod, Limited { cpu: true, memory: Some(200) }, 2);
        let spec = pod.spec.unwrap();
        let limits = |container: &Container| json!(container.resources.as_ref().unwrap().limits);
        assert_eq!(limits(&spec.init_containers.unwrap()[0]), json!({ "cpu": "100m", "memory": "40M" }));
        assert_eq!(limits(&spec.containers[0]), json!({ "cpu": "2", "memory": "600Mi" }));
        assert_eq!(limits(&spec.containers[1]), json!({ "cpu": "2", "memory": "40000000" }));
        assert_eq!(limits(&spec.containers[2]), json!({ "cpu": "3", "memory": "40000000" }));
    }
}
