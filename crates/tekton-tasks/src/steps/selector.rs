//! Conditions on fields, in the grammar of label selectors: `status.phase == Running, metadata.labels.a in (b, c)`. A key that is no
//! plain word is in brackets: `metadata.annotations['kubevirt.io/a.b']`. Pure.

use std::iter::Peekable;
use std::str::Chars;

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
        let mut reader = Reader(text.chars().peekable());
        let parts = reader.parts().map_err(|why| format!("{text:?}: {why}"))?;
        Ok(Self(parts))
    }

    /// Whether all parts hold for `object`.
    pub fn holds(&self, object: &Value) -> bool {
        self.0.iter().all(|part| part.holds(object))
    }
}

impl Part {
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

/// Maps whose keys may have a prefix that is no domain, and so need no brackets.
const MAPS: [&str; 2] = ["labels", "annotations"];

/// Reads from left to right, so that what is quoted stays as it is.
struct Reader<'a>(Peekable<Chars<'a>>);

impl Reader<'_> {
    fn parts(&mut self) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        if self.next_is_none() {
            return Ok(parts);
        }
        loop {
            parts.push(self.part()?);
            if self.next_is_none() {
                return Ok(parts);
            }
            if !self.takes(',') {
                return Err(format!(
                    "{:?} is behind a part that is complete: write a comma between parts",
                    self.rest()
                ));
            }
        }
    }

    fn part(&mut self) -> Result<Part, String> {
        if matches!(self.peek(), None | Some(',')) {
            return Err("there is nothing on one side of a comma".to_owned());
        }
        if self.takes('!') {
            return Ok(Part { path: self.path()?, test: Test::Missing });
        }
        let path = self.path()?;
        let test = match self.peek() {
            Some('=') => {
                self.takes('=');
                self.0.next_if_eq(&'=');
                Test::In(vec![self.value()?])
            }
            Some('!') => {
                self.takes('!');
                if self.0.next_if_eq(&'=').is_none() {
                    return Err("write a test as == or !=".to_owned());
                }
                Test::NotIn(vec![self.value()?])
            }
            Some('>') => {
                self.takes('>');
                Test::Above(self.number()?)
            }
            Some('<') => {
                self.takes('<');
                Test::Below(self.number()?)
            }
            None | Some(',') => Test::Exists,
            Some(_) => match self.word(char::is_alphabetic).as_str() {
                "in" => Test::In(self.values()?),
                "notin" => Test::NotIn(self.values()?),
                other => {
                    return Err(format!(
                        "{:?} is no test: write ==, !=, <, >, in or notin",
                        other.to_owned() + &self.rest()
                    ));
                }
            },
        };
        Ok(Part { path, test })
    }

    /// `.a.b[0]['c.d']`.
    fn path(&mut self) -> Result<Vec<Key>, String> {
        let is_map =
            |path: &[Key]| path.last().is_some_and(|key| MAPS.iter().any(|map| *key == Key::Field((*map).to_owned())));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/');
        self.peek();
        let (mut path, mut stray) = (Vec::new(), None);
        let mut needs_field = self.0.next_if_eq(&'.').is_some() || self.0.peek() != Some(&'[');
        loop {
            if needs_field {
                let field = self.word(plain);
                if field.is_empty() {
                    return Err(format!("{:?} is no path of fields: write it as status.phase", self.rest()));
                }
                if field.contains('/') && !is_map(&path) {
                    stray.get_or_insert_with(|| field.clone());
                }
                path.push(Key::Field(field));
            }
            needs_field = self.0.next_if_eq(&'.').is_some();
            if !needs_field {
                if self.0.next_if_eq(&'[').is_none() {
                    break;
                }
                path.push(self.bracketed()?);
            }
        }
        addressable(&path)?;
        match stray {
            None => Ok(path),
            Some(field) => {
                Err(format!("no field is called {field:?}: write a key of a map in brackets, as ['kubevirt.io/name']"))
            }
        }
    }

    fn bracketed(&mut self) -> Result<Key, String> {
        let key = match self.quoted()? {
            Some(key) => Key::Field(key),
            None => {
                let index = self.word(|c| c.is_ascii_digit());
                let wrong = || format!("{index:?} is no index: write a key in brackets as ['kubevirt.io/name']");
                Key::Index(index.parse().map_err(|_| wrong())?)
            }
        };
        if self.takes(']') { Ok(key) } else { Err("a bracket is not closed".to_owned()) }
    }

    /// `(a, 'b c')`.
    fn values(&mut self) -> Result<Vec<String>, String> {
        if !self.takes('(') {
            return Err("write the values as (a, b)".to_owned());
        }
        if self.takes(')') {
            return Err("there is no value: write them as (a, b)".to_owned());
        }
        let mut values = vec![self.value()?];
        while self.takes(',') {
            values.push(self.value()?);
        }
        if self.takes(')') { Ok(values) } else { Err("a parenthesis is not closed".to_owned()) }
    }

    /// A value, which may be empty, as of a label.
    fn value(&mut self) -> Result<String, String> {
        self.peek();
        if let Some(text) = self.quoted()? {
            return Ok(text);
        }
        let ends = |c: char| {
            c.is_whitespace() || matches!(c, ',' | '(' | ')' | '=' | '!' | '<' | '>' | '[' | ']' | '\'' | '"')
        };
        Ok(self.word(|c| !ends(c)))
    }

    fn number(&mut self) -> Result<f64, String> {
        let text = self.value()?;
        text.parse().ok().filter(|number: &f64| !number.is_nan()).ok_or_else(|| format!("{text:?} is no number"))
    }

    fn quoted(&mut self) -> Result<Option<String>, String> {
        let Some(mark) = self.0.next_if(|c| matches!(c, '\'' | '"')) else { return Ok(None) };
        let text = self.word(|c| c != mark);
        match self.0.next() {
            Some(_) => Ok(Some(text)),
            None => Err("a quotation mark is not closed".to_owned()),
        }
    }

    fn word(&mut self, of: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(c) = self.0.next_if(|c| of(*c)) {
            text.push(c);
        }
        text
    }

    /// What is next behind blanks.
    fn peek(&mut self) -> Option<char> {
        while self.0.next_if(|c| c.is_whitespace()).is_some() {}
        self.0.peek().copied()
    }

    fn takes(&mut self, mark: char) -> bool {
        self.peek();
        self.0.next_if_eq(&mark).is_some()
    }

    fn next_is_none(&mut self) -> bool {
        self.peek().is_none()
    }

    fn rest(&self) -> String {
        self.0.clone().collect()
    }
}

