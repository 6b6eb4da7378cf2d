//! Rules by data: a schema, an object and what it was, and the words of the answer.

use serde_json::json;

use super::*;
use crate::schema::parse;

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn check(schema: Value, object: Value, old: Option<Value>, expect: &[&str]) {
    assert_eq!(outcome(&schema, &object, old.as_ref()).0, expect);
}

fn outcome(schema: &Value, object: &Value, old: Option<&Value>) -> (Vec<String>, Vec<String>) {
    let rules = Rules::compile(&Arc::new(parse::openapi(schema))).unwrap();
    let (mut causes, mut warnings) = (Vec::new(), Vec::new());
    rules.check(object, old, &mut causes, &mut warnings);
    (causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect(), warnings)
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn spec(of: Value) -> Value {
    json!({"type": "object", "properties": {"s": of}})
}

#[test]
fn rules_and_transition_rules() {
    let field = json!({"type": "string", KEY: [{"rule": "self == oldSelf", "message": "is fixed"}]});
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "spec": {"type": "object", "properties": {"f": field}}}});
    let of = |text: &str| json!({"spec": {"f": text}});
    check(schema.clone(), of("x"), None, &[]);
    check(schema.clone(), of("x"), Some(of("x")), &[]);
    check(schema, of("y"), Some(of("x")), &["spec.f: Invalid value: \"string\": is fixed"]);
}

#[test]
fn the_whole_object_has_a_name() {
    let schema = json!({"type": "object", KEY: [{"rule": "self.n > 1", "message": "is small"}],
        "properties": {"n": {"type": "integer"}}});
    check(schema, json!({"n": 1}), None, &["<nil>: Invalid value: \"object\": is small"]);
}

#[test]
fn reasons_paths_and_messages() {
    let of = |rule: Value| {
        spec(
            json!({"type": "object", "properties": {"n": {"type": "integer"}, "a-b": {"type": "integer"}}, KEY: [rule]}),
        )
    };
    let small = json!({"s": {"n": 1, "a-b": 2}});
    check(
        of(json!({"rule": "self.n > 1"})),
        small.clone(),
        None,
        &["s: Invalid value: \"object\": failed rule: self.n > 1"],
    );
    check(
        of(json!({"rule": "self.n > 1", "messageExpression": "'n is ' + string(self.n)", "message": "no"})),
        small.clone(),
        None,
        &["s: Invalid value: \"object\": n is 1"],
    );
    check(
        of(json!({"rule": "self.n > 1", "reason": "FieldValueForbidden", "fieldPath": ".n", "message": "no"})),
        small.clone(),
        None,
        &["s.n: Forbidden: no"],
    );
    check(of(json!({"rule": "self.a__dash__b == 2"})), small.clone(), None, &[]);
    check(
        of(json!({"rule": "self.z == 1"})),
        small,
        None,
        &["s: Invalid value: \"object\": no such key: z evaluating rule: self.z == 1"],
    );
}

#[test]
fn values_have_the_types_of_their_schema() {
    let of = |field: Value, rule: &str| {
        let mut field = field;
        field[KEY] = json!([{"rule": rule}]);
        spec(field)
    };
    check(of(json!({"type": "number"}), "self == 3.0 && type(self) == double"), json!({"s": 3}), None, &[]);
    check(
        of(json!({"type": "string", "format": "date-time"}), "self.getFullYear() == 2026"),
        json!({"s": "2026-01-01T00:00:00Z"}),
        None,
        &[],
    );
    check(of(json!({"type": "string", "format": "duration"}), "self < duration('2h')"), json!({"s": "1h"}), None, &[]);
    check(of(json!({"type": "string", "format": "byte"}), "size(self) == 5"), json!({"s": "aGVsbG8="}), None, &[]);
    check(
        of(json!({"x-kubernetes-int-or-string": true}), "type(self) == string ? self == '5%' : self == 5"),
        json!({"s": 5}),
        None,
        &[],
    );
}

#[test]
fn old_values_are_told_from_new_ones() {
    let item = json!({"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}},
        KEY: [{"rule": "self.v >= oldSelf.v", "message": "shrinks"}]});
    let list = |kind: &str| {
        let mut list = json!({"type": "array", "items": item, "x-kubernetes-list-type": kind});
        if kind == "map" {
            list["x-kubernetes-list-map-keys"] = json!(["k"]);
        }
        spec(list)
    };
    let old = json!({"s": [{"k": "a", "v": 1}, {"k": "b", "v": 2}]});
    let new = json!({"s": [{"k": "b", "v": 1}, {"k": "c", "v": 0}]});
    check(list("map"), new.clone(), Some(old.clone()), &["s[0]: Invalid value: \"object\": shrinks"]);
    check(list("atomic"), new, Some(old), &[]);
    let optional = spec(json!({"type": "integer", KEY: [
        {"rule": "!oldSelf.hasValue() || oldSelf.value() < self", "optionalOldSelf": true, "message": "must grow"}]}));
    check(optional.clone(), json!({"s": 1}), None, &[]);
    check(optional, json!({"s": 1}), Some(json!({"s": 1})), &["s: Invalid value: \"integer\": must grow"]);
}

#[test]
fn unchanged_violations_of_rules_become_warnings() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"},
        "s": {"type": "string", KEY: [{"rule": "self != 'bad'", "message": "is bad"}]}}});
    let (causes, warnings) = outcome(&schema, &json!({"n": 2, "s": "bad"}), Some(&json!({"n": 1, "s": "bad"})));
    assert_eq!(
        (causes.as_slice(), warnings.as_slice()),
        (&[][..], &["s: Invalid value: \"string\": is bad".to_owned()][..])
    );
    check(
        schema,
        json!({"n": 2, "s": "bad"}),
        Some(json!({"n": 1, "s": "good"})),
        &["s: Invalid value: \"string\": is bad"],
    );
}

#[test]
fn budgets_end_expensive_rules() {
    let items: Vec<i32> = (0..2_000).collect();
    let schema = |rule: &str| {
        spec(json!({"type": "array", "items": {"type": "integer"}, KEY: [{"rule": rule}, {"rule": "false"}]}))
    };
    check(
        schema("self.all(a, self.all(b, a + b >= 0))"),
        json!({"s": items}),
        None,
        &[
            "s: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: self.all(a, self.all(b, a + b >= 0))",
        ],
    );
    let each = spec(
        json!({"type": "array", "items": {"type": "string", KEY: [{"rule": "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, a + b + c > 0)))"}]}}),
    );
    let (causes, _) = outcome(&each, &json!({"s": vec!["x"; 5_000]}), None);
    assert_eq!(causes.len(), 1);
    assert!(
        causes[0]
            .ends_with("validation failed due to running out of cost budget, no further validation rules will be run")
    );
}

#[test]
fn schemas_without_rules_cost_nothing() {
    assert!(Rules::compile(&Arc::new(parse::openapi(&spec(json!({"type": "string"}))))).is_none());
}
