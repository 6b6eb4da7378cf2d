//! Who may migrate next: limits, priorities, and the back-off of migrations that nobody asked for by hand. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use api::kubevirt::constants::{annotation, migration_phase, migration_priority};
use api::kubevirt::v1::VirtualMachineInstanceMigration;
use jiff::{SignedDuration, Timestamp};
use kit::backoff::Backoff;
use kit::store::Key;
use kube::ResourceExt;

use super::configuration::Limits;
use crate::facts::migrations::phase_of;

/// What a node that does not empty itself is given between two attempts.
const AGAIN: Backoff = Backoff { base: Duration::from_secs(20), max: Duration::from_secs(3600) };

/// A migration that could start now if there were room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which.
    pub key: Key,
    /// The greater, the sooner.
    pub priority: i32,
    /// When it was asked for.
    pub created: Option<Timestamp>,
    /// Where its guest runs.
    pub source: String,
}

/// Whether a migration may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may.
    Now,
    /// Not yet: as many as may run in the cluster do, or will before it.
    Cluster,
    /// Not yet: as many as may leave its node do, or will before it.
    Node,
}

/// How urgent `migration` is.
pub fn priority(migration: &VirtualMachineInstanceMigration) -> i32 {
    match migration.spec.priority.as_deref() {
        Some(migration_priority::SYSTEM_CRITICAL) => 100,
        Some(migration_priority::USER_TRIGGERED) => 50,
        Some(migration_priority::SYSTEM_MAINTENANCE) => 20,
        _ => 0,
    }
}

/// Whether it is the turn of `key` among `waiting` (itself included) while migrations away from the nodes `running` run.
pub fn turn(key: &Key, mut waiting: Vec<Waiting>, running: &[String], limits: Limits) -> Turn {
    waiting.sort_by(|a, b| {
        let order = |w: &Waiting| (Reverse(w.priority), w.created);
        order(a).cmp(&order(b)).then_with(|| a.key.cmp(&b.key))
    });
    let mut free = limits.cluster.saturating_sub(running.len());
    let mut leaving: HashMap<&str, usize> = HashMap::new();
    for node in running {
        *leaving.entry(node).or_default() += 1;
    }
    for next in &waiting {
        if free == 0 {
            break;
        }
        let from = leaving.entry(&next.source).or_default();
        if *from < limits.outbound {
            if next.key == *key {
                return Turn::Now;
            }
            *from += 1;
            free -= 1;
        } else if next.key == *key {
            return Turn::Node;
        }
    }
    Turn::Cluster
}

/// How long `migration` must still wait because those before it, of the same guest, failed. Only migrations that a
/// controller made for an evacuation or an update wait; who asks by hand is served at once.
pub fn back_off(
    migration: &VirtualMachineInstanceMigration,
    of_guest: &[VirtualMachineInstanceMigration],
    now: Timestamp,
) -> Option<Duration> {
    let automatic = |migration: &VirtualMachineInstanceMigration| {
        let annotations = migration.annotations();
        annotations.contains_key(annotation::EVACUATION_MIGRATION)
            || annotations.contains_key(annotation::WORKLOAD_UPDATE_MIGRATION)
    };
    if !automatic(migration) {
        return None;
    }
    let age = |migration: &VirtualMachineInstanceMigration| {
        (migration.metadata.creation_timestamp.as_ref().map(|at| at.0), migration.name_any())
    };
    let own = age(migration);
    let mut before: Vec<_> = of_guest.iter().filter(|other| automatic(other) && age(other) < own).collect();
    before.sort_by_key(|other| Reverse(age(other)));
    let failed = before
        .iter()
        .take_while(|other| phase_of(other) != migration_phase::SUCCEEDED)
        .filter(|other| phase_of(other) == migration_phase::FAILED && other.metadata.deletion_timestamp.is_none());
    let ends: Vec<Timestamp> = failed.filter_map(|other| failed_at(other)).collect();
    let last = ends.iter().max()?;
    let delay = AGAIN.delay(u32::try_from(ends.len()).unwrap_or(u32::MAX));
    let left = SignedDuration::try_from(delay).ok()? - now.duration_since(*last);
    left.is_positive().then(|| Duration::try_from(left).ok()).flatten()
}