/// Refuses paths that can lead nowhere, for which one would wait until the end: no field has a slash, and labels and annotations have
/// texts beneath their keys.
fn addressable(path: &[Key]) -> Result<(), String> {
    let fields: Option<Vec<&str>> = path
        .iter()
        .map(|key| match key {
            Key::Field(name) => Some(name.as_str()),
            Key::Index(_) => None,
        })
        .collect();
    let fields = fields.unwrap_or_default();
    match fields.as_slice() {
        ["metadata", map @ ("labels" | "annotations"), first, rest @ ..] if !rest.is_empty() => {
            let key = [&[*first], rest].concat().join(".");
            Err(format!("there is nothing beneath a key of {map}: write it as metadata.{map}['{key}']"))
        }
        _ => Ok(()),
    }
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
            "metadata": { "labels": { "a": "b", "team/x": "" }, "annotations": { "a.b/c": "x, y", "d": "1" } },
            "spec": { "nodeSelector": { "kubernetes.io/hostname": "n" } },
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
    fn keys_and_values_that_are_no_plain_words_are_quoted() {
        check("metadata.annotations['a.b/c'] == 'x, y', status.ready=true", Ok(true));
        check("metadata.annotations[\"a.b/c\"] in (z, \"x, y\")", Ok(true));
        check("!metadata.annotations['a.b/d']", Ok(true));
        check("['metadata']['annotations']['a.b/c']", Ok(true));
        check("spec.nodeSelector['kubernetes.io/hostname'] notin (m)", Ok(true));
        check("metadata.labels.team/x=, metadata.labels.a notin (x,)", Ok(true));
        check("metadata.annotations['a.b/c", Err("quotation mark is not closed"));
        check("metadata.annotations['a.b/c' == x", Err("bracket is not closed"));
        check("metadata.annotations[a.b/c] == x", Err("no index"));
        check("status.phase == 'a", Err("quotation mark is not closed"));
    }

    /// It would be waited for without end.
    #[test]
    fn what_no_path_leads_to_is_refused() {
        check("metadata.annotations.a.b/c == x", Err("write it as metadata.annotations['a.b/c']"));
        check("metadata.labels.kubevirt.io == x", Err("write it as metadata.labels['kubevirt.io']"));
        check("spec.nodeSelector.kubernetes.io/hostname == n", Err("in brackets"));
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        check("status.phase in Failed", Err("write the values as"));
        check("status.phase in (", Err("not closed"));
        check("status.phase in ()", Err("no value"));
        check("status.phase ! x", Err("as == or !="));
        check("a)", Err("no test"));
        check("a == b)", Err("behind a part"));
        check("a,,b", Err("nothing on one side"));
        check("a,", Err("nothing on one side"));
        check("status..phase == x", Err("no path"));
        check("a > b", Err("no number"));
        check("a == b c", Err("behind a part"));
        check("a b", Err("no test"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z.,()!=<> '\"/\\[\\]0-9]{0,40}") {
            if let Ok(selector) = Selector::parse(&text) {
                selector.holds(&json!({ "a": [{ "b": 1 }] }));
            }
        }
    }
}
