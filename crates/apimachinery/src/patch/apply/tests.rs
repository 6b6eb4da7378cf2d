#![expect(clippy::needless_pass_by_value, reason = "cases read better when they hand their JSON over")]

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::builtin;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn deployment() -> std::sync::Arc<Schema> {
    builtin::schema("apps", "v1", "Deployment").unwrap()
}

fn writer(manager: &str) -> Writer<'_> {
    Writer { manager, api_version: "apps/v1", subresource: "", now: now() }
}

fn update(before: Option<&Value>, after: Value, writer: Writer<'_>) -> Value {
    managed::update(&deployment(), before, after, &writer, &Elsewhere::default())
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "default"}, "spec": spec})
}

fn by(manager: &str, force: bool, live: Option<&Value>, spec: Value) -> Result<Value, ApiError> {
    apply(&deployment(), live, &object(spec), writer(manager), force)
}

fn applied(live: Option<&Value>, manager: &str, spec: Value) -> Value {
    by(manager, false, live, spec).unwrap()
}

fn edited(live: &Value, manager: &str, edit: impl FnOnce(&mut Value)) -> Value {
    let mut after = live.clone();
    edit(&mut after);
    update(Some(live), after, writer(manager))
}

/// `manager: path path …` for each entry, in stored order.
fn owners(object: &Value) -> Vec<String> {
    managed::entries(object).iter().map(|e| format!("{}: {}", e.manager, e.set.paths().join(" "))).collect()
}

#[test]
fn create_owns_what_was_said() {
    let live =
        applied(None, "a", json!({"replicas": 2, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}));
    assert_eq!(
        owners(&live),
        [
            r#"a: .spec.replicas .spec.template.spec.containers[name="c"] .spec.template.spec.containers[name="c"].image .spec.template.spec.containers[name="c"].name"#
        ]
    );
    let entry = &live["metadata"]["managedFields"][0];
    assert_eq!((entry["operation"].as_str(), entry["time"].as_str()), (Some("Apply"), Some("2023-11-14T22:13:20Z")));
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let live = applied(None, "a", json!({"replicas": 2}));
    let later = Writer { now: Timestamp::UNIX_EPOCH, ..writer("a") };
    let again = apply(&deployment(), Some(&live), &object(json!({"replicas": 2})), later, false);
    assert_eq!(again.unwrap(), live);
}

#[test]
fn fields_no_longer_applied_are_removed_unless_shared() {
    let live = applied(None, "a", json!({"replicas": 2, "paused": true}));
    let live = applied(Some(&live), "b", json!({"replicas": 2}));
    let live = applied(Some(&live), "a", json!({}));
    assert_eq!(live["spec"], json!({"replicas": 2}));
    assert_eq!(owners(&live), ["b: .spec.replicas", "a: .spec"]);
}

