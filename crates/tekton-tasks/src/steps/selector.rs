//! Conditions on fields, in the grammar of label selectors: `status.phase == Running, metadata.labels.a in (b, c)`. Pure.

use serde_json::Value;

/// A condition: all of its parts hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Selector(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
struct Part {
    path: Vec<Key>,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    Field(String),
    Index(usize),
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
    Above(f64),
    Below(f64),
}

impl Selector {
    /// Reads a condition; an empty one holds for everything.
    ///
    /// # Errors
    /// A sentence about what cannot be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        split(text)?.iter().map(|part| Part::parse(part)).collect::<Result<_, _>>().map(Self)
    }

    /// Whether all parts hold for `object`.
    pub fn holds(&self, object: &Value) -> bool {
        self.0.iter().all(|part| part.holds(object))
    }
}

/// The parts between commas that are not within parentheses.
fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut parts, mut part, mut within) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        match c {
            '(' if within => return Err(format!("{text:?}: a parenthesis within another")),
            '(' => within = true,
            ')' if !within => return Err(format!("{text:?}: a parenthesis is closed that was not opened")),
            ')' => within = false,
            ',' if !within => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    if within {
        return Err(format!("{text:?}: a parenthesis is not closed"));
    }
    parts.push(part);
    let parts: Vec<String> = parts.iter().map(|part| part.trim().to_owned()).collect();
    match parts.as_slice() {
        [only] if only.is_empty() => Ok(Vec::new()),
        parts if parts.iter().any(String::is_empty) => Err(format!("{text:?}: there is nothing between two commas")),
        _ => Ok(parts),
    }
}

impl Part {
    fn parse(text: &str) -> Result<Self, String> {
        let of = |path: &str, test: Test| Ok(Part { path: path_of(path)?, test });
        if let Some(path) = text.strip_prefix('!') {
            return of(path, Test::Missing);
        }
        for (word, negative) in [(" notin ", true), (" notin(", true), (" in ", false), (" in(", false)] {
            if let Some((path, rest)) = text.split_once(word) {
                let rest = if word.ends_with('(') { rest } else { rest.trim().strip_prefix('(').unwrap_or_default() };
                let list = rest.trim().strip_suffix(')').filter(|list| !list.trim().is_empty());
                let list = list.ok_or_else(|| format!("{text:?}: write the values as (a, b)"))?;
                let values = list.split(',').map(|value| value_of(text, value)).collect::<Result<_, _>>()?;
                return of(path, if negative { Test::NotIn(values) } else { Test::In(values) });
            }
        }
        for (word, test) in [("!=", Test::NotIn as fn(Vec<String>) -> Test), ("==", Test::In), ("=", Test::In)] {
            if let Some((path, value)) = text.split_once(word) {
                return of(path, test(vec![value_of(text, value)?]));
            }
        }
        for (word, test) in [(">", Test::Above as fn(f64) -> Test), ("<", Test::Below)] {
            if let Some((path, value)) = text.split_once(word) {
                let number = value.trim().parse().map_err(|_| format!("{text:?}: {:?} is no number", value.trim()))?;
                return of(path, test(number));
            }
        }
        of(text, Test::Exists)
    }

    fn holds(&self, object: &Value) -> bool {
        let found = self.path.iter().try_fold(object, |at, key| match key {
            Key::Field(name) => at.get(name),
            Key::Index(index) => at.get(index),
        });
        let found = found.filter(|value| !value.is_null());
        let text = found.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        let number = || text.as_ref().and_then(|text| text.parse::<f64>().ok());
        match &self.test {
            Test::Exists => found.is_some(),
            Test::Missing => found.is_none(),
            Test::In(values) => text.is_some_and(|text| values.contains(&text)),
            Test::NotIn(values) => text.is_none_or(|text| !values.contains(&text)),
            Test::Above(limit) => number().is_some_and(|number| number > *limit),
            Test::Below(limit) => number().is_some_and(|number| number < *limit),
        }
    }
}

fn value_of(part: &str, text: &str) -> Result<String, String> {
    let text = text.trim().trim_matches(['"', '\'']);
    if text.contains(['=', '!', '(', ')', '<', '>']) || text.contains(char::is_whitespace) {
        return Err(format!("{part:?}: {text:?} is no value"));
    }
    Ok(text.to_owned())
}

/// `a.b[0].c`.
fn path_of(text: &str) -> Result<Vec<Key>, String> {
    let text = text.trim().trim_start_matches('.');
    let wrong = || format!("{text:?} is no path of fields: write it as status.phase");
    let mut path = Vec::new();
    for word in text.split('.') {
        let mut parts = word.split('[');
        let field = parts.next().unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/');
        if field.is_empty() || !field.chars().all(plain) {
            return Err(wrong());
        }
        path.push(Key::Field(field.to_owned()));
        for index in parts {
            let index = index.strip_suffix(']').and_then(|index| index.parse().ok()).ok_or_else(wrong)?;
            path.push(Key::Index(index));
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<bool, &str>) {
        let object = json!({
            "status": { "phase": "Running", "interfaces": [{ "ip": "10.0.0.1" }], "ready": true, "count": 3 },
            "metadata": { "labels": { "a": "b" } },
        });
        match (Selector::parse(text).map(|selector| selector.holds(&object)), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{text}"),
            (Err(error), Err(expect)) => assert!(error.contains(expect), "{text}: {error}"),
            (found, expect) => panic!("{text}: {found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn conditions_are_those_of_selectors() {
        check("", Ok(true));
        check("status.phase == Running", Ok(true));
        check("status.phase=Running", Ok(true));
        check("status.phase in (Failed, Unknown)", Ok(false));
        check("status.phase in (Failed, Running), metadata.labels.a == b", Ok(true));
        check("status.phase notin (Failed)", Ok(true));
        check("status.phase != Running", Ok(false));
        check("status.reason", Ok(false));
        check("!status.reason, status.ready == true", Ok(true));
        check("status.count > 2, status.count < 4", Ok(true));
        check("status.interfaces[0].ip == 10.0.0.1", Ok(true));
        check("status.interfaces[1].ip", Ok(false));
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        check("status.phase in Failed", Err("write the values as"));
        check("status.phase in (", Err("not closed"));
        check("a)", Err("not opened"));
        check("a,,b", Err("nothing between"));
        check("status..phase == x", Err("no path"));
        check("a > b", Err("no number"));
        check("a == b c", Err("no value"));
        check("a b", Err("no path"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z.,()!=<> \\[\\]0-9]{0,40}") {
            if let Ok(selector) = Selector::parse(&text) {
                selector.holds(&json!({ "a": [{ "b": 1 }] }));
            }
        }
    }
}
