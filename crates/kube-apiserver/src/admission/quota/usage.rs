//! What one object uses of each resource that a quota can bound. Pure.

use serde_json::Value;

use apimachinery::pointer::{items, text};

use crate::admission::amount::{Amount, Amounts, held_by_pod};
use crate::registry::Resource;

/// Core kinds that are also counted by their plain name.
const PLAIN: [&str; 7] =
    ["services", "replicationcontrollers", "secrets", "configmaps", "persistentvolumeclaims", "resourcequotas", "pods"];
/// What containers must state when a quota bounds it.
const STATED: [&str; 6] = ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];

/// The name objects of a resource are counted by.
pub(crate) fn counted(resource: &Resource) -> String {
    format!("count/{}", resource.group_resource())
}

/// Everything `object` uses.
pub(crate) fn usage(resource: &Resource, object: &Value) -> Amounts {
    let one = Amount::whole(1);
    let mut used = Amounts::from([(counted(resource), one)]);
    if !resource.group.is_empty() {
        return used;
    }
    let plural = resource.plural.as_str();
    if PLAIN.contains(&plural) && plural != "pods" {
        used.insert(plural.to_owned(), one);
    }
    match plural {
        "pods" if charged(object) => pod(object, &mut used),
        "services" => service(object, &mut used),
        "persistentvolumeclaims" => claim(object, &mut used),
        _ => {}
    }
    used
}

/// A pod that is over uses nothing but its place.
fn charged(pod: &Value) -> bool {
    !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

fn pod(pod: &Value, used: &mut Amounts) {
    used.insert("pods".to_owned(), Amount::whole(1));
    for (name, amount) in held_by_pod(pod, "requests") {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if plain {
            used.insert(name.clone(), amount);
        }
        // A prefixed name is an extended resource, of which only requests are counted.
        if plain || name.contains('/') {
            used.insert(format!("requests.{name}"), amount);
        }
    }
    for (name, amount) in held_by_pod(pod, "limits") {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), amount);
        }
    }
}

fn service(service: &Value, used: &mut Amounts) {
    let ports = items(service, "/spec/ports");
    let given = ports.iter().filter(|port| port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) != 0).count();
    let allocates = service.pointer("/spec/allocateLoadBalancerNodePorts").and_then(Value::as_bool) != Some(false);
    let (nodeports, balancers) = match text(service, "/spec/type") {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" => (if allocates { ports.len() } else { given }, 1),
        _ => (0, 0),
    };
    used.insert("services.nodeports".to_owned(), Amount::whole(nodeports));
    used.insert("services.loadbalancers".to_owned(), Amount::whole(balancers));
}

fn claim(claim: &Value, used: &mut Amounts) {
    let asked = claim.pointer("/spec/resources/requests/storage").map(Amount::of);
    let given = claim.pointer("/status/allocatedResources/storage").map(Amount::of);
    let storage = asked.into_iter().chain(given).max();
    let class = text(claim, "/spec/storageClassName");
    let annotated = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
    let class = if class.is_empty() { text(claim, annotated) } else { class };
    if let Some(storage) = storage {
        used.insert("requests.storage".to_owned(), storage);
    }
    if !class.is_empty() {
        let of_class = |what: &str| format!("{class}.storageclass.storage.k8s.io/{what}");
        used.insert(of_class("persistentvolumeclaims"), Amount::whole(1));
        if let Some(storage) = storage {
            used.insert(of_class("requests.storage"), storage);
        }
    }
}

/// What a pod's containers had to state for these bounds and do not: `cpu for: a,b; limits.cpu for: b`.
pub(crate) fn unstated<'a>(pod: &Value, bounds: impl Iterator<Item = &'a String>) -> Option<String> {
    let containers: Vec<&Value> =
        items(pod, "/spec/containers").iter().chain(items(pod, "/spec/initContainers")).collect();
    let missing = |bound: &str| {
        let (field, name) = match bound.split_once('.') {
            Some((field, name)) => (field, name),
            None => ("requests", bound),
        };
        // What the pod states as a whole, its containers need not.
        if pod.pointer(&format!("/spec/resources/{field}/{name}")).is_some() {
            return None;
        }
        let lacks = |c: &&&Value| c.pointer(&format!("/resources/{field}/{name}")).is_none();
        let mut names: Vec<&str> = containers.iter().filter(lacks).map(|c| text(c, "/name")).collect();
        names.sort_unstable();
        (!names.is_empty()).then(|| format!("{bound} for: {}", names.join(",")))
    };
    let bounds = bounds.filter(|bound| STATED.contains(&bound.as_str()));
    let all: Vec<String> = bounds.filter_map(|bound| missing(bound)).collect();
    (!all.is_empty()).then(|| all.join("; "))
}
