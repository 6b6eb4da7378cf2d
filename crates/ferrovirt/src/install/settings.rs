//! `--set`: fields of the HyperConverged object's spec from the command line. Pure.

use serde_json::{Map, Value};

use crate::failure::advise;

/// `FIELD=VALUE`, the field with dots: as JSON where the value is some, else as text.
///
/// # Errors
/// When there is no `=`, or a field is within another that was given a value.
pub(super) fn read(pairs: &[String]) -> anyhow::Result<Value> {
    let mut spec = Value::Object(Map::new());
    for pair in pairs {
        let wrong = |why: &str| {
            let error = anyhow::anyhow!("--set is {pair:?}, {why}");
            advise(error, "write it as FIELD=VALUE, with the field's path below spec of the HyperConverged object")
        };
        let (path, text) = pair.split_once('=').ok_or_else(|| wrong("which has no value"))?;
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
        let mut at = &mut spec;
        for word in path.split('.') {
            if word.is_empty() {
                return Err(wrong("whose field is none"));
            }
            let fields = at.as_object_mut().ok_or_else(|| wrong("a field within one that has a value already"))?;
            at = fields.entry(word).or_insert_with(|| Value::Object(Map::new()));
        }
        *at = value;
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(pairs: &[&str], expect: Option<Value>) {
        let pairs: Vec<String> = pairs.iter().map(|pair| (*pair).to_owned()).collect();
        assert_eq!(read(&pairs).ok(), expect, "{pairs:?}");
    }

    #[test]
    fn fields_are_paths_and_values_are_json_or_text() {
        check(&[], Some(json!({})));
        let pairs = [
            "virtualization.evictionStrategy=None",
            "virtualization.liveMigrationConfig.progressTimeout=60",
            "a=\"5\"",
        ];
        let expect = json!({ "virtualization": { "evictionStrategy": "None", "liveMigrationConfig": { "progressTimeout": 60 } }, "a": "5" });
        check(&pairs, Some(expect));
        check(&["a=true", "b=[1]", "c=x=y"], Some(json!({ "a": true, "b": [1], "c": "x=y" })));
    }

    #[test]
    fn what_is_no_field_with_a_value_is_refused() {
        check(&["a"], None);
        check(&["=1"], None);
        check(&["a..b=1"], None);
        check(&["a=1", "a.b=2"], None);
    }
}
