//! Two versions of one kind: `spec.size` and `spec.parts[].id` of v1 are `spec.count` and `spec.items[].name` of v2.

#![expect(clippy::needless_pass_by_value, reason = "cases read better when they hand their JSON over")]

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::patch::managed;
use crate::schema::parse;

const NAMES: [(&str, &str); 3] = [("size", "count"), ("parts", "items"), ("id", "name")];

fn schema(version: &str) -> Arc<Schema> {
    let [count, items, name] = NAMES.map(|(v1, v2)| if version == "v1" { v1 } else { v2 });
    let item = json!({"type": "object", "required": [name], "properties": {
        name: {"type": "string"}, "value": {"type": "integer"}}});
    let document = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        count: {"type": "integer"}, "note": {"type": "string"},
        items: {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [name], "items": item}}}}});
    Arc::new(parse::custom_resource(Some(&document), false))
}

/// Says `value` in the words of a version.
fn say(value: Value, version: &str) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| {
                let pair = NAMES.iter().find(|(v1, v2)| key == *v1 || key == *v2);
                let key = pair.map_or(key, |(v1, v2)| if version == "v1" { *v1 } else { *v2 }.to_owned());
                (key, say(value, version))
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(|item| say(item, version)).collect(),
        other => other,
    }
}

/// An object in a version; its metadata is the same in all of them.
fn object(mut object: Value, version: &str) -> Value {
    object["spec"] = say(object["spec"].take(), version);
    object["apiVersion"] = format!("e.com/{version}").into();
    object
}

/// The versions `v1` and `v2`, seen from one of them.
struct Pair;

impl Versions for Pair {
    fn form(&self, api_version: &str) -> Form {
        match api_version {
            "e.com/v1" => Form::Other(schema("v1")),
            "e.com/v2" => Form::Other(schema("v2")),
            _ => Form::Gone,
        }
    }