#[test]
fn a_dropped_list_element_goes_with_what_was_defaulted_in_it() {
    let two = json!({"template": {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}});
    let mut live = applied(None, "a", two);
    live["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Always".into();
    live["spec"]["template"]["spec"]["containers"][1]["imagePullPolicy"] = "Always".into();
    let live = applied(Some(&live), "a", json!({"template": {"spec": {"containers": [{"name": "b"}]}}}));
    assert_eq!(live["spec"]["template"]["spec"]["containers"], json!([{"name": "b", "imagePullPolicy": "Always"}]));
}

#[test]
fn a_changed_field_of_another_owner_conflicts() {
    let live = applied(None, "a", json!({"replicas": 2}));
    let live = edited(&live, "kubectl", |o| o["spec"]["replicas"] = 3.into());
    assert_eq!(owners(&live), ["kubectl: .spec.replicas"]);
    let error = by("a", false, Some(&live), json!({"replicas": 2})).unwrap_err();
    assert_eq!(error.message, r#"Apply failed with 1 conflict: conflict with "kubectl" using apps/v1: .spec.replicas"#);
    assert_eq!((error.code, error.reason), (409, "Conflict"));
    assert_eq!(error.causes[0].reason, "FieldManagerConflict");
    assert_eq!(error.causes[0].field, ".spec.replicas");

    let live = by("a", true, Some(&live), json!({"replicas": 2})).unwrap();
    assert_eq!(owners(&live), ["a: .spec.replicas"]);
}

#[test]
fn several_conflicts_are_listed_by_owner() {
    let live = applied(None, "x", json!({"replicas": 2, "paused": true}));
    let error = by("a", false, Some(&live), json!({"replicas": 1, "paused": false})).unwrap_err();
    assert_eq!(error.message, "Apply failed with 2 conflicts: conflicts with \"x\":\n- .spec.paused\n- .spec.replicas");
}

#[test]
fn applying_the_same_value_shares_it() {
    let live = applied(None, "a", json!({"replicas": 2}));
    let live = applied(Some(&live), "b", json!({"replicas": 2}));
    // Who only wished for what there was has changed nothing at no time, and so comes first.
    assert_eq!(owners(&live), ["b: .spec.replicas", "a: .spec.replicas"]);
    let times = live["metadata"]["managedFields"].as_array().unwrap().iter().map(|entry| entry.get("time").is_some());
    assert_eq!(times.collect::<Vec<_>>(), [false, true]);
}

#[test]
fn applying_null_removes_the_field() {
    let live = applied(None, "a", json!({"replicas": 2, "paused": true}));
    let error = by("b", false, Some(&live), json!({"paused": null})).unwrap_err();
    assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"a\": .spec.paused");
    let forced = by("b", true, Some(&live), json!({"paused": null})).unwrap();
    assert_eq!(forced["spec"], json!({"replicas": 2}));
    // What is not there cannot be taken from anybody.
    assert!(by("b", false, Some(&live), json!({"minReadySeconds": null})).is_ok());
}

#[test]
fn keyed_elements_merge_in_the_appliers_order_around_what_others_have() {
    #[track_caller]
    fn check(first: &str, second: &str, expect: &str) {
        let spec = |names: &str| {
            let containers: Vec<Value> = names.chars().map(|name| json!({"name": name.to_string()})).collect();
            json!({"template": {"spec": {"containers": containers}}})
        };
        let live = applied(None, "a", spec(first));
        let live = applied(Some(&live), "b", spec(second));
        let names = live["spec"]["template"]["spec"]["containers"].as_array().unwrap().iter();
        assert_eq!(names.map(|c| c["name"].as_str().unwrap()).collect::<String>(), expect);
    }
    check("ab", "cb", "acb");
    check("a", "b", "ab");
    check("ab", "ba", "ba");
    check("axb", "ba", "xba");
    check("abx", "ba", "bxa");
    check("axby", "acb", "axcby");
    check("axy", "na", "naxy");
    check("xabyc", "cnba", "xycnba");
}

#[test]
fn an_object_nobody_applied_belongs_to_its_past() {
    let live = object(json!({"replicas": 1}));
    let error = by("a", false, Some(&live), json!({"replicas": 2})).unwrap_err();
    assert_eq!(
        error.message,
        r#"Apply failed with 1 conflict: conflict with "before-first-apply" using apps/v1: .spec.replicas"#
    );
}

#[test]
fn the_status_writer_has_its_own_entry() {
    let live = applied(None, "a", json!({"replicas": 1}));
    let mut after = live.clone();
    after["status"] = json!({"readyReplicas": 1});
    let after = update(Some(&live), after, Writer { subresource: "status", ..writer("controller") });
    assert_eq!(owners(&after), ["a: .spec.replicas", "controller: .status.readyReplicas"]);
    assert_eq!(after["metadata"]["managedFields"][1]["subresource"], "status");
}

#[test]
fn an_update_without_change_leaves_times_alone() {
    let live = edited(&object(json!({})), "k", |o| o["spec"]["replicas"] = 1.into());
    let mut after = live.clone();
    after["metadata"]["resourceVersion"] = "7".into();
    let again = update(Some(&live), after, Writer { now: Timestamp::UNIX_EPOCH, ..writer("k") });
    assert_eq!(again["metadata"]["managedFields"], live["metadata"]["managedFields"]);
}

#[test]
fn a_map_key_and_a_removed_field_change_hands() {
    let live = edited(&object(json!({})), "k", |o| o["metadata"]["labels"] = json!({"a": "1", "b": "2"}));
    let live = edited(&live, "other", |o| o["metadata"]["labels"] = json!({"a": "9"}));
    assert_eq!(owners(&live), ["k: .metadata.labels", "other: .metadata.labels.a"]);
}

#[test]
fn managed_fields_can_be_forgotten_but_not_applied() {
    let live = applied(None, "a", json!({"replicas": 1}));
    let reset = edited(&live, "k", |o| o["metadata"]["managedFields"] = json!([{}]));
    assert_eq!(owners(&reset), Vec::<String>::new());
    let error = apply(&deployment(), None, &live, writer("a"), false).unwrap_err();
    assert_eq!(error.message, "metadata.managedFields must be nil");
}

const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What `kubectl apply` on the client's side leaves behind.
fn client_side(spec: Value) -> Value {
    let mut live = object(json!({}));
    live["metadata"]["annotations"] = json!({LAST: object(spec.clone()).to_string()});
    let mut after = live.clone();
    after["spec"] = spec;
    update(None, after, writer("kubectl-client-side-apply"))
}

#[test]
fn kubectl_changes_over_from_the_clients_side_without_conflict() {
    let live = client_side(json!({"replicas": 1, "paused": true}));
    let error = by("somebody", false, Some(&live), json!({"replicas": 2})).unwrap_err();
    assert!(error.message.contains(r#"conflict with "kubectl-client-side-apply" using apps/v1: .spec.replicas"#));
    let live = by("kubectl", false, Some(&live), json!({"replicas": 2, "paused": true})).unwrap();
    assert_eq!(live["spec"], json!({"replicas": 2, "paused": true}));
    let kept = live["metadata"]["annotations"][LAST].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(kept).unwrap(), object(json!({"replicas": 2, "paused": true})));
}

#[test]
fn fields_changed_by_others_are_not_migrated_from_client_side_apply() {
    let live = client_side(json!({"replicas": 1, "paused": true}));
    let live = edited(&live, "scaler", |o| o["spec"]["replicas"] = 5.into());
    let error = by("kubectl", false, Some(&live), json!({"replicas": 2, "paused": false})).unwrap_err();
    assert_eq!(error.message, r#"Apply failed with 1 conflict: conflict with "scaler" using apps/v1: .spec.replicas"#);
}

#[test]
fn a_writer_of_a_part_says_nothing_of_owners() {
    let live = applied(None, "a", json!({"replicas": 1}));
    let mut after = live.clone();
    after["status"] = json!({"readyReplicas": 1});
    after["metadata"]["managedFields"] = json!([{}]);
    let after = update(Some(&live), after, Writer { subresource: "status", ..writer("controller") });
    assert_eq!(owners(&after), ["a: .spec.replicas", "controller: .status.readyReplicas"]);
}

#[test]
fn updaters_beyond_ten_are_folded_into_their_past() {
    let mut live = applied(None, "a", json!({"paused": true}));
    for n in 0..12 {
        live = edited(&live, &format!("u{n:02}"), |o| o["metadata"]["labels"][format!("l{n:02}")] = "x".into());
    }
    let names: Vec<String> = managed::entries(&live).into_iter().map(|e| e.manager).collect();
    assert_eq!(names.len(), 11, "{names:?}");
    assert!(names.contains(&"a".to_owned()) && names.contains(&"ancient-changes".to_owned()), "{names:?}");
    let ancient = managed::entries(&live).into_iter().find(|e| e.manager == "ancient-changes").unwrap();
    assert_eq!(
        ancient.set.paths(),
        [".metadata.labels", ".metadata.labels.l00", ".metadata.labels.l01", ".metadata.labels.l02"]
    );
}

#[test]
fn undeclared_fields_are_refused() {
    let refused = |spec: Value| by("a", false, None, spec).unwrap_err().message;
    let prefix = "failed to create typed patch object (default/d; apps/v1, Kind=Deployment): ";
    assert_eq!(refused(json!({"replcas": 1})), format!("{prefix}.spec.replcas: field not declared in schema"));
    // A shipped type holds an empty name where none is said; that one is needed is told when the object is validated.
    let unnamed = by("a", false, None, json!({"template": {"spec": {"containers": [{"image": "i"}]}}})).unwrap();
    let container = ".spec.template.spec.containers[name=\"\"]";
    assert_eq!(owners(&unnamed), [format!("a: {container} {container}.image")]);
    assert_eq!(
        refused(json!({"replicas": "2", "paused": 1})),
        format!(
            "{prefix}errors:\n  .spec.paused: expected boolean, got 1\n  .spec.replicas: expected numeric (int or float), got string\n"
        )
    );
    assert_eq!(
        refused(json!({"template": {"spec": {"containers": [{"name": "c"}, {"name": "c"}]}}})),
        format!("{prefix}.spec.template.spec.containers: duplicate entries for key [name=\"c\"]")
    );
}

#[test]
fn untyped_objects_have_atomic_lists_and_granular_maps() {
    let schema = Schema { preserve_unknown: true, ..Schema::default() };
    let write = |live: Option<&Value>, spec: Value| {
        let object = json!({"apiVersion": "e/v1", "kind": "E", "metadata": {"name": "e"}, "spec": spec});
        apply(&schema, live, &object, Writer { api_version: "e/v1", ..writer("a") }, false).unwrap()
    };
    let live = write(None, json!({"a": {"b": 1, "c": [1, 2]}}));
    assert_eq!(owners(&live), ["a: .spec .spec.a .spec.a.b .spec.a.c"]);
    let live = write(Some(&live), json!({"a": {"c": [3]}}));
    assert_eq!(live["spec"], json!({"a": {"c": [3]}}));
}

fn specs() -> impl Strategy<Value = Value> {
    let containers = proptest::collection::btree_map("[a-c]", "[x-z]", 0..3)
        .prop_map(|m| m.into_iter().map(|(name, image)| json!({"name": name, "image": image})).collect::<Vec<_>>());
    (proptest::option::of(0..3i32), proptest::option::of(containers)).prop_map(|(replicas, containers)| {
        let mut spec = json!({});
        if let Some(replicas) = replicas {
            spec["replicas"] = replicas.into();
        }
        if let Some(containers) = containers {
            spec["template"] = json!({"spec": {"containers": containers}});
        }
        spec
    })
}

proptest! {
    #[test]
    fn forced_apply_yields_what_was_asked_and_is_idempotent(a in specs(), b in specs(), c in specs()) {
        let live = applied(None, "a", a);
        let live = by("b", true, Some(&live), b).unwrap();
        let once = by("a", true, Some(&live), c.clone()).unwrap();
        prop_assert_eq!(&by("a", true, Some(&once), c.clone()).unwrap(), &once);
        if let Some(replicas) = c.get("replicas") {
            prop_assert_eq!(&once["spec"]["replicas"], replicas);
        }
        // Owned fields exist.
        for entry in managed::entries(&once) {
            let mut present = entry.set.clone();
            retain_present(&mut present, Node::root(&deployment()), &once);
            prop_assert_eq!(present, entry.set);
        }
    }

    #[test]
    fn a_lone_applier_leaves_exactly_its_last_wish(a in specs(), b in specs()) {
        let live = applied(None, "a", a);
        let live = applied(Some(&live), "a", b.clone());
        prop_assert_eq!(&live["spec"]["replicas"], &b["replicas"]);
        prop_assert_eq!(live["spec"]["template"]["spec"]["containers"].as_array().map_or(0, Vec::len),
            b["template"]["spec"]["containers"].as_array().map_or(0, Vec::len));
    }
}
