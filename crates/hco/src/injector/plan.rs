//! From what the definitions say to a patch of the pod. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::networks::Network;

/// On a definition: the resource that an interface of the network takes.
const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";
/// On a definition: a label of the nodes that have the network.
const NODES: &str = "k8s.v1.cni.cncf.io/nodeSelector";

/// What the networks of a pod want.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// How much of each resource.
    resources: BTreeMap<String, u32>,
    /// Labels of its node.
    nodes: Vec<(String, String)>,
}

impl Wanted {
    /// Of the networks `asked`, whose definitions have the annotations `found`.
    pub(super) fn of(asked: &[Network], found: &BTreeMap<Network, Value>) -> Self {
        let mut wanted = Wanted::default();
        for annotations in asked.iter().filter_map(|network| found.get(network)) {
            let text = |key: &str| annotations[key].as_str().map(str::trim).filter(|text| !text.is_empty());
            if let Some(resource) = text(RESOURCE) {
                *wanted.resources.entry(resource.to_owned()).or_default() += 1;
            }
            if let Some(label) = text(NODES) {
                let (key, value) = label.split_once('=').unwrap_or((label, ""));
                let pair = (key.trim().to_owned(), value.trim().to_owned());
                if !wanted.nodes.contains(&pair) {
                    wanted.nodes.push(pair);
                }
            }
        }
        wanted
    }
}

/// The patch by which the first container of `pod` asks for what is wanted; none when it need not. A resource that a container of the
/// pod names already is left to its owner.
///
/// # Errors
/// A sentence for the pod's owner when two networks are on different nodes.
pub(super) fn patch(pod: &Value, wanted: &Wanted) -> Result<Option<Value>, String> {
    let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = |resource: &str| {
        containers.iter().any(|container| {
            let lists = ["requests", "limits"].map(|list| &container["resources"][list]);
            lists.iter().any(|list| list.get(resource).is_some())
        })
    };
    let mut resources = containers.first().map(|first| first["resources"].clone()).unwrap_or_default();
    let mut patch = Vec::new();
    let mut changed = false;
    for (resource, count) in wanted.resources.iter().filter(|(resource, _)| !named(resource)) {
        for list in ["requests", "limits"] {
            resources[list][resource] = json!(count.to_string());
        }
        changed = true;
    }
    if changed && !containers.is_empty() {
        patch.push(json!({ "op": "add", "path": "/spec/containers/0/resources", "value": resources }));
    }
    let mut selector = pod["spec"]["nodeSelector"].clone();
    let mut narrowed = false;
    for (key, value) in &wanted.nodes {
        match selector[key].as_str() {
            Some(held) if held == value => {}
            Some(held) => {
                return Err(format!(
                    "the networks of the pod are on nodes with {key}={value}, and it is to run on one with {key}={held}"
                ));
            }
            None => {
                selector[key] = json!(value);
                narrowed = true;
            }
        }
    }
    if narrowed {
        patch.push(json!({ "op": "add", "path": "/spec/nodeSelector", "value": selector }));
    }
    Ok((!patch.is_empty()).then_some(Value::Array(patch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a pod with the networks `asked`, of definitions with these annotations.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, asked: &[&str], definitions: Value, expect: Result<Value, &str>) {
        let network = |name: &str| Network { namespace: "ns".to_owned(), name: name.to_owned() };
        let found =
            definitions.as_object().unwrap().iter().map(|(name, value)| (network(name), value.clone())).collect();
        let asked: Vec<Network> = asked.iter().map(|name| network(name)).collect();
        let mut pod = json!({ "spec": spec });
        match (patch(&pod, &Wanted::of(&asked, &found)), expect) {
            (Ok(patch), Ok(expect)) => {
                let patch: json_patch::Patch = serde_json::from_value(patch.unwrap_or_else(|| json!([]))).unwrap();
                json_patch::patch(&mut pod, &patch).unwrap();
                assert_eq!(pod["spec"], expect);
            }
            (Err(error), Err(expect)) => assert!(error.contains(expect), "{error}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn the_first_container_asks_for_each_interface() {
        let definitions = json!({ "a": { (RESOURCE): "x/a" }, "b": { (RESOURCE): "x/b" }, "c": {} });
        let spec = json!({ "containers": [{ "name": "one" }, { "name": "two" }] });
        let resources = json!({ "requests": { "x/a": "2", "x/b": "1" }, "limits": { "x/a": "2", "x/b": "1" } });
        let expect = json!({ "containers": [{ "name": "one", "resources": resources }, { "name": "two" }] });
        check(spec.clone(), &["a", "b", "c", "a"], definitions.clone(), Ok(expect));
        check(spec.clone(), &["c"], definitions, Ok(spec));
    }

    #[test]
    fn a_resource_that_the_pod_names_is_left_alone() {
        let spec = json!({ "containers": [{}, { "resources": { "requests": { "x/a": "7" } } }] });
        check(spec.clone(), &["a"], json!({ "a": { (RESOURCE): "x/a" } }), Ok(spec));
    }

    #[test]
    fn the_pod_goes_to_a_node_with_its_networks() {
        let at = |label: &str| json!({ (NODES): label });
        let spec = json!({ "containers": [{}] });
        let expect = json!({ "containers": [{}], "nodeSelector": { "rack": "1", "sriov": "" } });
        check(spec.clone(), &["a", "b"], json!({ "a": at("rack=1"), "b": at("sriov") }), Ok(expect));
        check(spec, &["a", "b"], json!({ "a": at("rack=1"), "b": at("rack=2") }), Err("rack=2"));
    }
}
