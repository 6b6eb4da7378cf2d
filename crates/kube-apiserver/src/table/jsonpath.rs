//! The JSONPath subset of printer columns, selectable fields and scale paths: fields, indices, `[*]` and equality filters.

use serde_json::Value;

/// The first value at `path`; the leading dot and surrounding braces are optional.
pub fn first<'a>(path: &str, value: &'a Value) -> Option<&'a Value> {
    all(path, value).into_iter().next()
}

/// Every value at `path`; none when the path is malformed.
pub fn all<'a>(path: &str, value: &'a Value) -> Vec<&'a Value> {
    let path = path.trim();
    let path = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path);
    let Some(steps) = parse(path.strip_prefix('$').unwrap_or(path)) else { return Vec::new() };
    steps.iter().fold(vec![value], |values, step| values.into_iter().flat_map(|value| follow(step, value)).collect())
}

#[derive(Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    Every,
    /// `[?(@.path == literal)]`; `negated` for `!=`.
    Filter {
        path: Vec<Step>,
        literal: Option<Value>,
        negated: bool,
    },
}

fn follow<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    match step {
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Index(index) => {
            let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let at = if *index < 0 {
                list.len().checked_sub(index.unsigned_abs() as usize)
            } else {
                usize::try_from(*index).ok()
            };
            at.and_then(|at| list.get(at)).into_iter().collect()
        }
        Step::Every => match value {
            Value::Array(list) => list.iter().collect(),
            Value::Object(map) => map.values().collect(),
            _ => Vec::new(),
        },
        Step::Filter { path, literal, negated } => {
            let matches = |item: &&Value| {
                let found = path.iter().fold(vec![*item], |values, step| {
                    values.into_iter().flat_map(|value| follow(step, value)).collect()
                });
                match literal {
                    None => !found.is_empty(),
                    Some(literal) => found.iter().any(|value| same(value, literal) != *negated),
                }
            };
            value.as_array().into_iter().flatten().filter(matches).collect()
        }
    }
}

fn same(value: &Value, literal: &Value) -> bool {
    match (value.as_f64(), literal.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() < f64::EPSILON,
        _ => value == literal,
    }
}

fn parse(mut path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    while !path.is_empty() {
        if let Some(rest) = path.strip_prefix('[') {
            let end = closing(rest)?;
            steps.push(bracket(rest[..end].trim())?);
            path = &rest[end + 1..];
            continue;
        }
        path = path.strip_prefix('.').unwrap_or(path);
        if path.starts_with('[') {
            continue;
        }
        let (name, rest) = word(path);
        if name.is_empty() {
            return if steps.is_empty() && rest.is_empty() { Some(steps) } else { None };
        }
        steps.push(if name == "*" { Step::Every } else { Step::Field(name) });
        path = rest;
    }
    Some(steps)
}

/// A field name up to the next unescaped dot or bracket.
fn word(path: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = path.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (name, &path[at..]),
            c => name.push(c),
        }
    }
    (name, "")
}

/// Where the bracket that is open at the start closes, quotes respected.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (c, quote) {
            (c, Some(q)) if c == q => quote = None,
            (_, Some(_)) => {}
            ('\'' | '"', None) => quote = Some(c),
            ('[', None) => depth += 1,
            (']', None) if depth == 0 => return Some(at),
            (']', None) => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inside: &str) -> Option<Step> {
    if inside == "*" {
        return Some(Step::Every);
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return filter(condition.trim());
    }
    if let Some(text) = quoted(inside) {
        return Some(Step::Field(text));
    }
    // `[-1:]`, the last element.
    inside.strip_suffix(':').unwrap_or(inside).parse().ok().map(Step::Index)
}

fn filter(condition: &str) -> Option<Step> {
    // A filter within a filter is no part of the subset: without it, no path leads this deeper than the stack is.
    if condition.contains("[?(") {
        return None;
    }
    let (left, literal, negated) =
        match condition.split_once("==").map(|p| (p, false)).or(condition.split_once("!=").map(|p| (p, true))) {
            Some(((left, right), negated)) => {
                let right = right.trim();
                let literal = quoted(right).map(Value::String).or_else(|| serde_json::from_str(right).ok())?;
                (left.trim(), Some(literal), negated)
            }
            None => (condition, None, false),
        };
    Some(Step::Filter { path: parse(left.strip_prefix('@')?)?, literal, negated })
}

fn quoted(text: &str) -> Option<String> {
    ['\'', '"'].into_iter().find_map(|q| text.strip_prefix(q)?.strip_suffix(q)).map(|text| text.replace("\\.", "."))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(path: &str, expect: &[Value]) {
        let object = json!({
            "metadata": {"labels": {"kubevirt.io/x": "l"}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "n": 3}, {"type": "Paused", "status": "False"}],
                "interfaces": [{"ip": "a"}, {"ip": "b"}]}});
        assert_eq!(all(path, &object), expect.iter().collect::<Vec<_>>(), "{path}");
    }

    #[test]
    fn paths_of_printer_columns() {
        check(".status.conditions[?(@.type=='Ready')].status", &[json!("True")]);
        check("{.status.conditions[?(@.type == \"Paused\")].status}", &[json!("False")]);
        check(".status.conditions[?(@.type!='Ready')].type", &[json!("Paused")]);
        check(".status.conditions[?(@.n==3)].type", &[json!("Ready")]);
        check(".status.conditions[?(@.n)].type", &[json!("Ready")]);
        check(".status.interfaces[0].ip", &[json!("a")]);
        check(".status.interfaces[-1:].ip", &[json!("b")]);
        check("status.interfaces[*].ip", &[json!("a"), json!("b")]);
        check(r".metadata.labels.kubevirt\.io/x", &[json!("l")]);
        check(".metadata.labels['kubevirt.io/x']", &[json!("l")]);
        check(r".metadata.labels['kubevirt\.io/x']", &[json!("l")]);
        check(".status.missing", &[]);
        check(".status.conditions[?(", &[]);
        check(".status..x", &[]);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        /// A path leads to values of the document, or nowhere.
        #[test]
        fn any_path_finds_values_of_the_document_only(path in ".{0,40}|\\{?(\\.[ab*]{0,2}|\\[-?[0-9]{0,3}\\]|\\[\\*\\]|\\[\\?\\(@\\.?a?(==|!=)?\"?x?\"?\\)?\\]|'){0,8}\\}?") {
            let document = json!({"a": [{"a": "x", "b": 1}, {"a": ["x", null]}], "b": {"a": {"b": "x"}}});
            for found in super::all(&path, &document) {
                prop_assert!(document.to_string().contains(&found.to_string()));
            }
        }
    }

    #[test]
    fn a_path_of_any_depth_is_read() {
        for (open, close) in
            [(".a", ""), ("[0]", ""), ("[*]", ""), ("[?(@", ")]"), ("{", "}"), ("[", "]"), ("['", "']")]
        {
            super::all(&(open.repeat(10_000) + &close.repeat(10_000)), &json!({"a": []}));
        }
    }
}
