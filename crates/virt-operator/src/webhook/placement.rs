//! Where the KubeVirt object has the components run, and how many of them: what no pod could be made of is refused. Pure.

use kit::admission::Cause;
use serde_json::Value;

/// The parts of the object that place components.
const PARTS: [&str; 2] = ["infra", "workloads"];
const SELECTORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

struct Judge {
    causes: Vec<Cause>,
}

/// What is wrong.
pub(super) fn causes(kubevirt: &Value) -> Vec<Cause> {
    let mut judge = Judge { causes: Vec::new() };
    if let Some(replicas) = kubevirt.pointer("/spec/infra/replicas").and_then(Value::as_i64).filter(|count| *count < 1)
    {
        let message = format!(
            "infra replica count can't be {replicas}: leave it out, or set 1 or more; virt-api and virt-controller are needed"
        );
        judge.causes.push(Cause { reason: "FieldValueInvalid", field: "spec.infra.replicas".to_owned(), message });
    }
    for part in PARTS {
        let path = format!("spec.{part}.nodePlacement");
        let Some(placement) = kubevirt.pointer(&format!("/spec/{part}/nodePlacement")) else { continue };
        for (key, value) in placement["nodeSelector"].as_object().into_iter().flatten() {
            judge.label(&format!("{path}.nodeSelector"), key, value.as_str());
        }
        for (index, toleration) in list(&placement["tolerations"]).iter().enumerate() {
            judge.toleration(&format!("{path}.tolerations[{index}]"), toleration);
        }
        judge.affinity(&format!("{path}.affinity"), &placement["affinity"]);
    }
    judge.causes
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn is_name(name: &str, most: usize) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= most && name.chars().all(inner) && end(name.chars().next()) && end(name.chars().next_back())
}

/// `NAME` or `DOMAIN/NAME`.
fn is_key(key: &str) -> bool {
    let (domain, name) = key.split_once('/').map_or((None, key), |(domain, name)| (Some(domain), name));
    is_name(name, 63) && domain.is_none_or(|domain| is_name(domain, 253))
}

fn is_value(value: &str) -> bool {
    value.is_empty() || is_name(value, 63)
}

impl Judge {
    fn refuse(&mut self, field: String, value: &str, remedy: &str) {
        let message = format!("{field} is {value:?}: {remedy}");
        self.causes.push(Cause { reason: "FieldValueInvalid", field, message });
    }

    /// One of `known`, or nothing where the API has a default.
    fn word(&mut self, field: String, value: &str, known: &[&str], optional: bool) {
        if !(known.contains(&value) || optional && value.is_empty()) {
            let message = format!("{field} is {value:?}: must be one of {}", known.join(", "));
            self.causes.push(Cause { reason: "FieldValueNotSupported", field, message });
        }
    }

    fn label(&mut self, field: &str, key: &str, value: Option<&str>) {
        if !is_key(key) {
            self.refuse(field.to_owned(), key, "must be the key of a label, such as example.com/disk");
        }
        if let Some(value) = value.filter(|value| !is_value(value)) {
            self.refuse(
                format!("{field}[{key}]"),
                value,
                "must be the value of a label: at most 63 letters, digits, -, _ and .",
            );
        }
    }

    fn toleration(&mut self, field: &str, toleration: &Value) {
        let (operator, key) = (text(toleration, "operator"), text(toleration, "key"));
        let effect = text(toleration, "effect");
        self.word(format!("{field}.operator"), operator, &["Exists", "Equal"], true);
        self.word(format!("{field}.effect"), effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"], true);
        if key.is_empty() && operator != "Exists" {
            self.refuse(
                format!("{field}.operator"),
                operator,
                "must be Exists where there is no key, which tolerates every taint",
            );
        }
        if !key.is_empty() && !is_key(key) {
            self.refuse(format!("{field}.key"), key, "must be the key of a taint, such as example.com/reserved");
        }
        let value = text(toleration, "value");
        if operator == "Exists" && !value.is_empty() {
            self.refuse(format!("{field}.value"), value, "must be left out with the operator Exists");
        }
        if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
            self.refuse(format!("{field}.effect"), effect, "must be NoExecute where tolerationSeconds is set");
        }
    }

    fn affinity(&mut self, field: &str, affinity: &Value) {
        let (required, preferred) =
            ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution");
        let nodes = format!("{field}.nodeAffinity");
        let node = &affinity["nodeAffinity"];
        if !node[required].is_null() && list(&node[required]["nodeSelectorTerms"]).is_empty() {
            self.refuse(format!("{nodes}.{required}.nodeSelectorTerms"), "", "must have at least one term");
        }
        for (index, term) in list(&node[required]["nodeSelectorTerms"]).iter().enumerate() {
            self.term(&format!("{nodes}.{required}.nodeSelectorTerms[{index}]"), term);
        }
        for (index, wish) in list(&node[preferred]).iter().enumerate() {
            let field = format!("{nodes}.{preferred}[{index}]");
            self.weight(&field, wish);
            self.term(&format!("{field}.preference"), &wish["preference"]);
        }
        for kind in ["podAffinity", "podAntiAffinity"] {
            for (index, term) in list(&affinity[kind][required]).iter().enumerate() {
                self.pods(&format!("{field}.{kind}.{required}[{index}]"), term);
            }
            for (index, wish) in list(&affinity[kind][preferred]).iter().enumerate() {
                let field = format!("{field}.{kind}.{preferred}[{index}]");
                self.weight(&field, wish);
                self.pods(&format!("{field}.podAffinityTerm"), &wish["podAffinityTerm"]);
            }
        }
    }

