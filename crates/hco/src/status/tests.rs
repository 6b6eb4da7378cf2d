#![expect(clippy::needless_pass_by_value, reason = "cases are literals")]

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::*;
use crate::topology::Topology;

const VERSION: &str = "v2";

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A child of `version` that says `conditions`: type and status of each.
fn child(child: Child, version: &str, conditions: &[(&str, &str)]) -> Seen {
    let said = |(type_, status): &(&str, &str)| json!({ "type": type_, "status": status, "message": format!("{type_} it is") });
    let field = if child == Child::KubeVirt { "observedKubeVirtVersion" } else { "observedVersion" };
    let conditions: Vec<Value> = conditions.iter().map(said).collect();
    let held = json!({ "metadata": { "name": child.kind().name, "uid": "u" }, "status": { (field): version, "conditions": conditions } });
    Seen { child, held: Some(held), served: true }
}

const GOOD: [(&str, &str); 3] = [("Available", "True"), ("Progressing", "False"), ("Degraded", "False")];

fn all_good(version: &str) -> Vec<Seen> {
    Child::ALL.into_iter().map(|one| child(one, version, &GOOD)).collect()
}

fn input() -> Input {
    Input { version: VERSION.to_owned(), schedule: "1 2/12 * * *".to_owned(), ..Input::default() }
}

/// The status of an object that was complete in version `before`.
fn of(before: Option<&str>, annotations: Value, seen: &[Seen], failure: Option<&str>) -> Status {
    let versions =
        before.map(|version| json!([{ "name": "operator", "version": version }])).unwrap_or_else(|| json!([]));
    let hco: HyperConverged = serde_json::from_value(json!({
        "metadata": { "name": "kubevirt-hyperconverged", "generation": 3, "annotations": annotations },
        "status": { "versions": versions, "conditions": [] },
    }))
    .unwrap();
    let input = input();
    status(&hco, &Facts { seen, failure, input: &input, injector: None }, now())
}

/// `Type=Status Reason` of each condition that `types` name.
fn said(status: &Status, types: &[&str]) -> Vec<String> {
    let one = |type_: &&str| {
        let found = conditions::get(&status.conditions, type_).unwrap();
        format!("{type_}={} {}", found.status, found.reason)
    };
    types.iter().map(one).collect()
}

#[test]
fn when_all_are_good_the_object_is_healthy_and_of_the_version() {
    let found = of(None, json!({}), &all_good(VERSION), None);
    let types = ["ReconcileComplete", "Available", "Progressing", "Degraded", "Upgradeable"];
    let expect = ["True", "True", "False", "False", "True"].map(|value| format!("{value} ReconcileCompleted"));
    assert_eq!(
        said(&found, &types),
        types.iter().zip(expect).map(|(type_, said)| format!("{type_}={said}")).collect::<Vec<_>>()
    );
    assert_eq!(found.system_health_status.as_deref(), Some("healthy"));
    assert_eq!(found.versions, [Version { name: "operator".into(), version: VERSION.into() }]);
    assert_eq!(found.related_objects.len(), 4);
    assert_eq!(found.observed_generation, Some(3));
    assert!(found.conditions.iter().all(|condition| condition.observed_generation == Some(3)));
    assert_eq!(found.data_import_cron_templates.len(), 3);
}

/// With this child among others that are good.
#[track_caller]
fn check(bad: Seen, expect: &[&str], health: &str) {
    let mut seen = all_good(VERSION);
    let at = seen.iter().position(|one| one.child == bad.child).unwrap();
    seen[at] = bad;
    let found = of(None, json!({}), &seen, None);
    assert_eq!(said(&found, &["Available", "Progressing", "Degraded", "Upgradeable"]), expect);
    assert_eq!(found.system_health_status.as_deref(), Some(health));
}

#[test]
fn the_worst_of_the_children_is_told() {
    let mut missing = child(Child::Ssp, VERSION, &[]);
    missing.held = None;
    check(
        missing,
        &[
            "Available=False SSPConditions",
            "Progressing=True SSPConditions",
            "Degraded=False ReconcileCompleted",
            "Upgradeable=False HCOProgressing",
        ],
        "error",
    );
    check(
        child(Child::Cdi, VERSION, &[("Available", "True"), ("Progressing", "True"), ("Degraded", "False")]),
        &[
            "Available=True ReconcileCompleted",
            "Progressing=True CDIProgressing",
            "Degraded=False ReconcileCompleted",
            "Upgradeable=False HCOProgressing",
        ],
        "warning",
    );
    check(
        child(Child::KubeVirt, VERSION, &[("Available", "True"), ("Progressing", "False"), ("Degraded", "True")]),
        &[
            "Available=False HCODegraded",
            "Progressing=False ReconcileCompleted",
            "Degraded=True KubeVirtDegraded",
            "Upgradeable=False HCODegraded",
        ],
        "error",
    );
    check(
        child(Child::KubeVirt, VERSION, &[("Available", "False"), ("Progressing", "False"), ("Degraded", "False")]),
        &[
            "Available=False KubeVirtNotAvailable",
            "Progressing=False ReconcileCompleted",
            "Degraded=False ReconcileCompleted",
            "Upgradeable=True ReconcileCompleted",
        ],
        "error",
    );
    let mut unserved = child(Child::NetworkAddons, VERSION, &[]);
    (unserved.held, unserved.served) = (None, false);
    check(
        unserved,
        &[
            "Available=False NetworkAddonsConfigNotServed",
            "Progressing=False ReconcileCompleted",
            "Degraded=True NetworkAddonsConfigNotServed",
            "Upgradeable=False HCODegraded",
        ],
        "error",
    );
}

