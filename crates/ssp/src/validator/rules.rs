//! The rules that an annotation holds, as JSON. Pure.

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::path::{Malformed, PREFIX, Path};

/// Rules of one machine.
pub const MOST: usize = 128;
/// Values that one rule allows.
pub const VALUES: usize = 256;
/// Bytes of the longest regular expression.
const EXPRESSION: usize = 2048;
/// Bytes that one takes when it is compiled.
const COMPILED: usize = 1 << 18;

/// A rule, and how it is spoken of, whatever it is worth.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name, which no other has.
    pub name: String,
    /// The path of what is checked, as refusals name the field.
    pub field: String,
    /// What people are told when it is not met.
    pub message: String,
    /// The rule itself.
    pub rule: Result<Rule, Failure>,
}

/// What is checked.
#[derive(Clone, Debug)]
pub struct Rule {
    /// What is looked at.
    pub path: Path,
    /// Where something has to be for the rule to apply.
    pub valid: Option<Path>,
    /// Who does not meet it is warned.
    pub just_warning: bool,
    /// How.
    pub check: Check,
}

/// How a rule checks each value that it finds.
#[derive(Clone, Debug)]
pub enum Check {
    /// A whole number, or a quantity that is one, within bounds.
    Integer(Bounds),
    /// A text, as many bytes long.
    Length(Bounds),
    /// A text that is one of these.
    Enum(Vec<Text>),
    /// A text in which the expression matches somewhere.
    Regex(Regex),
}

/// Bounds, both included.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// The least.
    pub least: Option<Number>,
    /// The most.
    pub most: Option<Number>,
}

/// A number, or where one is.
#[derive(Clone, Debug)]
pub enum Number {
    /// This one.
    Is(i64),
    /// At a path.
    At(Path),
}

/// A text, or where one is.
#[derive(Clone, Debug)]
pub enum Text {
    /// This one.
    Is(String),
    /// At a path.
    At(Path),
}

/// Why a rule cannot be applied. Who wrote it is to notice, so the machine is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Another one has the name.
    #[error("duplicate Rule Name")]
    Duplicate,
    /// One of `name`, `rule`, `path` and `message`.
    #[error("missing required key")]
    MissingKey,
    /// Not one of the four.
    #[error("unrecognized Rule type")]
    UnknownType,
    /// A path that cannot be read.
    #[error(transparent)]
    Path(#[from] Malformed),
    /// A path that leads nowhere, in the machine and in any.
    #[error("invalid JSONPath")]
    Nowhere,
    /// A path that leads somewhere else than to values.
    #[error("no values were found")]
    NoValues,
    /// An argument is one value.
    #[error("expected one value, found {0}")]
    NotOne(usize),
    /// A value of another kind.
    #[error("mismatching type: {0}, not {1}")]
    Mismatch(&'static str, &'static str),
    /// An argument of another kind.
    #[error("{key} is {found}, not {expected}")]
    Argument {
        /// Which.
        key: &'static str,
        /// What it is.
        found: &'static str,
        /// What it may be.
        expected: &'static str,
    },
    /// An expression that cannot be used.
    #[error("regex: {0}")]
    Regex(String),
    /// More than is looked at.
    #[error("the rules look at more values than they may")]
    Spent,
}

/// Why there are no rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Not JSON.
    #[error("it is not JSON: {0}")]
    Json(String),
    /// Not a list of objects.
    #[error("it is not a list of rules")]
    NoList,
    /// Too many.
    #[error("it holds {0} rules, and at most {MOST} are applied")]
    TooMany(usize),
}

/// Reads the rules of an annotation; an empty one holds none.
///
/// # Errors
/// When it is not a list of rules. A rule that cannot be applied is an entry that says so.
pub fn parse(text: &str) -> Result<Vec<Entry>, Unreadable> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let list: Value = serde_json::from_str(text).map_err(|error| Unreadable::Json(error.to_string()))?;
    let list = match list {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => return Err(Unreadable::NoList),
    };
    if list.len() > MOST {
        return Err(Unreadable::TooMany(list.len()));
    }
    list.iter().map(|one| one.as_object().map(entry).ok_or(Unreadable::NoList)).collect()
}

fn entry(rule: &Map<String, Value>) -> Entry {
    let said = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let path = said("path");
    let field = path.strip_prefix(PREFIX).unwrap_or(&path);
    Entry {
        name: said("name"),
        field: field.strip_prefix('$').unwrap_or(field).to_owned(),
        message: said("message"),
        rule: read(rule),
    }
}

fn read(rule: &Map<String, Value>) -> Result<Rule, Failure> {
    let check = match text(rule, "rule")? {
        Some("integer") => Check::Integer(bounds(rule, "min", "max")?),
        Some("string") => Check::Length(bounds(rule, "minLength", "maxLength")?),
        Some("enum") => Check::Enum(values(rule)?),
        Some("regex") => Check::Regex(regex(text(rule, "regex")?.unwrap_or_default())?),
        _ => return Err(Failure::UnknownType),
    };
    for key in ["name", "message"] {
        text(rule, key)?.ok_or(Failure::MissingKey)?;
    }
    let path = Path::parse(text(rule, "path")?.ok_or(Failure::MissingKey)?)?;
    let valid = text(rule, "valid")?.map(Path::parse).transpose()?;
    let just_warning = match rule.get("justWarning") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(just)) => *just,
        Some(other) => return Err(Failure::Argument { key: "justWarning", found: kind(other), expected: "a boolean" }),
    };
    Ok(Rule { path, valid, just_warning, check })
}

