//! What the nodes of the cluster allow for: copies of components, and migrations. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::hco::{NodeInfo, Placement};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
const WORKER: &str = "node-role.kubernetes.io/worker";
const ARCHITECTURE: &str = "kubernetes.io/arch";

/// A node, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Member {
    control_plane: bool,
    worker: bool,
    architecture: String,
    labels: BTreeMap<String, String>,
}

/// The nodes of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    members: Vec<Member>,
}

impl Topology {
    /// Of `nodes`. Workers are those that are called so; where none is, as on most clusters, those that take any pod.
    pub fn of(nodes: &[Node]) -> Self {
        let named = nodes.iter().any(|node| node.labels().contains_key(WORKER));
        let member = |node: &Node| {
            let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
            let mut reserved = taints.filter(|taint| taint.effect != "PreferNoSchedule");
            let open = !reserved.any(|taint| CONTROL_PLANE.contains(&taint.key.as_str()));
            Member {
                control_plane: CONTROL_PLANE.iter().any(|label| node.labels().contains_key(*label)),
                worker: if named { node.labels().contains_key(WORKER) } else { open },
                architecture: node.labels().get(ARCHITECTURE).cloned().unwrap_or_default(),
                labels: node.labels().clone(),
            }
        };
        Topology { members: nodes.iter().map(member).collect() }
    }

    fn workers(&self) -> usize {
        self.members.iter().filter(|member| member.worker).count()
    }

    fn control_planes(&self) -> usize {
        self.members.iter().filter(|member| member.control_plane).count()
    }

    /// True when a machine can move to another node.
    pub fn can_migrate(&self) -> bool {
        self.workers() >= 2
    }

    /// True when one copy of each component of the control plane is as good as two.
    pub fn has_one_place_for_infra(&self) -> bool {
        match self.control_planes() {
            // A control plane that is not among the nodes: its components run with the machines.
            0 => self.workers() < 2,
            1 => true,
            _ => false,
        }
    }

    /// True when there are nodes of the control plane.
    pub fn shows_control_plane(&self) -> bool {
        self.control_planes() > 0
    }

    /// The architectures, with machines placed as `workload` says.
    pub fn architectures(&self, workload: Option<&Placement>) -> NodeInfo {
        let selector = workload.map(|placement| placement.node_selector.clone()).unwrap_or_default();
        let selected = |member: &&Member| match selector.is_empty() {
            true => member.worker,
            false => selector.iter().all(|(key, value)| member.labels.get(key) == Some(value)),
        };
        let of = |members: &mut dyn Iterator<Item = &Member>| -> Vec<String> {
            let all: BTreeSet<String> = members.map(|member| member.architecture.clone()).collect();
            all.into_iter().filter(|architecture| !architecture.is_empty()).collect()
        };
        let control_plane = of(&mut self.members.iter().filter(|member| member.control_plane));
        let workloads = of(&mut self.members.iter().filter(selected));
        let common = control_plane.iter().find(|architecture| workloads.contains(architecture)).cloned();
        NodeInfo {
            default_workload_architecture: common.or_else(|| self.most(&workloads)),
            control_plane_architectures: control_plane,
            workloads_architectures: workloads,
        }
    }

    /// That of the most workers; the first by name among equals.
    fn most(&self, among: &[String]) -> Option<String> {
        let count = |architecture: &&String| {
            self.members.iter().filter(|member| member.worker && member.architecture == **architecture).count()
        };
        among.iter().rev().max_by_key(count).cloned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A node of `roles`, with an architecture, and a taint of its control plane.
    fn node(roles: &[&str], architecture: &str, tainted: bool) -> Node {
        let mut labels: BTreeMap<String, String> =
            roles.iter().map(|role| (format!("node-role.kubernetes.io/{role}"), String::new())).collect();
        labels.insert(ARCHITECTURE.to_owned(), architecture.to_owned());
        let taints = if tainted { json!([{ "key": CONTROL_PLANE[0], "effect": "NoSchedule" }]) } else { json!([]) };
        serde_json::from_value(json!({ "metadata": { "labels": labels }, "spec": { "taints": taints } })).unwrap()
    }

    #[track_caller]
    fn check(nodes: &[Node], can_migrate: bool, one_place: bool) {
        let topology = Topology::of(nodes);
        assert_eq!((topology.can_migrate(), topology.has_one_place_for_infra()), (can_migrate, one_place));
    }

    #[test]
    fn one_node_has_one_copy_of_everything_and_no_migrations() {
        check(&[node(&["control-plane"], "amd64", false)], false, true);
        check(&[node(&[], "amd64", false)], false, true);
    }

    #[test]
    fn copies_follow_the_control_plane_and_migrations_the_workers() {
        let control = || node(&["control-plane"], "amd64", true);
        let worker = || node(&[], "amd64", false);
        check(&[control(), worker()], false, true);
        check(&[control(), worker(), worker()], true, true);
        check(&[control(), control(), control(), worker(), worker()], true, false);
        check(&[worker(), worker()], true, false);
        // Nodes that are called workers are the only ones.
        check(&[node(&["control-plane", "worker"], "amd64", false), worker()], false, true);
    }

    #[test]
    fn machines_have_the_architecture_of_the_control_plane_where_workers_have_it_too() {
        let nodes = [node(&["control-plane"], "arm64", true), node(&[], "amd64", false), node(&[], "arm64", false)];
        let found = Topology::of(&nodes).architectures(None);
        assert_eq!(found.default_workload_architecture.as_deref(), Some("arm64"));
        assert_eq!(found.workloads_architectures, ["amd64", "arm64"]);
        let nodes = [node(&["control-plane"], "s390x", true), node(&[], "amd64", false), node(&[], "arm64", false)];
        assert_eq!(Topology::of(&nodes).architectures(None).default_workload_architecture.as_deref(), Some("amd64"));
    }
}
