//! Definitions by data: what is wrong, and the words for it.

use serde_json::json;

use super::*;

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn check(field: Value, expect: &[&str]) {
    let schema = json!({"type": "object", "properties": {"f": field}});
    let mut causes = Vec::new();
    schema::check(&schema, true, "s", &mut causes);
    let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    assert_eq!(got, expect);
}

#[test]
fn keys_of_lists_are_fields_of_their_items() {
    let list = |keys: Value, required: Value| {
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
            "items": {"type": "object", "required": required, "properties": {"k": {"type": "string"}}}})
    };
    let at = "s.properties[f].x-kubernetes-list-map-keys";
    check(list(json!(["k"]), json!(["k"])), &[]);
    check(
        list(json!([]), json!([])),
        &[&format!("{at}: Required value: must not be empty if x-kubernetes-list-type is map")],
    );
    check(
        list(json!(["z"]), json!(["z"])),
        &[&format!("{at}: Invalid value: \"array\": entries must all be names of item properties")],
    );
    check(
        list(json!(["k"]), json!([])),
        &[
            "s.properties[f].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ],
    );
}

#[test]
fn types_are_known() {
    check(
        json!({"type": "text"}),
        &[
            "s.properties[f].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ],
    );
}

#[test]
fn defaults_are_values_of_their_fields() {
    check(json!({"type": "integer", "default": 3}), &[]);
    check(
        json!({"type": "integer", "default": "x"}),
        &["s.properties[f].default: Invalid value: \"string\": default in body must be of type integer: \"string\""],
    );
    let inner = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "default": 1}}, "default": {}});
    check(inner, &["s.properties[f].default.n: Required value"]);
    check(json!({"type": "string", "default": null}), &[]);
    check(
        json!({"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 3"}]}),
        &["s.properties[f].default: Invalid value: \"integer\": failed rule: self > 3"],
    );
}

#[test]
fn metadata_restricts_names_alone() {
    let causes = |metadata: Value| {
        let schema = json!({"type": "object", "properties": {"metadata": metadata}});
        let mut causes = Vec::new();
        schema::check(&schema, true, "s", &mut causes);
        causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect::<Vec<_>>()
    };
    assert!(causes(json!({"type": "object"})).is_empty());
    assert!(causes(json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}})).is_empty());
    let why = "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified";
    assert_eq!(causes(json!({"type": "object", "description": "d"})), [why]);
    assert_eq!(causes(json!({"type": "object", "properties": {"labels": {"type": "object"}}})), [why]);
}

#[test]
fn branches_restrict_what_is_declared() {
    check(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"properties": {"a": {"minLength": 1}}}]}),
        &[],
    );
    check(
        json!({"type": "string", "anyOf": [{"type": "string"}]}),
        &["s.properties[f].anyOf[0].type: Forbidden: must be empty to be structural"],
    );
    check(json!({"type": "object", "properties": {}, "not": {"properties": {"b": {}}}}), &[]);
    check(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}), &[]);
    check(json!({"type": "integer", "x-kubernetes-int-or-string": true}), &[]);
    check(
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "string"}, {"type": "integer"}]}),
        &[
            "s.properties[f].anyOf[0].type: Forbidden: must be empty to be structural",
            "s.properties[f].anyOf[1].type: Forbidden: must be empty to be structural",
        ],
    );
}