/// A text that is not empty.
fn text<'a>(rule: &'a Map<String, Value>, key: &'static str) -> Result<Option<&'a str>, Failure> {
    match rule.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => Err(Failure::Argument { key, found: kind(other), expected: "a string" }),
    }
}

fn bounds(rule: &Map<String, Value>, least: &'static str, most: &'static str) -> Result<Bounds, Failure> {
    Ok(Bounds { least: number(rule, least)?, most: number(rule, most)? })
}

fn number(rule: &Map<String, Value>, key: &'static str) -> Result<Option<Number>, Failure> {
    match rule.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(path)) => Ok(Some(Number::At(Path::parse(path)?))),
        Some(value) => match integer(value) {
            Some(number) => Ok(Some(Number::Is(number))),
            None => Err(Failure::Argument { key, found: kind(value), expected: "a whole number or a path" }),
        },
    }
}

fn values(rule: &Map<String, Value>) -> Result<Vec<Text>, Failure> {
    let wrong = |found| Failure::Argument { key: "values", found, expected: "a list of up to 256 strings" };
    let list = match rule.get("values") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= VALUES => list,
        Some(Value::Array(_)) => return Err(wrong("longer")),
        Some(other) => return Err(wrong(kind(other))),
    };
    let one = |value: &Value| match value.as_str() {
        Some(path) if path.starts_with(PREFIX) => Ok(Text::At(Path::parse(path)?)),
        Some(text) => Ok(Text::Is(text.to_owned())),
        None => Err(wrong(kind(value))),
    };
    list.iter().map(one).collect()
}

/// The syntax is that of RE2, and the time that matching takes grows with the text alone.
fn regex(text: &str) -> Result<Regex, Failure> {
    if text.len() > EXPRESSION {
        return Err(Failure::Regex(format!("it is longer than {EXPRESSION} bytes")));
    }
    let built = RegexBuilder::new(text).size_limit(COMPILED).dfa_size_limit(COMPILED).build();
    built.map_err(|error| Failure::Regex(error.to_string()))
}

/// A whole number; a fraction is none.
pub(super) fn integer(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let float = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT);
    #[expect(clippy::cast_possible_truncation, reason = "within what a float holds exactly")]
    value.as_i64().or(float.map(|number| number as i64))
}

/// What JSON calls it.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is wrong with a rule that would be right without `change`.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(change: Value, expect: &str) {
        let mut rule = json!({ "rule": "integer", "name": "n", "path": "jsonpath::.spec.x", "message": "m" });
        rule.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let entries = parse(&json!([rule]).to_string()).unwrap();
        let found = entries[0].rule.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_rule_that_cannot_be_applied_says_why() {
        check(json!({ "min": 1, "max": "jsonpath::.spec.y", "valid": "jsonpath::$.spec.z", "justWarning": true }), "");
        check(json!({ "min": 2.0, "unknown": 1 }), "");
        check(json!({ "rule": "float" }), "unrecognized Rule type");
        check(json!({ "rule": null }), "unrecognized Rule type");
        for key in ["name", "path", "message"] {
            check(json!({ key: null }), "missing required key");
            check(json!({ key: "" }), "missing required key");
        }
        check(json!({ "path": ".spec" }), "parameter is not JSONPath: .spec");
        check(json!({ "path": "jsonpath::spec" }), "invalid JSONPath: unexpected \"spec\"");
        check(json!({ "valid": "jsonpath::.a[" }), "invalid JSONPath: a number is missing before \"\"");
        check(json!({ "min": "5" }), "parameter is not JSONPath: 5");
        check(json!({ "min": 1.5 }), "min is number, not a whole number or a path");
        check(json!({ "max": [] }), "max is array, not a whole number or a path");
        check(json!({ "justWarning": "yes" }), "justWarning is string, not a boolean");
        check(json!({ "rule": "enum", "values": ["a", 1] }), "values is number, not a list of up to 256 strings");
        check(json!({ "rule": "enum", "values": vec!["a"; 257] }), "values is longer, not a list of up to 256 strings");
        check(json!({ "rule": "regex", "regex": "a".repeat(3000) }), "regex: it is longer than 2048 bytes");
        check(
            json!({ "rule": "regex", "regex": "(a{1000}){1000}" }),
            "regex: Compiled regex exceeds size limit of 262144 bytes.",
        );
    }

    #[test]
    fn what_is_no_list_of_rules_is_refused_whole() {
        let found = |text: &str| parse(text).map(|entries| entries.len()).map_err(|error| error.to_string());
        assert_eq!(found(""), Ok(0));
        assert_eq!(found("[]"), Ok(0));
        assert_eq!(found("null"), Ok(0));
        assert_eq!(found("{}"), Err("it is not a list of rules".to_owned()));
        assert_eq!(found("[1]"), Err("it is not a list of rules".to_owned()));
        assert!(found("[").unwrap_err().starts_with("it is not JSON: "));
        let many = json!(vec![json!({}); MOST + 1]).to_string();
        assert_eq!(found(&many), Err("it holds 129 rules, and at most 128 are applied".to_owned()));
    }
}
