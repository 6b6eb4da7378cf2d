//! What pools do with their machines.

use serde_json::{Value, json};

use super::*;

/// A pool's machines as words, `NUMBER:STATE`; the state is perhaps `ready`, `old` (of revision p-1), `gone`, `stray`, `free`, `crashing`.
fn machines(words: &str) -> Vec<VirtualMachine> {
    let one = |word: &str| {
        let (number, states) = word.split_once(':').unwrap_or((word, ""));
        let mut vm = json!({
            "metadata": {
                "name": format!("p-{number}"), "namespace": "ns", "uid": number, "finalizers": [FINALIZER],
                "labels": { "app": "a", (REVISION): "p-2" },
            },
            "spec": { "template": { "spec": { "domain": { "devices": {} } } } }, "status": {},
        });
        for state in states.split(',') {
            match state {
                "ready" => vm["status"]["ready"] = json!(true),
                "old" => vm["metadata"]["labels"][REVISION] = json!("p-1"),
                "gone" => vm["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
                "stray" => vm["metadata"]["labels"]["app"] = json!("b"),
                "free" => vm["metadata"]["finalizers"] = json!([]),
                "crashing" => vm["status"]["startFailure"] = json!({ "consecutiveFailCount": 3 }),
                "stuck" => {
                    vm["status"]["printableStatus"] = json!("ErrImagePull");
                    vm["status"]["conditions"] =
                        json!([{ "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
                }
                _ => {}
            }
        }
        serde_json::from_value(vm).unwrap()
    };
    words.split_whitespace().map(one).collect()
}

/// Instances of these machines, all of the older revision.
fn instances(names: &str) -> BTreeMap<String, VirtualMachineInstance> {
    let one = |number: &str| {
        let name = format!("p-{number}");
        let vmi = json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": format!("vmi-{number}"), "labels": { (REVISION): "p-1" },
                "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": number, "controller": true }],
            },
            "spec": { "domain": { "devices": {} } },
        });
        (name, serde_json::from_value(vmi).unwrap())
    };
    names.split_whitespace().map(one).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn pool(change: Value) -> VirtualMachinePool {
    let mut pool = json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": "pool" },
        "spec": {
            "selector": { "matchLabels": { "app": "a" } },
            "scaleInStrategy": { "proactive": { "selectionPolicy": { "sortPolicy": "DescendingOrder" } } },
            "updateStrategy": { "proactive": { "selectionPolicy": { "sortPolicy": "AscendingOrder" } } },
            "virtualMachineTemplate": {
                "metadata": { "labels": { "app": "a" } },
                "spec": { "runStrategy": "Always", "template": { "spec": { "domain": { "devices": {} } } } },
            },
        },
    });
    json_patch::merge(&mut pool["spec"], &change);
    serde_json::from_value(pool).unwrap()
}

/// The plan in words.
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn told(change: Value, words: &str, running: &str, old: Value) -> String {
    let (pool, machines, instances) = (pool(change.clone()), machines(words), instances(running));
    let mut before = change;
    json_patch::merge(&mut before, &old);
    let revisions = BTreeMap::from([("p-1".to_owned(), self::pool(before).spec)]);
    let (going, dice) = (BTreeSet::new(), RandomState::new());
    let seen = Seen {
        pool: &pool,
        machines: &machines,
        instances: &instances,
        going: &going,
        revision: "p-2",
        revisions: &revisions,
        now: "2026-01-01T00:06:00Z".parse().unwrap(),
        dice: &dice,
    };
    let taken = |name: &str| machines.iter().any(|vm| vm.name_any() == name) || name == "p-1";
    let plan = plan(&seen, taken);
    let names =
        |all: &[&VirtualMachine]| all.iter().map(|vm| vm.name_any().replace("p-", "")).collect::<Vec<_>>().join(",");
    let guests = |all: &[&VirtualMachineInstance]| {
        all.iter().map(|vmi| vmi.name_any().replace("p-", "")).collect::<Vec<_>>().join(",")
    };
    let renewed: Vec<&VirtualMachine> = plan.renew.iter().map(|(vm, _)| *vm).collect();
    let numbers = plan.create.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let parts = [
        ("heal", names(&plan.heal)),
        ("detach", names(&plan.detach)),
        ("hold", names(&plan.hold)),
        ("release", names(&plan.release)),
        ("create", numbers),
        ("delete", names(&plan.delete)),
        ("renew", names(&renewed)),
        ("replace", names(&plan.replace)),
        ("restart", guests(&plan.restart)),
        ("relabel", guests(&plan.relabel)),
    ];
    let said = parts.iter().filter(|(_, of)| !of.is_empty()).map(|(what, of)| format!("{what} {of}"));
    said.chain(plan.again.map(|again| format!("again {}", again.as_secs()))).collect::<Vec<_>>().join("; ")
}

