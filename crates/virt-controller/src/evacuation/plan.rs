//! Which guests of a node to move now. Pure.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use api::kubevirt::constants::{annotation, migration_phase};
use api::kubevirt::eviction::{can_move, is_marked, is_unfinished, phase_of, wants_to_move};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kit::backoff::Backoff;

use crate::facts::instance::is_final;
use crate::settings::Settings;

/// After an evacuation that failed, the next waits: a target that was cordoned or lost is not alone in being so.
const AGAIN: Backoff = Backoff { base: Duration::from_secs(20), max: Duration::from_secs(300) };
/// When all places are taken.
const CROWDED: Duration = Duration::from_secs(5);
/// When somebody has to see to guests that cannot move.
const STUCK: Duration = Duration::from_secs(60);

/// What is known.
pub struct Seen<'a> {
    /// The node.
    pub node: &'a Node,
    /// The guests on it.
    pub vmis: &'a [VirtualMachineInstance],
    /// Every migration, finished ones included.
    pub migrations: &'a [VirtualMachineInstanceMigration],
    /// How many pods of a guest have not ended.
    pub pods_of: &'a (dyn Fn(&VirtualMachineInstance) -> usize + Sync),
    /// The administrator's limits.
    pub settings: &'a Settings,
}

/// What to do.
#[derive(Debug, Default, PartialEq)]
pub struct Plan<'a> {
    /// Move these.
    pub start: Vec<&'a VirtualMachineInstance>,
    /// These should move and cannot: say so.
    pub stuck: Vec<&'a VirtualMachineInstance>,
    /// These carry the mark of a node they have left.
    pub arrived: Vec<&'a VirtualMachineInstance>,
    /// Look again after this long.
    pub again: Option<Duration>,
}

type Name<'a> = (&'a str, &'a str);

fn name(vmi: &VirtualMachineInstance) -> Name<'_> {
    let metadata = &vmi.metadata;
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn moves(migration: &VirtualMachineInstanceMigration) -> Name<'_> {
    (
        migration.metadata.namespace.as_deref().unwrap_or_default(),
        migration.spec.vmi_name.as_deref().unwrap_or_default(),
    )
}

/// The plan for the node.
pub fn plan<'a>(seen: &Seen<'a>, now: Timestamp) -> Plan<'a> {
    let mut plan = Plan::default();
    let cluster = &seen.settings.eviction_strategy;
    let unfinished: Vec<Name<'_>> = seen.migrations.iter().filter(|m| is_unfinished(m)).map(moves).collect();
    let moving: HashSet<Name<'_>> = unfinished.iter().copied().collect();
    let emptied = is_tainted(seen.node, &seen.settings.drain_taint_key);
    let here: HashSet<Name<'_>> = seen.vmis.iter().map(name).collect();
    let mut waits: Vec<Duration> = Vec::new();
    let mut candidates = Vec::new();
    for vmi in seen.vmis.iter().filter(|vmi| !is_final(vmi) && vmi.metadata.deletion_timestamp.is_none()) {
        let marked = is_marked(vmi);
        let named = vmi.status.as_ref().and_then(|status| status.evacuation_node_name.as_deref()).unwrap_or_default();
        if !named.is_empty() && !marked && !moving.contains(&name(vmi)) {
            plan.arrived.push(vmi);
        }
        if !(marked || emptied) || !wants_to_move(vmi, cluster) || moving.contains(&name(vmi)) {
            continue;
        }
        if !can_move(vmi) {
            plan.stuck.push(vmi);
        } else if (seen.pods_of)(vmi) > 1 {
            // A pod of an earlier migration is still going; a third would void the budget that protects the guest.
            waits.push(CROWDED);
        } else if let Some(left) = patience(vmi, seen.migrations, now) {
            waits.push(left);
        } else {
            candidates.push(vmi);
        }
    }
    let leaving = unfinished.iter().filter(|name| here.contains(*name)).count();
    let in_cluster = seen.settings.parallel_migrations.saturating_sub(unfinished.len());
    let from_here = seen.settings.parallel_outbound_migrations.saturating_sub(leaving);
    let places = in_cluster.min(from_here);
    if candidates.len() > places {
        waits.push(CROWDED);
    }
    candidates.truncate(places);
    plan.start = candidates;
    if !plan.stuck.is_empty() {
        waits.push(STUCK);
    }
    plan.again = waits.into_iter().min();
    plan
}

fn is_tainted(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == key && taint.effect == "NoSchedule")
}

/// How long the guest's next evacuation waits because the last ones failed.
fn patience(
    vmi: &VirtualMachineInstance,
    migrations: &[VirtualMachineInstanceMigration],
    now: Timestamp,
) -> Option<Duration> {
    let mut ended: Vec<_> = migrations.iter().filter(|m| !is_unfinished(m) && moves(m) == name(vmi)).collect();
    ended.sort_by_key(|migration| std::cmp::Reverse(ended_at(migration)));
    let evacuates = |migration: &VirtualMachineInstanceMigration| {
        migration.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(annotation::EVACUATION_MIGRATION))
    };
    let failed = ended.iter().take_while(|m| phase_of(m) == migration_phase::FAILED).filter(|m| evacuates(m));
    let times: Vec<Timestamp> = failed.filter_map(|migration| ended_at(migration)).collect();
    let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
    let wait = SignedDuration::try_from(AGAIN.delay(count)).ok()?;
    let left = wait - now.duration_since(*times.first()?);
    left.is_positive().then(|| Duration::try_from(left).ok()).flatten()
}

