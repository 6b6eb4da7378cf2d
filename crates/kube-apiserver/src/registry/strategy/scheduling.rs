//! Where pods may run: affinity, tolerations and spread of pod specs, taints of nodes, priority classes, budgets.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{invalid, label_selector, one_of, required};
use crate::error::Cause;
use crate::schema::validate::cause;

/// A word inside a text of the API.
fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn each<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    value[field].as_array().into_iter().flatten().enumerate()
}

fn needs(field: &str, why: &str, causes: &mut Vec<Cause>) {
    causes.push(cause("FieldValueRequired", field, format!("Required value: {why}")));
}

fn forbidden(field: &str, why: &str, causes: &mut Vec<Cause>) {
    causes.push(cause("FieldValueForbidden", field, format!("Forbidden: {why}")));
}

fn duplicate(field: &str, value: &Value, causes: &mut Vec<Cause>) {
    causes.push(cause("FieldValueDuplicate", field, format!("Duplicate value: {value}")));
}

/// What of a pod spec concerns its place.
pub(super) fn pod(spec: &Value, at: &str, causes: &mut Vec<Cause>) {
    let affinity = &spec["affinity"];
    node_affinity(&affinity["nodeAffinity"], &format!("{at}.affinity.nodeAffinity"), causes);
    for kind in ["podAffinity", "podAntiAffinity"] {
        pod_affinity(&affinity[kind], &format!("{at}.affinity.{kind}"), causes);
    }
    for (index, toleration) in each(spec, "tolerations") {
        self::toleration(toleration, &format!("{at}.tolerations[{index}]"), causes);
    }
    spread(spec, &format!("{at}.topologySpreadConstraints"), causes);
    let mut gates = HashSet::new();
    for (index, gate) in each(spec, "schedulingGates") {
        let name = word(gate, "name");
        if name.is_empty() {
            required(&format!("{at}.schedulingGates[{index}].name"), causes);
        } else if !gates.insert(name) {
            duplicate(&format!("{at}.schedulingGates[{index}].name"), &json!(name), causes);
        }
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn weight(term: &Value, at: &str, causes: &mut Vec<Cause>) {
    let weight = term["weight"].as_i64().unwrap_or(0);
    if !(1..=100).contains(&weight) {
        invalid(&format!("{at}.weight"), &weight.into(), "must be in the range 1-100", causes);
    }
}

fn node_affinity(affinity: &Value, at: &str, causes: &mut Vec<Cause>) {
    if affinity[REQUIRED].is_object() {
        let at = format!("{at}.{REQUIRED}.nodeSelectorTerms");
        if affinity[REQUIRED]["nodeSelectorTerms"].as_array().is_none_or(Vec::is_empty) {
            needs(&at, "must have at least one node selector term", causes);
        }
        for (index, term) in each(&affinity[REQUIRED], "nodeSelectorTerms") {
            node_term(term, &format!("{at}[{index}]"), causes);
        }
    }
    for (index, preferred) in each(affinity, PREFERRED) {
        let at = format!("{at}.{PREFERRED}[{index}]");
        weight(preferred, &at, causes);
        node_term(&preferred["preference"], &format!("{at}.preference"), causes);
    }
}

fn node_term(term: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, requirement) in each(term, "matchExpressions") {
        let at = format!("{at}.matchExpressions[{index}]");
        let values = requirement["values"].as_array().map_or(0, Vec::len);
        match word(requirement, "operator") {
            "In" | "NotIn" if values == 0 => {
                needs(&format!("{at}.values"), "must be specified when `operator` is 'In' or 'NotIn'", causes);
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                forbidden(&format!("{at}.values"), why, causes);
            }
            "Gt" | "Lt" if values != 1 => {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                needs(&format!("{at}.values"), why, causes);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => invalid(&format!("{at}.operator"), &json!(other), "not a valid selector operator", causes),
        }
        if word(requirement, "key").is_empty() {
            required(&format!("{at}.key"), causes);
        }
    }
    for (index, requirement) in each(term, "matchFields") {
        let at = format!("{at}.matchFields[{index}]");
        match word(requirement, "operator") {
            "In" | "NotIn" if requirement["values"].as_array().map_or(0, Vec::len) != 1 => {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                needs(&format!("{at}.values"), why, causes);
            }
            "In" | "NotIn" => {}
            other => invalid(&format!("{at}.operator"), &json!(other), "not a valid selector operator", causes),
        }
        if word(requirement, "key") != "metadata.name" {
            invalid(&format!("{at}.key"), &requirement["key"], "not a valid field selector key", causes);
        }
    }
}

fn pod_affinity(affinity: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, term) in each(affinity, REQUIRED) {
        pod_term(term, &format!("{at}.{REQUIRED}[{index}]"), causes);
    }
    for (index, preferred) in each(affinity, PREFERRED) {
        let at = format!("{at}.{PREFERRED}[{index}]");
        weight(preferred, &at, causes);
        pod_term(&preferred["podAffinityTerm"], &format!("{at}.podAffinityTerm"), causes);
    }
}

fn pod_term(term: &Value, at: &str, causes: &mut Vec<Cause>) {
    if word(term, "topologyKey").is_empty() {
        needs(&format!("{at}.topologyKey"), "can not be empty", causes);
    }
    let selector = &term["labelSelector"];
    for field in ["labelSelector", "namespaceSelector"] {
        label_selector::check(&format!("{at}.{field}"), &term[field], causes);
    }
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let any = term[list].as_array().is_some_and(|keys| !keys.is_empty());
        if any && selector.is_null() {
            forbidden(&format!("{at}.{list}"), "must not be specified when labelSelector is not set", causes);
        }
    }
    for (index, key) in each(term, "matchLabelKeys") {
        if term["mismatchLabelKeys"].as_array().is_some_and(|other| other.contains(key)) {
            let why = "exists in both matchLabelKeys and mismatchLabelKeys";
            invalid(&format!("{at}.matchLabelKeys[{index}]"), key, why, causes);
        }
    }
}

