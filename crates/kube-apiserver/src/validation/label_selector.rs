//! What a LabelSelector may say, wherever it stands. One that cannot be understood would select nobody, silently.

use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::names::{label_value_problem, qualified_name_problem};
use apimachinery::schema::validate::cause;

use super::invalid;
use crate::registry::Resource;

/// Checks the selectors in the spec of an object, but for those of its pods' affinity and spread.
pub(crate) fn validate(resource: &Resource, object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs")
        | ("policy", "poddisruptionbudgets")
        | ("", "persistentvolumeclaims") => check("spec.selector", &spec["selector"], causes),
        ("networking.k8s.io", "networkpolicies") => {
            check("spec.podSelector", &spec["podSelector"], causes);
            for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
                for (index, rule) in each(&spec[direction]) {
                    for (n, peer) in each(&rule[peers]) {
                        let at = format!("spec.{direction}[{index}].{peers}[{n}]");
                        check(&format!("{at}.podSelector"), &peer["podSelector"], causes);
                        check(&format!("{at}.namespaceSelector"), &peer["namespaceSelector"], causes);
                    }
                }
            }
        }
        _ => {}
    }
}

fn each(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}

/// Checks one selector; there may be none.
pub(crate) fn check(at: &str, selector: &Value, causes: &mut Vec<Cause>) {
    let exact = format!("{at}.matchLabels");
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        if let Some(why) = qualified_name_problem(key) {
            invalid(&exact, &json!(key), &why, causes);
        }
        if let Some(why) = value.as_str().and_then(label_value_problem) {
            invalid(&exact, value, &why, causes);
        }
    }
    for (index, requirement) in each(&selector["matchExpressions"]) {
        self::requirement(&format!("{at}.matchExpressions[{index}]"), requirement, causes);
    }
}

fn requirement(at: &str, requirement: &Value, causes: &mut Vec<Cause>) {
    let (field, any) = (format!("{at}.values"), each(&requirement["values"]).next().is_some());
    match requirement["operator"].as_str().unwrap_or_default() {
        "In" | "NotIn" if !any => {
            let why = "Required value: must be specified when `operator` is 'In' or 'NotIn'".into();
            causes.push(cause("FieldValueRequired", &field, why));
        }
        "Exists" | "DoesNotExist" if any => {
            let why = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'".into();
            causes.push(cause("FieldValueForbidden", &field, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => invalid(&format!("{at}.operator"), &json!(other), "not a valid selector operator", causes),
    }
    let key = requirement["key"].as_str().unwrap_or_default();
    if let Some(why) = qualified_name_problem(key) {
        invalid(&format!("{at}.key"), &json!(key), &why, causes);
    }
    for (index, value) in each(&requirement["values"]) {
        if let Some(why) = value.as_str().and_then(label_value_problem) {
            invalid(&format!("{field}[{index}]"), value, &why, causes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_that_cannot_be_understood_are_refused() {
        let says = |selector: Value, expect: &[&str]| {
            let mut causes = Vec::new();
            check("s", &selector, &mut causes);
            // The rules for names are long, and tested where they stand.
            let first = |text: &str| text.split(" must ").next().unwrap_or_default().to_owned();
            let said: Vec<_> =
                causes.iter().map(|cause| first(&format!("{}: {}", cause.field, cause.message))).collect();
            let expect: Vec<_> = expect.iter().map(|text| first(text)).collect();
            assert_eq!(said, expect);
        };
        let term = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
        says(Value::Null, &[]);
        says(json!({}), &[]);
        says(json!({"matchLabels": {"example.com/a": "b", "c": ""}}), &[]);
        says(json!({"matchLabels": {"a/b/c": ""}}), &["s.matchLabels: Invalid value: \"a/b/c\": a qualified name"]);
        says(json!({"matchLabels": {"a": "b c"}}), &["s.matchLabels: Invalid value: \"b c\": a valid label"]);
        says(term("In", &["b"]), &[]);
        says(term("Exists", &[]), &[]);
        says(
            term("Like", &["b"]),
            &["s.matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator"],
        );
        let needed =
            "s.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'";
        says(term("NotIn", &[]), &[needed]);
        says(
            term("DoesNotExist", &["b"]),
            &[
                "s.matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ],
        );
        says(term("In", &["b c"]), &["s.matchExpressions[0].values[0]: Invalid value: \"b c\": a valid label"]);
    }
}