/// When a migration ended: what its phases tell, else when it was made.
fn ended_at(migration: &VirtualMachineInstanceMigration) -> Option<Timestamp> {
    let status = migration.status.as_ref();
    let phases: HashMap<&str, Timestamp> = status
        .iter()
        .flat_map(|status| &status.phase_transition_timestamps)
        .filter_map(|entry| Some((entry.phase.as_deref()?, entry.phase_transition_timestamp.as_ref()?.0)))
        .collect();
    let reported = phases.get(phase_of(migration)).copied();
    reported.or_else(|| migration.metadata.creation_timestamp.as_ref().map(|at| at.0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vmi(name: &str, marked: Option<&str>, movable: bool) -> Value {
        let movable = if movable { "True" } else { "False" };
        json!({
            "metadata": { "name": name, "namespace": "ns" },
            "spec": { "evictionStrategy": "LiveMigrate" },
            "status": {
                "phase": "Running", "nodeName": "node1", "evacuationNodeName": marked,
                "conditions": [{ "type": "LiveMigratable", "status": movable }],
            },
        })
    }

    fn migration(of: &str, phase: &str, at: &str) -> Value {
        json!({
            "metadata": { "name": "m", "namespace": "ns", "annotations": { (annotation::EVACUATION_MIGRATION): "node1" } },
            "spec": { "vmiName": of },
            "status": { "phase": phase, "phaseTransitionTimestamps": [
                { "phase": phase, "phaseTransitionTimestamp": format!("2026-01-01T00:{at}Z") },
            ] },
        })
    }

    #[track_caller]
    fn check(tainted: bool, vmis: &[Value], migrations: &[Value], start: &[&str], again: Option<u64>) {
        let taints = if tainted { json!([{ "key": "kubevirt.io/drain", "effect": "NoSchedule" }]) } else { json!([]) };
        let node: Node = serde_json::from_value(json!({ "spec": { "taints": taints } })).unwrap();
        let vmis: Vec<_> = vmis.iter().map(|vmi| serde_json::from_value(vmi.clone()).unwrap()).collect();
        let migrations: Vec<_> = migrations.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect();
        let settings = Settings::of(None, "i");
        let seen = Seen { node: &node, vmis: &vmis, migrations: &migrations, pods_of: &|_| 1, settings: &settings };
        let found = plan(&seen, "2026-01-01T00:10:00Z".parse().unwrap());
        let names: Vec<_> = found.start.iter().map(|vmi| name(vmi).1).collect();
        assert_eq!((names.as_slice(), found.again.map(|wait| wait.as_secs())), (start, again));
    }

    #[test]
    fn those_whose_pod_was_evicted_move() {
        let here = Some("node1");
        check(false, &[vmi("a", None, true)], &[], &[], None);
        check(false, &[vmi("a", here, true)], &[], &["a"], None);
        check(false, &[vmi("a", Some("node2"), true)], &[], &[], None);
        check(false, &[vmi("a", here, false)], &[], &[], Some(60));
        let mut none = vmi("a", here, true);
        none["spec"]["evictionStrategy"] = json!("None");
        check(false, &[none.clone()], &[], &[], None);
        none["spec"]["evictionStrategy"] = json!("External");
        check(false, &[none], &[], &[], None);
    }

    #[test]
    fn a_tainted_node_is_emptied() {
        check(true, &[vmi("a", None, true)], &[], &["a"], None);
    }

    #[test]
    fn two_at_a_time_from_a_node_and_five_in_the_cluster() {
        let three = [vmi("a", Some("node1"), true), vmi("b", Some("node1"), true), vmi("c", Some("node1"), true)];
        check(false, &three, &[], &["a", "b"], Some(5));
        check(false, &three, &[migration("a", "Running", "09:00")], &["b"], Some(5));
        let elsewhere: Vec<_> = (0..4).map(|i| migration(&format!("x{i}"), "Running", "09:00")).collect();
        check(false, &three, &elsewhere, &["a"], Some(5));
        check(false, &three, &[elsewhere, vec![migration("y", "Pending", "09:00")]].concat(), &[], Some(5));
    }

    #[test]
    fn failures_are_repeated_more_and_more_slowly() {
        let one = [vmi("a", Some("node1"), true)];
        check(false, &one, &[migration("a", "Failed", "09:50")], &[], Some(10));
        check(false, &one, &[migration("a", "Failed", "09:39")], &["a"], None);
        let twice = [migration("a", "Failed", "09:50"), migration("a", "Failed", "09:00")];
        check(false, &one, &twice, &[], Some(30));
        let between = [migration("a", "Failed", "09:50"), migration("a", "Succeeded", "09:40"), twice[1].clone()];
        check(false, &one, &between, &[], Some(10));
    }
}
