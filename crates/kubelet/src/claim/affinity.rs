//! Pure: whether a node is one that a PersistentVolume's nodeAffinity names.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement};

/// True when one of the terms holds in whole; a term that says nothing holds for no node.
pub(crate) fn matches(selector: &NodeSelector, node: &Node) -> bool {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let fields = BTreeMap::from([("metadata.name".to_owned(), node.metadata.name.clone().unwrap_or_default())]);
    selector.node_selector_terms.iter().any(|term| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let by_field = term.match_fields.as_deref().unwrap_or_default();
        (!expressions.is_empty() || !by_field.is_empty())
            && expressions.iter().all(|requirement| holds(requirement, labels))
            && by_field.iter().all(|requirement| holds(requirement, &fields))
    })
}

fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let compared = |holds: fn(i64, i64) -> bool| {
        let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
        number(value).zip(number(values.first())).is_some_and(|(own, other)| holds(own, other))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|own, other| own > other),
        "Lt" => compared(|own, other| own < other),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn terms() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "age": "5"}}})).unwrap();
        let check = |terms: serde_json::Value, expect| {
            let selector = serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap();
            assert_eq!(matches(&selector, &node), expect, "{terms}");
        };
        let one = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        check(json!([one("zone", "In", &["a", "b"])]), true);
        check(json!([one("zone", "In", &["b"])]), false);
        check(json!([one("zone", "In", &["b"]), one("age", "Gt", &["4"])]), true);
        check(json!([one("rack", "Exists", &[])]), false);
        check(json!([one("rack", "NotIn", &["x"])]), true);
        check(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]), true);
        check(json!([{}]), false);
    }
}