    async fn convert(&self, objects: Vec<Value>, api_version: &str) -> Result<Vec<Value>, ApiError> {
        let version = api_version.trim_start_matches("e.com/");
        Ok(objects.into_iter().map(|it| object(it, version)).collect())
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

/// An object that is written to in any version, and is kept in the one it was written in last.
#[derive(Clone, Default)]
struct Live(Option<Value>);

impl Live {
    fn seen(&self, version: &str) -> Option<Value> {
        self.0.clone().map(|it| object(it, version))
    }

    fn apply(&mut self, manager: &str, version: &str, force: bool, spec: Value) -> Result<(), ApiError> {
        let wish = json!({"kind": "E", "metadata": {"name": "e"}, "spec": spec});
        let api_version = format!("e.com/{version}");
        let writer = Writer { manager, api_version: &api_version, subresource: "", now: Timestamp::UNIX_EPOCH };
        let (schema, live) = (schema(version), self.seen(version));
        self.0 = Some(now(apply(&schema, live.as_ref(), &object(wish, version), writer, force, &Pair))?);
        Ok(())
    }

    fn update(&mut self, manager: &str, version: &str, change: Value) {
        let api_version = format!("e.com/{version}");
        let writer = Writer { manager, api_version: &api_version, subresource: "", now: Timestamp::UNIX_EPOCH };
        let before = self.seen(version);
        let mut after =
            before.clone().unwrap_or_else(|| object(json!({"kind": "E", "metadata": {"name": "e"}}), version));
        json_patch::merge(&mut after, &json!({"spec": say(change, version)}));
        let others = managed::versions(before.as_ref(), &after, &writer);
        let elsewhere = now(Elsewhere::look(&Pair, others, before.as_ref(), &after));
        self.0 = Some(managed::update(&schema(version), before.as_ref(), after, &writer, &elsewhere));
    }

    /// `manager version: path path …` for each owner.
    fn owners(&self) -> Vec<String> {
        let entries = self.0.as_ref().map(managed::entries).unwrap_or_default();
        let version = |api_version: &str| api_version.trim_start_matches("e.com/").to_owned();
        entries
            .iter()
            .map(|e| format!("{} {}: {}", e.manager, version(&e.api_version), e.set.paths().join(" ")))
            .collect()
    }

    fn spec(&self, version: &str) -> Value {
        self.seen(version).unwrap_or_default()["spec"].take()
    }
}

#[test]
fn an_update_takes_a_field_by_another_name() {
    let mut live = Live::default();
    live.apply("a", "v1", false, json!({"size": 1, "note": "x"})).unwrap();
    live.update("k", "v2", json!({"count": 2}));
    assert_eq!(live.owners(), ["a v1: .spec.note", "k v2: .spec.count"]);
    live.update("k", "v2", json!({"note": null}));
    assert_eq!(live.owners(), ["k v2: .spec.count"]);
}

#[test]
fn a_conflict_names_the_field_in_its_owners_words() {
    let mut live = Live::default();
    live.apply("a", "v1", false, json!({"size": 1, "parts": [{"id": "p", "value": 1}]})).unwrap();
    let error = live.apply("b", "v2", false, json!({"count": 2})).unwrap_err();
    assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"a\": .spec.size");
    let error = live.apply("b", "v2", false, json!({"items": [{"name": "p", "value": 2}]})).unwrap_err();
    assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"a\": .spec.parts[id=\"p\"].value");
    live.apply("b", "v2", false, json!({"count": 1})).unwrap();
    live.apply("b", "v2", true, json!({"count": 2})).unwrap();
    assert_eq!(
        live.owners(),
        [r#"a v1: .spec.parts[id="p"] .spec.parts[id="p"].id .spec.parts[id="p"].value"#, "b v2: .spec.count"]
    );
}

#[test]
fn an_applier_may_change_its_version() {
    let mut live = Live::default();
    live.apply("a", "v1", false, json!({"size": 1, "note": "x", "parts": [{"id": "p"}, {"id": "q"}]})).unwrap();
    live.apply("b", "v1", false, json!({"parts": [{"id": "q"}]})).unwrap();
    live.apply("a", "v2", false, json!({"count": 1})).unwrap();
    assert_eq!(live.spec("v2"), json!({"count": 1, "items": [{"name": "q"}]}));
    assert_eq!(live.owners(), [r#"b v1: .spec.parts[id="q"] .spec.parts[id="q"].id"#, "a v2: .spec.count"]);
}

#[test]
fn an_element_of_a_definitions_list_must_have_its_key() {
    let error = Live::default().apply("a", "v1", false, json!({"parts": [{}]})).unwrap_err();
    let why = ".spec.parts: element 0: associative list with keys has an element that omits key field \"id\"";
    assert!(error.message.ends_with(why), "{error}");
}

#[test]
fn an_empty_list_stays_empty_when_its_items_are_given_up() {
    let mut live = Live::default();
    live.update("k", "v1", json!({"items": []}));
    live.apply("a", "v1", false, json!({"parts": [{"id": "p"}]})).unwrap();
    live.apply("a", "v2", false, json!({})).unwrap();
    assert_eq!(live.spec("v2"), json!({"items": []}));
}

#[test]
fn unowned_fields_stay_when_an_applier_gives_up_their_parent() {
    let mut live = Live::default();
    live.apply("a", "v2", false, json!({"items": [{"name": "p", "value": 0}], "note": "x"})).unwrap();
    live.apply("b", "v1", false, json!({})).unwrap();
    live.update("k", "v1", json!({"items": []}));
    assert_eq!(live.owners(), ["b v1: .spec", "a v2: .spec.note"]);
    live.apply("b", "v2", false, json!({})).unwrap();
    assert_eq!(live.spec("v2"), json!({"items": [], "note": "x"}));
}

#[test]
fn managers_of_a_removed_version_own_nothing() {
    let mut live = Live::default();
    live.apply("a", "v1", false, json!({"size": 1})).unwrap();
    let entry = json!({"manager": "old", "operation": "Apply", "apiVersion": "e.com/v0", "time": "2020-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:size": {}}}});
    let old = live.0.as_mut().unwrap()["metadata"]["managedFields"].as_array_mut().unwrap();
    old.push(entry);
    let mut applied = live.clone();
    applied.apply("a", "v1", false, json!({"size": 2})).unwrap();
    assert_eq!(applied.owners(), ["a v1: .spec.size"]);
    live.update("k", "v2", json!({"note": "x"}));
    assert_eq!(live.owners(), ["a v1: .spec.size", "k v2: .spec.note"]);
}

#[test]
fn owners_that_cannot_be_looked_at_are_kept() {
    struct Down;
    impl Versions for Down {
        fn form(&self, _: &str) -> Form {
            Form::Other(schema("v1"))
        }
        async fn convert(&self, _: Vec<Value>, _: &str) -> Result<Vec<Value>, ApiError> {
            Err(ApiError::internal("no webhook"))
        }
    }
    let mut live = Live::default();
    live.apply("a", "v1", false, json!({"size": 1})).unwrap();
    let before = live.seen("v2");
    let mut after = before.clone().unwrap();
    after["spec"]["count"] = 2.into();
    let writer = Writer { manager: "k", api_version: "e.com/v2", subresource: "", now: Timestamp::UNIX_EPOCH };
    let others = managed::versions(before.as_ref(), &after, &writer);
    let elsewhere = now(Elsewhere::look(&Down, others, before.as_ref(), &after));
    let updated = managed::update(&schema("v2"), before.as_ref(), after, &writer, &elsewhere);
    assert_eq!(Live(Some(updated)).owners(), ["a v1: .spec.size", "k v2: .spec.count"]);
    let wish = object(json!({"kind": "E", "metadata": {"name": "e"}, "spec": {"count": 3}}), "v2");
    let outcome = now(apply(&schema("v2"), before.as_ref(), &wish, writer, true, &Down));
    assert_eq!(outcome.unwrap_err().message, "no webhook");
}

#[derive(Clone, Debug)]
enum Write {
    Apply(&'static str, bool, Value),
    Update(&'static str, Value),
}

fn specs() -> impl Strategy<Value = Value> {
    let items = proptest::collection::btree_map("[p-r]", 0..2, 0..3).prop_map(|items| {
        items.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect::<Vec<_>>()
    });
    (proptest::option::of(0..3), proptest::option::of("[xy]"), proptest::option::of(items)).prop_map(
        |(count, note, items)| {
            let mut spec = json!({"count": count, "note": note, "items": items});
            if let Some(map) = spec.as_object_mut() {
                map.retain(|_, value| !value.is_null());
            }
            spec
        },
    )
}

fn writes() -> impl Strategy<Value = Write> {
    prop_oneof![
        (prop_oneof![Just("a"), Just("b")], any::<bool>(), specs())
            .prop_map(|(who, force, spec)| Write::Apply(who, force, spec)),
        (prop_oneof![Just("k"), Just("l")], specs()).prop_map(|(who, spec)| Write::Update(who, spec)),
    ]
}

/// What was said of owners and conflicts, in the words of v2, without the name of the version and in the words' order.
fn told(text: &str) -> Vec<String> {
    let mut text = text.replace(" v1:", " v2:").replace("e.com/v1", "e.com/v2");
    for (v1, v2) in NAMES {
        text = text.replace(&format!(".{v1}"), &format!(".{v2}")).replace(&format!("[{v1}="), &format!("[{v2}="));
    }
    let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    words.sort();
    words
}

proptest! {
    /// Versions that differ in names alone: the object and its owners become what they would if all had spoken one version.
    #[test]
    fn many_versions_are_as_one(writes in proptest::collection::vec((writes(), any::<bool>()), 1..8)) {
        let (mut mixed, mut plain) = (Live::default(), Live::default());
        for (write, first) in writes {
            let version = if first { "v1" } else { "v2" };
            match write {
                Write::Apply(who, force, spec) => {
                    let ours = mixed.apply(who, version, force, spec.clone()).map_err(|e| told(&e.message));
                    let theirs = plain.apply(who, "v2", force, spec).map_err(|e| told(&e.message));
                    prop_assert_eq!(ours, theirs);
                }
                // An updater that changes its version is another updater.
                Write::Update(who, spec) => {
                    mixed.update(who, if who == "k" { "v1" } else { "v2" }, spec.clone());
                    plain.update(who, "v2", spec);
                }
            }
            prop_assert_eq!(mixed.spec("v2"), plain.spec("v2"));
            let owners = |live: &Live| {
                let mut owners: Vec<_> = live.owners().iter().map(|owner| told(owner)).collect();
                owners.sort();
                owners
            };
            prop_assert_eq!(owners(&mixed), owners(&plain));
        }
    }
}
