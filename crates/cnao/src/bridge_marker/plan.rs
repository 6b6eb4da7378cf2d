//! From a node's bridges to the change of its capacity. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value, json};

/// What the marks of bridges are called.
pub(super) const PREFIX: &str = "bridge.network.kubevirt.io/";
/// As many ports as anybody attaches.
const PORTS: &str = "1000";

/// The change by which `capacity` has a mark for each of `bridges` and for no other; none when it has.
pub(super) fn change(capacity: &BTreeMap<String, Quantity>, bridges: &[String]) -> Option<Value> {
    let mut change = Map::new();
    for bridge in bridges.iter().filter(|bridge| is_name(bridge)) {
        let mark = format!("{PREFIX}{bridge}");
        if capacity.get(&mark).is_none_or(|amount| amount.0 != PORTS && amount.0 != "1k") {
            change.insert(mark, json!(PORTS));
        }
    }
    for mark in capacity.keys() {
        if let Some(bridge) = mark.strip_prefix(PREFIX)
            && !bridges.iter().any(|held| held == bridge)
        {
            change.insert(mark.clone(), Value::Null);
        }
    }
    (!change.is_empty()).then_some(Value::Object(change))
}

/// The kernel allows names of interfaces that are none of a resource.
fn is_name(bridge: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    edge(bridge.chars().next()) && edge(bridge.chars().last()) && bridge.chars().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(capacity: Value, bridges: &[&str], expect: Value) {
        let capacity = serde_json::from_value(capacity).unwrap();
        let bridges: Vec<String> = bridges.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(change(&capacity, &bridges).unwrap_or_default(), expect);
    }

    #[test]
    fn bridges_are_marked_and_those_that_went_are_not() {
        let mark = |name: &str| format!("{PREFIX}{name}");
        check(json!({ "cpu": "4" }), &["br1"], json!({ (mark("br1")): "1000" }));
        check(
            json!({ "cpu": "4", (mark("br1")): "1k", (mark("br2")): "1000" }),
            &["br1"],
            json!({ (mark("br2")): null }),
        );
        check(json!({ (mark("br1")): "7" }), &["br1"], json!({ (mark("br1")): "1000" }));
        check(json!({ (mark("br1")): "1000" }), &["br1"], Value::Null);
        check(json!({}), &["a b", "ü", "-x", "a/b"], Value::Null);
    }
}
