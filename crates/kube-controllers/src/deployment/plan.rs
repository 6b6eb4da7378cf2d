//! The next steps of a rollout: which ReplicaSets to create, scale, annotate and delete. Pure.
//!
//! ```text
//!  template changed --> new set, scaled up as maxSurge allows --> old sets scaled down as maxUnavailable allows
//!                                                                 --> history cut to revisionHistoryLimit
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::sets::{available, bounds, is_complete, replicas, size, split};
use super::template;

pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(crate) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(crate) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(crate) const MAX: &str = "deployment.kubernetes.io/max-replicas";

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Create the set of the present template.
    Create {
        /// Template hash, also the end of its name.
        hash: String,
        /// Its size to begin with.
        replicas: i32,
        /// Its annotations.
        annotations: BTreeMap<String, String>,
    },
    /// Set the size of a set.
    Scale {
        /// Name of the set.
        set: String,
        /// Size now.
        from: i32,
        /// Size wanted.
        to: i32,
        /// What its annotations become together with the size.
        annotations: BTreeMap<String, String>,
    },
    /// Set annotations of a set.
    Annotate {
        /// Name of the set.
        set: String,
        /// Those that change.
        annotations: BTreeMap<String, String>,
    },
    /// Delete an old set beyond the history limit.
    Delete(String),
    /// Write the revision on the deployment.
    Revision(String),
}

/// What the plan looks at.
#[derive(Clone, Copy)]
pub(crate) struct Observed<'a> {
    pub(crate) deployment: &'a Deployment,
    pub(crate) sets: &'a [Arc<ReplicaSet>],
    /// Whether a pod of an old set still exists in any form but finished; only Recreate asks.
    pub(crate) old_pods_exist: bool,
}

fn name(set: &ReplicaSet) -> String {
    set.metadata.name.clone().unwrap_or_default()
}

