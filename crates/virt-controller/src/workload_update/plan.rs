//! Which guests run in an old launcher, and which of them are dealt with now. Pure.

use std::collections::HashMap;
use std::time::Duration;

use api::kubevirt::constants::{annotation, kubevirt_phase, label, phase};
use api::kubevirt::eviction::{can_move, is_unfinished};
use api::kubevirt::v1::{KubeVirt, VirtualMachineInstance, VirtualMachineInstanceMigration};
use jiff::{SignedDuration, Timestamp};

use crate::facts::instance::phase_of;
use crate::facts::{volumes_change, workload};
use crate::settings::Settings;

/// While work is left, though nothing happens.
const LOOK: Duration = Duration::from_secs(30);
/// While guests are outdated and nobody is to do anything about it.
const COUNT: Duration = Duration::from_secs(60);
const BATCH_INTERVAL: Duration = Duration::from_secs(60);
const BATCH_SIZE: usize = 10;

/// What is known.
pub struct Seen<'a> {
    /// The administrator's wishes.
    pub kubevirt: &'a KubeVirt,
    /// Every guest.
    pub vmis: &'a [VirtualMachineInstance],
    /// Every migration.
    pub migrations: &'a [VirtualMachineInstanceMigration],
    /// The newest launcher, and limits.
    pub settings: &'a Settings,
    /// When guests were last ended.
    pub last_batch: Option<Timestamp>,
}

/// What to do.
#[derive(Debug, Default, PartialEq)]
pub struct Plan<'a> {
    /// How many guests run in an old launcher.
    pub outdated: usize,
    /// Guests whose label does not say whether they do.
    pub labels: Vec<(&'a VirtualMachineInstance, bool)>,
    /// Move these.
    pub migrate: Vec<&'a VirtualMachineInstance>,
    /// Evict these.
    pub evict: Vec<&'a VirtualMachineInstance>,
    /// End these migrations: there is no reason left for them.
    pub abort: Vec<&'a VirtualMachineInstanceMigration>,
    /// Look again after this long.
    pub again: Option<Duration>,
}

/// The product is deployed as it should be, so its launcher is the newest.
pub fn is_settled(kubevirt: &KubeVirt) -> bool {
    let status = kubevirt.status.as_deref();
    status.is_some_and(|status| {
        status.phase.as_deref() == Some(kubevirt_phase::DEPLOYED)
            && status.observed_deployment_id == status.target_deployment_id
    })
}

/// The guest runs, and its launcher is known and of another build than new ones.
fn is_outdated(vmi: &VirtualMachineInstance, newest: &str) -> bool {
    let image = vmi.status.as_ref().and_then(|status| status.launcher_container_image_version.as_deref());
    image.is_some_and(|image| !image.is_empty() && image != newest)
}

/// The plan.
pub fn plan<'a>(seen: &Seen<'a>, now: Timestamp) -> Plan<'a> {
    let mut plan = Plan::default();
    let strategy = seen.kubevirt.spec.workload_update_strategy.clone().unwrap_or_default();
    let chosen = |method: &str| strategy.workload_update_methods.iter().any(|chosen| chosen == method);
    let (may_move, may_end) = (chosen("LiveMigrate"), chosen("Evict"));
    let unfinished: HashMap<_, _> = seen
        .migrations
        .iter()
        .filter(|migration| is_unfinished(migration))
        .map(|migration| ((&migration.metadata.namespace, &migration.spec.vmi_name), migration))
        .collect();
    let (mut movable, mut endable) = (Vec::new(), Vec::new());
    for vmi in seen.vmis {
        if phase_of(vmi) != phase::RUNNING || vmi.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let outdated = is_outdated(vmi, &seen.settings.launcher_image);
        let labelled = vmi.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::OUTDATED_LAUNCHER));
        if labelled != outdated {
            plan.labels.push((vmi, outdated));
        }
        let migration = unfinished.get(&(&vmi.metadata.namespace, &vmi.metadata.name)).copied();
        // Whoever changed the volumes has asked for this very migration, whatever becomes of old launchers.
        let copies = volumes_change::is_wanted(vmi) && !volumes_change::has_arrived(vmi);
        // Only where guests may be moved for the administrator's sake.
        let outgrown = may_move && workload::outgrown(vmi);
        if !outdated && !copies && !outgrown {
            plan.abort.extend(migration.filter(|migration| has_no_reason_left(vmi, migration)));
            continue;
        }
        plan.outdated += usize::from(outdated);
        if migration.is_some() {
            continue;
        }
        if copies || may_move && can_move(vmi) {
            movable.push(vmi);
        } else if may_end && outdated {
            endable.push(vmi);
        }
    }
    let places = seen.settings.parallel_migrations.saturating_sub(unfinished.len());
    let work = !movable.is_empty() || !endable.is_empty();
    movable.truncate(places);
    plan.migrate = movable;
    let interval = strategy.batch_eviction_interval.as_deref().and_then(|text| text.parse::<SignedDuration>().ok());
    let interval = interval.and_then(|given| Duration::try_from(given).ok()).unwrap_or(BATCH_INTERVAL);
    let left = seen.last_batch.and_then(|last| {
        let left = SignedDuration::try_from(interval).ok()? - now.duration_since(last);
        left.is_positive().then(|| Duration::try_from(left).ok()).flatten()
    });
    if left.is_none() {
        let size = strategy.batch_eviction_size.map_or(BATCH_SIZE, |size| usize::try_from(size).unwrap_or(0));
        endable.truncate(size);
        plan.evict = endable;
    }
    plan.again = match plan.outdated {
        0 if !work => None,
        _ if work => Some(left.map_or(LOOK, |left| left.min(LOOK))),
        // Those that go by themselves have to be counted off.
        _ => Some(COUNT),
    };
    plan
}

