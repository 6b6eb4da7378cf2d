//! Which machines of a pool come first when some have to go or to be restarted. Pure.

use std::hash::BuildHasher;

use api::kubevirt::v1::VirtualMachine;
use api::pool::v1beta1::{VirtualMachinePoolSelectionPolicy as Policy, VirtualMachinePoolSelectors};
use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use kit::controller::owner::selects;
use kube::ResourceExt;

use super::machine::index;

/// Puts `machines` of `pool` into the policy's order, and leaves out those that its selectors do not select. `dice` is the same for one choice,
/// and another for the next.
pub fn order(policy: Option<&Policy>, pool: &str, machines: &mut Vec<&VirtualMachine>, dice: &std::hash::RandomState) {
    if let Some(selectors) = policy.and_then(|policy| policy.selectors.as_ref()) {
        machines.retain(|vm| is_selected(selectors, vm));
    }
    let number = |vm: &&VirtualMachine| index(pool, &vm.name_any()).unwrap_or(u32::MAX);
    let age = |vm: &&VirtualMachine| vm.metadata.creation_timestamp.as_ref().map(|at| at.0);
    // The number decides between those that are as old.
    machines.sort_by_key(number);
    match policy.and_then(|policy| policy.sort_policy.as_deref()).unwrap_or_default() {
        "AscendingOrder" => {}
        "DescendingOrder" => machines.reverse(),
        "Newest" => machines.sort_by_key(|vm| std::cmp::Reverse((age(vm), number(vm)))),
        "Oldest" => machines.sort_by_key(age),
        _ => machines.sort_by_cached_key(|vm| dice.hash_one(&vm.metadata.uid)),
    }
}

fn is_selected(selectors: &VirtualMachinePoolSelectors, vm: &VirtualMachine) -> bool {
    let by_labels = selectors.label_selector.as_ref().is_none_or(|selector| selects(Some(selector), vm.labels()));
    let spec = vm.spec.template.spec.as_deref();
    let node = |key: &str| spec.and_then(|spec| spec.node_selector.get(key)).map(String::as_str);
    by_labels && selectors.node_selector_requirement_matcher.iter().all(|term| is_met(term, node(&term.key)))
}

fn is_met(term: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = term.values.as_deref().unwrap_or_default();
    let named = value.is_some_and(|value| values.iter().any(|one| one == value));
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match term.operator.as_str() {
        "In" => named,
        "NotIn" => !named,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machines() -> Vec<VirtualMachine> {
        let one = |(number, minute, zone): (u32, u32, &str)| {
            serde_json::from_value(json!({
                "metadata": {
                    "name": format!("pool-{number}"), "uid": format!("{number}"), "labels": { "zone": zone },
                    "creationTimestamp": format!("2026-01-01T00:0{minute}:00Z"),
                },
                "spec": { "template": { "spec": { "domain": { "devices": {} }, "nodeSelector": { "zone": zone, "rank": format!("{number}") } } } },
            }))
            .unwrap()
        };
        [(10, 3, "a"), (2, 1, "b"), (0, 2, "a")].map(one).into()
    }

    #[track_caller]
    fn check(policy: Value, expect: &str) {
        let (policy, machines) = (serde_json::from_value(policy).unwrap(), machines());
        let mut chosen: Vec<&VirtualMachine> = machines.iter().collect();
        order(Some(&policy), "pool", &mut chosen, &std::hash::RandomState::new());
        let names: Vec<String> = chosen.iter().map(|vm| vm.name_any().replace("pool-", "")).collect();
        assert_eq!(names.join(" "), expect);
    }

    #[test]
    fn orders() {
        check(json!({ "sortPolicy": "AscendingOrder" }), "0 2 10");
        check(json!({ "sortPolicy": "DescendingOrder" }), "10 2 0");
        check(json!({ "sortPolicy": "Newest" }), "10 0 2");
        check(json!({ "sortPolicy": "Oldest" }), "2 0 10");
    }

    #[test]
    fn only_the_selected() {
        let by = |selectors: Value| json!({ "sortPolicy": "AscendingOrder", "selectors": selectors });
        check(by(json!({ "labelSelector": { "matchLabels": { "zone": "a" } } })), "0 10");
        let node = |key: &str, operator: &str, values: &[&str]| {
            by(json!({ "nodeSelectorRequirementMatcher": [{ "key": key, "operator": operator, "values": values }] }))
        };
        check(node("zone", "In", &["b", "c"]), "2");
        check(node("zone", "NotIn", &["b"]), "0 10");
        check(node("zone", "Exists", &[]), "0 2 10");
        check(node("other", "DoesNotExist", &[]), "0 2 10");
        check(node("rank", "Gt", &["1"]), "2 10");
        check(node("rank", "Lt", &["2"]), "0");
    }

    #[test]
    fn any_of_them_may_be_the_first() {
        let machines = machines();
        let first = || {
            let mut chosen: Vec<&VirtualMachine> = machines.iter().collect();
            order(None, "pool", &mut chosen, &std::hash::RandomState::new());
            assert_eq!(chosen.len(), 3);
            chosen[0].name_any()
        };
        let seen: std::collections::BTreeSet<String> = (0..200).map(|_| first()).collect();
        assert_eq!(seen.len(), 3);
    }
}
