//! ResourceQuotas: which bounds there are, that they are amounts, and that scopes fit what is bounded.

use meta::quantity::nanos;
use serde_json::Value;

use apimachinery::error::Cause;
use apimachinery::pointer::{items, text};

use super::{invalid, required};

/// What scopes that speak of pods can bound.
const OF_PODS: [&str; 7] = ["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
/// Bounds that count objects.
const COUNTS: [&str; 9] = [
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
/// The other bounds whose name has no prefix.
const AMOUNTS: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];
const CONFLICTS: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

/// Checks a quota.
pub(super) fn validate(quota: &Value, causes: &mut Vec<Cause>) {
    let spec = &quota["spec"];
    let hard = || spec["hard"].as_object().into_iter().flatten();
    for (name, value) in hard() {
        bound(&format!("spec.hard[{name}]"), name, value, causes);
    }
    let names: Vec<&str> = hard().map(|(name, _)| name.as_str()).collect();
    let scopes: Vec<&str> = items(spec, "/scopes").iter().filter_map(Value::as_str).collect();
    for scope in &scopes {
        check_scope(("spec.scopes", &spec["scopes"]), ("spec.scopes", &spec["scopes"]), scope, &names, causes);
    }
    conflicts("spec.scopes", &spec["scopes"], &scopes, causes);
    let field = "spec.scopeSelector.matchExpressions";
    let terms = items(spec, "/scopeSelector/matchExpressions");
    for term in terms {
        let scope = text(term, "/scopeName");
        let named = (format!("{field}.scopeName"), &term["scopeName"]);
        check_scope((&named.0, named.1), (field, &spec["scopeSelector"]), scope, &names, causes);
        operator(field, term, causes);
    }
    let selected: Vec<&str> = terms.iter().map(|term| text(term, "/scopeName")).collect();
    conflicts(field, &spec["scopeSelector"]["matchExpressions"], &selected, causes);
}

/// Checks what of a quota never changes.
pub(super) fn update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let scopes = |quota: &Value| {
        let mut all: Vec<String> = apimachinery::pointer::strings(quota, "/spec/scopes");
        all.sort_unstable();
        all
    };
    if scopes(old) != scopes(new) {
        invalid("spec.scopes", &new["spec"]["scopes"], "field is immutable", causes);
    }
}

