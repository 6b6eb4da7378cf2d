//! What containers and pods ask for and may use: names of resources, amounts, and requests within limits.

use std::collections::{BTreeMap, HashSet};

use meta::quantity::nanos;
use serde_json::Value;

use apimachinery::names::qualified_name_problem;

use super::super::field::{Causes, Field, Rule};
use super::Around;

const ONE: i128 = 1_000_000_000;
const OF_CONTAINERS: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
/// Further names without a prefix that stand for something, though not in containers.
const STANDARD: [&str; 17] = [
    "storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "requests.storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "services",
    "services.nodeports",
    "services.loadbalancers",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
];
const OF_PODS: &[&str] = &["cpu", "memory"];
const HUGE_PAGES: &str = "hugepages-";
const QUANTITY: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The amount that a quantity stands for, in billionths.
pub(in super::super) fn amount(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => nanos(text),
        Value::Number(number) => nanos(&number.to_string()),
        _ => None,
    }
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether more of it can be promised than there is.
fn is_shared(name: &str) -> bool {
    is_native(name) && !name.starts_with(HUGE_PAGES)
}

/// Checks the resources of a container and how it may be resized.
pub(super) fn container(container: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let resources = container.get("resources");
    requirements(&resources, container_name, causes);
    claims(&resources, around, causes);
    let policies = container.get("resizePolicy");
    let mut seen = HashSet::new();
    for policy in container.each("resizePolicy") {
        let (name, restart) = (policy.get("resourceName"), policy.get("restartPolicy"));
        if !seen.insert(name.text()) {
            policy.duplicate_word(name.text(), causes);
        }
        name.told_as(policies.path.clone()).check(&Rule::Exactly(OF_PODS), causes);
        let restart = restart.told_as(policies.path.clone());
        restart.check(&Rule::Exactly(&["NotRequired", "RestartContainer"]), causes);
        if around.restart_policy == "Never" && restart.text() == "RestartContainer" {
            restart.invalid("must be 'NotRequired' when `restartPolicy` is 'Never'", causes);
        }
    }
}

/// Checks limits and requests; `named` says what is wrong with the name of a resource.
fn requirements(resources: &Field<'_>, named: fn(&Field<'_>, &str, &mut Causes), causes: &mut Causes) {
    for part in ["limits", "requests"] {
        for (name, quantity) in resources.entries(part) {
            named(&quantity, name, causes);
            value(&quantity, name, causes);
        }
    }
    let (limits, requests) = (resources.get("limits"), resources.get("requests"));
    for (name, request) in resources.entries("requests") {
        let limit = &limits.value[name];
        if limit.is_null() {
            if !is_shared(name) {
                limits.required("Limit must be set for non overcommitable resources", causes);
            }
            continue;
        }
        let request = request.told_as(requests.path.clone());
        let shown = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
        let (Some(wanted), Some(allowed)) = (amount(request.value), amount(limit)) else { continue };
        if wanted != allowed && !is_shared(name) {
            request.invalid(&format!("must be equal to {name} limit of {shown}"), causes);
        } else if wanted > allowed {
            request.invalid(&format!("must be less than or equal to {name} limit of {shown}"), causes);
        }
    }
    let names = || resources.entries("limits").chain(resources.entries("requests")).map(|(name, _)| name);
    if names().any(|name| name.starts_with(HUGE_PAGES)) && !names().any(|name| OF_PODS.contains(&name)) {
        resources.forbidden("HugePages require cpu or memory", causes);
    }
}

/// Checks what a pod needs beside what its containers do.
pub(in super::super) fn overhead(overhead: &Field<'_>, causes: &mut Causes) {
    let limits = serde_json::json!({"limits": overhead.value});
    requirements(&Field::new(overhead.path.as_str(), &limits), container_name, causes);
}

fn container_name(quantity: &Field<'_>, name: &str, causes: &mut Causes) {
    if let Some(why) = qualified_name_problem(name) {
        quantity.invalid_word(name, &why, causes);
    }
    if name.contains('/') {
        if !is_native(name) && name.starts_with("requests.") {
            quantity.invalid_word(name, "doesn't follow extended resource name standard", causes);
        }
        return;
    }
    let known = OF_CONTAINERS.contains(&name) || name.starts_with(HUGE_PAGES);
    if !known && !STANDARD.contains(&name) {
        quantity.invalid_word(name, "must be a standard resource type or fully qualified", causes);
    }
    if !known {
        quantity.invalid_word(name, "must be a standard resource for containers", causes);
    }
}

/// The name of a resource that a LimitRange bounds: of containers and pods it is one that they can have.
pub(in super::super) fn resource_name(quantity: &Field<'_>, name: &str, kind: &str, causes: &mut Causes) {
    if matches!(kind, "Pod" | "Container") {
        container_name(quantity, name, causes);
    } else if !name.contains('/') && !OF_CONTAINERS.contains(&name) && !STANDARD.contains(&name) {
        quantity.invalid_word(name, "must be a standard resource type or fully qualified", causes);
    }
}

