//! The rules of the four patches, on random objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::error::ApiError;
use apimachinery::patch::apply::apply;
use apimachinery::patch::fieldset::Set;
use apimachinery::patch::managed::Writer;
use apimachinery::patch::versions::Elsewhere;
use apimachinery::patch::{json, managed, strategic};
use apimachinery::schema::{Schema, builtin};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Any JSON object without nulls, a few levels deep and with few names, so that two of them have much in common.
fn objects() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![any::<bool>().prop_map(Value::from), (0..4).prop_map(Value::from), "[ab]".prop_map(Value::from)];
    let tree = leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-d]", inner, 0..4).prop_map(object_of),
        ]
    });
    proptest::collection::btree_map("[a-d]", tree, 0..4).prop_map(object_of)
}

fn object_of(map: BTreeMap<String, Value>) -> Value {
    map.into_iter().collect::<Map<_, _>>().into()
}

/// Sets some of the fields of a patch to null.
fn with_nulls(patch: &Value, salt: usize) -> Value {
    let Value::Object(map) = patch else { return patch.clone() };
    let field = |(at, (key, value)): (usize, (&String, &Value))| {
        (key.clone(), if (at + salt).is_multiple_of(3) { Value::Null } else { with_nulls(value, salt + 1) })
    };
    map.iter().enumerate().map(field).collect::<Map<_, _>>().into()
}

/// The merge patch that leads from one object to another.
fn merge_patch(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let mut patch = Map::new();
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in to {
        match from.get(key) {
            Some(old) if old == value => {}
            Some(old @ Value::Object(_)) => {
                patch.insert(key.clone(), merge_patch(old, value));
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    patch.into()
}

fn merged(current: &Value, patch: &Value) -> Value {
    let mut new = current.clone();
    json_patch::merge(&mut new, patch);
    new
}

fn any_key(value: &Value, holds: &dyn Fn(&str, &Value) -> bool) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| holds(key, value) || any_key(value, holds)),
        Value::Array(items) => items.iter().any(|item| any_key(item, holds)),
        _ => false,
    }
}

proptest! {
    #[test]
    fn a_json_patch_leads_from_one_object_to_the_other(a in objects(), b in objects()) {
        let patch = json_patch::diff(&a, &b);
        let sent = json::decode(serde_json::to_value(&patch).unwrap()).unwrap();
        prop_assert_eq!(json::apply(&a, &sent).unwrap(), b);
    }

    #[test]
    fn a_json_patch_tests_before_it_changes(a in objects(), b in objects()) {
        let patch = json::decode(json!([
            {"op": "test", "path": "", "value": b},
            {"op": "add", "path": "/marked", "value": true},
        ])).unwrap();
        match json::apply(&a, &patch) {
            Ok(new) => prop_assert!(a == b && new["marked"] == true),
            Err(error) => prop_assert!(a != b && error.code == 422),
        }
    }

    #[test]
    fn a_merge_patch_is_idempotent_and_stores_no_null(a in objects(), b in objects(), salt in 0_usize..3) {
        let patch = with_nulls(&b, salt);
        let once = merged(&a, &patch);
        prop_assert_eq!(&merged(&once, &patch), &once);
        prop_assert!(!any_key(&once, &|_, value| value.is_null()));
        for (key, value) in patch.as_object().unwrap() {
            prop_assert_eq!(once.get(key).is_none(), value.is_null());
        }
    }

    #[test]
    fn a_merge_patch_leads_from_one_object_to_the_other(a in objects(), b in objects()) {
        prop_assert_eq!(merged(&a, &merge_patch(&a, &b)), b);
    }
}

