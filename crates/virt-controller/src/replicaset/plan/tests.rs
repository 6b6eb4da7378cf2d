//! Whom sets take in, make and delete.

use serde_json::json;

use super::*;

/// Instances as words: state, perhaps `:` and when they were made.
fn instances(words: &str) -> Vec<VirtualMachineInstance> {
    let one = |(index, word): (usize, &str)| {
        let (word, minute) = word.split_once(':').unwrap_or((word, "0"));
        let mut value = json!({
            "metadata": {
                "name": format!("i{index}"), "uid": format!("i{index}"), "namespace": "ns", "labels": { "app": "a" },
                "creationTimestamp": format!("2026-01-01T00:0{minute}:00Z"),
            },
            "spec": {}, "status": { "phase": "Running" },
        });
        let ready = |status: &str, reason: &str| json!([{ "type": "Ready", "status": status, "reason": reason }]);
        match word {
            "ready" => value["status"]["conditions"] = ready("True", ""),
            "losing" => value["status"]["conditions"] = ready("False", "PodTerminating"),
            "pending" => value["status"]["phase"] = json!("Pending"),
            "failed" => value["status"]["phase"] = json!("Failed"),
            "succeeded" => value["status"]["phase"] = json!("Succeeded"),
            "unknown" => value["status"]["phase"] = json!("Unknown"),
            "leaving" => value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            "other" => value["metadata"]["labels"] = json!({ "app": "b" }),
            "owned" => {
                value["metadata"]["ownerReferences"] =
                    json!([{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true }]);
            }
            "foreign" => value["metadata"]["namespace"] = json!("victim"),
            _ => {}
        }
        serde_json::from_value(value).unwrap()
    };
    words.split_whitespace().enumerate().map(one).collect()
}

fn set(replicas: i32) -> ReplicaSet {
    serde_json::from_value(json!({
        "metadata": { "name": "set", "namespace": "ns", "uid": "set" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "a" } },
            "template": { "metadata": { "labels": { "app": "a" } }, "spec": { "domain": { "devices": {} } } },
        },
    }))
    .unwrap()
}

fn names(of: &[&VirtualMachineInstance]) -> String {
    of.iter().map(|vmi| vmi.name_any()).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check(replicas: i32, words: &str, going: &str, create: usize, delete: &str, tidy: &str) {
    let (set, owned) = (set(replicas), instances(words));
    let going = going.split_whitespace().map(str::to_owned).collect();
    let plan = plan(&Seen { set: &set, owned: &owned, going: &going, held: false });
    assert_eq!((plan.create, names(&plan.delete).as_str(), names(&plan.tidy).as_str()), (create, delete, tidy));
}

#[test]
fn as_many_as_wanted() {
    check(2, "", "", 2, "", "");
    check(2, "ready pending", "", 0, "", "");
    check(2, "ready leaving", "", 1, "", "");
    check(2, "ready losing", "", 1, "", "");
    check(2, "ready unknown", "", 1, "", "i1");
    check(2, "ready failed succeeded", "", 1, "", "i1 i2");
    check(0, "ready pending", "", 0, "i1 i0", "");
}

#[test]
fn who_is_not_ready_goes_first_and_then_the_newest() {
    check(1, "ready:1 ready:3 ready:2", "", 0, "i1 i2", "");
    check(2, "ready:3 pending:1 running:2 ready:1", "", 0, "i1 i2", "");
    check(1, "pending:1 pending:1", "", 0, "i0", "");
}

#[test]
fn nobody_goes_in_the_place_of_one_that_was_told_to() {
    check(1, "ready pending", "i0", 0, "", "");
    check(1, "failed ready", "i0", 0, "", "");
}

#[test]
fn no_more_than_a_burst_at_a_time() {
    check(1000, "", "", 250, "", "");
    let (set, owned) = (set(0), instances(&"ready ".repeat(300)));
    let nobody = BTreeSet::new();
    let plan = plan(&Seen { set: &set, owned: &owned, going: &nobody, held: false });
    assert_eq!(plan.delete.len(), 250);
}

#[test]
fn what_keeps_ending_is_not_made_yet() {
    let (set, owned) = (set(2), instances("failed ready"));
    let nobody = BTreeSet::new();
    let plan = plan(&Seen { set: &set, owned: &owned, going: &nobody, held: true });
    assert_eq!((plan.create, names(&plan.tidy).as_str()), (0, "i0"));
}

#[test]
fn only_the_selected_whom_nobody_owns_are_taken_in() {
    let (set, orphans, owned) =
        (set(1), instances("ready other owned leaving foreign failed"), instances("ready other"));
    let plan = claims(&set, &orphans, &owned);
    assert_eq!((names(&plan.adopt).as_str(), names(&plan.release).as_str()), ("i0", "i1"));
}

#[test]
fn a_selector_of_everything_claims_nothing() {
    let (mut set, orphans) = (set(1), instances("ready other"));
    set.spec.selector = Default::default();
    assert!(claims(&set, &orphans, &[]).adopt.is_empty());
    assert_eq!(plan(&Seen { set: &set, owned: &[], going: &BTreeSet::new(), held: false }).create, 0);
}

#[test]
fn an_instance_is_the_template_made_concrete() {
    let mut set = set(1);
    assert_eq!(instance(&set).metadata.generate_name.as_deref(), Some("set"));
    let metadata = set.spec.template.metadata.as_mut().unwrap();
    metadata.generate_name = Some("gen-".into());
    assert_eq!(instance(&set).metadata.generate_name.as_deref(), Some("gen-"));
    set.spec.template.metadata.as_mut().unwrap().name = Some("named".into());
    let made = instance(&set);
    assert_eq!(made.metadata.generate_name.as_deref(), Some("named"));
    assert_eq!((made.metadata.name, made.metadata.labels), (None, Some([("app".into(), "a".into())].into())));
    assert_eq!(made.metadata.owner_references.unwrap()[0].uid, "set");
}