fn failed_at(migration: &VirtualMachineInstanceMigration) -> Option<Timestamp> {
    let phases = &migration.status.as_ref()?.phase_transition_timestamps;
    let failed = phases.iter().find(|entered| entered.phase.as_deref() == Some(migration_phase::FAILED))?;
    failed.phase_transition_timestamp.as_ref().map(|at| at.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Those of `waiting` (name, priority, source) that may start, in a cluster from whose nodes `running` migrate.
    #[track_caller]
    fn check(waiting: &[(&str, i32, &str)], running: &[&str], limits: (usize, usize), expect: &[&str]) {
        let all: Vec<Waiting> = waiting
            .iter()
            .enumerate()
            .map(|(second, (name, priority, source))| Waiting {
                key: Key::new("ns", *name),
                priority: *priority,
                created: Timestamp::from_second(second as i64).ok(),
                source: (*source).to_owned(),
            })
            .collect();
        let running: Vec<String> = running.iter().map(|node| (*node).to_owned()).collect();
        let limits = Limits { cluster: limits.0, outbound: limits.1 };
        let now: Vec<&str> = waiting
            .iter()
            .map(|(name, ..)| *name)
            .filter(|name| turn(&Key::new("ns", *name), all.clone(), &running, limits) == Turn::Now)
            .collect();
        assert_eq!(now, expect);
    }

    #[test]
    fn limits_hold_and_the_eldest_goes_first() {
        let three = [("a", 0, "n1"), ("b", 0, "n1"), ("c", 0, "n1")];
        check(&three, &[], (5, 2), &["a", "b"]);
        check(&three, &["n1"], (5, 2), &["a"]);
        check(&three, &["n1", "n1"], (5, 2), &[]);
        check(&three, &["n2", "n3", "n4", "n5"], (5, 2), &["a"]);
        check(&three, &["n2", "n3", "n4", "n5", "n6"], (5, 2), &[]);
        check(&three, &["n2"; 7], (5, 2), &[]);
    }

    #[test]
    fn a_full_node_does_not_hold_up_another() {
        let two = [("a", 100, "n1"), ("b", 0, "n2")];
        check(&two, &["n1", "n1"], (5, 2), &["b"]);
        check(&two, &["n1", "n1"], (2, 2), &[]);
    }

    #[test]
    fn the_urgent_go_first() {
        let mixed = [("old", 0, "n1"), ("upkeep", 20, "n2"), ("user", 50, "n3"), ("drain", 100, "n4")];
        check(&mixed, &[], (1, 2), &["drain"]);
        check(&mixed, &[], (2, 2), &["user", "drain"]);
        check(&mixed, &[], (3, 2), &["upkeep", "user", "drain"]);
    }

    #[test]
    fn priorities_of_the_words() {
        let of =
            |word: Option<&str>| priority(&serde_json::from_value(json!({ "spec": { "priority": word } })).unwrap());
        let words = [Some("system-critical"), Some("user-triggered"), Some("system-maintenance"), None, Some("other")];
        assert_eq!(words.map(of), [100, 50, 20, 0, 0]);
    }

    #[test]
    fn evacuations_that_fail_are_tried_ever_less_often() {
        let migration = |name: &str, second: u32, phase: &str, by_hand: bool| -> VirtualMachineInstanceMigration {
            let annotations = if by_hand { json!({}) } else { json!({ "kubevirt.io/evacuationMigration": "n1" }) };
            let at = format!("2026-01-01T00:00:{second:02}Z");
            serde_json::from_value(json!({
                "metadata": { "name": name, "creationTimestamp": at, "annotations": annotations },
                "status": { "phase": phase, "phaseTransitionTimestamps": [
                    { "phase": phase, "phaseTransitionTimestamp": at },
                ] },
            }))
            .unwrap()
        };
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        let check = |before: &[(&str, &str)], by_hand: bool, expect: Option<u64>| {
            let mut all: Vec<_> = before
                .iter()
                .enumerate()
                .map(|(second, (name, phase))| migration(name, second as u32 + 1, phase, false))
                .collect();
            let own = migration("own", 9, "Pending", by_hand);
            all.push(own.clone());
            assert_eq!(back_off(&own, &all, now).map(|left| left.as_secs()), expect, "{before:?}");
        };
        check(&[], false, None);
        check(&[("a", "Failed")], false, Some(11));
        check(&[("a", "Failed")], true, None);
        check(&[("a", "Failed"), ("b", "Failed")], false, Some(32));
        check(&[("a", "Failed"), ("b", "Failed"), ("c", "Failed")], false, Some(73));
        check(&[("a", "Failed"), ("b", "Succeeded")], false, None);
        check(&[("a", "Failed"), ("b", "Succeeded"), ("c", "Failed")], false, Some(13));
    }
}
