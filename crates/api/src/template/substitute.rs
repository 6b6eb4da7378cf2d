//! `${NAME}` and `${{NAME}}` in a JSON value.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// What parameters stand for.
pub(super) struct Values(pub(super) BTreeMap<String, String>);

impl Values {
    /// Whether `text` names a parameter.
    pub(super) fn is_asked_for_in(&self, text: &str) -> bool {
        self.text(text) != text || self.whole(text).is_some()
    }

    /// Fills in every text of `value`, and every key.
    pub(super) fn fill(&self, value: &mut Value) -> Result<(), String> {
        match value {
            Value::String(text) => {
                match self.whole(text) {
                    Some((name, held)) => {
                        *value = serde_json::from_str(held).map_err(|_| {
                        format!("${{{{{name}}}}} stands for {held:?}, which is no value in JSON: use ${{{name}}} for a text")
                    })?;
                    }
                    None => *text = self.text(text),
                }
            }
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.fill(item))?,
            Value::Object(fields) => {
                let mut filled = Map::new();
                for (key, mut value) in std::mem::take(fields) {
                    self.fill(&mut value)?;
                    filled.insert(self.text(&key), value);
                }
                *fields = filled;
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    /// The parameter that all of `text` stands for as a value: its name and what it is.
    fn whole<'a>(&'a self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let name = text.strip_prefix("${{")?.strip_suffix("}}")?;
        Some((name, self.0.get(name)?))
    }

    /// `text` with `${NAME}` replaced. What a parameter stands for is not looked at again, and what names none stays.
    pub(super) fn text(&self, text: &str) -> String {
        let (mut out, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let found = from[2..].split_once('}').and_then(|(name, after)| Some((self.0.get(name)?, after)));
            match found {
                Some((value, after)) => {
                    out.push_str(value);
                    rest = after;
                }
                None => {
                    out.push_str("${");
                    rest = &from[2..];
                }
            }
        }
        out.push_str(rest);
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn values() -> Values {
        let all = [("A", "1"), ("B", "${A}"), ("LIST", "[1, \"x\"]")];
        Values(all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[track_caller]
    fn check(mut value: Value, expect: &Value) {
        values().fill(&mut value).unwrap();
        assert_eq!(value, *expect);
    }

    #[test]
    fn parameters_are_filled_in_wherever_they_stand() {
        check(json!("x${A}y${A}"), &json!("x1y1"));
        check(json!({ "k${A}": ["${A}", 5, null] }), &json!({ "k1": ["1", 5, null] }));
        check(json!("${{A}}"), &json!(1));
        check(json!("${{LIST}}"), &json!([1, "x"]));
    }

    #[test]
    fn what_names_no_parameter_stays_and_values_are_not_looked_at_again() {
        check(json!("${C} $A ${ ${A"), &json!("${C} $A ${ ${A"));
        check(json!("${B}"), &json!("${A}"));
        check(json!("${${A}"), &json!("${1"));
        check(json!("${{C}}"), &json!("${{C}}"));
        check(json!("x${{A}}"), &json!("x${{A}}"));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "[${}AB xé]{0,40}") {
            let (filled, named) = (values().text(&text), text.contains("${A}"));
            prop_assert!(!named || filled.contains('1'));
        }
    }
}
