//! The vocabulary of validation: a field with its path, what can be wrong with it, and tables of rules for fields.

use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::names::{label_problem, qualified_name_problem, subdomain_problem};
use apimachinery::schema::validate::cause;

pub(super) type Causes = Vec<Cause>;

/// A field of an object: its path and its value, which is null when it was not given.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    pub(super) path: String,
    pub(super) value: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn new(path: impl Into<String>, value: &'a Value) -> Self {
        Self { path: path.into(), value }
    }

    /// A field of this object.
    pub(super) fn get(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { path, value: &self.value[name] }
    }

    /// The items of a list below it.
    pub(super) fn each(&self, name: &str) -> impl Iterator<Item = Self> + use<'a> {
        let list = self.get(name);
        let items = list.value.as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().enumerate().map(move |(index, value)| Self { path: format!("{}[{index}]", list.path), value })
    }

    /// The entries of a map below it: the key and its value.
    pub(super) fn entries(&self, name: &str) -> impl Iterator<Item = (&'a str, Self)> + use<'a> {
        let map = self.get(name);
        let entries = map.value.as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), Self { path: format!("{}[{key}]", map.path), value }))
    }

    /// The same value, told of under another path: some of the API's errors name the list and not its item.
    pub(super) fn told_as(&self, path: impl Into<String>) -> Self {
        Self { path: path.into(), value: self.value }
    }

    pub(super) fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    pub(super) fn number(&self) -> i64 {
        self.value.as_i64().unwrap_or(0)
    }

    pub(super) fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Whether it was not given, or given as nothing.
    pub(super) fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        }
    }

    pub(super) fn required(&self, why: &str, causes: &mut Causes) {
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        causes.push(cause("FieldValueRequired", &self.path, format!("Required value{why}")));
    }

    pub(super) fn invalid(&self, why: &str, causes: &mut Causes) {
        causes.push(cause("FieldValueInvalid", &self.path, format!("Invalid value: {}: {why}", self.value)));
    }

    /// The same of a word that stands for the field.
    pub(super) fn invalid_word(&self, word: &str, why: &str, causes: &mut Causes) {
        causes.push(cause("FieldValueInvalid", &self.path, format!("Invalid value: {}: {why}", json!(word))));
    }

    pub(super) fn forbidden(&self, why: &str, causes: &mut Causes) {
        causes.push(cause("FieldValueForbidden", &self.path, format!("Forbidden: {why}")));
    }

    pub(super) fn duplicate(&self, causes: &mut Causes) {
        causes.push(cause("FieldValueDuplicate", &self.path, format!("Duplicate value: {}", self.value)));
    }

    /// The same of a word that stands for the field.
    pub(super) fn duplicate_word(&self, word: &str, causes: &mut Causes) {
        causes.push(cause("FieldValueDuplicate", &self.path, format!("Duplicate value: {}", json!(word))));
    }

    pub(super) fn not_found(&self, causes: &mut Causes) {
        causes.push(cause("FieldValueNotFound", &self.path, format!("Not found: {}", json!(self.text()))));
    }

    pub(super) fn unsupported(&self, supported: &[&str], causes: &mut Causes) {
        let listed: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
        let value = if self.is_set() { self.value.to_string() } else { "\"\"".to_owned() };
        let message = format!("Unsupported value: {value}: supported values: {}", listed.join(", "));
        causes.push(cause("FieldValueNotSupported", &self.path, message));
    }

    /// Checks it against one rule.
    pub(super) fn check(&self, rule: &Rule, causes: &mut Causes) {
        match rule {
            Rule::Needed if self.is_empty() => self.required("", causes),
            Rule::Needed => {}
            Rule::Chosen(_) if self.is_empty() => self.required("", causes),
            Rule::Chosen(words) if words.contains(&self.text()) => {}
            Rule::OneOf(words) if !self.is_set() || words.contains(&self.text()) => {}
            Rule::Exactly(words) if words.contains(&self.text()) => {}
            Rule::OneOf(words) | Rule::Exactly(words) | Rule::Chosen(words) => self.unsupported(words, causes),
            Rule::AtLeast(least) => {
                let why = match least {
                    1 => "must be greater than 0".to_owned(),
                    least => format!("must be greater than or equal to {least}"),
                };
                if self.is_set() && self.number() < *least {
                    self.invalid(&why, causes);
                }
            }
            Rule::Within(least, most) => {
                if self.is_set() && !(*least..=*most).contains(&self.number()) {
                    self.invalid(&format!("must be between {least} and {most}, inclusive"), causes);
                }
            }
            Rule::Name(problem) if !self.is_empty() => {
                if let Some(why) = problem(self.text()) {
                    self.invalid(&why, causes);
                }
            }
            Rule::Name(_) => {}
            Rule::Absent(_) if self.is_empty() => {}
            Rule::Absent(why) => self.forbidden(why, causes),
        }
    }
}

/// What a field must be. All but the first three are about fields that were given.
pub(super) enum Rule {
    /// There, and not empty.
    Needed,
    /// There, and one of these words.
    Chosen(&'static [&'static str]),
    /// One of these words; that it is not there is told as a word that is none of them.
    Exactly(&'static [&'static str]),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A number that is not less.
    AtLeast(i64),
    /// A number between two.
    Within(i64, i64),
    /// A name of a kind; the function says what is wrong with it.
    Name(fn(&str) -> Option<String>),
    /// Not there, and why not.
    Absent(&'static str),
}

pub(super) const PORT: Rule = Rule::Within(1, 65535);
/// The number of a user or a group.
pub(super) const ID: Rule = Rule::Within(0, i32::MAX as i64);
pub(super) const NOT_NEGATIVE: Rule = Rule::AtLeast(0);
pub(super) const LABEL: Rule = Rule::Name(|name| label_problem(name).map(str::to_owned));
pub(super) const SUBDOMAIN: Rule = Rule::Name(|name| subdomain_problem(name).map(str::to_owned));
pub(super) const QUALIFIED_NAME: Rule = Rule::Name(qualified_name_problem);
pub(super) const FILE_MODE: Rule = Rule::Within(0, 0o777);

/// Checks the fields of `object` that the table names.
pub(super) fn check(object: &Field<'_>, rules: &[(&str, Rule)], causes: &mut Causes) {
    for (name, rule) in rules {
        object.get(name).check(rule, causes);
    }
}

/// Checks a map of labels, of which errors name the map.
pub(super) fn labels(map: &Field<'_>, causes: &mut Causes) {
    for (key, value) in map.value.as_object().into_iter().flatten() {
        if let Some(why) = qualified_name_problem(key) {
            map.invalid_word(key, &why, causes);
        }
        let text = value.as_str().unwrap_or_default();
        if let Some(why) = apimachinery::names::label_value_problem(text) {
            map.invalid_word(text, &why, causes);
        }
    }
}