    fn weight(&mut self, field: &str, wish: &Value) {
        let weight = wish["weight"].as_i64().unwrap_or(0);
        if !(1..=100).contains(&weight) {
            self.refuse(format!("{field}.weight"), &weight.to_string(), "must be from 1 to 100");
        }
    }

    fn term(&mut self, field: &str, term: &Value) {
        let known = [SELECTORS.as_slice(), &["Gt", "Lt"]].concat();
        for kind in ["matchExpressions", "matchFields"] {
            self.expressions(&format!("{field}.{kind}"), &term[kind], &known);
        }
    }

    fn pods(&mut self, field: &str, term: &Value) {
        let topology = text(term, "topologyKey");
        if !is_key(topology) {
            self.refuse(
                format!("{field}.topologyKey"),
                topology,
                "must be the key of a label of nodes, such as kubernetes.io/hostname",
            );
        }
        for kind in ["labelSelector", "namespaceSelector"] {
            let selector = &term[kind];
            for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
                self.label(&format!("{field}.{kind}.matchLabels"), key, value.as_str());
            }
            self.expressions(&format!("{field}.{kind}.matchExpressions"), &selector["matchExpressions"], &SELECTORS);
        }
    }

    fn expressions(&mut self, field: &str, expressions: &Value, known: &[&str]) {
        for (index, expression) in list(expressions).iter().enumerate() {
            let field = format!("{field}[{index}]");
            let (key, operator) = (text(expression, "key"), text(expression, "operator"));
            if !is_key(key) {
                self.refuse(format!("{field}.key"), key, "must be the key of a label, such as example.com/disk");
            }
            self.word(format!("{field}.operator"), operator, known, false);
            let values = list(&expression["values"]).len();
            let fits = match operator {
                "In" | "NotIn" => values > 0,
                "Exists" | "DoesNotExist" => values == 0,
                "Gt" | "Lt" => values == 1,
                _ => true,
            };
            if !fits {
                let remedy =
                    "must have values with In and NotIn, one with Gt and Lt, and none with Exists and DoesNotExist";
                self.refuse(format!("{field}.values"), &expression["values"].to_string(), remedy);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, expect: &[(&str, &str)]) {
        let found = causes(&json!({ "spec": spec }));
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for (cause, (field, part)) in found.iter().zip(expect) {
            assert_eq!(cause.field, *field);
            assert!(cause.message.contains(part), "{}", cause.message);
        }
    }

    #[test]
    fn components_are_not_taken_away() {
        check(json!({ "infra": { "replicas": 0 } }), &[("spec.infra.replicas", "infra replica count can't be 0")]);
        check(json!({ "infra": { "replicas": 3 } }), &[]);
    }

    #[test]
    fn invalid_placement_is_refused_by_field() {
        let infra = |placement: Value| json!({ "infra": { "nodePlacement": placement } });
        let workloads = |placement: Value| json!({ "workloads": { "nodePlacement": placement } });
        check(
            workloads(json!({ "tolerations": [{ "key": "a", "operator": "foo" }] })),
            &[("spec.workloads.nodePlacement.tolerations[0].operator", "\"foo\": must be one of Exists, Equal")],
        );
        check(infra(json!({ "tolerations": [{ "key": "a", "operator": "Exists", "effect": "NoSchedule" }] })), &[]);
        check(
            infra(json!({ "tolerations": [{ "operator": "Exists", "value": "x" }] })),
            &[("spec.infra.nodePlacement.tolerations[0].value", "must be left out")],
        );
        check(
            infra(json!({ "nodeSelector": { "a b": "c", "d": "e f" } })),
            &[
                ("spec.infra.nodePlacement.nodeSelector", "\"a b\""),
                ("spec.infra.nodePlacement.nodeSelector[d]", "\"e f\""),
            ],
        );
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let affinity = |operator: &str, values: Value| {
            let expression = json!({ "key": "a", "operator": operator, "values": values });
            let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
            infra(json!({ "affinity": { "nodeAffinity": { required: terms } } }))
        };
        let field = format!(
            "spec.infra.nodePlacement.affinity.nodeAffinity.{required}.nodeSelectorTerms[0].matchExpressions[0]"
        );
        check(affinity("In", json!(["b"])), &[]);
        check(affinity("foo", json!(["b"])), &[(&format!("{field}.operator"), "\"foo\": must be one of In, NotIn")]);
        check(affinity("Exists", json!(["b"])), &[(&format!("{field}.values"), "none with Exists")]);
        let pods = json!({ "affinity": { "podAntiAffinity": { required: [{ "labelSelector": {} }] } } });
        check(
            infra(pods),
            &[(
                &format!("spec.infra.nodePlacement.affinity.podAntiAffinity.{required}[0].topologyKey"),
                "kubernetes.io/hostname",
            )],
        );
    }
}
