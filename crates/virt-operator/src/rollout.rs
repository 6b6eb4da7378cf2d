//! The order in which an update reaches the components: virt-handler on one node after the other, then virt-controller,
//! then virt-api, each when the one before runs everywhere. So nobody asks a node for what only the next build can do.
//! Guests do not notice: they belong to their launchers. Pure.

use serde_json::Value;

use crate::manifests::workloads::DAEMON_SET;
use crate::status::{Seen, waiting};

const ORDER: [&str; 3] = [DAEMON_SET, "virt-controller", "virt-api"];

/// The workloads among `manifests` that may be applied now, on the way to `deployment_id`. What was not there before is
/// applied at once.
pub(crate) fn now(manifests: Vec<Value>, seen: &Seen, deployment_id: &str) -> Vec<Value> {
    let waiting = waiting(seen, deployment_id);
    let reached = ORDER.iter().position(|name| waiting.iter().any(|late| late == name)).unwrap_or(ORDER.len());
    let exists = |name: &str| {
        let deployments = seen.deployments.iter().map(|deployment| &deployment.metadata);
        let mut all = deployments.chain(seen.daemon_set.iter().map(|set| &set.metadata));
        all.any(|metadata| metadata.name.as_deref() == Some(name))
    };
    let may = |manifest: &Value| {
        let name = manifest.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        ORDER.iter().position(|known| *known == name).is_none_or(|turn| turn <= reached || !exists(name))
    };
    manifests.into_iter().filter(may).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(name: &str, id: &str) -> Value {
        json!({ "name": name, "generation": 1, "annotations": { "kubevirt.io/install-strategy-identifier": id } })
    }

    /// `ids` of virt-handler, virt-controller and virt-api, empty where it does not exist; all are ready as they are.
    #[track_caller]
    fn check(ids: [&str; 3], expect: &[&str]) {
        let deployment = |name: &str, id: &str| {
            let object = json!({
                "metadata": metadata(name, id), "spec": { "replicas": 1, "selector": {}, "template": {} },
                "status": { "observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1 },
            });
            (!id.is_empty()).then(|| serde_json::from_value(object).unwrap())
        };
        let set = json!({ "metadata": metadata("virt-handler", ids[0]), "status": {
            "observedGeneration": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": 1,
            "desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1,
        } });
        let seen = Seen {
            deployments: [deployment("virt-controller", ids[1]), deployment("virt-api", ids[2])]
                .into_iter()
                .flatten()
                .collect(),
            daemon_set: (!ids[0].is_empty()).then(|| serde_json::from_value(set).unwrap()),
            ..Default::default()
        };
        let manifests = ORDER.iter().rev().map(|name| json!({ "metadata": { "name": name } })).collect();
        let found = now(manifests, &seen, "new");
        let names: Vec<&str> = found.iter().map(|one| one["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, expect);
    }

    #[test]
    fn nodes_first_and_the_api_last() {
        check(["", "", ""], &["virt-api", "virt-controller", "virt-handler"]);
        check(["old", "old", "old"], &["virt-handler"]);
        check(["new", "old", "old"], &["virt-controller", "virt-handler"]);
        check(["new", "new", "old"], &["virt-api", "virt-controller", "virt-handler"]);
        check(["new", "", "old"], &["virt-controller", "virt-handler"]);
    }
}
