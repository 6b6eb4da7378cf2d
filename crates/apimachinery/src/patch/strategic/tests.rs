#![expect(clippy::needless_pass_by_value, reason = "cases read better when they hand their JSON over")]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::builtin;

#[track_caller]
fn check(kind: (&str, &str, &str), current: Value, patch: Value, expect: Value) {
    let schema = builtin::schema(kind.0, kind.1, kind.2).unwrap();
    assert_eq!(merge(&schema, &current, &patch).unwrap(), expect);
}

#[track_caller]
fn pod(current: Value, patch: Value, expect: Value) {
    check(("", "v1", "Pod"), json!({"spec": current}), json!({"spec": patch}), json!({"spec": expect}));
}

#[test]
fn containers_merge_by_name() {
    pod(
        json!({"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}]}),
        json!({"containers": [{"name": "b", "image": "y:2"}, {"name": "c", "image": "z:1"}]}),
        json!({"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:2"}, {"name": "c", "image": "z:1"}]}),
    );
}

#[test]
fn an_element_is_deleted_and_a_list_replaced_by_directive() {
    pod(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"containers": [{"$patch": "delete", "name": "a"}]}),
        json!({"containers": [{"name": "b"}]}),
    );
    pod(
        json!({"containers": [{"name": "a", "image": "x"}, {"name": "b"}]}),
        json!({"containers": [{"$patch": "replace"}, {"name": "a"}]}),
        json!({"containers": [{"name": "a"}]}),
    );
}

#[test]
fn null_removes_and_is_never_stored() {
    pod(json!({"nodeName": "n", "hostNetwork": true}), json!({"nodeName": null}), json!({"hostNetwork": true}));
    pod(
        json!({}),
        json!({"securityContext": {"runAsUser": null, "fsGroup": 1}}),
        json!({"securityContext": {"fsGroup": 1}}),
    );
}

#[test]
fn lists_without_a_merge_strategy_are_replaced() {
    pod(
        json!({"tolerations": [{"key": "a"}, {"key": "b"}]}),
        json!({"tolerations": [{"key": "c"}]}),
        json!({"tolerations": [{"key": "c"}]}),
    );
}

#[test]
fn the_patch_decides_the_order_of_what_it_lists() {
    pod(
        json!({"containers": [{"name": "a"}, {"name": "server"}, {"name": "b"}]}),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}, {"name": "new"}], "containers": [{"name": "new"}]}),
        json!({"containers": [{"name": "server"}, {"name": "b"}, {"name": "a"}, {"name": "new"}]}),
    );
}

#[test]
fn new_items_precede_items_that_the_patch_does_not_name() {
    #[track_caller]
    fn env(before: &str, patch: &str, order: Option<&str>, expect: &str) {
        let list = |names: &str| -> Value { names.chars().map(|name| json!({"name": name.to_string()})).collect() };
        let container = |list: Value| json!({"containers": [{"name": "c", "env": list}]});
        let mut patch = container(list(patch));
        if let Some(order) = order {
            patch["containers"][0]["$setElementOrder/env"] = list(order);
        }
        pod(container(list(before)), patch, container(list(expect)));
    }
    env("a", "b", None, "ba");
    env("ab", "cb", None, "cab");
    env("abc", "cnb", None, "acnb");
    env("", "ba", None, "ba");
    env("s", "b", Some("b"), "bs");
    env("as", "b", Some("ab"), "abs");
    env("asb", "n", Some("bna"), "sbna");
}

#[test]
fn primitive_lists_are_sets() {
    let meta = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    check(("", "v1", "ConfigMap"), meta(json!(["a", "b"])), meta(json!(["b", "c"])), meta(json!(["a", "b", "c"])));
    check(("", "v1", "ConfigMap"), meta(json!(["a"])), meta(json!(["b"])), meta(json!(["b", "a"])));
    check(
        ("", "v1", "ConfigMap"),
        meta(json!(["a", "b"])),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}}),
        meta(json!(["b"])),
    );
}

#[test]
fn retain_keys_drops_the_other_members_of_a_union() {
    check(
        ("apps", "v1", "Deployment"),
        json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
        json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
        json!({"spec": {"strategy": {"type": "Recreate"}}}),
    );
}

#[test]
fn a_bad_patch_is_refused() {
    let schema = builtin::schema("", "v1", "Pod").unwrap();
    let refused = |patch: Value| merge(&schema, &json!({}), &patch).unwrap_err().message;
    assert_eq!(
        refused(json!({"spec": {"containers": [{"image": "x"}]}})),
        r#"map: {"image":"x"} does not contain declared merge key: name"#
    );
    assert_eq!(refused(json!({"spec": {"$patch": "explode"}})), r#"unknown patch type found: "explode""#);
    assert_eq!(
        refused(json!({"spec": {"$retainKeys": ["a"], "nodeName": "n"}})),
        "nodeName is set by the patch but missing in its $retainKeys list"
    );
}

fn containers() -> impl Strategy<Value = Value> {
    proptest::collection::btree_map("[a-d]", "[x-z]", 0..4)
        .prop_map(|m| Value::Array(m.into_iter().map(|(name, image)| json!({"name": name, "image": image})).collect()))
}

proptest! {
    #[test]
    fn merging_twice_changes_nothing_more(current in containers(), patch in containers()) {
        let schema = builtin::schema("", "v1", "Pod").unwrap();
        let patch = json!({"spec": {"containers": patch}});
        let once = merge(&schema, &json!({"spec": {"containers": current}}), &patch).unwrap();
        prop_assert_eq!(merge(&schema, &once, &patch).unwrap(), once);
    }
}
