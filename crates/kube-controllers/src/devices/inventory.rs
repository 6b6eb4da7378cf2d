//! The devices that can be had: those of whole pools, of their newest generation. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use apimachinery::cel::device::Facts;
use k8s_openapi::api::core::v1::Node;
use kit::controller::placement;
use serde_json::Value;

use super::kinds::{Place, ResourceSlice, Taint};

/// Driver, pool and device.
pub(crate) type Id = (String, String, String);

/// A device that can be had.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) id: Id,
    pub(crate) place: Place,
    pub(crate) taints: Vec<Taint>,
    attributes: Value,
    capacity: Value,
    facts: OnceLock<Facts>,
}

impl Offer {
    /// What expressions see of it.
    pub(crate) fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| Facts::of(&self.id.0, &self.attributes, &self.capacity))
    }

    /// The attribute of a whole name, `domain/name`.
    pub(crate) fn attribute(&self, name: &str) -> Option<&Value> {
        let own = || name.strip_prefix(self.id.0.as_str()).and_then(|rest| rest.strip_prefix('/'));
        self.attributes.get(name).or_else(|| self.attributes.get(own()?))
    }
}

/// Whether devices of a place can be used on the node.
pub(crate) fn reaches(place: &Place, node: &Node) -> bool {
    if place.all_nodes == Some(true) {
        return true;
    }
    if let Some(name) = &place.node_name {
        return Some(name) == node.metadata.name.as_ref();
    }
    let mut terms = place.node_selector.iter().flat_map(|selector| &selector.node_selector_terms);
    terms.any(|term| placement::term_matches(term, node))
}

/// All devices, and the places of pools that are not whole.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    pub(crate) offers: Vec<Offer>,
    pub(crate) incomplete: Vec<(String, Place)>,
}

impl Inventory {
    pub(crate) fn of(slices: &[Arc<ResourceSlice>]) -> Self {
        let mut pools: BTreeMap<(&str, &str), Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in slices {
            pools.entry((&slice.spec.driver, &slice.spec.pool.name)).or_default().push(slice);
        }
        let mut inventory = Self::default();
        for ((driver, pool), slices) in pools {
            inventory.add(driver, pool, slices);
        }
        inventory
    }

    fn add(&mut self, driver: &str, pool: &str, mut slices: Vec<&ResourceSlice>) {
        let newest = slices.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
        slices.retain(|slice| slice.spec.pool.generation == newest);
        slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let mut names = BTreeSet::new();
        let unique = slices.iter().flat_map(|slice| &slice.spec.devices).all(|device| names.insert(&device.name));
        let whole = slices.iter().all(|slice| slice.spec.pool.resource_slice_count == slices.len() as i64);
        for slice in slices {
            let per_device = slice.spec.per_device_node_selection == Some(true);
            if !(unique && whole) {
                let places = slice.spec.devices.iter().filter(|_| per_device).map(|device| &device.place);
                let places = places.chain([&slice.spec.place]);
                self.incomplete.extend(places.map(|place| (format!("{driver}/{pool}"), place.clone())));
                continue;
            }
            self.offers.extend(slice.spec.devices.iter().map(|device| Offer {
                id: (driver.to_owned(), pool.to_owned(), device.name.clone()),
                place: if per_device { device.place.clone() } else { slice.spec.place.clone() },
                taints: device.taints.clone(),
                attributes: device.attributes.clone(),
                capacity: device.capacity.clone(),
                facts: OnceLock::new(),
            }));
        }
    }

    /// A pool some of whose devices are on the node and that is not whole.
    pub(crate) fn incomplete_on(&self, node: &Node) -> Option<&str> {
        self.incomplete.iter().find(|(_, place)| reaches(place, node)).map(|(pool, _)| pool.as_str())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, generation: i64, count: i64, devices: Value) -> Arc<ResourceSlice> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"driver": "d", "nodeName": "n",
            "pool": {"name": "p", "generation": generation, "resourceSliceCount": count}, "devices": devices}}))
            .unwrap(),
        )
    }

    #[track_caller]
    fn check(slices: &[Arc<ResourceSlice>], expect: &[&str], incomplete: bool) {
        let inventory = Inventory::of(slices);
        let names: Vec<_> = inventory.offers.iter().map(|offer| offer.id.2.as_str()).collect();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert_eq!((names, inventory.incomplete_on(&node).is_some()), (expect.to_vec(), incomplete));
    }

    #[test]
    fn only_whole_pools_of_the_newest_generation() {
        let (a, b) = (json!([{"name": "a"}]), json!([{"name": "b"}]));
        check(&[slice("1", 1, 1, a.clone())], &["a"], false);
        check(&[slice("1", 1, 2, a.clone()), slice("2", 1, 2, b.clone())], &["a", "b"], false);
        check(&[slice("1", 1, 1, a.clone()), slice("2", 2, 1, b.clone())], &["b"], false);
        check(&[slice("1", 2, 2, a.clone()), slice("2", 1, 2, b)], &[], true);
        check(&[slice("1", 1, 2, a.clone()), slice("2", 1, 2, a)], &[], true);
    }

    #[test]
    fn places() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"rack": "1"}}})).unwrap();
        let check = |place: Value, expect: bool| {
            assert_eq!(reaches(&serde_json::from_value(place.clone()).unwrap(), &node), expect, "{place}");
        };
        check(json!({"nodeName": "n"}), true);
        check(json!({"nodeName": "m"}), false);
        check(json!({"allNodes": true}), true);
        check(json!({}), false);
        let rack = |value: &str| {
            json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "rack", "operator": "In", "values": [value]}]}]}})
        };
        check(rack("1"), true);
        check(rack("2"), false);
    }
}