/// A real server asks for that at the root alone.
#[test]
fn fields_in_branches_of_the_root_must_be_declared() {
    let root = |branches: Value| {
        let declared =
            json!({"a": {"type": "object", "properties": {"n": {"type": "string"}}}, "l": {"type": "string"}});
        let mut schema = json!({"type": "object", "properties": declared});
        json_patch::merge(&mut schema, &branches);
        let mut causes = Vec::new();
        // Where status is a subresource, the root has no branches.
        schema::check(&schema, false, "s", &mut causes);
        causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect::<Vec<_>>()
    };
    assert!(
        root(json!({"oneOf": [{"required": ["a"]}, {"properties": {"a": {"properties": {"n": {"minLength": 1}}}}}]}))
            .is_empty()
    );
    assert_eq!(
        root(json!({"not": {"properties": {"b": {"minLength": 1}}}})),
        ["s.properties[b]: Required value: because it is defined in s.not.properties[b]"]
    );
    assert_eq!(
        root(
            json!({"anyOf": [{"properties": {"a": {"properties": {"m": {"minLength": 1}}}, "l": {"items": {"minLength": 1}}}}]})
        ),
        [
            "s.properties[a].properties[m]: Required value: because it is defined in s.anyOf[0].properties[a].properties[m]",
            "s.properties[l].items: Required value: because it is defined in s.anyOf[0].properties[l].items",
        ]
    );
}

#[test]
fn foreign_words_are_refused() {
    check(json!({"type": "object", "$ref": "#/x"}), &["s.properties[f].$ref: Forbidden: $ref is not supported"]);
    check(
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        &[
            "s.properties[f].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ],
    );
    check(json!({}), &["s.properties[f].type: Required value: must not be empty for specified object fields"]);
    check(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
        &["s.properties[f].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
    );
}

fn definition() -> Value {
    json!({"metadata": {"name": "gadgets.example.com"}, "status": {"storedVersions": ["v1"]},
        "spec": {"group": "example.com", "scope": "Namespaced", "conversion": {"strategy": "None"},
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}}]}})
}

#[track_caller]
fn check_definition(change: &[(&str, Value)], old: bool, expect: &[&str]) {
    let mut crd = definition();
    for (pointer, value) in change {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = crd.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
            map => map[key] = value.clone(),
        }
    }
    let before = json!({"metadata": {"name": "gadgets.example.com"}, "spec": definition()["spec"],
        "status": {"conditions": [{"type": "Established", "status": "True"}]}});
    let mut causes = Vec::new();
    validate(&crd, old.then_some(&before), &mut causes);
    let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    assert_eq!(got, expect);
}

#[test]
fn definitions_are_complete() {
    check_definition(&[], false, &[]);
    check_definition(
        &[("/spec/versions/0/name", json!("V1")), ("/status/storedVersions", json!(["V1"]))],
        false,
        &[
            "spec.versions[0].name: Invalid value: \"V1\": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
            "spec.version: Invalid value: \"V1\": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
        ],
    );
    check_definition(
        &[("/spec/versions/0/storage", json!(false))],
        false,
        &["spec.versions: Invalid value: \"array\": must have exactly one version marked as storage version"],
    );
    check_definition(
        &[("/status/storedVersions", json!(["v1", "v1alpha1"]))],
        false,
        &[
            "status.storedVersions[1]: Invalid value: \"v1alpha1\": missing from spec.versions; v1alpha1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1alpha1 and removes v1alpha1 from status.storedVersions",
        ],
    );
    check_definition(
        &[("/spec/group", json!("storage.k8s.io")), ("/metadata/name", json!("gadgets.storage.k8s.io"))],
        false,
        &[
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111",
        ],
    );
    check_definition(
        &[("/spec/conversion", json!({"strategy": "Webhook"}))],
        false,
        &[
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            "spec.conversion.conversionReviewVersions: Required value",
        ],
    );
    check_definition(
        &[("/spec/versions/0/selectableFields", json!([{"jsonPath": ".n"}, {"jsonPath": ".x"}]))],
        false,
        &[
            "spec.selectableFields[1].jsonPath: Invalid value: \".x\": is an invalid path: does not refer to a valid field",
        ],
    );
}

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn check_rule(field: Value, rule: Value, expect: &[&str]) {
    let mut field = field;
    field["x-kubernetes-validations"] = json!([rule]);
    let schema = json!({"type": "object", "properties": {"f": field}});
    let mut causes = Vec::new();
    rules::check(&schema, "s", false, &mut causes);
    let got: Vec<String> = causes
        .iter()
        .map(|c| format!("{}: {}", c.field, c.message.split("}: ").last().unwrap_or(&c.message)))
        .collect();
    let at = |text: &&str| format!("s.properties[f].x-kubernetes-validations[0].{text}");
    assert_eq!(got, expect.iter().map(at).collect::<Vec<_>>());
}

