//! How many pods a Deployment wants, how many its ReplicaSets have, and which of these is the current one. Pure.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::template;

pub(crate) fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

pub(crate) fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

pub(crate) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0)
}

/// The set of the present template (the oldest when there are several) and the others, oldest first.
pub(crate) fn split<'a>(
    deployment: &Deployment,
    sets: &'a [Arc<ReplicaSet>],
) -> (Option<&'a ReplicaSet>, Vec<&'a ReplicaSet>) {
    let mut sorted: Vec<&ReplicaSet> = sets.iter().map(AsRef::as_ref).collect();
    sorted.sort_by(|a, b| {
        let age = |s: &ReplicaSet| (s.metadata.creation_timestamp.clone(), s.metadata.name.clone());
        age(a).cmp(&age(b))
    });
    let hash = template::hash_of(deployment);
    let current = sorted.iter().position(|set| template::is_current(deployment, set, &hash));
    let current = current.map(|index| sorted.remove(index));
    (current, sorted)
}

/// maxSurge and maxUnavailable as numbers; never both zero.
pub(crate) fn bounds(deployment: &Deployment) -> (i32, i32) {
    let replicas = replicas(deployment);
    let strategy = deployment.spec.as_ref().and_then(|s| s.strategy.as_ref());
    if strategy.and_then(|s| s.type_.as_deref()) == Some("Recreate") {
        return (0, replicas);
    }
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let quarter = IntOrString::String("25%".into());
    let surge = resolve(rolling.and_then(|r| r.max_surge.as_ref()).unwrap_or(&quarter), replicas, true);
    let unavailable = resolve(rolling.and_then(|r| r.max_unavailable.as_ref()).unwrap_or(&quarter), replicas, false);
    match (surge, unavailable) {
        (0, 0) => (0, 1),
        (surge, unavailable) => (surge, unavailable.min(replicas.max(0))),
    }
}

/// A number or a share of `total`.
pub(crate) fn resolve(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let product = i64::from(total) * percent;
            let share = if round_up { (product + 99) / 100 } else { product / 100 };
            i32::try_from(share).unwrap_or(i32::MAX)
        }
    }
}

pub(crate) fn counted(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |s| s.replicas)
}

/// All pods are of the present template, available, and no others are left.
pub(crate) fn is_complete(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> bool {
    let wanted = replicas(deployment);
    let (current, old) = split(deployment, sets);
    current.is_some_and(|set| counted(set) == wanted && available(set) == wanted && size(set) == wanted)
        && old.iter().all(|set| counted(set) == 0 && size(set) == 0)
}
