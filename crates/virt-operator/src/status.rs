//! The status of the KubeVirt object. Pure.

use api::kubevirt::constants::{kubevirt_condition as condition, kubevirt_phase as phase, label};
use api::kubevirt::v1::{GenerationStatus, KubeVirt, KubeVirtCondition, KubeVirtStatus};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kit::operator;
use meta::conditions;

/// What was seen of the components.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// virt-api and virt-controller.
    pub deployments: Vec<Deployment>,
    /// virt-handler.
    pub daemon_set: Option<DaemonSet>,
    /// Everything has been applied.
    pub created: bool,
    /// The last attempt to apply failed so.
    pub failure: Option<String>,
}

/// What the operator deploys.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// Of the product.
    pub version: String,
    /// Where the images come from.
    pub registry: String,
    /// Names this configuration.
    pub deployment_id: String,
    /// Architecture of machines that do not say.
    pub architecture: String,
}

/// Names of the components that are not ready yet as `deployment_id` has them.
pub fn waiting(seen: &Seen, deployment_id: &str) -> Vec<String> {
    let mut out = Vec::new();
    for name in crate::manifests::workloads::DEPLOYMENTS {
        let found = seen.deployments.iter().find(|d| d.metadata.name.as_deref() == Some(name));
        let ready = found.is_some_and(|deployment| {
            is_of(&deployment.metadata, deployment_id) && operator::is_rolled_out(deployment)
        });
        if !ready {
            out.push(name.to_owned());
        }
    }
    let set = seen.daemon_set.as_ref().filter(|set| is_of(&set.metadata, deployment_id));
    let (ready, wanted) = set.map(operator::rolled_out_on).unwrap_or_default();
    if wanted == 0 || ready < wanted {
        out.push(crate::manifests::workloads::DAEMON_SET.to_owned());
    }
    out
}

/// The workload as it was seen is the one that this configuration applied, and not its forerunner.
fn is_of(metadata: &ObjectMeta, deployment_id: &str) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(label::INSTALL_STRATEGY)).is_some_and(|id| id == deployment_id)
}

/// The status `kubevirt` should have while it is installed.
pub fn status(kubevirt: &KubeVirt, seen: &Seen, version: &Version, now: Timestamp) -> KubeVirtStatus {
    let mut status = kubevirt.status.as_deref().cloned().unwrap_or_default();
    let waiting = waiting(seen, &version.deployment_id);
    let deployed = seen.created && waiting.is_empty();
    let before = status.phase.clone().unwrap_or_default();
    // Once deployed, a component that restarts degrades the product; it does not undo the deployment.
    let settled = before == phase::DEPLOYED && status.observed_deployment_id.as_ref() == Some(&version.deployment_id);
    // What was deployed before goes on working while its components are exchanged.
    let updating = before == phase::DEPLOYED && !deployed && !settled;
    let from = (
        status.observed_kube_virt_version.clone().unwrap_or_default(),
        status.observed_kube_virt_registry.clone().unwrap_or_default(),
    );
    status.phase = Some(if deployed || settled || updating { phase::DEPLOYED } else { phase::DEPLOYING }.to_owned());

    status.operator_version = Some(version.version.clone());
    status.target_kube_virt_registry = Some(version.registry.clone());
    status.target_kube_virt_version = Some(version.version.clone());
    status.target_deployment_id = Some(version.deployment_id.clone());
    status.default_architecture = Some(version.architecture.clone());
    status.observed_generation = kubevirt.metadata.generation;
    status.generations = generations(seen);
    if deployed {
        status.observed_kube_virt_registry = Some(version.registry.clone());
        status.observed_kube_virt_version = Some(version.version.clone());
        status.observed_deployment_id = Some(version.deployment_id.clone());
    }
    // Of when another one was deployed.
    conditions::remove(&mut status.conditions, condition::SYNCHRONIZED);
    let mut set = |kind: &str, value: bool, reason: &str, message: &str| {
        say(&mut status.conditions, kind, value, reason, message, now);
    };
    if seen.created {
        set(condition::CREATED, true, "AllResourcesCreated", "All resources were created.");
    }
    let deploying = format!("Deploying version {} with registry {}", version.version, version.registry);
    let ready = "All components are ready.";
    let missing = format!("Waiting for {} to be ready.", waiting.join(", "));
    if let Some(failure) = &seen.failure {
        set(condition::AVAILABLE, deployed, "DeploymentFailed", failure);
        set(condition::PROGRESSING, true, "DeploymentInProgress", &deploying);
        set(condition::DEGRADED, true, "DeploymentFailed", failure);
    } else if deployed {
        set(condition::AVAILABLE, true, "AllComponentsReady", ready);
        set(condition::PROGRESSING, false, "AllComponentsReady", ready);
        set(condition::DEGRADED, false, "AllComponentsReady", ready);
    } else if settled {
        let api_ready = !waiting.iter().any(|name| name == "virt-api");
        set(condition::AVAILABLE, api_ready, "ComponentsNotReady", &missing);
        set(condition::PROGRESSING, false, "ComponentsNotReady", &missing);
        set(condition::DEGRADED, true, "ComponentsNotReady", &missing);
    } else if updating {
        let message = format!(
            "Transitioning from previous version {} with registry {} to target version {} using registry {}: {missing}",
            from.0, from.1, version.version, version.registry
        );
        set(condition::AVAILABLE, true, "UpdateInProgress", &message);
        set(condition::PROGRESSING, true, "UpdateInProgress", &message);
        set(condition::DEGRADED, true, "UpdateInProgress", &message);
    } else {
        set(condition::AVAILABLE, false, "DeploymentInProgress", &deploying);
        set(condition::PROGRESSING, true, "DeploymentInProgress", &deploying);
        set(condition::DEGRADED, true, "DeploymentInProgress", &deploying);
    }
    status
}