/// What a Deployment's owner may care for: scalars, a map, a keyed list within a keyed list, a set, an atomic list.
fn specs() -> impl Strategy<Value = Value> {
    let env = proptest::collection::btree_map("[EF]", "[xy]", 0..3);
    let container = (proptest::option::of("[ijk]"), env).prop_map(|(image, env)| {
        let mut container = json!({});
        if let Some(image) = image {
            container["image"] = image.into();
        }
        if !env.is_empty() {
            container["env"] = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        }
        container
    });
    let containers = proptest::collection::btree_map("[abc]", container, 0..3);
    let labels = proptest::collection::btree_map("[lm]", "[xy]", 0..3);
    let finalizers = proptest::collection::btree_set("(e.io/a|e.io/b|e.io/c)", 0..3);
    let tolerations = proptest::option::of(proptest::collection::vec("[tu]", 1..3));
    (proptest::option::of(0..3_i32), any::<bool>(), labels, containers, finalizers, tolerations).prop_map(
        |(replicas, paused, labels, containers, finalizers, tolerations)| {
            let mut object = json!({"spec": {}});
            if let Some(replicas) = replicas {
                object["spec"]["replicas"] = replicas.into();
            }
            if paused {
                object["spec"]["paused"] = true.into();
            }
            if !labels.is_empty() {
                object["metadata"]["labels"] = json!(labels);
            }
            if !finalizers.is_empty() {
                object["metadata"]["finalizers"] = json!(finalizers);
            }
            if !containers.is_empty() {
                let named = containers.into_iter().map(|(name, mut container)| {
                    container["name"] = name.into();
                    container
                });
                object["spec"]["template"]["spec"]["containers"] = named.collect();
            }
            if let Some(keys) = tolerations {
                object["spec"]["template"]["spec"]["tolerations"] =
                    keys.iter().map(|key| json!({"key": key})).collect();
            }
            object
        },
    )
}

fn schema() -> Arc<Schema> {
    builtin::schema("apps", "v1", "Deployment").unwrap()
}

fn identified(mut object: Value) -> Value {
    object["apiVersion"] = "apps/v1".into();
    object["kind"] = "Deployment".into();
    object["metadata"]["name"] = "d".into();
    object
}

fn writer(manager: &str) -> Writer<'_> {
    Writer { manager, api_version: "apps/v1", subresource: "", now: Timestamp::UNIX_EPOCH }
}

fn applied(live: Option<&Value>, manager: &str, force: bool, wish: &Value) -> Result<Value, ApiError> {
    apply(&schema(), live, &identified(wish.clone()), writer(manager), force)
}

fn updated(live: &Value, manager: &str, wish: &Value) -> Value {
    let mut after = live.clone();
    json_patch::merge(&mut after, wish);
    managed::update(&schema(), Some(live), after, &writer(manager), &Elsewhere::default())
}

fn owned(object: &Value, manager: &str) -> Vec<String> {
    managed::entries(object).iter().filter(|e| e.manager == manager).flat_map(|e| e.set.paths()).collect()
}

/// Values by the path of the field that holds them, in the words of conflicts; keyed lists by key.
fn values(object: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut put = |path: String, value: &Value| drop(found.insert(path, value.clone()));
    let spec = &object["spec"];
    for field in ["replicas", "paused"] {
        put(format!(".spec.{field}"), &spec[field]);
    }
    put(".spec.template.spec.tolerations".to_owned(), &spec["template"]["spec"]["tolerations"]);
    for (key, value) in object["metadata"]["labels"].as_object().into_iter().flatten() {
        put(format!(".metadata.labels.{key}"), value);
    }
    for finalizer in object["metadata"]["finalizers"].as_array().into_iter().flatten() {
        put(format!(".metadata.finalizers[={finalizer}]"), finalizer);
    }
    for container in spec["template"]["spec"]["containers"].as_array().into_iter().flatten() {
        let path = format!(".spec.template.spec.containers[name={}]", container["name"]);
        put(format!("{path}.image"), &container["image"]);
        for env in container["env"].as_array().into_iter().flatten() {
            put(format!("{path}.env[name={}].value", env["name"]), &env["value"]);
        }
    }
    found.retain(|_, value| !value.is_null());
    found
}

