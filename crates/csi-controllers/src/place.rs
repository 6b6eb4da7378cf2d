//! Where a claim can be filled: copies of a volume that only one node reaches are made on that node.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, VolumeNodeAffinity};
use kit::controller::{Context, placement};
use kit::store::Key;
use kube::ResourceExt;
use meta::volume_snapshot::{GROUP, VolumeSnapshot, VolumeSnapshotContent};
use serde_json::json;

use super::facts;
use super::kinds::MANAGED_BY;

/// The nodes that what the claim is to be filled from can be read at; `None` when that is everywhere, or not known yet.
pub fn of_source(ctx: &Context, claim: &PersistentVolumeClaim) -> Option<VolumeNodeAffinity> {
    let reference = claim.spec.as_ref()?.data_source_ref.as_ref()?;
    let namespace = reference.namespace.clone().or_else(|| claim.namespace()).unwrap_or_default();
    let key = Key::new(namespace, reference.name.as_str());
    match (reference.api_group.as_deref().unwrap_or_default(), reference.kind.as_str()) {
        ("", "PersistentVolumeClaim") => {
            let source = ctx.store::<PersistentVolumeClaim>().get(&key)?;
            let volume = ctx.store::<PersistentVolume>().get(&Key::new("", facts::volume_name(&source)))?;
            volume.spec.as_ref()?.node_affinity.clone()
        }
        (GROUP, "VolumeSnapshot") => {
            let snapshot = ctx.store::<VolumeSnapshot>().get(&key)?;
            let content = ctx.store::<VolumeSnapshotContent>().get(&Key::new("", snapshot.content()))?;
            content.labels().get(MANAGED_BY).and_then(|node| on(node))
        }
        _ => None,
    }
}

/// The node of that name alone.
fn on(node: &str) -> Option<VolumeNodeAffinity> {
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    serde_json::from_value(json!({"required": {"nodeSelectorTerms": [term]}})).ok()
}

/// Whether the node is one of them.
pub fn is_at(place: &VolumeNodeAffinity, node: &Node) -> bool {
    let terms = place.required.as_ref().map(|required| required.node_selector_terms.as_slice());
    terms.is_none_or(|terms| terms.iter().any(|term| placement::term_matches(term, node)))
}

/// Whether a node can reach the volume.
pub fn reachable(volume: &PersistentVolume, node: &Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    affinity.is_none_or(|required| required.node_selector_terms.iter().any(|term| placement::term_matches(term, node)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_by_its_name() {
        let node = |name: &str| -> Node { serde_json::from_value(json!({"metadata": {"name": name}})).unwrap() };
        let place = on("node1").unwrap();
        assert!(is_at(&place, &node("node1")) && !is_at(&place, &node("node2")));
        assert!(is_at(&VolumeNodeAffinity::default(), &node("node2")));
    }
}