#[test]
fn an_upgrade_lasts_until_every_child_is_of_the_version() {
    let mut seen = all_good(VERSION);
    seen[1] = child(Child::Cdi, "v1", &GOOD);
    let found = of(Some("v1"), json!({}), &seen, None);
    assert_eq!(
        said(&found, &["Available", "Progressing", "Upgradeable"]),
        ["Available=True ReconcileCompleted", "Progressing=True HCOUpgrading", "Upgradeable=False HCOUpgrading"]
    );
    assert_eq!(found.versions[0].version, "v1");
    assert_eq!(found.system_health_status.as_deref(), Some("warning"));
    let found = of(Some("v1"), json!({}), &all_good(VERSION), None);
    assert_eq!(said(&found, &["Progressing"]), ["Progressing=False ReconcileCompleted"]);
    assert_eq!(found.versions[0].version, VERSION);
}

#[test]
fn a_failure_is_told_and_the_version_is_not_reached() {
    let found = of(None, json!({}), &all_good(VERSION), Some("cannot apply KubeVirt"));
    let complete = conditions::get(&found.conditions, "ReconcileComplete").unwrap();
    assert_eq!(
        (complete.reason.as_str(), complete.message.as_str()),
        ("ReconcileFailed", "Error while reconciling: cannot apply KubeVirt")
    );
    assert!(found.versions.is_empty());
    assert_eq!(found.system_health_status.as_deref(), Some("warning"));
}

#[test]
fn patches_taint_the_object_while_they_are_there() {
    let found = of(None, json!({ "kubevirt.kubevirt.io/jsonpatch": "[]" }), &all_good(VERSION), None);
    assert_eq!(said(&found, &["TaintedConfiguration"]), ["TaintedConfiguration=True UnsupportedFeatureAnnotation"]);
    let found = of(None, json!({}), &all_good(VERSION), None);
    assert!(conditions::get(&found.conditions, "TaintedConfiguration").is_none());
}

#[test]
fn one_worker_is_said_to_offer_no_migration() {
    let found = of(None, json!({}), &all_good(VERSION), None);
    assert_eq!(said(&found, &["LiveMigrationPossible"]), ["LiveMigrationPossible=False SingleWorker"]);
    assert_eq!(found.infrastructure_highly_available, Some(false));
    let two = Input { topology: Topology::of(&[Node::default(), Node::default()]), ..input() };
    assert!(migration(&two).0);
}

#[test]
fn the_injector_is_told_of_where_it_is_wanted() {
    let hco = |wanted: Value| -> HyperConverged {
        serde_json::from_value(
            json!({ "metadata": {}, "spec": { "deployment": { "deployNetworkResourcesInjector": wanted } } }),
        )
        .unwrap()
    };
    let deployment = |available: i32| -> Deployment {
        let status = json!({ "updatedReplicas": 2, "availableReplicas": available, "readyReplicas": available });
        serde_json::from_value(
            json!({ "metadata": {}, "spec": { "replicas": 2, "selector": {}, "template": {} }, "status": status }),
        )
        .unwrap()
    };
    let said =
        |wanted: Value, held: Option<&Deployment>| injector(&hco(wanted), held).map(|said| (said.0, said.1, said.2));
    assert_eq!(said(json!(false), None), None);
    assert_eq!(said(Value::Null, None).unwrap().1, "DeploymentNotFound");
    assert_eq!(
        said(json!(true), Some(&deployment(1))).unwrap(),
        (false, "DeploymentNotReady", "1/2 replicas ready".to_owned())
    );
    assert_eq!(
        said(json!(true), Some(&deployment(2))).unwrap(),
        (true, "DeploymentReady", "All replicas are ready".to_owned())
    );
}

#[test]
fn nothing_changes_when_nothing_is_new() {
    let seen = all_good(VERSION);
    let first = of(None, json!({}), &seen, None);
    let mut hco = HyperConverged { status: Some(first.clone()), ..HyperConverged::default() };
    hco.metadata.generation = Some(3);
    let later = "2026-01-01T01:00:00Z".parse().unwrap();
    let again = status(&hco, &Facts { seen: &seen, failure: None, input: &input(), injector: None }, later);
    assert_eq!(again, first);
}

#[test]
fn another_object_is_told_that_it_does_not_count() {
    let found = invalid(&HyperConverged::default(), ("ns", "kubevirt-hyperconverged"), now());
    assert_eq!(found.conditions[0].reason, "InvalidRequest");
    assert!(found.conditions[0].message.contains("expected name (kubevirt-hyperconverged) and namespace (ns)"));
}
