//! Rules of fields as tables: where a value stands, and what it must be.
//!
//! A path names fields from the object down. `list[]` is each item of a list, `field?` goes on only where the field is set;
//! any other field that is not there is one that is empty.

use std::collections::HashSet;

use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::{invalid, label_selector, one_of, required};

/// What a value must be or do.
#[derive(Clone, Copy)]
pub(crate) enum Must {
    /// Not be empty.
    Be,
    /// Not be empty; and why.
    BeFor(&'static str),
    /// Be one of these words, where it is set.
    OneOf(&'static [&'static str]),
    /// Be one of these words, also where it is not set.
    Exactly(&'static [&'static str]),
    /// Be a text without this problem, also where it is empty.
    Read(Problem),
    /// The same, where it is set.
    ReadIfSet(Problem),
    /// The same, where it is not empty.
    ReadIfAny(Problem),
    /// Be a number in these bounds, where it is set.
    Within(i64, i64, &'static str),
    /// The same, where a missing one is zero.
    Lie(i64, i64, &'static str),
    /// Be a quantity of at least zero.
    NotBeNegative,
    /// Have at most so many items.
    HoldAtMost(usize),
    /// Have at most so many bytes.
    BeShort(usize),
    /// Have items that differ in this field, or altogether.
    Differ(&'static str),
    /// Be a label selector that can be understood.
    Select,
}

/// What is wrong with a text, if anything.
pub(crate) type Problem = fn(&str) -> Option<String>;
pub(crate) type Rules = &'static [(&'static str, &'static [Must])];

pub(crate) const PORT: &str = "must be between 1 and 65535, inclusive";
pub(crate) const NOT_NEGATIVE: Must = Must::Within(0, i64::MAX, "must be greater than or equal to 0");

pub(crate) fn subdomain(text: &str) -> Option<String> {
    apimachinery::names::subdomain_problem(text).map(str::to_owned)
}

pub(crate) fn label(text: &str) -> Option<String> {
    apimachinery::names::label_problem(text).map(str::to_owned)
}

pub(crate) fn qualified(text: &str) -> Option<String> {
    apimachinery::names::qualified_name_problem(text)
}

pub(crate) fn label_value(text: &str) -> Option<String> {
    apimachinery::names::label_value_problem(text)
}

pub(crate) fn dns_1035(text: &str) -> Option<String> {
    const WHY: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    let good = text.starts_with(|c: char| c.is_ascii_lowercase()) && label(text).is_none();
    (!good).then(|| WHY.to_owned())
}

/// Adds a cause for everything in `object` that breaks a rule.
pub(crate) fn check(object: &Value, rules: Rules, causes: &mut Vec<Cause>) {
    check_at("", object, rules, causes);
}

/// The same for a part of an object that stands at `at`.
pub(crate) fn check_at(at: &str, object: &Value, rules: Rules, causes: &mut Vec<Cause>) {
    for (path, musts) in rules {
        walk(object, at, path, musts, causes);
    }
}

fn walk(value: &Value, at: &str, path: &str, musts: &[Must], causes: &mut Vec<Cause>) {
    if path.is_empty() {
        musts.iter().for_each(|must| judge(value, at, *must, causes));
        return;
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let name = first.trim_end_matches(['?', '[', ']']);
    let found = value.get(name).unwrap_or(&Value::Null);
    let at = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    if first.ends_with("[]") {
        for (index, item) in found.as_array().into_iter().flatten().enumerate() {
            walk(item, &format!("{at}[{index}]"), rest, musts, causes);
        }
    } else if !(first.ends_with('?') && found.is_null()) {
        walk(found, &at, rest, musts, causes);
    }
}

/// Whether a value says nothing.
pub(crate) fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn judge(value: &Value, at: &str, must: Must, causes: &mut Vec<Cause>) {
    let text = value.as_str().unwrap_or_default();
    let mut read = |problem: Problem| {
        if let Some(why) = problem(text) {
            invalid(at, &json!(text), &why, causes);
        }
    };
    match must {
        Must::Be if empty(value) => required(at, causes),
        Must::BeFor(why) if empty(value) => {
            causes.push(cause("FieldValueRequired", at, format!("Required value: {why}")));
        }
        Must::OneOf(words) => one_of(at, value, words, causes),
        Must::Exactly(words) => one_of(at, &json!(text), words, causes),
        Must::Read(problem) => read(problem),
        Must::ReadIfSet(problem) if !value.is_null() => read(problem),
        Must::ReadIfAny(problem) if !text.is_empty() => read(problem),
        Must::Within(least, most, why) if value.as_i64().is_some_and(|n| !(least..=most).contains(&n)) => {
            invalid(at, value, why, causes);
        }
        Must::Lie(least, most, why) if !(least..=most).contains(&value.as_i64().unwrap_or(0)) => {
            invalid(at, &json!(value.as_i64().unwrap_or(0)), why, causes);
        }
        Must::NotBeNegative if meta::quantity::nanos(text).is_some_and(|n| n < 0) => {
            invalid(at, value, "must be greater than or equal to 0", causes);
        }
        Must::HoldAtMost(most) if value.as_array().is_some_and(|items| items.len() > most) => {
            let found = value.as_array().map_or(0, Vec::len);
            let message = format!("Too many: {found}: must have at most {most} items");
            causes.push(cause("FieldValueTooMany", at, message));
        }
        Must::BeShort(most) if text.len() > most => {
            let message = format!("Too long: may not be more than {most} bytes");
            causes.push(cause("FieldValueTooLong", at, message));
        }
        Must::Differ(field) => {
            let mut seen = HashSet::new();
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                let (said, at) = match field {
                    "" => (item, format!("{at}[{index}]")),
                    _ => (&item[field], format!("{at}[{index}].{field}")),
                };
                if !said.is_null() && !seen.insert(said.to_string()) {
                    causes.push(cause("FieldValueDuplicate", &at, format!("Duplicate value: {said}")));
                }
            }
        }
        Must::Select => label_selector::check(at, value, causes),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_say_where_and_what() {
        let rules: Rules = &[
            ("spec.name", &[Must::Be]),
            ("spec.items[].port", &[Must::Within(1, 65535, PORT)]),
            ("spec.items", &[Must::HoldAtMost(2), Must::Differ("name")]),
            ("spec.reference?.kind", &[Must::Exactly(&["A"])]),
        ];
        let says = |object: Value| {
            let mut causes = Vec::new();
            check(&object, rules, &mut causes);
            causes.iter().map(|cause| format!("{} {}", cause.reason, cause.field)).collect::<Vec<_>>()
        };
        assert_eq!(says(json!({"spec": {"name": "a"}})), Vec::<String>::new());
        assert_eq!(says(json!({})), ["FieldValueRequired spec.name"]);
        let items = json!([{"name": "x", "port": 0}, {"name": "x"}, {"name": "y"}]);
        assert_eq!(
            says(json!({"spec": {"name": "a", "items": items, "reference": {}}})),
            [
                "FieldValueInvalid spec.items[0].port",
                "FieldValueTooMany spec.items",
                "FieldValueDuplicate spec.items[1].name",
                "FieldValueNotSupported spec.reference.kind",
            ]
        );
    }
}
