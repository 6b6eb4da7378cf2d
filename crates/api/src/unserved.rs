//! What the API has and nothing acts on: each field, annotation, feature gate and kind with the sentence that its user reads. Pure.
//!
//! Admission answers with these rows, and xtask's test `every_field_acts_or_is_listed` holds them against the schemas: a field
//! is read by code that acts, or has a row here.

mod cdi;
mod hostpath;
mod instance;
mod kinds;
mod kubevirt;
mod metadata;

use serde_json::Value;

pub use cdi::{CDI, CDI_FEATURE_GATES, DATA_VOLUME};
pub use hostpath::HOSTPATH;
pub use instance::{INSTANCE, MACHINE};
pub use kinds::{KINDS, Kind};
pub use kubevirt::{FEATURE_GATES, KUBEVIRT};
pub use metadata::{ANNOTATIONS, KUBEVIRT_ANNOTATIONS, LABELS};

/// What admission answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The object is refused.
    Refused,
    /// An instance is refused. A VirtualMachine is stored with a warning, and does not start.
    NotStarted,
    /// The object is stored with a warning.
    Warned,
}

/// What has to be written for the answer to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Anything but null, an empty object included.
    Present,
    /// Anything but what clients send for a field that nobody set.
    Set,
    /// An object whose `enabled` is not false.
    Enabled,
    /// This value, in a field whose other values ask for what happens anyway.
    Is(&'static str),
    /// This value, in a field that is acted on otherwise.
    Value(&'static str),
}

/// One field that nothing acts on, with all beneath it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where it is, with `[]` for every entry of a list; of metadata, the key.
    pub path: &'static str,
    /// What has to be written there.
    pub when: When,
    /// What is answered.
    pub answer: Answer,
    /// Why, and what to do instead.
    pub why: &'static str,
}

const fn refused(path: &'static str, when: When, why: &'static str) -> Row {
    Row { path, when, answer: Answer::Refused, why }
}

const fn not_started(path: &'static str, when: When, why: &'static str) -> Row {
    Row { path, when, answer: Answer::NotStarted, why }
}

const fn warned(path: &'static str, when: When, why: &'static str) -> Row {
    Row { path, when, answer: Answer::Warned, why }
}

/// A row that an object meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The path of the field in the object.
    pub field: String,
    /// The sentence for the user.
    pub message: String,
    /// What is answered.
    pub answer: Answer,
}

impl Found {
    fn new(field: String, row: &Row) -> Self {
        let place = match row.when {
            When::Is(value) | When::Value(value) => format!("{field} {value}"),
            When::Present | When::Set | When::Enabled => field.clone(),
        };
        let message = match row.answer {
            Answer::Refused | Answer::NotStarted => format!("{place} cannot be used in this version: {}", row.why),
            Answer::Warned => format!("{place} is not acted on in this version: {}", row.why),
        };
        Found { field, message, answer: row.answer }
    }
}

/// Whether something is written: clients send zeros and empty objects for what they leave out.
pub fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(set) => *set,
        Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => fields.values().any(is_set),
    }
}

impl When {
    fn holds(self, value: &Value) -> bool {
        match self {
            When::Present => !value.is_null(),
            When::Set => is_set(value),
            When::Enabled => !value.is_null() && value["enabled"] != false,
            When::Is(expected) | When::Value(expected) => match value {
                Value::String(text) => text == expected,
                Value::Null => false,
                // As it is written: `false` is no text.
                other => format!("{other}") == expected,
            },
        }
    }
}

/// The rows that `object` meets, where `object` is at `path` of what the user wrote.
pub fn found(rows: &[Row], object: &Value, path: &str) -> Vec<Found> {
    let mut found = Vec::new();
    for row in rows {
        walk(row, object, row.path, path.to_owned(), &mut found);
    }
    found
}