fn toleration(toleration: &Value, at: &str, causes: &mut Vec<Cause>) {
    let (key, operator, effect) = (word(toleration, "key"), word(toleration, "operator"), word(toleration, "effect"));
    if key.is_empty() && operator != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        invalid(&format!("{at}.operator"), &json!(operator), why, causes);
    }
    if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        invalid(&format!("{at}.effect"), &json!(effect), why, causes);
    }
    if operator == "Exists" && !word(toleration, "value").is_empty() {
        let why = "value must be empty when `operator` is 'Exists'";
        invalid(&format!("{at}.operator"), toleration, why, causes);
    }
    one_of(&format!("{at}.operator"), &toleration["operator"], &["", "Equal", "Exists"], causes);
    let effects = ["", "NoSchedule", "PreferNoSchedule", "NoExecute"];
    one_of(&format!("{at}.effect"), &toleration["effect"], &effects, causes);
}

fn spread(spec: &Value, at: &str, causes: &mut Vec<Cause>) {
    let mut known = HashSet::new();
    for (index, constraint) in each(spec, "topologySpreadConstraints") {
        let at = format!("{at}[{index}]");
        let above_zero = |field: &str, least: i64, causes: &mut Vec<Cause>| {
            let value = constraint[field].as_i64().unwrap_or(least);
            if value <= 0 {
                invalid(&format!("{at}.{field}"), &value.into(), "must be greater than 0", causes);
            }
        };
        above_zero("maxSkew", 0, causes);
        above_zero("minDomains", 1, causes);
        let (key, action) = (word(constraint, "topologyKey"), word(constraint, "whenUnsatisfiable"));
        if key.is_empty() {
            needs(&format!("{at}.topologyKey"), "can not be empty", causes);
        }
        let action_at = format!("{at}.whenUnsatisfiable");
        one_of(&action_at, &json!(action), &["DoNotSchedule", "ScheduleAnyway"], causes);
        if !constraint["minDomains"].is_null() && action != "DoNotSchedule" {
            let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
            invalid(&format!("{at}.minDomains"), &constraint["minDomains"], &why, causes);
        }
        if !known.insert((key, action)) {
            duplicate(
                &format!("{at}.{{topologyKey, whenUnsatisfiable}}"),
                &json!(format!("{{{key}, {action}}}")),
                causes,
            );
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            one_of(&format!("{at}.{policy}"), &constraint[policy], &["Honor", "Ignore"], causes);
        }
        label_selector::check(&format!("{at}.labelSelector"), &constraint["labelSelector"], causes);
        if constraint["labelSelector"].is_null()
            && constraint["matchLabelKeys"].as_array().is_some_and(|k| !k.is_empty())
        {
            forbidden(&format!("{at}.matchLabelKeys"), "must not be specified when labelSelector is not set", causes);
        }
    }
}

/// Puts the pod's own values of `matchLabelKeys` and `mismatchLabelKeys` into the selectors of its affinity terms: what
/// they select does not change when the pod's labels do.
pub(super) fn complete_affinity(pod: &mut Value) {
    let labels = pod["metadata"]["labels"].clone();
    for kind in ["podAffinity", "podAntiAffinity"] {
        for list in [REQUIRED, PREFERRED] {
            let terms = pod.pointer_mut(&format!("/spec/affinity/{kind}/{list}")).and_then(Value::as_array_mut);
            for term in terms.into_iter().flatten() {
                let term = if list == PREFERRED { &mut term["podAffinityTerm"] } else { term };
                complete_term(term, &labels);
            }
        }
    }
}

fn complete_term(term: &mut Value, labels: &Value) {
    if !term["labelSelector"].is_object() {
        return;
    }
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys: Vec<String> = each(term, list).filter_map(|(_, key)| key.as_str().map(str::to_owned)).collect();
        for key in keys {
            let Some(value) = labels[key.as_str()].as_str() else { continue };
            let expression = json!({"key": key, "operator": operator, "values": [value]});
            let expressions = &mut term["labelSelector"]["matchExpressions"];
            match expressions.as_array_mut() {
                Some(list) if list.contains(&expression) => {}
                Some(list) => list.push(expression),
                None => *expressions = json!([expression]),
            }
        }
    }
}

