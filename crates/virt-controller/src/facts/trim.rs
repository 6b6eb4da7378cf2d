//! What the stores do not keep of objects, since no controller here reads it.

use std::collections::BTreeMap;

use api::kubevirt::constants::{device, label};
use api::kubevirt::v1::{KubeVirt, KubeVirtStatus};
use k8s_openapi::api::core::v1::{
    Container, Node, NodeSpec, PersistentVolumeClaim, Pod, PodSpec, ResourceRequirements,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::{persistent_state, stand_ins};

/// Drops from a launcher pod everything these controllers never read; most of a pod is its spec.
pub(crate) fn pod(pod: &mut Pod) {
    if let Some(spec) = pod.spec.take() {
        let launcher = spec.containers.into_iter().find(|container| container.name == "compute");
        let launcher = launcher.map(|c| {
            let resources = c.resources.map(|own| ResourceRequirements { claims: None, ..own });
            Container { name: c.name, image: c.image, resources, ..Default::default() }
        });
        // A guest that was moved here goes on with the processor it was started with: only its pods remember which.
        let selector = spec
            .node_selector
            .map(|all| all.into_iter().filter(|(key, _)| key.contains(".node.kubevirt.io/")).collect());
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            containers: launcher.into_iter().collect(),
            node_selector: selector.filter(|left: &BTreeMap<_, _>| !left.is_empty()),
            volumes: spec
                .volumes
                .map(|all| all.into_iter().filter(|volume| volume.persistent_volume_claim.is_some()).collect())
                .filter(|claimed: &Vec<_>| !claimed.is_empty()),
            ..Default::default()
        });
    }
    pod.metadata.annotations = None;
    if let Some(labels) = &mut pod.metadata.labels {
        labels.retain(|key, _| key == label::CREATED_BY || key == label::MIGRATION_JOB);
    }
    pod.metadata.generate_name = None;
}

/// Drops from an attachment pod all but its volumes and whether it runs.
pub(crate) fn attachment(pod: &mut Pod) {
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        *spec = PodSpec { node_name: spec.node_name.take(), volumes: spec.volumes.take(), ..Default::default() };
    }
}

/// Drops from a disruption budget all but what its owner is and how many pods it keeps.
pub(crate) fn budget(budget: &mut PodDisruptionBudget) {
    budget.status = None;
    budget.metadata.annotations = None;
}

/// Drops from the KubeVirt object's status all but whether it is deployed and how many guests are outdated.
pub(crate) fn kubevirt(kubevirt: &mut KubeVirt) {
    kubevirt.status = kubevirt.status.take().map(|status| {
        Box::new(KubeVirtStatus {
            phase: status.phase,
            observed_deployment_id: status.observed_deployment_id,
            target_deployment_id: status.target_deployment_id,
            outdated_virtual_machine_instance_workloads: status.outdated_virtual_machine_instance_workloads,
            ..Default::default()
        })
    });
}

/// Drops from a node everything but its labels, its taints, its heartbeat, its readiness and what it offers.
pub(crate) fn node(node: &mut Node) {
    node.spec = node
        .spec
        .take()
        .and_then(|spec| spec.taints)
        .map(|taints| NodeSpec { taints: Some(taints), ..Default::default() });
    if let Some(status) = node.status.take() {
        node.status = Some(k8s_openapi::api::core::v1::NodeStatus {
            allocatable: status.allocatable.map(|all| all.into_iter().filter(|(k, _)| k == device::KVM).collect()),
            conditions: status.conditions.map(|all| all.into_iter().filter(|c| c.type_ == "Ready").collect()),
            ..Default::default()
        });
    }
}

/// Drops from a claim what no controller here reads.
pub(crate) fn claim(claim: &mut PersistentVolumeClaim) {
    if let Some(annotations) = &mut claim.metadata.annotations {
        annotations.retain(|key, _| key == stand_ins::STANDS_IN_FOR || key == stand_ins::MOVED_TO);
    }
    if let Some(labels) = &mut claim.metadata.labels {
        let read = [label::CREATED_BY, label::MIGRATION_JOB, persistent_state::LABEL, persistent_state::MIGRATION];
        labels.retain(|key, _| read.contains(&key.as_str()));
    }
    claim.metadata.annotations = claim.metadata.annotations.take().filter(|all| !all.is_empty());
    claim.metadata.labels = claim.metadata.labels.take().filter(|all| !all.is_empty());
    if stand_ins::stands_in_for(claim).is_none() {
        claim.metadata.owner_references = None;
    }
    if let Some(status) = &mut claim.status {
        status.conditions = None;
    }
}
