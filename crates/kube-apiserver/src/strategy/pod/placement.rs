//! Where a pod may run: affinity, tolerations, spread, gates and the node's labels.

use std::collections::HashSet;

use serde_json::{Value, json};

use apimachinery::names::{label_value_problem, qualified_name_problem};

use super::super::field::{Causes, Field, LABEL, QUALIFIED_NAME, Rule, labels};
use super::super::label_selector;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// Fields that list keys of labels, and what a pod's own value of such a label must be to a pod that is selected.
const KEYS: [(&str, &str); 2] = [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")];

/// Checks what of a pod spec concerns its place.
pub(super) fn all(spec: &Field<'_>, causes: &mut Causes) {
    let affinity = spec.get("affinity");
    node_affinity(&affinity.get("nodeAffinity"), causes);
    for kind in ["podAffinity", "podAntiAffinity"] {
        let affinity = affinity.get(kind);
        affinity.each(REQUIRED).for_each(|term| pod_term(&term, causes));
        for preferred in affinity.each(PREFERRED) {
            weight(&preferred, causes);
            pod_term(&preferred.get("podAffinityTerm"), causes);
        }
    }
    labels(&spec.get("nodeSelector"), causes);
    spec.each("tolerations").for_each(|each| toleration(&each, causes));
    spread(spec, causes);
    let mut gates = HashSet::new();
    for gate in spec.each("schedulingGates") {
        let name = gate.get("name").text();
        if let Some(why) = qualified_name_problem(name) {
            gate.invalid_word(name, &why, causes);
        } else if !gates.insert(name) {
            gate.duplicate_word(name, causes);
        }
    }
}

fn weight(term: &Field<'_>, causes: &mut Causes) {
    let number = term.get("weight").number();
    if !(1..=100).contains(&number) {
        let shown = json!(number);
        Field::new(term.get("weight").path, &shown).invalid("must be in the range 1-100", causes);
    }
}

fn node_affinity(affinity: &Field<'_>, causes: &mut Causes) {
    let required = affinity.get(REQUIRED);
    if required.is_set() {
        if required.get("nodeSelectorTerms").is_empty() {
            required.get("nodeSelectorTerms").required("must have at least one node selector term", causes);
        }
        required.each("nodeSelectorTerms").for_each(|term| node_term(&term, causes));
    }
    for preferred in affinity.each(PREFERRED) {
        weight(&preferred, causes);
        node_term(&preferred.get("preference"), causes);
    }
}

pub(in super::super) fn node_term(term: &Field<'_>, causes: &mut Causes) {
    for requirement in term.each("matchExpressions") {
        let (values, operator, key) = (requirement.get("values"), requirement.get("operator"), requirement.get("key"));
        let count = requirement.each("values").count();
        match operator.text() {
            "In" | "NotIn" if count == 0 => {
                values.required("must be specified when `operator` is 'In' or 'NotIn'", causes);
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'", causes);
            }
            "Gt" | "Lt" if count != 1 => {
                values.required("must be specified single value when `operator` is 'Lt' or 'Gt'", causes);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => operator.invalid_word(other, "not a valid selector operator", causes),
        }
        if let Some(why) = qualified_name_problem(key.text()) {
            key.invalid_word(key.text(), &why, causes);
        }
    }
    for requirement in term.each("matchFields") {
        let (operator, key) = (requirement.get("operator"), requirement.get("key"));
        match operator.text() {
            "In" | "NotIn" if requirement.each("values").count() != 1 => {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                requirement.get("values").required(why, causes);
            }
            "In" | "NotIn" => {}
            other => operator.invalid_word(other, "not a valid selector operator", causes),
        }
        if key.text() != "metadata.name" {
            key.invalid_word(key.text(), "not a valid field selector key", causes);
        }
    }
}

fn pod_term(term: &Field<'_>, causes: &mut Causes) {
    for field in ["labelSelector", "namespaceSelector"] {
        let selector = term.get(field);
        label_selector::check(&selector.path, selector.value, causes);
    }
    for namespace in term.each("namespaces") {
        namespace.told_as(format!("{}.namespace", term.path)).check(&LABEL, causes);
    }
    let topology = term.get("topologyKey");
    if topology.is_empty() {
        topology.required("can not be empty", causes);
    }
    if let Some(why) = qualified_name_problem(topology.text()) {
        topology.invalid_word(topology.text(), &why, causes);
    }
    keys_of_labels(term, causes);
}

/// Keys of labels select only beside a selector, and each of them once.
fn keys_of_labels(term: &Field<'_>, causes: &mut Causes) {
    let selector = term.get("labelSelector");
    let mismatched: Vec<&str> = term.each("mismatchLabelKeys").map(|key| key.text()).collect();
    for (list, _) in KEYS {
        if !selector.is_set() && !term.get(list).is_empty() {
            term.get(list).forbidden("must not be specified when labelSelector is not set", causes);
        }
        for (index, key) in term.each(list).enumerate() {
            key.check(&QUALIFIED_NAME, causes);
            let exact = usize::from(!selector.value["matchLabels"][key.text()].is_null());
            let expressions = selector.each("matchExpressions").filter(|each| each.get("key").text() == key.text());
            if exact + expressions.count() > 1 {
                let field = key.told_as(format!("{}[{index}]", term.path));
                field.invalid(&format!("exists in both {list} and labelSelector"), causes);
            }
            if list == "matchLabelKeys" && mismatched.contains(&key.text()) {
                key.invalid("exists in both matchLabelKeys and mismatchLabelKeys", causes);
            }
        }
    }
}

/// Checks a toleration.
pub(in super::super) fn toleration(toleration: &Field<'_>, causes: &mut Causes) {
    let of = |name: &str| toleration.get(name);
    let (operator, value, effect) = (of("operator"), of("value"), of("effect"));
    of("key").check(&QUALIFIED_NAME, causes);
    if of("key").is_empty() && operator.text() != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        operator.invalid_word(operator.text(), why, causes);
    }
    if of("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
        effect.invalid_word(effect.text(), "effect must be 'NoExecute' when `tolerationSeconds` is set", causes);
    }
    match operator.text() {
        "Exists" if !value.is_empty() => {
            operator.invalid_word(value.text(), "value must be empty when `operator` is 'Exists'", causes);
        }
        "" | "Equal" => {
            if let Some(why) = label_value_problem(value.text()) {
                operator.invalid_word(value.text(), &why, causes);
            }
        }
        _ => operator.check(&Rule::OneOf(&["Equal", "Exists"]), causes),
    }
    if !effect.is_empty() {
        effect.check(&Rule::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]), causes);
    }
}