fn walk(row: &Row, value: &Value, rest: &str, field: String, found: &mut Vec<Found>) {
    if rest.is_empty() {
        if row.when.holds(value) {
            found.push(Found::new(field, row));
        }
        return;
    }
    let (step, rest) = rest.split_once('.').unwrap_or((rest, ""));
    let join = |name: &str| if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") };
    match step.strip_suffix("[]") {
        Some(name) => {
            for (index, entry) in value[name].as_array().into_iter().flatten().enumerate() {
                walk(row, entry, rest, format!("{}[{index}]", join(name)), found);
            }
        }
        None => walk(row, &value[step], rest, join(step), found),
    }
}

/// The rows that the annotations and labels of `metadata` meet, where `metadata` is at `path` of what the user wrote.
pub fn found_in_metadata(metadata: &Value, path: &str) -> Vec<Found> {
    let mut found = keys(ANNOTATIONS, &metadata["annotations"], &format!("{path}.annotations"));
    found.extend(keys(LABELS, &metadata["labels"], &format!("{path}.labels")));
    found
}

/// The rows that the keys of `map` meet, where `map` is at `path` of what the user wrote.
pub fn keys(rows: &[Row], map: &Value, path: &str) -> Vec<Found> {
    let met = rows.iter().filter(|row| row.when.holds(&map[row.path]));
    met.map(|row| Found::new(format!("{path}[{}]", row.path), row)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ROWS: &[Row] = &[
        refused("a.list[].flag", When::Enabled, "leave it out"),
        warned("a.word", When::Value("odd"), "it does nothing"),
        not_started("a.gone", When::Present, "write something else"),
        refused("a.set", When::Set, "remove it"),
    ];

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(object: Value, expect: &[(&str, &str)]) {
        let found = found(ROWS, &object, "spec");
        let found: Vec<_> = found.iter().map(|one| (one.field.as_str(), one.message.as_str())).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_field_is_found_in_every_entry_of_a_list() {
        let list = json!([{}, { "flag": {} }, { "flag": { "enabled": false } }, { "flag": { "enabled": true } }]);
        let message = |index| format!("spec.a.list[{index}].flag cannot be used in this version: leave it out");
        check(
            json!({ "a": { "list": list } }),
            &[("spec.a.list[1].flag", &message(1)), ("spec.a.list[3].flag", &message(3))],
        );
    }

    #[test]
    fn a_value_is_named_in_the_message() {
        check(json!({ "a": { "word": "even" } }), &[]);
        let message = "spec.a.word odd is not acted on in this version: it does nothing";
        check(json!({ "a": { "word": "odd" } }), &[("spec.a.word", message)]);
    }

    #[test]
    fn an_empty_object_is_present_and_not_set() {
        let message = "spec.a.gone cannot be used in this version: write something else";
        check(json!({ "a": { "gone": {}, "set": { "x": "" } } }), &[("spec.a.gone", message)]);
        check(json!({ "a": { "gone": null } }), &[]);
    }

    #[test]
    fn keys_of_metadata_are_found_by_their_values() {
        let metadata = json!({
            "annotations": { "hooks.kubevirt.io/hookSidecars": "[]", "kubevirt.io/immediate-data-volume-creation": "true" },
            "labels": { "logVerbosity": "5" },
        });
        let found = found_in_metadata(&metadata, "metadata");
        let found: Vec<_> = found.iter().map(|one| (one.field.as_str(), one.answer)).collect();
        let expect = [
            ("metadata.annotations[hooks.kubevirt.io/hookSidecars]", Answer::Refused),
            ("metadata.labels[logVerbosity]", Answer::Warned),
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn a_sentence_says_what_to_do_instead_of_what_is_refused() {
        for row in [INSTANCE, MACHINE, ANNOTATIONS, LABELS].into_iter().flatten() {
            let remedy = ["remove", "use ", "set ", "write ", "list "].iter().any(|word| row.why.contains(word));
            assert!(remedy || row.answer == Answer::Warned, "{}: {}", row.path, row.why);
        }
    }
}
