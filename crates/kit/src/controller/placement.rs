//! Whether a node's labels, fields and taints suit a pod: node selectors, node affinity, tolerations. Pure.
//!
//! The scheduler asks this of each node for each pod: what is `inline` is compiled with, and as fast as, its crate.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration};

use super::pod::labels;

/// Whether the node satisfies `nodeSelector` and the required node affinity.
#[inline]
pub fn selected(spec: &PodSpec, node: &Node) -> bool {
    let has = labels(&node.metadata);
    if !spec.node_selector.iter().flatten().all(|(key, value)| has.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

/// The nodes that required node affinity names, when every one of its terms names some: no other can satisfy it.
#[inline]
pub fn named_nodes(spec: &PodSpec) -> Option<BTreeSet<&str>> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let mut named = BTreeSet::new();
    for term in terms {
        let by_name = term.match_fields.iter().flatten().filter(|r| r.key == "metadata.name" && r.operator == "In");
        let lists = by_name.map(|r| r.values.iter().flatten().map(String::as_str).collect::<BTreeSet<_>>());
        // All requirements of a term have to hold.
        named.extend(lists.reduce(|a, b| a.intersection(&b).copied().collect())?);
    }
    (!terms.is_empty()).then_some(named)
}

/// Whether all requirements of a term hold; a term without any matches nothing.
#[inline]
pub fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let (expressions, fields) = (term.match_expressions.as_deref(), term.match_fields.as_deref());
    let (expressions, fields) = (expressions.unwrap_or_default(), fields.unwrap_or_default());
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let has = labels(&node.metadata);
    let name = node.metadata.name.as_deref();
    expressions.iter().all(|r| requirement_holds(r, has.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| r.key == "metadata.name" && requirement_holds(r, name))
}

#[inline]
fn requirement_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|v| v == value));
    let compare = |holds: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|v| v.parse().ok());
        value.and_then(|v| v.parse().ok()).zip(bound).is_some_and(|(value, bound)| holds(value, bound))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, bound| value > bound),
        "Lt" => compare(|value, bound| value < bound),
        _ => false,
    }
}

/// Whether one toleration covers a taint.
#[inline]
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && ((key.is_empty() && exists) || key == taint.key)
        && (exists || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
}

/// The node's taints.
#[inline]
pub fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default()
}

/// The first taint with one of `effects` that no toleration covers.
#[inline]
pub fn untolerated<'a>(tolerations: &[Toleration], node: &'a Node, effects: &[&str]) -> Option<&'a Taint> {
    let matters = |taint: &&Taint| effects.contains(&taint.effect.as_str());
    taints(node).iter().filter(matters).find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

/// The tolerations of a pod.
#[inline]
pub fn tolerations(pod: &Pod) -> &[Toleration] {
    pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node() -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "cpus": "8"}},
            "spec": {"taints": [{"key": "own", "value": "x", "effect": "NoSchedule"}]}}))
        .unwrap()
    }

    #[track_caller]
    fn check_term(term: Value, expect: bool) {
        assert_eq!(term_matches(&serde_json::from_value(term).unwrap(), &node()), expect);
    }

    #[test]
    fn terms() {
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        check_term(expression("zone", "In", &["a", "b"]), true);
        check_term(expression("zone", "NotIn", &["a"]), false);
        check_term(expression("rack", "NotIn", &["a"]), true);
        check_term(expression("rack", "Exists", &[]), false);
        check_term(expression("rack", "DoesNotExist", &[]), true);
        check_term(expression("cpus", "Gt", &["4"]), true);
        check_term(expression("cpus", "Lt", &["4"]), false);
        check_term(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), true);
        check_term(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), false);
        check_term(json!({}), false);
    }

    #[test]
    fn named_nodes_are_known() {
        let check = |terms: Value, expect: Option<&[&str]>| {
            let spec = json!({"containers": [], "affinity": {"nodeAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            let named = named_nodes(&spec).map(|names| names.into_iter().collect::<Vec<_>>());
            assert_eq!(named.as_deref(), expect);
        };
        let name = |names: &[&str]| json!({"key": "metadata.name", "operator": "In", "values": names});
        check(json!([{"matchFields": [name(&["b", "a"])]}, {"matchFields": [name(&["c"])]}]), Some(&["a", "b", "c"]));
        check(json!([{"matchFields": [name(&["a"]), name(&["b"])]}]), Some(&[]));
        check(
            json!([{"matchFields": [name(&["a"])]}, {"matchExpressions": [{"key": "k", "operator": "Exists"}]}]),
            None,
        );
    }

    #[track_caller]
    fn check_toleration(toleration: Value, expect: bool) {
        let toleration = serde_json::from_value(toleration).unwrap();
        assert_eq!(untolerated(&[toleration], &node(), &["NoSchedule"]).is_none(), expect);
    }

    #[test]
    fn tolerations_cover_taints() {
        check_toleration(json!({"key": "own", "operator": "Equal", "value": "x", "effect": "NoSchedule"}), true);
        check_toleration(json!({"key": "own", "value": "y"}), false);
        check_toleration(json!({"key": "own", "operator": "Exists"}), true);
        check_toleration(json!({"operator": "Exists"}), true);
        check_toleration(json!({"key": "own", "operator": "Exists", "effect": "NoExecute"}), false);
    }
}
