//! The APIServices of the versions that this server has itself: what clients list to see all that is served.

use serde_json::{Value, json};

/// Groups and versions with the place that their group and they have among others, as Kubernetes gives them.
const LOCAL: [(&str, &str, i32, i32); 21] = [
    ("", "v1", 18000, 1),
    ("apps", "v1", 17800, 15),
    ("events.k8s.io", "v1", 17750, 15),
    ("authentication.k8s.io", "v1", 17700, 15),
    ("authorization.k8s.io", "v1", 17600, 15),
    ("autoscaling", "v1", 17500, 15),
    ("autoscaling", "v2", 17500, 30),
    ("batch", "v1", 17400, 15),
    ("certificates.k8s.io", "v1", 17300, 15),
    ("networking.k8s.io", "v1", 17200, 15),
    ("policy", "v1", 17100, 15),
    ("rbac.authorization.k8s.io", "v1", 17000, 15),
    ("storage.k8s.io", "v1", 16800, 15),
    ("apiextensions.k8s.io", "v1", 16700, 15),
    ("admissionregistration.k8s.io", "v1", 16700, 15),
    ("scheduling.k8s.io", "v1", 16600, 15),
    ("coordination.k8s.io", "v1", 16500, 15),
    ("node.k8s.io", "v1", 16300, 15),
    ("discovery.k8s.io", "v1", 16200, 15),
    ("resource.k8s.io", "v1", 16200, 20),
    ("flowcontrol.apiserver.k8s.io", "v1", 16100, 21),
];

/// One for each version.
pub(super) fn services() -> impl Iterator<Item = Value> {
    LOCAL.iter().map(|(group, version, group_priority, priority)| {
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}"), "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": group_priority, "versionPriority": priority}})
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::registry::builtin;

    #[test]
    fn every_version_that_is_served_has_one() {
        let resources = builtin::resources();
        let mut served: BTreeSet<(&str, &str)> =
            resources.iter().map(|resource| (resource.group.as_str(), resource.version.as_str())).collect();
        // Who tells the others needs no telling.
        served.remove(&("apiregistration.k8s.io", "v1"));
        let listed: BTreeSet<(&str, &str)> = LOCAL.iter().map(|(group, version, ..)| (*group, *version)).collect();
        assert_eq!(listed, served);
    }
}