fn spread(spec: &Field<'_>, causes: &mut Causes) {
    let of = |constraint: &Field<'_>| {
        (constraint.get("topologyKey").text().to_owned(), constraint.get("whenUnsatisfiable").text().to_owned())
    };
    let pairs: Vec<_> = spec.each("topologySpreadConstraints").map(|each| of(&each)).collect();
    for (index, constraint) in spec.each("topologySpreadConstraints").enumerate() {
        for (name, given) in [("maxSkew", true), ("minDomains", constraint.get("minDomains").is_set())] {
            let number = json!(constraint.get(name).number());
            if given && constraint.get(name).number() <= 0 {
                Field::new(constraint.get(name).path, &number).invalid("must be greater than zero", causes);
            }
        }
        let (key, action) = (constraint.get("topologyKey"), constraint.get("whenUnsatisfiable"));
        if key.is_empty() {
            key.required("can not be empty", causes);
        }
        action.check(&Rule::Exactly(&["DoNotSchedule", "ScheduleAnyway"]), causes);
        if constraint.get("minDomains").is_set() && action.text() != "DoNotSchedule" {
            let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}", action.text());
            constraint.get("minDomains").invalid(&why, causes);
        }
        if pairs.iter().skip(index + 1).any(|later| *later == pairs[index]) {
            let pair = constraint.told_as(format!("{}.{{topologyKey, whenUnsatisfiable}}", constraint.path));
            pair.duplicate_word(&format!("{{{}, {}}}", key.text(), action.text()), causes);
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.get(policy).check(&Rule::OneOf(&["Honor", "Ignore"]), causes);
        }
        let selector = constraint.get("labelSelector");
        label_selector::check(&selector.path, selector.value, causes);
        keys_of_labels(&constraint, causes);
    }
}