#[track_caller]
fn check(change: Value, words: &str, expect: &str) {
    assert_eq!(told(change, words, "", json!({})), expect);
}

#[test]
fn the_lowest_free_numbers_are_taken() {
    // Another has the name with 1.
    check(json!({ "replicas": 3 }), "", "create 0,2,3");
    check(json!({ "replicas": 3 }), "2", "create 0,3");
    check(json!({}), "", "create 0");
    // A name is free once its machine is gone.
    check(json!({ "replicas": 1 }), "0:gone", "release 0; create 2");
}

#[test]
fn who_goes_is_the_policys_choice() {
    check(json!({ "replicas": 1 }), "0 2 3", "delete 3,2");
    let by = |policy: &str| json!({ "replicas": 2, "scaleInStrategy": { "proactive": { "selectionPolicy": { "sortPolicy": policy } } } });
    check(by("AscendingOrder"), "0 2 3", "delete 0");
    // Those that go already count.
    check(json!({ "replicas": 2 }), "0 2 3:gone", "release 3");
    let only = json!({ "sortPolicy": "AscendingOrder", "selectors": { "labelSelector": { "matchLabels": { "spare": "yes" } } } });
    let only = json!({ "replicas": 0, "scaleInStrategy": { "proactive": { "selectionPolicy": only } } });
    check(only, "0 2", "");
}

#[test]
fn a_pool_that_leaves_it_to_users_deletes_nothing() {
    for strategy in ["unmanaged", "opportunistic"] {
        let strategy = json!({ "proactive": null, (strategy): {} });
        check(json!({ "replicas": 0, "scaleInStrategy": strategy }), "0 2", "");
        check(json!({ "replicas": 3, "scaleInStrategy": strategy }), "0 2", "create 3");
    }
}

#[test]
fn a_burst_is_the_most() {
    let plan = told(json!({ "replicas": 1000 }), "", "", json!({}));
    assert_eq!(plan.split(',').count(), 250);
}

#[test]
fn a_paused_pool_heals_and_lets_go_but_neither_scales_nor_updates() {
    let paused = json!({ "paused": true, "replicas": 5, "autohealing": {} });
    check(paused, "0:old 2:stray 3:crashing 4:gone", "heal 3; detach 2; release 4");
}

#[test]
fn strays_are_let_go_and_replaced() {
    check(json!({ "replicas": 2 }), "0 2:stray", "detach 2; create 3");
    check(json!({}), "0:free", "hold 0");
}

#[test]
fn specs_are_written_anew_unless_nobody_is_to() {
    let strategy = |name: &str| json!({ "replicas": 2, "updateStrategy": { "proactive": null, (name): {} } });
    check(json!({ "replicas": 2 }), "0:old 2", "renew 0");
    check(strategy("opportunistic"), "0:old 2", "renew 0");
    check(strategy("unmanaged"), "0:old 2", "");
}

