//! Where volumes can be reached from: a driver's segments, the nodes of a class, affinities of volumes. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelector, TopologySelectorTerm, VolumeNodeAffinity};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kit::controller::pod;
use rpc::csi;
use serde_json::json;

/// Topology keys and their values.
pub(crate) type Segment = BTreeMap<String, String>;

fn term_allows(term: &TopologySelectorTerm, labels: &BTreeMap<String, String>) -> bool {
    let rules = term.match_label_expressions.as_deref().unwrap_or_default();
    rules.iter().all(|rule| labels.get(&rule.key).is_some_and(|value| rule.values.contains(value)))
}

/// Whether a class allows volumes for pods on the node.
pub fn allowed(class: &StorageClass, node: &Node) -> bool {
    allows(class, pod::labels(&node.metadata))
}

fn allows(class: &StorageClass, labels: &BTreeMap<String, String>) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty() || terms.iter().any(|term| term_allows(term, labels))
}

/// The keys a node agent registered for a driver; `None` when the node does not run it.
pub(crate) fn keys<'a>(node: &'a CSINode, driver: &str) -> Option<&'a [String]> {
    let found = node.spec.drivers.iter().find(|d| d.name == driver)?;
    Some(found.topology_keys.as_deref().unwrap_or_default())
}

/// The segment a node lies in; `None` while it lacks one of the labels or does not run the driver.
pub(crate) fn segment_of(node: &Node, registered: &CSINode, driver: &str) -> Option<Segment> {
    let labels = pod::labels(&node.metadata);
    keys(registered, driver)?.iter().map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect()
}

/// All segments of a driver, each once.
pub(crate) fn segments(nodes: &[Arc<Node>], registered: &[Arc<CSINode>], driver: &str) -> BTreeSet<Segment> {
    let of = |node: &Arc<Node>| {
        let registered = registered.iter().find(|r| r.metadata.name == node.metadata.name)?;
        segment_of(node, registered, driver)
    };
    nodes.iter().filter_map(of).collect()
}

/// What a driver is asked for: the chosen node's segment, or any the class allows, begun at a different one for each
/// claim so that volumes spread. `Err` when there is none.
pub(crate) fn requirement(
    class: &StorageClass,
    claim: &str,
    chosen: Option<Segment>,
    all: &BTreeSet<Segment>,
) -> Result<Option<csi::TopologyRequirement>, String> {
    let mut wanted: Vec<Segment> = match chosen {
        Some(segment) => vec![segment],
        None => all.iter().filter(|segment| allows(class, segment)).cloned().collect(),
    };
    wanted.retain(|segment| !segment.is_empty());
    if wanted.is_empty() {
        let any = all.iter().any(|segment| !segment.is_empty());
        return if any {
            Err("no topology key found for allowedTopologies of the StorageClass".into())
        } else {
            Ok(None)
        };
    }
    let start = claim.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % wanted.len();
    let to_csi = |segment: &Segment| csi::Topology { segments: segment.clone().into_iter().collect() };
    let requisite: Vec<csi::Topology> = wanted.iter().map(to_csi).collect();
    let mut preferred = requisite.clone();
    preferred.rotate_left(start);
    Ok(Some(csi::TopologyRequirement { requisite, preferred }))
}

/// The affinity of a volume that can be reached from these segments; `None` when from everywhere.
pub(crate) fn affinity(segments: &[csi::Topology]) -> Option<VolumeNodeAffinity> {
    let term = |segment: &HashMap<String, String>| {
        let sorted: BTreeMap<_, _> = segment.iter().collect();
        let rules: Vec<_> =
            sorted.into_iter().map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]})).collect();
        json!({"matchExpressions": rules})
    };
    let terms: Vec<_> = segments.iter().filter(|t| !t.segments.is_empty()).map(|t| term(&t.segments)).collect();
    let required: Option<NodeSelector> = serde_json::from_value(json!({"nodeSelectorTerms": terms})).ok();
    required.filter(|_| !terms.is_empty()).map(|required| VolumeNodeAffinity { required: Some(required) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(zone: &str) -> Segment {
        Segment::from([("zone".to_owned(), zone.to_owned())])
    }

    fn class(zones: &[&str]) -> StorageClass {
        let terms: Vec<_> =
            zones.iter().map(|zone| json!({"matchLabelExpressions": [{"key": "zone", "values": [zone]}]})).collect();
        serde_json::from_value(json!({"metadata": {}, "provisioner": "d", "allowedTopologies": terms})).unwrap()
    }

    fn zones(list: &[csi::Topology]) -> Vec<&str> {
        list.iter().map(|t| t.segments["zone"].as_str()).collect()
    }

    #[test]
    fn accessibility_requirements_follow_class_and_node() {
        let all = BTreeSet::from(["a", "b", "c"].map(segment));
        let chosen = requirement(&class(&[]), "x", Some(segment("b")), &all).unwrap().unwrap();
        assert_eq!(zones(&chosen.requisite), ["b"]);
        let any = requirement(&class(&["a", "c"]), "x", None, &all).unwrap().unwrap();
        assert_eq!(zones(&any.requisite), ["a", "c"]);
        let first = |claim: &str| {
            let wanted = requirement(&class(&[]), claim, None, &all).unwrap().unwrap();
            zones(&wanted.preferred)[0].to_owned()
        };
        let spread: BTreeSet<String> = ["data-0", "data-1", "data-2"].map(first).into();
        assert_eq!(spread.len(), 3);
        assert!(requirement(&class(&["z"]), "x", None, &all).is_err());
        assert_eq!(requirement(&class(&[]), "x", None, &BTreeSet::from([Segment::new()])), Ok(None));
    }

    #[test]
    fn affinities_of_volumes() {
        assert!(affinity(&[]).is_none());
        let topology = csi::Topology { segments: segment("a").into_iter().collect() };
        let made = serde_json::to_value(affinity(&[topology])).unwrap();
        let rules = &made["required"]["nodeSelectorTerms"][0]["matchExpressions"];
        assert_eq!(rules, &json!([{"key": "zone", "operator": "In", "values": ["a"]}]));
    }
}