/// Puts the pod's own values of the labels whose keys its terms list into the selectors of these terms: what they select
/// does not change when the pod's labels do.
pub(super) fn complete(pod: &mut Value) {
    let labels = pod["metadata"]["labels"].clone();
    for kind in ["podAffinity", "podAntiAffinity"] {
        for list in [REQUIRED, PREFERRED] {
            let terms = pod.pointer_mut(&format!("/spec/affinity/{kind}/{list}")).and_then(Value::as_array_mut);
            for term in terms.into_iter().flatten() {
                let term = if list == PREFERRED { term.get_mut("podAffinityTerm") } else { Some(term) };
                term.into_iter().for_each(|term| complete_term(term, &labels));
            }
        }
    }
    let constraints = pod.pointer_mut("/spec/topologySpreadConstraints").and_then(Value::as_array_mut);
    constraints.into_iter().flatten().for_each(|constraint| complete_term(constraint, &labels));
}

fn complete_term(term: &mut Value, labels: &Value) {
    if !term.get("labelSelector").is_some_and(Value::is_object) {
        return;
    }
    for (list, operator) in KEYS {
        let keys = term.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        for key in keys.iter().filter_map(Value::as_str) {
            let Some(value) = labels[key].as_str() else { continue };
            let expression = json!({"key": key, "operator": operator, "values": [value]});
            let selector = &mut term["labelSelector"];
            match selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
                Some(list) if list.contains(&expression) => {}
                Some(list) => list.push(expression),
                None => selector["matchExpressions"] = json!([expression]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, expect: &[&str]) {
        let mut causes = Vec::new();
        all(&Field::new("spec", &spec), &mut causes);
        let found: Vec<_> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn places() {
        check(
            json!({"tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoSchedule"}]}),
            &[],
        );
        check(
            json!({"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5, "effect": "NoSchedule"}]}),
            &[
                "spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
            ],
        );
        let spread = |skew: i64| json!({"maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
        check(json!({"topologySpreadConstraints": [spread(1)]}), &[]);
        check(
            json!({"topologySpreadConstraints": [spread(0), spread(1)]}),
            &[
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{zone, DoNotSchedule}\"",
            ],
        );
        let near = |weight: i64, key: &str| json!({"affinity": {"podAffinity": {PREFERRED: [{"weight": weight, "podAffinityTerm": {"topologyKey": key}}]}}});
        check(near(1, "zone"), &[]);
        check(near(100, "zone"), &[]);
        let at = format!("spec.affinity.podAffinity.{PREFERRED}[0]");
        check(near(101, "zone"), &[&format!("{at}.weight: Invalid value: 101: must be in the range 1-100")]);
        let mut causes = Vec::new();
        all(&Field::new("spec", &near(1, "")), &mut causes);
        let said = format!("{}: {}", causes[0].field, causes[0].message);
        assert_eq!(said, format!("{at}.podAffinityTerm.topologyKey: Required value: can not be empty"));
    }

    #[test]
    fn label_keys_become_part_of_the_selector() {
        let term = json!({"topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["app", "absent"], "mismatchLabelKeys": ["tenant"]});
        let spread =
            json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["app"]});
        let mut pod = json!({"metadata": {"labels": {"app": "a", "tenant": "t"}},
            "spec": {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}, "topologySpreadConstraints": [spread]}});
        complete(&mut pod);
        complete(&mut pod);
        let selector = &pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED][0]["labelSelector"];
        assert_eq!(
            selector["matchExpressions"],
            json!([{"key": "app", "operator": "In", "values": ["a"]}, {"key": "tenant", "operator": "NotIn", "values": ["t"]}])
        );
        let selector = &pod["spec"]["topologySpreadConstraints"][0]["labelSelector"];
        assert_eq!(selector["matchExpressions"], json!([{"key": "app", "operator": "In", "values": ["a"]}]));
    }
}
