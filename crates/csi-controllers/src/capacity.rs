//! How much room drivers have left, per class and segment: written as `CSIStorageCapacity`, heeded by the scheduler.

pub(crate) mod publish;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use kit::controller::quantity::{self, Milli};
use kit::controller::{owner, pod};

/// Whether a driver that publishes its room has enough of it for a volume of the class on the node.
pub fn suffices(
    class: &StorageClass,
    size: Milli,
    node: &Node,
    drivers: &[Arc<CSIDriver>],
    capacities: &[Arc<CSIStorageCapacity>],
) -> bool {
    let driver = drivers.iter().find(|driver| driver.metadata.name.as_ref() == Some(&class.provisioner));
    if driver.is_none_or(|driver| driver.spec.storage_capacity != Some(true)) {
        return true;
    }
    capacities.iter().any(|room| {
        let limit = room.maximum_volume_size.as_ref().or(room.capacity.as_ref()).map(quantity::of);
        Some(&room.storage_class_name) == class.metadata.name.as_ref()
            && limit.is_some_and(|limit| limit >= size)
            && owner::selects(room.node_topology.as_ref(), pod::labels(&node.metadata))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn room_on_a_node() {
        let class: StorageClass =
            serde_json::from_value(json!({"metadata": {"name": "s"}, "provisioner": "d"})).unwrap();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"zone": "a"}}})).unwrap();
        let driver = |publishes: bool| -> Arc<CSIDriver> {
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": publishes}}))
                    .unwrap(),
            )
        };
        let room = |more: Value| -> Arc<CSIStorageCapacity> {
            let mut value = json!({"metadata": {"name": "r"}, "storageClassName": "s", "capacity": "5Gi",
                "nodeTopology": {"matchLabels": {"zone": "a"}}});
            for (key, part) in more.as_object().unwrap() {
                value[key] = part.clone();
            }
            Arc::new(serde_json::from_value(value).unwrap())
        };
        let gi = |number: i128| number * 1024 * 1024 * 1024 * 1000;
        let check = |publishes: bool, room: &[Arc<CSIStorageCapacity>], size: Milli, expect: bool| {
            assert_eq!(suffices(&class, size, &node, &[driver(publishes)], room), expect);
        };
        check(false, &[], gi(9), true);
        check(true, &[], gi(1), false);
        check(true, &[room(json!({}))], gi(5), true);
        check(true, &[room(json!({}))], gi(6), false);
        check(true, &[room(json!({"maximumVolumeSize": "1Gi"}))], gi(2), false);
        check(true, &[room(json!({"nodeTopology": {"matchLabels": {"zone": "b"}}}))], gi(1), false);
        check(true, &[room(json!({"storageClassName": "other"}))], gi(1), false);
    }
}
