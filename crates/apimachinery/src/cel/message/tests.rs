//! Messages by data: an expression, and the JSON that comes of it or the words of the failure.

use std::collections::HashMap;

use serde_json::json;

use super::super::check::check_change;
use super::super::types::Type;
use super::super::{Bindings, Budget, PER_CALL, Program};
use super::*;

struct Changes;

impl Bindings for Changes {
    fn get(&self, name: &str) -> Option<Cel> {
        (name == "o").then(|| super::super::value::plain(&json!({"s": "x/y~z", "l": [1, 2]})))
    }
    fn messages(&self) -> bool {
        true
    }
}

fn run(source: &str) -> Result<Cel, String> {
    let mut budget = Budget::new(PER_CALL);
    Program::compile(source)?.evaluate(&Changes, &mut budget).map_err(|fault| fault.to_string())
}

#[track_caller]
fn configures(source: &str, expect: Result<Value, &str>) {
    let found = run(source).and_then(|value| configuration(&value));
    assert_eq!(found, expect.map_err(str::to_owned), "{source}");
}

#[track_caller]
fn patches(source: &str, expect: Result<Value, &str>) {
    let found = run(source).and_then(|value| json_patch(&value));
    assert_eq!(found, expect.map_err(str::to_owned), "{source}");
}

#[track_caller]
fn types(source: &str, expect: Result<&str, &str>) {
    let program = Program::compile(source).unwrap();
    let names = HashMap::from([("o".to_owned(), Type::Dyn)]);
    match (check_change(&program, &names), expect) {
        (Ok(checked), Ok(name)) => assert_eq!(checked.type_.to_string(), name, "{source}"),
        (Err(found), Err(part)) => assert!(found.contains(part), "{source}: {found}"),
        (found, _) => panic!("{source}: {found:?}"),
    }
}

#[test]
fn a_configuration_is_what_its_messages_say() {
    configures(
        "Object{metadata: Object.metadata{labels: {'a': 'b'}}, spec: Object.spec{n: 1, ?gone: o.?none, l: o.l.map(x, \
         Object.spec.l{v: x})}}",
        Ok(json!({"metadata": {"labels": {"a": "b"}}, "spec": {"n": 1, "l": [{"v": 1}, {"v": 2}]}})),
    );
    configures("o.l.size() > 1 ? Object{} : Object{a: 1}", Ok(json!({})));
    configures(
        "has(Object{a: 1}.a) && Object{a: 1} == Object{a: 1} ? Object{b: Object{a: 2}.a} : Object{}",
        Ok(json!({"b": 2})),
    );
    configures(
        "Object{spec: Object.status{}}",
        Err(
            "type mismatch: unexpected type name \"Object.status\", expected \"Object.spec\", which matches field name path from root Object type",
        ),
    );
    configures("Object.spec{}", Err("unsupported return type from ApplyConfiguration expression: Object.spec"));
    configures("{'a': 1}", Err("unsupported return type from ApplyConfiguration expression: map"));
    configures("Object{a: {1: 2}}", Err("map key Int(1) is no string"));
    configures("Object{a: type(1)}", Err("a value of type type cannot be a part of an object"));
    configures("Thing{}", Err("undeclared reference to 'Thing'"));
}

#[test]
fn a_patch_is_a_list_of_operations() {
    patches(
        "[JSONPatch{op: 'add', path: '/m/' + jsonpatch.escapeKey(o.s), value: Object.spec{a: 1}}, \
         JSONPatch{op: 'move', from: '/a', path: '/b'}, JSONPatch{op: 'remove', path: '/c', from: ''}]",
        Ok(json!([{"op": "add", "path": "/m/x~1y~0z", "value": {"a": 1}}, {"op": "move", "from": "/a", "path": "/b"},
            {"op": "remove", "path": "/c"}])),
    );
    patches("[]", Ok(json!([])));
    patches(
        "o.l",
        Err("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of int"),
    );
    patches("o", Err("type mismatch: JSONPatchType.expression should evaluate to array"));
    patches("[JSONPatch{op: 'add', what: 1}]", Err("no such field: what"));
}

#[test]
fn types_are_told_before_use() {
    types("Object{spec: Object.spec{a: o.x}}", Ok("Object"));
    types("o.a ? [JSONPatch{op: 'x', path: 'y'}] : []", Ok("list(JSONPatch)"));
    types("[JSONPatch{op: 'x'}] + o.l.map(x, JSONPatch{op: 'y'})", Ok("list(JSONPatch)"));
    types("JSONPatch{op: 1}", Err("1:11: expected type of field 'op' is 'string' but provided type is 'int'"));
    types("JSONPatch{what: 1}", Err("undefined field 'what'"));
    types("Objects{}", Err("undeclared reference to 'Objects'"));
    types("jsonpatch.escapeKey('a')", Ok("string"));
    let elsewhere = super::super::check::check(&Program::compile("Object{}").unwrap(), &HashMap::new());
    assert!(elsewhere.unwrap_err().contains("undeclared reference to 'Object'"));
}

#[test]
fn objects_built_by_repetition_are_bounded() {
    let mut source = "Object{a: a9}".to_owned();
    for level in (1..10).rev() {
        let before = format!("a{}", level - 1);
        source = format!("cel.bind(a{level}, [{}], {source})", [before.as_str(); 10].join(", "));
    }
    let large = format!("cel.bind(a0, ['x'], {source})");
    configures(&large, Err("the value is too large: at most 3145728 bytes are accepted"));
    let compared = large.replace("Object{a: a9}", "Object{a: a9} == Object{a: a9}");
    assert_eq!(run(&compared), Err("operation cancelled: actual cost limit exceeded".to_owned()));
}