#[test]
fn guests_are_restarted_a_few_at_a_time() {
    let other = json!({ "virtualMachineTemplate": { "spec": { "template": { "spec": { "hostname": "old" } } } } });
    let check = |change: Value, words: &str, expect: &str| {
        assert_eq!(told(change, words, "0 2 3 4", other.clone()), expect);
    };
    let pool = |most: Value| json!({ "replicas": 4, "maxUnavailable": most });
    let all_ready = "0:ready 2:ready 3:ready 4:ready";
    check(pool(Value::Null), all_ready, "restart 0,2,3,4");
    check(pool(json!("50%")), all_ready, "restart 0,2; again 3");
    check(pool(json!("10%")), all_ready, "restart 0; again 3");
    check(pool(json!(1)), all_ready, "restart 0; again 3");
    // Who is away already counts, and is restarted first.
    check(pool(json!(2)), "0:ready 2:ready 3 4:ready", "restart 3,0; again 3");
    check(pool(json!(1)), "0:ready 2:ready 3 4:ready", "restart 3; again 3");
    let opportunistic = json!({ "replicas": 4, "updateStrategy": { "proactive": null, "opportunistic": {} } });
    check(opportunistic, all_ready, "");
    let one = json!({ "selectors": { "labelSelector": { "matchLabels": { "none": "" } } } });
    check(json!({ "replicas": 4, "updateStrategy": { "proactive": { "selectionPolicy": one } } }), all_ready, "");
}

#[test]
fn what_changed_decides_what_is_done_to_a_guest() {
    let check = |old: Value, expect: &str| {
        assert_eq!(told(json!({ "replicas": 1 }), "0:ready", "0", old), expect);
    };
    check(json!({}), "relabel 0");
    check(json!({ "virtualMachineTemplate": { "spec": { "runStrategy": "Halted" } } }), "relabel 0");
    check(json!({ "virtualMachineTemplate": { "spec": { "instancetype": { "name": "small" } } } }), "restart 0");
    let disks = json!([{ "metadata": { "name": "root" }, "spec": {} }]);
    check(json!({ "virtualMachineTemplate": { "spec": { "dataVolumeTemplates": disks } } }), "replace 0");
}

#[test]
fn who_does_not_get_on_is_replaced() {
    let heals = |more: Value| json!({ "replicas": 2, "autohealing": more });
    check(json!({ "replicas": 2 }), "0:crashing 2", "");
    check(heals(json!({})), "0:crashing 2", "heal 0; create 3");
    check(heals(json!({ "startUpFailureThreshold": 4 })), "0:crashing 2", "");
    check(heals(json!({})), "0:stuck 2", "heal 0; create 3");
    check(heals(json!({ "minFailingToStartDuration": "10m" })), "0:stuck 2", "again 240");
}

#[test]
fn disks_outlive_a_machine_where_the_pool_says_so() {
    let keeps = |strategy: Value, foreground: bool| {
        let mut vm = machines("0:gone").remove(0);
        if foreground {
            vm.metadata.finalizers = Some(vec![FOREGROUND.to_owned()]);
        }
        keeps_disks(&pool(json!({ "scaleInStrategy": strategy })), &vm)
    };
    let of = |name: &str, word: &str| json!({ "proactive": null, (name): { "statePreservation": word } });
    assert!(!keeps(json!({}), false));
    for name in ["proactive", "opportunistic"] {
        assert!(!keeps(of(name, "Disabled"), false));
        assert!(keeps(of(name, "Offline"), false) && keeps(of(name, "Online"), false));
        // With all that is its own.
        assert!(!keeps(of(name, "Online"), true));
    }
    let mut deleted = pool(json!({ "scaleInStrategy": of("proactive", "Online") }));
    deleted.metadata.deletion_timestamp = machines("0:gone").remove(0).metadata.deletion_timestamp;
    assert!(!keeps_disks(&deleted, &machines("0:gone")[0]));
}