fn pod_name(quantity: &Field<'_>, name: &str, causes: &mut Causes) {
    if !of_whole_pods(name) {
        let supported = quantity.told_as(quantity.path.clone());
        supported.unsupported(OF_PODS, causes);
    }
}

fn value(quantity: &Field<'_>, name: &str, causes: &mut Causes) {
    let Some(amount) = amount(quantity.value) else {
        quantity.invalid(QUANTITY, causes);
        return;
    };
    if amount < 0 {
        quantity.invalid("must be greater than or equal to 0", causes);
    }
    if !is_native(name) && amount % ONE != 0 {
        quantity.invalid("must be an integer", causes);
    }
    let page = name.strip_prefix(HUGE_PAGES).map(nanos);
    if let Some(page) = page {
        let whole = page.is_some_and(|page| page > 0 && amount > 0 && amount % page == 0);
        if !whole && amount != 0 {
            quantity.invalid(&format!("{} is not positive integer multiple of {name}", quantity.text()), causes);
        }
    }
}

/// A container names claims of its pod, each once.
fn claims(resources: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let mut seen = HashSet::new();
    for claim in resources.each("claims") {
        let (name, request) = (claim.get("name"), claim.get("request"));
        name.check(&Rule::Needed, causes);
        if !seen.insert((name.text(), request.text())) {
            claim.duplicate_word(name.text(), causes);
        }
        if !name.is_empty() && !around.claims.contains(name.text()) {
            name.told_as(claim.path.clone()).not_found(causes);
        }
    }
}

/// Checks what a pod as a whole asks for and may use: no less than its containers ask for, no container more than all may.
pub(super) fn pod(spec: &Field<'_>, causes: &mut Causes) {
    let resources = spec.get("resources");
    if !resources.is_set() {
        return;
    }
    requirements(&resources, pod_name, causes);
    let asked = requests(spec);
    for (name, request) in resources.entries("requests") {
        let sum = asked.get(name).copied().unwrap_or(0);
        if amount(request.value).is_some_and(|own| own < sum) {
            request.invalid("must be greater than or equal to aggregate container requests", causes);
        }
    }
    for (index, container) in spec.each("containers").enumerate() {
        for (name, limit) in container.get("resources").entries("limits") {
            let most = amount(&resources.get("limits").value[name]);
            if most.zip(amount(limit.value)).is_some_and(|(most, own)| own > most) {
                let path = format!("{}.containers[{index}][{name}].limits", resources.path);
                limit.told_as(path).invalid("must be less than or equal to pod limits", causes);
            }
        }
    }
}

/// Whether a pod as a whole can ask for a resource.
pub(crate) fn of_whole_pods(name: &str) -> bool {
    OF_PODS.contains(&name) || name.starts_with(HUGE_PAGES)
}

/// [`requests`] as quantities, binary where the containers say them so.
pub(crate) fn aggregated_requests(spec: &Value) -> Vec<(String, String)> {
    let spec = Field::new("spec", spec);
    let binary = |name: &str| {
        let mut containers = spec.each("containers").chain(spec.each("initContainers"));
        containers.any(|c| c.value["resources"]["requests"][name].as_str().is_some_and(|text| text.ends_with('i')))
    };
    let shown = |name: &str, nanos: i128| match nanos / (1024 * ONE) {
        kibi if binary(name) && kibi * 1024 * ONE == nanos => format!("{kibi}Ki"),
        _ => format!("{nanos}n"),
    };
    requests(&spec).into_iter().map(|(name, nanos)| (name.clone(), shown(&name, nanos))).collect()
}

/// What the containers of a pod ask for together, by resource; those that run before the others count where they need more.
pub(super) fn requests(spec: &Field<'_>) -> BTreeMap<String, i128> {
    let of = |container: &Field<'_>| -> Vec<(String, i128)> {
        let entries = container.get("resources").entries("requests");
        entries.filter_map(|(name, value)| Some((name.to_owned(), amount(value.value)?))).collect()
    };
    let mut sum: BTreeMap<String, i128> = BTreeMap::new();
    for (name, amount) in spec.each("containers").flat_map(|container| of(&container)) {
        *sum.entry(name).or_default() += amount;
    }
    let mut most: BTreeMap<String, i128> = BTreeMap::new();
    let mut beside: BTreeMap<String, i128> = BTreeMap::new();
    for container in spec.each("initContainers") {
        let stays = container.get("restartPolicy").text() == "Always";
        for (name, amount) in of(&container) {
            let together = beside.get(&name).copied().unwrap_or(0) + amount;
            let peak = most.entry(name.clone()).or_default();
            *peak = (*peak).max(together);
            if stays {
                beside.insert(name.clone(), together);
                *sum.entry(name).or_default() += amount;
            }
        }
    }
    for (name, peak) in most {
        let all = sum.entry(name).or_default();
        *all = (*all).max(peak);
    }
    sum
}