#[test]
fn rules_are_checked_when_they_are_written() {
    let object = json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    for good in [
        "self.n > 1 && self.s.startsWith('a')",
        "self.?s.orValue('x') == 'x'",
        "has(self.n) ? self.n == 2 : true",
        "[self.n].map(x, x + 1).exists(x, x > 2)",
        "quantity(self.s).isGreaterThan(quantity('1'))",
        "self == oldSelf",
    ] {
        check_rule(object.clone(), json!({"rule": good}), &[]);
    }
    check_rule(
        object.clone(),
        json!({"rule": "self.n > 1 && self.x == 2"}),
        &[
            "rule: compilation failed: ERROR: <input>:1:19: undefined field 'x'\n | self.n > 1 && self.x == 2\n | ..................^",
        ],
    );
    check_rule(
        object.clone(),
        json!({"rule": "self.open.anything == 1"}),
        &[
            "rule: compilation failed: ERROR: <input>:1:10: undefined field 'anything'\n | self.open.anything == 1\n | .........^",
        ],
    );
    check_rule(
        object.clone(),
        json!({"rule": "other.n > 1"}),
        &[
            "rule: compilation failed: ERROR: <input>:1:1: undeclared reference to 'other' (in container '')\n | other.n > 1\n | ^",
        ],
    );
    check_rule(
        object.clone(),
        json!({"rule": "self.n == 'a'"}),
        &[
            "rule: compilation failed: ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(int, string)'\n | self.n == 'a'\n | .......^",
        ],
    );
    check_rule(object.clone(), json!({"rule": "self.n"}), &["rule: cel expression must evaluate to a bool"]);
    check_rule(
        object.clone(),
        json!({"rule": "self.n > 1", "messageExpression": "self.n"}),
        &["messageExpression: messageExpression must evaluate to a string"],
    );
    check_rule(object, json!({"rule": " "}), &["rule: Required value: rule is not specified"]);
}

#[test]
fn rules_that_cost_too_much_are_refused() {
    let list = |more: Value| {
        let mut list = json!({"type": "array", "items": {"type": "string"}});
        json_patch::merge(&mut list, &more);
        list
    };
    let pairs = json!({"rule": "self.all(a, self.all(b, a != b))"});
    let mut expensive = list(json!({}));
    expensive["x-kubernetes-validations"] = json!([pairs]);
    let mut causes = Vec::new();
    rules::check(&json!({"type": "object", "properties": {"f": expensive}}), "s", false, &mut causes);
    let words = "exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
    assert_eq!(causes[0].message, format!("Forbidden: estimated rule cost {words}"));
    assert_eq!(
        causes[2].message,
        format!("Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema {words}")
    );
    check_rule(list(json!({"maxItems": 50, "items": {"maxLength": 20}})), pairs, &[]);
    let item =
        json!({"maxItems": 9, "items": {"maxLength": 9, "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}});
    let mut causes = Vec::new();
    rules::check(&json!({"type": "object", "properties": {"f": list(item)}}), "s", false, &mut causes);
    assert_eq!(causes.len(), 1);
    assert!(
        causes[0]
            .message
            .ends_with("oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[f]")
    );
}

#[test]
fn scope_and_names_in_use_are_immutable() {
    check_definition(
        &[("/spec/scope", json!("Cluster"))],
        true,
        &["spec.scope: Invalid value: \"Cluster\": field is immutable"],
    );
    check_definition(
        &[("/spec/names/kind", json!("Gizmo"))],
        true,
        &["spec.names.kind: Invalid value: \"Gizmo\": field is immutable"],
    );
}
