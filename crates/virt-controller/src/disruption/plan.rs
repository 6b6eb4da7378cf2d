//! Which budget a virtual machine instance should have. Pure.

use api::kubevirt::constants::{label, migration_phase};
use api::kubevirt::eviction::{is_protected, is_unfinished, phase_of};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use crate::facts::launcher::suffix;

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create this budget.
    Create(Box<PodDisruptionBudget>),
    /// Merge this into the budget.
    Resize {
        /// Its name.
        name: String,
        /// The merge patch.
        patch: Value,
    },
    /// Delete the budget.
    Delete {
        /// Its name.
        name: String,
        /// And no other of that name.
        uid: Option<String>,
    },
}

/// The steps for `vmi`, which owns `budgets`, and of which `migrations` and `pods` are.
pub fn plan(
    vmi: &VirtualMachineInstance,
    budgets: &[PodDisruptionBudget],
    migrations: &[VirtualMachineInstanceMigration],
    pods: &[Pod],
    cluster: &str,
) -> Vec<Step> {
    let held: Vec<_> = budgets.iter().filter(|budget| budget.metadata.deletion_timestamp.is_none()).collect();
    if vmi.metadata.deletion_timestamp.is_some() || !is_protected(vmi, cluster) {
        return held.into_iter().map(remove).collect();
    }
    let Some((first, more)) = held.split_first() else { return vec![Step::Create(Box::new(budget(vmi)))] };
    // More than one budget over a pod makes every eviction of it an error.
    let mut steps: Vec<Step> = more.iter().map(|budget| remove(budget)).collect();
    let wanted = moving(migrations, pods);
    let spec = first.spec.clone().unwrap_or_default();
    let label = first.metadata.labels.as_ref().and_then(|labels| labels.get(label::MIGRATION_NAME));
    let pods_kept = if wanted.is_some() { 2 } else { 1 };
    if spec.min_available != Some(IntOrString::Int(pods_kept)) || label.map(String::as_str) != wanted {
        let patch = json!({
            "metadata": { "labels": { (label::MIGRATION_NAME): wanted } },
            "spec": { "minAvailable": pods_kept },
        });
        steps.push(Step::Resize { name: name_of(first), patch });
    }
    steps
}

/// The migration during which two pods are protected: from when its target pod may exist until only one pod is left.
fn moving<'a>(migrations: &'a [VirtualMachineInstanceMigration], pods: &[Pod]) -> Option<&'a str> {
    let alive = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let several = pods.iter().filter(alive).count() > 1;
    let queued = |migration: &VirtualMachineInstanceMigration| {
        matches!(phase_of(migration), migration_phase::UNSET | migration_phase::PENDING)
    };
    let found = migrations.iter().find(|migration| is_unfinished(migration) && (several || !queued(migration)));
    found.or(migrations.iter().rfind(|_| several))?.metadata.name.as_deref()
}

fn name_of(budget: &PodDisruptionBudget) -> String {
    budget.metadata.name.clone().unwrap_or_default()
}

fn remove(budget: &PodDisruptionBudget) -> Step {
    Step::Delete { name: name_of(budget), uid: budget.metadata.uid.clone() }
}

/// The budget of `vmi` at rest. Named by its UID, so that a second creation meets the first instead of doubling it.
fn budget(vmi: &VirtualMachineInstance) -> PodDisruptionBudget {
    let uid = vmi.metadata.uid.clone().unwrap_or_default();
    let budget = json!({
        "metadata": {
            "name": format!("kubevirt-disruption-budget-{}", suffix(&uid)),
            "generateName": "kubevirt-disruption-budget-",
            "namespace": vmi.metadata.namespace,
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "name": vmi.metadata.name, "uid": uid, "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { (label::CREATED_BY): uid } } },
    });
    serde_json::from_value(budget).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmi(strategy: &str) -> Value {
        json!({
            "metadata": { "name": "vm", "namespace": "ns", "uid": "u" }, "spec": { "evictionStrategy": strategy },
            "status": { "conditions": [{ "type": "LiveMigratable", "status": "True" }] },
        })
    }

    fn held(min: i32, migration: Option<&str>) -> Value {
        json!({
            "metadata": { "name": "b", "uid": "1", "labels": migration.map(|m| json!({ (label::MIGRATION_NAME): m })) },
            "spec": { "minAvailable": min },
        })
    }

    fn migration(phase: &str) -> Value {
        json!({ "metadata": { "name": "m" }, "spec": {}, "status": { "phase": phase } })
    }

    #[track_caller]
    fn check(vmi: Value, budgets: &[Value], migrations: &[Value], pods: usize, expect: &[&str]) {
        fn typed<T: serde::de::DeserializeOwned>(all: &[Value]) -> Vec<T> {
            all.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect()
        }
        let vmi = serde_json::from_value(vmi).unwrap();
        let pods = vec![Pod::default(); pods];
        let steps = plan(&vmi, &typed(budgets), &typed(migrations), &pods, "None");
        let said: Vec<String> = steps
            .iter()
            .map(|step| match step {
                Step::Create(budget) => {
                    let spec = serde_json::to_value(&budget.spec).unwrap();
                    format!("create {} of {}", spec["minAvailable"], spec["selector"]["matchLabels"][label::CREATED_BY])
                }
                Step::Resize { name, patch } => {
                    format!(
                        "{name} {} {}",
                        patch["spec"]["minAvailable"],
                        patch["metadata"]["labels"][label::MIGRATION_NAME]
                    )
                }
                Step::Delete { name, .. } => format!("delete {name}"),
            })
            .collect();
        assert_eq!(said, expect);
    }

    #[test]
    fn a_budget_lives_as_long_as_there_is_something_to_protect() {
        check(vmi("None"), &[], &[], 1, &[]);
        check(vmi("LiveMigrate"), &[], &[], 1, &["create 1 of \"u\""]);
        check(vmi("External"), &[held(1, None)], &[], 1, &[]);
        check(vmi("None"), &[held(1, None)], &[], 1, &["delete b"]);
        let mut going = vmi("LiveMigrate");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        check(going, &[held(1, None)], &[], 1, &["delete b"]);
        let mut stuck = vmi("LiveMigrateIfPossible");
        stuck["status"]["conditions"][0]["status"] = json!("False");
        check(stuck, &[held(1, None)], &[], 1, &["delete b"]);
        check(vmi("LiveMigrate"), &[held(1, None), held(1, None)], &[], 1, &["delete b"]);
    }

    #[test]
    fn both_ends_of_a_migration_are_protected() {
        let at_rest = || vec![held(1, None)];
        check(vmi("LiveMigrate"), &at_rest(), &[migration("Pending")], 1, &[]);
        check(vmi("LiveMigrate"), &at_rest(), &[migration("Scheduling")], 1, &["b 2 \"m\""]);
        check(vmi("LiveMigrate"), &at_rest(), &[migration("Pending")], 2, &["b 2 \"m\""]);
        let moving = || vec![held(2, Some("m"))];
        check(vmi("LiveMigrate"), &moving(), &[migration("Running")], 2, &[]);
        check(vmi("LiveMigrate"), &moving(), &[migration("Succeeded")], 2, &[]);
        check(vmi("LiveMigrate"), &moving(), &[migration("Succeeded")], 1, &["b 1 null"]);
        check(vmi("LiveMigrate"), &moving(), &[], 1, &["b 1 null"]);
    }
}
