//! Which requests a webhook or policy is about: resource rules, label selectors, scopes.

use serde_json::Value;

use apimachinery::pointer::{items, strings, text};

use super::Attributes;
use crate::registry::Registry;
use crate::view::View;

/// A selector document against labels.
#[must_use]
pub fn selects(selector: Option<&Value>, labels: Option<&Value>) -> bool {
    let Some(selector) = selector.filter(|s| s.is_object()) else { return true };
    let label = |key: &str| labels.and_then(|l| l.get(key)).and_then(Value::as_str);
    let exact = selector.get("matchLabels").and_then(Value::as_object);
    if exact.is_some_and(|m| m.iter().any(|(k, v)| label(k) != v.as_str())) {
        return false;
    }
    items(selector, "/matchExpressions").iter().all(|e| {
        let value = label(text(e, "/key"));
        let listed = || value.is_some_and(|v| items(e, "/values").iter().any(|x| x.as_str() == Some(v)));
        match text(e, "/operator") {
            "In" => listed(),
            "NotIn" => !listed(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    })
}

/// The version through which a rule list wants to see the request: None when it does not match.
#[must_use]
pub fn matched_version(
    rules: &[Value],
    attributes: &Attributes,
    equivalent: bool,
    registry: &Registry,
) -> Option<String> {
    let own = &attributes.info.version;
    if rules.iter().any(|r| rule_matches(r, attributes, own)) {
        return Some(own.clone());
    }
    if !equivalent {
        return None;
    }
    let resource = &attributes.resource;
    let others = registry
        .resources
        .iter()
        .filter(|r| r.group == resource.group && r.plural == resource.plural && r.version != *own);
    others.map(|r| &r.version).find(|version| rules.iter().any(|r| rule_matches(r, attributes, version))).cloned()
}

fn rule_matches(rule: &Value, attributes: &Attributes, version: &str) -> bool {
    let any = |pointer: &str, wanted: &str| {
        items(rule, pointer).iter().filter_map(Value::as_str).any(|x| x == "*" || x == wanted)
    };
    let scope = text(rule, "/scope");
    let is_namespace = attributes.resource.group.is_empty() && attributes.resource.plural == "namespaces";
    let cluster_wide = attributes.namespace.is_empty() || is_namespace;
    let in_scope = match scope {
        "" | "*" => true,
        "Namespaced" => !cluster_wide,
        "Cluster" => cluster_wide,
        _ => false,
    };
    let names = strings(rule, "/resourceNames");
    in_scope
        && any("/operations", attributes.operation.word())
        && any("/apiGroups", &attributes.resource.group)
        && any("/apiVersions", version)
        && (names.is_empty() || names.contains(&attributes.name))
        && items(rule, "/resources").iter().filter_map(Value::as_str).any(|pattern| {
            let (resource, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
            let subresource = attributes.info.subresource.as_str();
            (resource == "*" || resource == attributes.resource.plural) && (sub == subresource || sub == "*")
        })
}

/// Whether the namespace and object selectors let the request through.
#[must_use]
pub fn selectors_match(view: &dyn View, holder: &Value, attributes: &Attributes) -> bool {
    namespace_matches(view, holder.get("namespaceSelector"), attributes)
        && object_matches(holder.get("objectSelector"), attributes)
}

fn trivial(selector: Option<&Value>) -> bool {
    selector.and_then(Value::as_object).is_none_or(serde_json::Map::is_empty)
}

fn namespace_matches(view: &dyn View, selector: Option<&Value>, attributes: &Attributes) -> bool {
    if trivial(selector) {
        return true;
    }
    if attributes.resource.group.is_empty()
        && attributes.resource.plural == "namespaces"
        && attributes.info.subresource.is_empty()
    {
        let object = attributes.object.as_ref().or(attributes.old.as_deref());
        return selects(selector, object.and_then(|o| o.pointer("/metadata/labels")));
    }
    if attributes.namespace.is_empty() {
        return true;
    }
    let namespace = view.get("", "namespaces", "", &attributes.namespace);
    selects(selector, namespace.as_ref().and_then(|n| n.pointer("/metadata/labels")))
}

fn object_matches(selector: Option<&Value>, attributes: &Attributes) -> bool {
    if trivial(selector) {
        return true;
    }
    [attributes.object.as_ref(), attributes.old.as_deref()]
        .into_iter()
        .flatten()
        .any(|object| selects(selector, object.pointer("/metadata/labels")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors() {
        let labels = json!({"a": "1", "b": "2"});
        let check =
            |selector: Value, expect: bool| assert_eq!(selects(Some(&selector), Some(&labels)), expect, "{selector}");
        check(json!({}), true);
        check(json!({"matchLabels": {"a": "1"}}), true);
        check(json!({"matchLabels": {"a": "2"}}), false);
        check(json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "3"]}]}), true);
        check(json!({"matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["1"]}]}), true);
        check(json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}), false);
        check(json!({"matchExpressions": [{"key": "b", "operator": "Exists"}]}), true);
        check(json!({"matchExpressions": [{"key": "b", "operator": "Like"}]}), false);
    }
}