/// The migration was only for another launcher, and its guest has not arrived yet.
fn has_no_reason_left(vmi: &VirtualMachineInstance, migration: &VirtualMachineInstanceMigration) -> bool {
    let annotations = migration.metadata.annotations.as_ref();
    let ours = annotations.is_some_and(|all| all.contains_key(annotation::WORKLOAD_UPDATE_MIGRATION));
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    let arrived = state.is_some_and(|state| {
        state.migration_uid == migration.metadata.uid && state.target_node_domain_ready_timestamp.is_some()
    });
    ours && !arrived && migration.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn vmi(name: &str, image: &str, movable: bool) -> Value {
        let (movable, labels) = (if movable { "True" } else { "False" }, json!({ (label::OUTDATED_LAUNCHER): "" }));
        json!({
            "metadata": { "name": name, "namespace": "ns", "labels": if image == "old" { labels } else { json!({}) } },
            "status": {
                "phase": "Running", "launcherContainerImageVersion": image,
                "conditions": [{ "type": "LiveMigratable", "status": movable }],
            },
        })
    }

    #[derive(Clone, Default)]
    struct Case<'a> {
        strategy: Value,
        vmis: &'a [Value],
        migrations: &'a [Value],
        last: Option<&'a str>,
    }

    /// `outdated: moved / evicted / aborted`, and seconds until the next look.
    #[track_caller]
    fn check(case: &Case<'_>, expect: &str, again: Option<u64>) {
        let kubevirt: KubeVirt =
            serde_json::from_value(json!({ "spec": { "workloadUpdateStrategy": case.strategy } })).unwrap();
        let vmis: Vec<_> = case.vmis.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect();
        let migrations: Vec<_> =
            case.migrations.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect();
        let settings = Settings::of(None, "new");
        let last_batch = case.last.map(|at| at.parse().unwrap());
        let seen = Seen { kubevirt: &kubevirt, vmis: &vmis, migrations: &migrations, settings: &settings, last_batch };
        let found = plan(&seen, NOW.parse().unwrap());
        let names = |all: &[&VirtualMachineInstance]| {
            all.iter().map(|vmi| vmi.metadata.name.clone().unwrap()).collect::<Vec<_>>().join(",")
        };
        let said =
            format!("{}: {} / {} / {}", found.outdated, names(&found.migrate), names(&found.evict), found.abort.len());
        assert_eq!((said.as_str(), found.again.map(|wait| wait.as_secs())), (expect, again));
    }

    #[test]
    fn without_a_method_guests_are_only_counted() {
        let vmis = [vmi("a", "old", true), vmi("b", "new", true), vmi("c", "", true)];
        check(&Case { vmis: &vmis, ..Default::default() }, "1:  /  / 0", Some(60));
    }

    #[test]
    fn migratable_vmis_migrate_and_the_rest_is_evicted_in_batches() {
        let both = json!({ "workloadUpdateMethods": ["LiveMigrate", "Evict"], "batchEvictionSize": 1 });
        let vmis = [vmi("a", "old", true), vmi("b", "old", false), vmi("c", "old", false)];
        let case = Case { strategy: both, vmis: &vmis, ..Default::default() };
        check(&case, "3: a / b / 0", Some(30));
        check(&Case { last: Some("2026-01-01T00:59:20Z"), ..case.clone() }, "3: a /  / 0", Some(20));
        let evict = json!({ "workloadUpdateMethods": ["Evict"], "batchEvictionInterval": "10s" });
        let case = Case { strategy: evict, vmis: &vmis, last: Some("2026-01-01T00:59:20Z"), ..Default::default() };
        check(&case, "3:  / a,b,c / 0", Some(30));
        let moves = json!({ "workloadUpdateMethods": ["LiveMigrate"] });
        check(&Case { strategy: moves, vmis: &vmis, ..Default::default() }, "3: a /  / 0", Some(30));
    }

    #[test]
    fn migrations_are_as_many_as_the_cluster_allows_and_end_when_the_launcher_is_the_newest_again() {
        let moves = json!({ "workloadUpdateMethods": ["LiveMigrate"] });
        let vmis: Vec<_> = (0..7).map(|i| vmi(&format!("a{i}"), "old", true)).collect();
        let migration = json!({
            "metadata": { "name": "m", "namespace": "ns", "uid": "m",
                "annotations": { (annotation::WORKLOAD_UPDATE_MIGRATION): "" } },
            "spec": { "vmiName": "a0" }, "status": { "phase": "Running" },
        });
        let case = Case { strategy: moves, vmis: &vmis, migrations: &[migration], ..Default::default() };
        check(&case, "7: a1,a2,a3,a4 /  / 0", Some(30));
        let back = [vmi("a0", "new", true)];
        check(&Case { vmis: &back, ..case.clone() }, "0:  /  / 1", None);
        let mut arrived = vmi("a0", "new", true);
        arrived["status"]["migrationState"] = json!({ "migrationUid": "m", "targetNodeDomainReadyTimestamp": NOW });
        check(&Case { vmis: &[arrived], ..case }, "0:  /  / 0", None);
    }
}