/// The status while everything is taken away.
pub fn deleting(kubevirt: &KubeVirt, done: bool, now: Timestamp) -> KubeVirtStatus {
    let mut status = kubevirt.status.as_deref().cloned().unwrap_or_default();
    status.phase = Some(if done { phase::DELETED } else { phase::DELETING }.to_owned());
    let (reason, message) = if done {
        ("DeletionCompleted", "Deletion is completed.")
    } else {
        ("DeletionInProgress", "Deletion was triggered.")
    };
    say(&mut status.conditions, condition::AVAILABLE, false, reason, message, now);
    say(&mut status.conditions, condition::PROGRESSING, !done, reason, message, now);
    say(&mut status.conditions, condition::DEGRADED, !done, reason, message, now);
    status
}

/// A second KubeVirt object: only one per cluster is deployed.
pub fn duplicate(kubevirt: &KubeVirt, now: Timestamp) -> KubeVirtStatus {
    let mut status = kubevirt.status.as_deref().cloned().unwrap_or_default();
    let message = "There is an active KubeVirt deployment";
    say(&mut status.conditions, condition::SYNCHRONIZED, false, "ExistingDeployment", message, now);
    status
}

fn generations(seen: &Seen) -> Vec<GenerationStatus> {
    let one = |resource: &str, metadata: &ObjectMeta| GenerationStatus {
        group: "apps".to_owned(),
        resource: resource.to_owned(),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone().unwrap_or_default(),
        last_generation: metadata.generation.unwrap_or(0),
        ..Default::default()
    };
    let deployments = seen.deployments.iter().map(|deployment| one("deployments", &deployment.metadata));
    deployments.chain(seen.daemon_set.iter().map(|set| one("daemonsets", &set.metadata))).collect()
}

fn say(held: &mut Vec<KubeVirtCondition>, kind: &str, value: bool, reason: &str, message: &str, now: Timestamp) {
    conditions::set(held, kind, if value { "True" } else { "False" }, Some(reason), Some(message), &Time(now));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(available: i32) -> Seen {
        let ours = json!({ (label::INSTALL_STRATEGY): "id" });
        let deployment = |name: &str| {
            let status = json!({ "observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": available });
            let object = json!({
                "metadata": { "name": name, "generation": 1, "annotations": ours },
                "spec": { "replicas": 1, "selector": {}, "template": {} }, "status": status,
            });
            serde_json::from_value(object).unwrap()
        };
        let set = json!({
            "metadata": { "name": "virt-handler", "generation": 1, "annotations": ours },
            "status": { "observedGeneration": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": 1,
                "desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1 },
        });
        Seen {
            deployments: vec![deployment("virt-api"), deployment("virt-controller"), deployment("virt-exportproxy")],
            daemon_set: Some(serde_json::from_value(set).unwrap()),
            created: true,
            failure: None,
        }
    }

    #[track_caller]
    fn check(kubevirt: &KubeVirt, seen: &Seen, phase: &str, conditions: [(&str, &str); 3]) -> KubeVirt {
        check_for("id", kubevirt, seen, phase, conditions)
    }

    #[track_caller]
    fn check_for(id: &str, kubevirt: &KubeVirt, seen: &Seen, phase: &str, conditions: [(&str, &str); 3]) -> KubeVirt {
        let version = Version { deployment_id: id.into(), ..Default::default() };
        let status = status(kubevirt, seen, &version, Timestamp::UNIX_EPOCH);
        assert_eq!(status.phase.as_deref(), Some(phase));
        for (kind, value) in conditions {
            let found = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
            assert_eq!(found.status, value, "{kind}: {:?}", found.message);
        }
        KubeVirt { status: Some(Box::new(status)), ..kubevirt.clone() }
    }

    #[test]
    fn available_when_every_component_is() {
        let new = KubeVirt::default();
        let progress = [("Available", "False"), ("Progressing", "True"), ("Degraded", "True")];
        let deploying = check(&new, &seen(0), "Deploying", progress);
        let fine = [("Available", "True"), ("Progressing", "False"), ("Degraded", "False")];
        let deployed = check(&deploying, &seen(1), "Deployed", fine);
        let degraded = [("Available", "False"), ("Progressing", "False"), ("Degraded", "True")];
        check(&deployed, &seen(0), "Deployed", degraded);
    }

    #[test]
    fn an_update_leaves_the_installation_available() {
        let fine = [("Available", "True"), ("Progressing", "False"), ("Degraded", "False")];
        let deployed = check(&KubeVirt::default(), &seen(1), "Deployed", fine);
        // The components as they still are: ready, and of the build before.
        let moving = [("Available", "True"), ("Progressing", "True"), ("Degraded", "True")];
        let updating = check_for("next", &deployed, &seen(1), "Deployed", moving);
        let status = updating.status.unwrap();
        assert_eq!(status.observed_deployment_id.as_deref(), Some("id"));
        assert_eq!(status.target_deployment_id.as_deref(), Some("next"));
    }
}
