//! What a container holds of its node while its pod may be on the way from one size to another. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Quantities by the name of their resource.
pub(crate) type Quantities = BTreeMap<String, Quantity>;

/// Lists of requests of which, resource by resource, the largest counts: what the container is to have, what its node has set
/// aside for it, and what it has. What its node can never give it does not count.
pub(crate) fn requests<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = &'a Quantities> {
    let wanted = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let status = status(pod, container);
    let actual = status.and_then(|status| status.resources.as_ref()?.requests.as_ref());
    let set_aside = status.and_then(|status| status.allocated_resources.as_ref());
    lists(pod, wanted, [actual, set_aside])
}

/// The same of limits, of which nothing is set aside.
pub(crate) fn limits<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = &'a Quantities> {
    let wanted = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let actual = status(pod, container).and_then(|status| status.resources.as_ref()?.limits.as_ref());
    lists(pod, wanted, [actual, None])
}

fn lists<'a>(
    pod: &Pod,
    wanted: Option<&'a Quantities>,
    held: [Option<&'a Quantities>; 2],
) -> impl Iterator<Item = &'a Quantities> {
    let known = held.iter().any(Option::is_some);
    let wanted = wanted.filter(|_| !(known && is_infeasible(pod)));
    wanted.into_iter().chain(held.into_iter().flatten())
}

/// The status of a container that can be resized.
fn status<'a>(pod: &'a Pod, container: &Container) -> Option<&'a k8s_openapi::api::core::v1::ContainerStatus> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let runs_on = spec.containers.iter().any(|c| c.name == container.name)
        || container.restart_policy.as_deref() == Some("Always");
    let mut all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    all.find(|status| runs_on && status.name == container.name)
}

fn is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible"))
}

/// Whether something of what the containers of a pod hold may have become another amount.
pub(crate) fn differs(old: &Pod, new: &Pod) -> bool {
    fn lists(pod: &Pod) -> Vec<&Quantities> {
        let containers = pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
        containers.flat_map(|container| requests(pod, container).chain(limits(pod, container))).collect()
    }
    lists(old) != lists(new)
}
