//! A deployment's status and its conditions Available, Progressing and ReplicaFailure. Pure.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock::seconds_between;
use meta::conditions;

use super::sets::{available, bounds, counted, is_complete, replicas, size, split};

fn positive(number: i32) -> Option<i32> {
    (number > 0).then_some(number)
}

/// The status as it should be, and in how many seconds the progress deadline passes.
pub(crate) fn status(deployment: &Deployment, sets: &[Arc<ReplicaSet>], now: &Time) -> (DeploymentStatus, Option<i64>) {
    let (current, _) = split(deployment, sets);
    let sum = |of: &dyn Fn(&ReplicaSet) -> i32| sets.iter().map(|set| of(set)).sum::<i32>();
    let total_available = sum(&available);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: positive(sum(&counted)),
        updated_replicas: positive(current.map_or(0, counted)),
        ready_replicas: positive(sum(&|s| s.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0))),
        available_replicas: positive(total_available),
        unavailable_replicas: positive(sum(&size) - total_available),
        collision_count: deployment.status.as_ref().and_then(|s| s.collision_count),
        terminating_replicas: None,
        conditions: None,
    };
    let old = deployment.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut conditions: Vec<DeploymentCondition> = Vec::new();
    let (progressing, wake) = progressing(deployment, sets, &status, &old, now);
    let minimum = replicas(deployment) - bounds(deployment).1;
    let enough = total_available >= minimum;
    let available = if enough {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    let (state, reason, message) = available;
    let available = set_condition(&old, "Available", state, reason, message, false, now);
    // The order of first appearance stays, so that an unchanged status is written by nobody.
    let mut fresh = vec![available];
    fresh.extend(progressing);
    fresh.extend(failure(deployment, sets, &old, now));
    for known in &old {
        if let Some(index) = fresh.iter().position(|c| c.type_ == known.type_) {
            conditions.push(fresh.remove(index));
        } else if !["Available", "Progressing", "ReplicaFailure"].contains(&known.type_.as_str()) {
            conditions.push(known.clone());
        }
    }
    conditions.extend(fresh);
    status.conditions = Some(conditions);
    (status, wake)
}

fn set_condition(
    old: &[DeploymentCondition],
    type_: &str,
    state: &str,
    reason: &str,
    message: &str,
    touched: bool,
    now: &Time,
) -> DeploymentCondition {
    let mut condition = conditions::said(old, type_, state, Some(reason), Some(message), now);
    if touched {
        condition.last_update_time = Some(now.clone());
    }
    condition
}

fn progressing(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    status: &DeploymentStatus,
    old: &[DeploymentCondition],
    now: &Time,
) -> (Option<DeploymentCondition>, Option<i64>) {
    let spec = deployment.spec.as_ref();
    let deadline = i64::from(spec.and_then(|s| s.progress_deadline_seconds).unwrap_or(600));
    let set =
        |state, reason, message: &str, touched| set_condition(old, "Progressing", state, reason, message, touched, now);
    let known = old.iter().find(|c| c.type_ == "Progressing");
    if spec.and_then(|s| s.paused).unwrap_or(false) {
        return (Some(set("Unknown", "DeploymentPaused", "Deployment is paused", false)), None);
    }
    // The value that stands for "no deadline".
    if deadline == i64::from(i32::MAX) {
        return (None, None);
    }
    let resumed = known.is_some_and(|c| c.reason.as_deref() == Some("DeploymentPaused"));
    let (current, _) = split(deployment, sets);
    let name = current.map_or_else(
        || deployment.metadata.name.clone().unwrap_or_default(),
        |set| set.metadata.name.clone().unwrap_or_default(),
    );
    let what = if current.is_some() { "ReplicaSet" } else { "Deployment" };
    if is_complete(deployment, sets) {
        let text = format!("{what} \"{name}\" has successfully progressed.");
        return (Some(set("True", "NewReplicaSetAvailable", &text, false)), None);
    }
    let Some(known) = known.filter(|_| !resumed) else {
        let condition = if resumed {
            set("Unknown", "DeploymentResumed", "Deployment is resumed", true)
        } else {
            set("True", "NewReplicaSetCreated", &format!("Created new replica set \"{name}\""), true)
        };
        return (Some(condition), Some(deadline));
    };
    let before = deployment.status.as_ref();
    let count = |of: fn(&DeploymentStatus) -> Option<i32>| (before.and_then(of).unwrap_or(0), of(status).unwrap_or(0));
    let (updated_before, updated) = count(|s| s.updated_replicas);
    let (total_before, total) = count(|s| s.replicas);
    let (ready_before, ready) = count(|s| s.ready_replicas);
    let (available_before, available) = count(|s| s.available_replicas);
    let moved = updated > updated_before
        || total - updated < total_before - updated_before
        || ready > ready_before
        || available > available_before;
    let new_rollout = before.and_then(|s| s.observed_generation) != deployment.metadata.generation
        && known.reason.as_deref() != Some("ReplicaSetUpdated");
    if moved || new_rollout {
        let text = format!("{what} \"{name}\" is progressing.");
        return (Some(set("True", "ReplicaSetUpdated", &text, true)), Some(deadline));
    }
    if known.reason.as_deref() == Some("ProgressDeadlineExceeded") {
        return (Some(known.clone()), None);
    }
    // A finished rollout that lost a pod has no deadline until the template or the size changes.
    if known.reason.as_deref() == Some("NewReplicaSetAvailable") {
        return (Some(known.clone()), None);
    }
    let since = known.last_update_time.as_ref().map_or(0, |time| seconds_between(time, now));
    if since < deadline {
        return (Some(known.clone()), Some(deadline - since));
    }
    let text = format!("{what} \"{name}\" has timed out progressing.");
    (Some(set("False", "ProgressDeadlineExceeded", &text, true)), None)
}

fn failure(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    old: &[DeploymentCondition],
    now: &Time,
) -> Option<DeploymentCondition> {
    let (current, others) = split(deployment, sets);
    let of = |set: &ReplicaSet| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|c| c.type_ == "ReplicaFailure").cloned()
    };
    let failed = current.and_then(of).or_else(|| others.iter().find_map(|set| of(set)))?;
    let (reason, message) = (failed.reason.unwrap_or_default(), failed.message.unwrap_or_default());
    Some(set_condition(old, "ReplicaFailure", &failed.status, &reason, &message, false, now))
}