fn is_standard(name: &str) -> bool {
    COUNTS.contains(&name)
        || AMOUNTS.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// Whether a bound is of something that comes in whole numbers.
fn is_whole(name: &str) -> bool {
    let foreign = name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.");
    COUNTS.contains(&name) || foreign
}

fn bound(field: &str, name: &str, value: &Value, causes: &mut Vec<Cause>) {
    if !name.contains('/') && !is_standard(name) {
        invalid(field, &name.into(), "must be a standard resource for quotas", causes);
    }
    let amount = match value {
        Value::String(text) => nanos(text),
        other => nanos(&other.to_string()),
    };
    // What is no quantity at all is refused by the schema.
    let Some(amount) = amount else { return };
    if amount < 0 {
        invalid(field, value, "must be greater than or equal to 0", causes);
    }
    if is_whole(name) && amount % 1_000_000_000 != 0 {
        invalid(field, value, "must be an integer", causes);
    }
}

fn fits(scope: &str, name: &str) -> bool {
    match scope {
        "BestEffort" => name == "pods",
        "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        _ => OF_PODS.contains(&name),
    }
}

/// A scope there is, and one that every standard bound can have; each defect is told of a field of its own.
fn check_scope(named: (&str, &Value), applied: (&str, &Value), scope: &str, names: &[&str], causes: &mut Vec<Cause>) {
    if !SCOPES.contains(&scope) {
        invalid(named.0, named.1, "unsupported scope", causes);
        return;
    }
    for _ in names.iter().filter(|name| is_standard(name) && !fits(scope, name)) {
        invalid(applied.0, applied.1, "unsupported scope applied to resource", causes);
    }
}

fn conflicts(field: &str, value: &Value, scopes: &[&str], causes: &mut Vec<Cause>) {
    for _ in CONFLICTS.iter().filter(|pair| pair.iter().all(|scope| scopes.contains(scope))) {
        invalid(field, value, "conflicting scopes", causes);
    }
}

fn operator(field: &str, term: &Value, causes: &mut Vec<Cause>) {
    let (scope, operator) = (text(term, "/scopeName"), text(term, "/operator"));
    let valued = matches!(scope, "PriorityClass" | "VolumeAttributesClass");
    if SCOPES.contains(&scope) && !valued && operator != "Exists" {
        let why = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        invalid(&format!("{field}.operator"), &term["operator"], why, causes);
    }
    let empty = items(term, "/values").is_empty();
    match operator {
        "In" | "NotIn" if empty => {
            let before = causes.len();
            required(&format!("{field}.values"), causes);
            for cause in &mut causes[before..] {
                cause.message =
                    "Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                        .into();
            }
        }
        "Exists" | "DoesNotExist" if !empty => {
            let why = "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector";
            invalid(&format!("{field}.values"), &term["values"], why, causes);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => invalid(&format!("{field}.operator"), &term["operator"], "not a valid selector operator", causes),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, expect: &[&str]) {
        let mut causes = Vec::new();
        validate(&json!({"spec": spec}), &mut causes);
        let all: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        assert_eq!(all, expect);
    }

    #[test]
    fn bounds_are_known_amounts() {
        check(json!({"hard": {"pods": "3", "count/jobs.batch": "2", "limits.cpu": "1500m"}}), &[]);
        check(json!({"hard": {"gold.storageclass.storage.k8s.io/requests.storage": "5Gi"}}), &[]);
        check(json!({"hard": {"requests.nvidia.com/gpu": "1"}}), &[]);
        let why = "spec.hard[widgets]: Invalid value: \"widgets\": must be a standard resource for quotas";
        check(json!({"hard": {"widgets": "3"}}), &[why]);
        check(json!({"hard": {"pods": "500m"}}), &["spec.hard[pods]: Invalid value: \"500m\": must be an integer"]);
        let why = "spec.hard[cpu]: Invalid value: \"-1\": must be greater than or equal to 0";
        check(json!({"hard": {"cpu": "-1"}}), &[why]);
        let why = "spec.hard[count/jobs.batch]: Invalid value: \"1.5\": must be an integer";
        check(json!({"hard": {"count/jobs.batch": "1.5"}}), &[why]);
    }

    #[test]
    fn scopes_fit_what_is_bounded() {
        check(json!({"hard": {"pods": "3", "cpu": "1"}, "scopes": ["NotBestEffort", "Terminating"]}), &[]);
        let why = "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource";
        check(json!({"hard": {"pods": "3", "cpu": "1"}, "scopes": ["BestEffort"]}), &[why]);
        check(json!({"scopes": ["Sunday"]}), &["spec.scopes: Invalid value: [\"Sunday\"]: unsupported scope"]);
        let why = "spec.scopes: Invalid value: [\"Terminating\",\"NotTerminating\"]: conflicting scopes";
        check(json!({"scopes": ["Terminating", "NotTerminating"]}), &[why]);
    }

    #[test]
    fn selectors_of_scopes_have_operators_and_values() {
        let of = |term: Value| json!({"hard": {"pods": "3"}, "scopeSelector": {"matchExpressions": [term]}});
        check(of(json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]})), &[]);
        check(of(json!({"scopeName": "Terminating", "operator": "Exists"})), &[]);
        let field = "spec.scopeSelector.matchExpressions";
        let why = format!(
            "{field}.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
        );
        check(of(json!({"scopeName": "PriorityClass", "operator": "In"})), &[&why]);
        let why = format!(
            "{field}.values: Invalid value: [\"x\"]: must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector"
        );
        check(of(json!({"scopeName": "PriorityClass", "operator": "Exists", "values": ["x"]})), &[&why]);
        let why = format!("{field}.operator: Invalid value: \"Like\": not a valid selector operator");
        check(of(json!({"scopeName": "PriorityClass", "operator": "Like"})), &[&why]);
    }
}
