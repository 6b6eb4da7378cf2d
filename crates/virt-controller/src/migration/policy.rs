//! Which MigrationPolicy is meant for a guest: of those whose every label is there, the one that names most. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use api::migrations::v1alpha1::MigrationPolicy;
use kube::ResourceExt;

type Labels = BTreeMap<String, String>;

/// The policy for a guest with these labels in a namespace with those. Of two that name as many labels, the one that
/// names more of the guest's own; of two that do not differ in that either, the first by name.
pub fn matching<'a>(
    policies: &'a [MigrationPolicy],
    guest: &Labels,
    namespace: &Labels,
) -> Option<&'a MigrationPolicy> {
    let matched = policies.iter().filter_map(|policy| {
        let selectors = &policy.spec.selectors;
        let own = named(&selectors.virtual_machine_instance_selector, guest)?;
        let around = named(&selectors.namespace_selector, namespace)?;
        Some((own + around, own, policy))
    });
    matched.min_by_key(|(all, own, policy)| (Reverse(*all), Reverse(*own), policy.name_any())).map(|found| found.2)
}

/// How many labels `selector` names; none when one of them is not among `labels`.
fn named(selector: &Labels, labels: &Labels) -> Option<usize> {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value)).then_some(selector.len())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(policies: &[(&str, Value, Value)], expect: Option<&str>) {
        let policies: Vec<MigrationPolicy> = policies
            .iter()
            .map(|(name, guest, namespace)| {
                let selectors = json!({ "virtualMachineInstanceSelector": guest, "namespaceSelector": namespace });
                serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "selectors": selectors } }))
                    .unwrap()
            })
            .collect();
        let labels = |value: Value| serde_json::from_value(value).unwrap();
        let guest: Labels = labels(json!({ "app": "db", "tier": "gold" }));
        let namespace: Labels = labels(json!({ "team": "a", "zone": "x" }));
        let found = matching(&policies, &guest, &namespace).map(ResourceExt::name_any);
        assert_eq!(found.as_deref(), expect);
    }

    #[test]
    fn the_most_specific_wins() {
        let none = || json!({});
        check(&[], None);
        check(&[("other", json!({ "app": "web" }), none())], None);
        check(&[("half", json!({ "app": "db", "tier": "silver" }), none())], None);
        check(&[("elsewhere", json!({ "app": "db" }), json!({ "team": "b" }))], None);
        check(&[("all", none(), none())], Some("all"));
        let one = ("one", json!({ "app": "db" }), none());
        check(&[("all", none(), none()), one.clone()], Some("one"));
        let two = ("two", json!({ "app": "db" }), json!({ "team": "a" }));
        check(&[one.clone(), two.clone()], Some("two"));
        let own = ("own", json!({ "app": "db", "tier": "gold" }), none());
        check(&[two.clone(), own], Some("own"));
        let around = ("around", none(), json!({ "team": "a", "zone": "x" }));
        check(&[around.clone(), two], Some("two"));
        check(&[around, one.clone()], Some("around"));
        check(&[one, ("a-first", json!({ "tier": "gold" }), none())], Some("a-first"));
    }
}
