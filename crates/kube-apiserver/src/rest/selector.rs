//! Label and field selectors.

use serde_json::Value;

use crate::error::ApiError;
use crate::registry::Resource;
use crate::store::Object;

/// One requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

/// A label selector; the empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<Requirement>);

impl Labels {
    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut rest = text.trim();
        let mut requirements = Vec::new();
        while !rest.is_empty() {
            let (requirement, tail) = requirement(rest)
                .ok_or_else(|| ApiError::bad_request(format!("unable to parse requirement: found {rest:?} in {text:?}")))?;
            requirements.push(requirement);
            rest = match tail.trim_start().strip_prefix(',') {
                Some(tail) if tail.trim().is_empty() => {
                    return Err(ApiError::bad_request(format!("found ',' at the end of {text:?}, expected: !, identifier")));
                }
                Some(tail) => tail.trim_start(),
                None if tail.trim().is_empty() => "",
                None => return Err(ApiError::bad_request(format!("unable to parse requirement: found {tail:?}, expected: ','"))),
            };
        }
        Ok(Self(requirements))
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a set of labels satisfies all requirements.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => get(key).is_some_and(|v| values.iter().any(|x| x == v)),
            Requirement::NotIn(key, values) => get(key).is_none_or(|v| !values.iter().any(|x| x == v)),
            Requirement::Exists(key) => get(key).is_some(),
            Requirement::Absent(key) => get(key).is_none(),
            Requirement::Greater(key, bound) => get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *bound),
            Requirement::Less(key, bound) => get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *bound),
        })
    }

    /// The same for a stored object.
    pub fn matches_object(&self, object: &Object) -> bool {
        self.is_empty()
            || self.matches(|key| object.labels.iter().find(|(k, _)| &**k == key).map(|(_, value)| &**value))
    }
}

fn is_key(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/')
}

fn split_word(text: &str) -> (&str, &str) {
    let end = text.find(|c| !is_key(c)).unwrap_or(text.len());
    text.split_at(end)
}

fn requirement(text: &str) -> Option<(Requirement, &str)> {
    if let Some(rest) = text.strip_prefix('!') {
        let (key, rest) = split_word(rest.trim_start());
        return (!key.is_empty()).then(|| (Requirement::Absent(key.to_owned()), rest));
    }
    let (key, rest) = split_word(text);
    if key.is_empty() {
        return None;
    }
    let key = key.to_owned();
    let rest = rest.trim_start();
    for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some(rest) = rest.strip_prefix(sign) {
            let (value, rest) = split_word(rest.trim_start());
            let values = vec![value.to_owned()];
            let found = if equal { Requirement::In(key, values) } else { Requirement::NotIn(key, values) };
            return Some((found, rest));
        }
    }
    if let Some(tail) = rest.strip_prefix('>').or_else(|| rest.strip_prefix('<')) {
        let (value, after) = split_word(tail.trim_start());
        let bound = value.parse().ok()?;
        let found = if rest.starts_with('>') { Requirement::Greater(key, bound) } else { Requirement::Less(key, bound) };
        return Some((found, after));
    }
    let (word, after) = split_word(rest);
    if word == "in" || word == "notin" {
        let inside = after.trim_start().strip_prefix('(')?;
        let (list, after) = inside.split_once(')')?;
        let values: Vec<String> = list.split(',').map(|v| v.trim().to_owned()).collect();
        if values.iter().any(|v| !v.chars().all(is_key)) {
            return None;
        }
        let found = if word == "in" { Requirement::In(key, values) } else { Requirement::NotIn(key, values) };
        return Some((found, after));
    }
    Some((Requirement::Exists(key), rest))
}

/// A field selector; the empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, String, bool)>);

impl Fields {
    /// Parses `metadata.name=a,spec.nodeName!=b` and checks that the resource supports the fields.
    pub fn parse(text: &str, resource: &Resource) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (field, value, true)
            } else {
                return Err(ApiError::bad_request(format!("invalid selector: {text:?}; can't understand {term:?}")));
            };
            let known = matches!(field, "metadata.name" | "metadata.namespace")
                || resource.selectable_fields.iter().any(|path| path.trim_start_matches('.') == field);
            if !known {
                return Err(ApiError::bad_request(format!("field label not supported: {field}")));
            }
            terms.push((field.to_owned(), unescape(value), equal));
        }
        Ok(Self(terms))
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object satisfies all terms; its bytes are parsed only when name and namespace do not decide.
    pub fn matches(&self, object: &Object) -> bool {
        let mut parsed: Option<Value> = None;
        self.0.iter().all(|(field, expect, equal)| {
            let same = match field.as_str() {
                "metadata.name" => *object.key.name == **expect,
                "metadata.namespace" => *object.key.namespace == **expect,
                path => field_of(parsed.get_or_insert_with(|| object.value()), path) == *expect,
            };
            same == *equal
        })
    }
}

fn field_of(object: &Value, path: &str) -> String {
    let at = |path: &str| {
        let mut node = object;
        for part in path.split('.') {
            node = node.get(part)?;
        }
        Some(node)
    };
    // Names in selectors are those of the core version; events of events.k8s.io call them otherwise.
    let found = at(path).or_else(|| match path.split_once('.') {
        Some(("involvedObject", rest)) => at(&format!("regarding.{rest}")),
        None if path == "source" => at("source.component"),
        None if path == "reportingComponent" => at("reportingController"),
        _ => None,
    });
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(map)) => map.get("component").and_then(Value::as_str).unwrap_or_default().to_owned(),
        Some(Value::Null) | None if path == "spec.unschedulable" || path == "spec.hostNetwork" => "false".to_owned(),
        Some(Value::Null) | None if path == "status.replicas" || path == "status.successful" => "0".to_owned(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn split_unescaped(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let last = terms.len() - 1;
        match c {
            '\\' => {
                terms[last].push(c);
                terms[last].extend(chars.next());
            }
            ',' => terms.push(String::new()),
            c => terms[last].push(c),
        }
    }
    terms
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
    }
    out
}