/// Taints of a node.
pub(super) fn node(node: &Value, causes: &mut Vec<Cause>) {
    let mut known = HashSet::new();
    for (index, taint) in each(&node["spec"], "taints") {
        let at = format!("spec.taints[{index}]");
        if word(taint, "key").is_empty() {
            required(&format!("{at}.key"), causes);
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if word(taint, "effect").is_empty() {
            required(&format!("{at}.effect"), causes);
        } else {
            one_of(&format!("{at}.effect"), &taint["effect"], &effects, causes);
        }
        if !known.insert((word(taint, "key"), word(taint, "effect"))) {
            let mut message = format!("Duplicate value: {taint}");
            message.push_str(": taints must be unique by key and effect pair");
            causes.push(cause("FieldValueDuplicate", &at, message));
        }
    }
}

const SYSTEM: &str = "system-";
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
/// What is above is the system's.
const HIGHEST: i64 = 1_000_000_000;

/// A priority class.
pub(super) fn priority_class(class: &Value, causes: &mut Vec<Cause>) {
    let (name, value) = (word(&class["metadata"], "name"), class["value"].as_i64().unwrap_or(0));
    if name.starts_with(SYSTEM) {
        let known = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name);
        let why = match known {
            None => format!("{name} is not a known system priority class"),
            Some((_, wanted)) if *wanted != value => format!("value of {name} PriorityClass must be {wanted}"),
            Some(_) if class["globalDefault"] == true => format!("globalDefault of {name} PriorityClass must be false"),
            Some(_) => String::new(),
        };
        if !why.is_empty() {
            let message =
                format!("priority class names with '{SYSTEM}' prefix are reserved for system use only. error: {why}");
            forbidden("metadata.name", &message, causes);
        }
    } else if value > HIGHEST {
        forbidden("value", &format!("maximum allowed value of a user defined priority is {HIGHEST}"), causes);
    }
    one_of("preemptionPolicy", &class["preemptionPolicy"], &["Never", "PreemptLowerPriority"], causes);
}

/// A disruption budget.
pub(super) fn budget(budget: &Value, causes: &mut Vec<Cause>) {
    let spec = &budget["spec"];
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set", causes);
    }
    for field in ["minAvailable", "maxUnavailable"] {
        let at = format!("spec.{field}");
        match &spec[field] {
            Value::Number(number) if number.as_i64().is_some_and(|n| n < 0) => {
                invalid(&at, &spec[field], "must be greater than or equal to 0", causes);
            }
            Value::String(text) => match text.strip_suffix('%').and_then(|number| number.parse::<u32>().ok()) {
                None => {
                    let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
                    invalid(&at, &spec[field], why, causes);
                }
                Some(percent) if percent > 100 => invalid(&at, &spec[field], "must not be greater than 100%", causes),
                Some(_) => {}
            },
            _ => {}
        }
    }
    let policies = ["AlwaysAllow", "IfHealthyBudget"];
    one_of("spec.unhealthyPodEvictionPolicy", &spec["unhealthyPodEvictionPolicy"], &policies, causes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, expect: &[&str]) {
        let mut causes = Vec::new();
        pod(&spec, "spec", &mut causes);
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
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than 0",
                "spec.topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{zone, DoNotSchedule}\"",
            ],
        );
        let near = |weight: i64, key: &str| json!({"affinity": {"podAffinity": {PREFERRED: [{"weight": weight, "podAffinityTerm": {"topologyKey": key}}]}}});
        check(near(1, "zone"), &[]);
        let at = format!("spec.affinity.podAffinity.{PREFERRED}[0]");
        let weight = format!("{at}.weight: Invalid value: 101: must be in the range 1-100");
        let key = format!("{at}.podAffinityTerm.topologyKey: Required value: can not be empty");
        check(near(101, ""), &[&weight, &key]);
    }

    #[test]
    fn classes() {
        let check = |name: &str, value: i64, expect: usize| {
            let mut causes = Vec::new();
            priority_class(&json!({"metadata": {"name": name}, "value": value}), &mut causes);
            assert_eq!(causes.len(), expect, "{causes:?}");
        };
        check("mine", 1_000_000_000, 0);
        check("mine", 1_000_000_001, 1);
        check("system-mine", 5, 1);
        check("system-node-critical", 2_000_001_000, 0);
    }

    #[test]
    fn label_keys_become_part_of_the_selector() {
        let term = json!({"topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["app", "absent"], "mismatchLabelKeys": ["tenant"]});
        let mut pod = json!({"metadata": {"labels": {"app": "a", "tenant": "t"}},
            "spec": {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}});
        complete_affinity(&mut pod);
        complete_affinity(&mut pod);
        let selector = &pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED][0]["labelSelector"];
        assert_eq!(
            selector["matchExpressions"],
            json!([{"key": "app", "operator": "In", "values": ["a"]}, {"key": "tenant", "operator": "NotIn", "values": ["t"]}])
        );
    }
}