fn annotation<'a>(set: &'a ReplicaSet, key: &str) -> Option<&'a str> {
    set.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn revision(set: &ReplicaSet) -> i64 {
    annotation(set, REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
}

/// The steps to take now. They are few: the watch brings the next call when their effect is known.
pub(crate) fn steps(observed: Observed<'_>) -> Vec<Step> {
    let deployment = observed.deployment;
    if deployment.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let spec = deployment.spec.as_ref();
    let (current, old) = split(deployment, observed.sets);
    let paused = spec.and_then(|s| s.paused).unwrap_or(false);
    let mut steps = Vec::new();
    if paused || resized(deployment, observed.sets) {
        steps.extend(resize(deployment, current, &old));
        if paused {
            steps.extend(cut_history(deployment, &old));
        }
        if !steps.is_empty() || paused {
            return steps;
        }
    }
    let recreate = spec.and_then(|s| s.strategy.as_ref()?.type_.as_deref()) == Some("Recreate");
    let ready_for_new = !recreate || (!observed.old_pods_exist && old.iter().all(|set| size(set) == 0));
    if recreate {
        for set in old.iter().filter(|set| size(set) > 0) {
            steps.push(scale(deployment, set, 0));
        }
    }
    let target = if recreate { replicas(deployment) } else { new_size(deployment, current, &old) };
    match current {
        None if ready_for_new => {
            let revision = next_revision(&old);
            let mut annotations = set_annotations(deployment, None);
            annotations.insert(REVISION.into(), revision.clone());
            steps.push(Step::Create { hash: template::hash_of(deployment), replicas: target, annotations });
            steps.extend(revision_step(deployment, revision));
            return steps;
        }
        None => return steps,
        Some(set) => {
            let (revision, changes) = current_annotations(deployment, set, &old);
            if ready_for_new && size(set) != target {
                let Step::Scale { set, from, to, mut annotations } = scale(deployment, set, target) else {
                    return steps;
                };
                annotations.extend(changes);
                steps.push(Step::Scale { set, from, to, annotations });
            } else if !changes.is_empty() {
                steps.push(Step::Annotate { set: name(set), annotations: changes });
            }
            steps.extend(revision_step(deployment, revision));
            if !recreate {
                steps.extend(scale_down_old(deployment, set, &old));
            }
        }
    }
    if is_complete(deployment, observed.sets) {
        steps.extend(cut_history(deployment, &old));
    }
    steps
}

fn revision_step(deployment: &Deployment, revision: String) -> Option<Step> {
    let has = deployment.metadata.annotations.as_ref().and_then(|a| a.get(REVISION));
    (has != Some(&revision)).then_some(Step::Revision(revision))
}

fn next_revision(old: &[&ReplicaSet]) -> String {
    (old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1).to_string()
}

/// The annotations every set of the deployment carries: a copy of the deployment's, and its size.
fn set_annotations(deployment: &Deployment, set: Option<&ReplicaSet>) -> BTreeMap<String, String> {
    const OURS: [&str; 5] = [REVISION, REVISION_HISTORY, DESIRED, MAX, "deprecated.deployment.rollback.to"];
    let given = deployment.metadata.annotations.iter().flatten();
    let mut wanted: BTreeMap<String, String> =
        given.filter(|(key, _)| !OURS.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
    wanted.remove(kit::store::LAST_APPLIED);
    wanted.extend(size_annotations(deployment));
    wanted.retain(|key, value| set.and_then(|set| annotation(set, key)) != Some(value.as_str()));
    wanted
}

fn size_annotations(deployment: &Deployment) -> [(String, String); 2] {
    let replicas = replicas(deployment);
    [(DESIRED.into(), replicas.to_string()), (MAX.into(), (replicas + bounds(deployment).0).to_string())]
}

/// The current set's revision and the annotations to change: going back to an old template gives it a new revision.
fn current_annotations(
    deployment: &Deployment,
    set: &ReplicaSet,
    old: &[&ReplicaSet],
) -> (String, BTreeMap<String, String>) {
    let mut changes = set_annotations(deployment, Some(set));
    let highest_old = old.iter().map(|set| revision(set)).max().unwrap_or(0);
    let has = revision(set);
    if has > highest_old {
        return (has.to_string(), changes);
    }
    let next = (highest_old + 1).to_string();
    changes.insert(REVISION.into(), next.clone());
    if has > 0 {
        let history = annotation(set, REVISION_HISTORY).filter(|h| !h.is_empty());
        let history = history.map_or(has.to_string(), |history| format!("{history},{has}"));
        changes.insert(REVISION_HISTORY.into(), history);
    }
    (next, changes)
}

fn scale(deployment: &Deployment, set: &ReplicaSet, to: i32) -> Step {
    let mut annotations = BTreeMap::from(size_annotations(deployment));
    annotations.retain(|key, value| annotation(set, key) != Some(value.as_str()));
    Step::Scale { set: name(set), from: size(set), to, annotations }
}

/// Whether the wanted size changed since the active sets were last sized.
fn resized(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> bool {
    let wanted = replicas(deployment);
    sets.iter().filter(|set| size(set) > 0).any(|set| {
        annotation(set, DESIRED).and_then(|d| d.parse::<i32>().ok()).is_some_and(|desired| desired != wanted)
    })
}

/// Sizes the active sets after a change of `spec.replicas`, keeping their proportions in the middle of a rollout.
fn resize(deployment: &Deployment, current: Option<&ReplicaSet>, old: &[&ReplicaSet]) -> Vec<Step> {
    let wanted = replicas(deployment);
    let active: Vec<&ReplicaSet> = current.into_iter().chain(old.iter().copied()).filter(|s| size(s) > 0).collect();
    let sole = match active.as_slice() {
        [] => current.or(old.last().copied()),
        [set] => Some(*set),
        _ => None,
    };
    if let Some(set) = sole {
        return if size(set) == wanted { Vec::new() } else { vec![scale(deployment, set, wanted)] };
    }
    if active.is_empty() {
        return Vec::new();
    }
    if let Some(set) = current
        && size(set) == wanted
        && available(set) >= wanted
    {
        return old.iter().filter(|s| size(s) > 0).map(|s| scale(deployment, s, 0)).collect();
    }
    let total: i32 = active.iter().map(|set| size(set)).sum();
    let allowed = if wanted > 0 { wanted + bounds(deployment).0 } else { 0 };
    // A set that keeps its size only learns what it was sized for.
    let step = |(set, to)| match scale(deployment, set, to) {
        Step::Scale { set, from, to, annotations } if from == to => {
            (!annotations.is_empty()).then_some(Step::Annotate { set, annotations })
        }
        step => Some(step),
    };
    proportions(&active, allowed - total, allowed).into_iter().filter_map(step).collect()
}

/// Spreads `change` over the sets by their share; what rounding leaves goes to the largest.
fn proportions<'a>(active: &[&'a ReplicaSet], change: i32, allowed: i32) -> Vec<(&'a ReplicaSet, i32)> {
    let mut sets: Vec<(&ReplicaSet, i32)> = active.iter().map(|set| (*set, size(set))).collect();
    sets.sort_by_key(|(set, size)| (std::cmp::Reverse(*size), set.metadata.creation_timestamp.clone()));
    let mut left = change;
    for (set, to) in &mut sets {
        let base = annotation(set, MAX).and_then(|m| m.parse().ok()).filter(|m| *m > 0).unwrap_or(allowed - change);
        let share = f64::from(*to) * f64::from(allowed) / f64::from(base.max(1)) - f64::from(*to);
        let share = share.round() as i32;
        let share = if change > 0 { share.clamp(0, left.max(0)) } else { share.clamp(left.min(0), 0) };
        *to += share;
        left -= share;
    }
    if let Some((_, to)) = sets.first_mut() {
        *to = (*to + left).max(0);
    }
    sets
}

/// The size the new set may have now.
fn new_size(deployment: &Deployment, current: Option<&ReplicaSet>, old: &[&ReplicaSet]) -> i32 {
    let wanted = replicas(deployment);
    let has = current.map_or(0, size);
    if has >= wanted {
        return wanted;
    }
    let total: i32 = has + old.iter().map(|set| size(set)).sum::<i32>();
    let room = wanted + bounds(deployment).0 - total;
    if room <= 0 { has } else { has + room.min(wanted - has) }
}

/// How the old sets shrink: first the pods that are not available anyway, then as many as may be missing.
fn scale_down_old(deployment: &Deployment, current: &ReplicaSet, old: &[&ReplicaSet]) -> Vec<Step> {
    let old_total: i32 = old.iter().map(|set| size(set)).sum();
    if old_total == 0 {
        return Vec::new();
    }
    let minimum = replicas(deployment) - bounds(deployment).1;
    let new_unavailable = size(current) - available(current);
    let mut may_go = old_total + size(current) - minimum - new_unavailable;
    if may_go <= 0 {
        return Vec::new();
    }
    let mut sizes: Vec<i32> = old.iter().map(|set| size(set)).collect();
    for (set, to) in old.iter().zip(&mut sizes) {
        let unhealthy = (*to - available(set)).clamp(0, may_go);
        *to -= unhealthy;
        may_go -= unhealthy;
    }
    let all_available: i32 = available(current) + old.iter().map(|set| available(set)).sum::<i32>();
    let mut may_go = may_go.min(all_available - minimum).max(0);
    for to in &mut sizes {
        let less = (*to).min(may_go);
        *to -= less;
        may_go -= less;
    }
    let changed = old.iter().zip(sizes).filter(|(set, to)| size(set) != *to);
    changed.map(|(set, to)| scale(deployment, set, to)).collect()
}

/// Deletes the oldest idle sets beyond the limit.
fn cut_history(deployment: &Deployment, old: &[&ReplicaSet]) -> Vec<Step> {
    let limit = deployment.spec.as_ref().and_then(|s| s.revision_history_limit).unwrap_or(10);
    let mut idle: Vec<&ReplicaSet> =
        old.iter().copied().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
    let surplus = idle.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
    idle.sort_by_key(|set| revision(set));
    idle.truncate(surplus);
    let unused = |set: &&ReplicaSet| {
        let observed = set.status.as_ref().and_then(|s| s.observed_generation) >= set.metadata.generation;
        observed && size(set) == 0 && set.status.as_ref().is_some_and(|s| s.replicas == 0)
    };
    idle.into_iter().filter(unused).map(|set| Step::Delete(name(set))).collect()
}

#[cfg(test)]
mod tests;