proptest! {
    #[test]
    fn a_strategic_patch_is_idempotent_and_leaves_no_directive(a in specs(), b in specs(), doomed in "[abc]") {
        let mut patch = b;
        let mut list = patch.pointer("/spec/template/spec/containers").and_then(Value::as_array).cloned().unwrap_or_default();
        list.retain(|container| container["name"] != doomed.as_str());
        list.push(json!({"name": doomed, "$patch": "delete"}));
        patch["spec"]["template"]["spec"]["containers"] = list.into();
        let once = strategic::merge(&schema(), &a, &patch).unwrap();
        prop_assert_eq!(&strategic::merge(&schema(), &once, &patch).unwrap(), &once);
        prop_assert!(!any_key(&once, &|key, _| key.starts_with('$')));
        let gone = format!("containers[name={doomed:?}]");
        prop_assert!(!values(&once).keys().any(|path| path.contains(&gone)));
    }

    #[test]
    fn a_strategic_patch_sets_what_it_names_and_nothing_else(a in specs(), b in specs()) {
        let result = values(&strategic::merge(&schema(), &a, &b).unwrap());
        let mut expect = values(&a);
        expect.extend(values(&b));
        prop_assert_eq!(result, expect);
    }

    #[test]
    fn an_apply_is_idempotent(a in specs(), b in specs(), wish in specs()) {
        let live = applied(None, "a", true, &a).unwrap();
        let live = applied(Some(&live), "b", true, &b).unwrap();
        let once = applied(Some(&live), "a", true, &wish).unwrap();
        prop_assert_eq!(&applied(Some(&once), "a", false, &wish).unwrap(), &once);
    }

    #[test]
    fn an_apply_conflicts_exactly_over_what_others_own_and_it_changes(a in specs(), b in specs(), wish in specs()) {
        let live = applied(None, "a", true, &a).unwrap();
        let live = updated(&live, "editor", &b);
        let (before, wished) = (values(&live), values(&wish));
        let mut expect: Vec<String> = Vec::new();
        for path in owned(&live, "editor") {
            if wished.get(&path).is_some_and(|wished| before.get(&path) != Some(wished)) {
                expect.push(path);
            }
        }
        let outcome = applied(Some(&live), "a", false, &wish);
        let conflicts: Vec<String> =
            outcome.as_ref().err().map(|e| e.causes.iter().map(|c| c.field.clone()).collect()).unwrap_or_default();
        prop_assert_eq!(&conflicts, &expect);
        match outcome {
            Err(error) => {
                prop_assert_eq!((error.code, error.reason), (409, "Conflict"));
                prop_assert!(error.causes.iter().all(|c| c.reason == "FieldManagerConflict"));
            }
            // Without a conflict nobody loses a field, but those that are gone.
            Ok(after) => prop_assert_eq!(owned(&after, "editor"), owned(&live, "editor")),
        }
    }

    #[test]
    fn force_takes_what_was_in_conflict_and_no_more(a in specs(), wish in specs()) {
        let live = applied(None, "other", true, &a).unwrap();
        let contested: Vec<String> = match applied(Some(&live), "me", false, &wish) {
            Ok(_) => Vec::new(),
            Err(error) => error.causes.into_iter().map(|c| c.field).collect(),
        };
        let after = applied(Some(&live), "me", true, &wish).unwrap();
        let left: Vec<String> = owned(&live, "other").into_iter().filter(|path| !contested.contains(path)).collect();
        prop_assert_eq!(owned(&after, "other"), left);
        let now = values(&after);
        for (path, value) in values(&wish) {
            prop_assert_eq!(now.get(&path), Some(&value));
            prop_assert!(owned(&after, "me").contains(&path), "{} of {:?}", path, owned(&after, "me"));
        }
    }

    #[test]
    fn fields_given_up_by_one_applier_stay_when_another_owns_them(a in specs(), b in specs()) {
        let live = applied(None, "a", true, &a).unwrap();
        let live = applied(Some(&live), "b", true, &b).unwrap();
        let left = applied(Some(&live), "a", false, &json!({"spec": {}})).unwrap();
        prop_assert_eq!(values(&left), values(&b));
        prop_assert!(owned(&left, "a").iter().all(|path| path == ".spec"));
    }

    #[test]
    fn an_update_owns_what_it_changed_alone(a in specs(), b in specs()) {
        let live = applied(None, "a", true, &a).unwrap();
        let after = updated(&live, "editor", &b);
        let (before, now) = (values(&live), values(&after));
        for (path, value) in &now {
            let changed = before.get(path) != Some(value);
            prop_assert_eq!(owned(&after, "editor").contains(path), changed, "{}", path);
            prop_assert!(!(changed && owned(&after, "a").contains(path)), "{} has two owners", path);
        }
    }

    #[test]
    fn owners_survive_being_stored(a in specs(), b in specs()) {
        let live = updated(&applied(None, "a", true, &a).unwrap(), "editor", &b);
        for entry in managed::entries(&live) {
            prop_assert_eq!(&Set::decode(&entry.set.encode()), &entry.set);
        }
        let mut again = live.clone();
        managed::store(&mut again, managed::entries(&live));
        prop_assert_eq!(again, live);
    }
}
