//! Label selectors.

use crate::error::ApiError;
use crate::names::{label_value_problem, qualified_name_problem};

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

impl Requirement {
    /// Refuses keys and values that no label can have.
    fn check(&self) -> Result<(), ApiError> {
        let nothing = Vec::new();
        let (key, values) = match self {
            Self::In(key, values) | Self::NotIn(key, values) => (key, values),
            Self::Exists(key) | Self::Absent(key) | Self::Greater(key, _) | Self::Less(key, _) => (key, &nothing),
        };
        let wrong = |said: &str, why: String| {
            ApiError::bad_request(format!("unable to parse requirement: Invalid value: {said:?}: {why}"))
        };
        if let Some(why) = qualified_name_problem(key) {
            return Err(wrong(key, why));
        }
        let bad = values.iter().find_map(|value| Some((value, label_value_problem(value)?)));
        bad.map_or(Ok(()), |(value, why)| Err(wrong(value, why)))
    }
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
            let (requirement, tail) = requirement(rest).ok_or_else(|| {
                ApiError::bad_request(format!("unable to parse requirement: found {rest:?} in {text:?}"))
            })?;
            requirement.check()?;
            requirements.push(requirement);
            rest = match tail.trim_start().strip_prefix(',') {
                Some(tail) if tail.trim().is_empty() => {
                    return Err(ApiError::bad_request(format!(
                        "found ',' at the end of {text:?}, expected: !, identifier"
                    )));
                }
                Some(tail) => tail.trim_start(),
                None if tail.trim().is_empty() => "",
                None => {
                    return Err(ApiError::bad_request(format!(
                        "unable to parse requirement: found {tail:?}, expected: ','"
                    )));
                }
            };
        }
        Ok(Self(requirements))
    }

    /// Whether nothing is asked.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The labels of which one value is asked.
    pub fn exact(&self) -> Vec<(String, String)> {
        let one = |requirement: &Requirement| match requirement {
            Requirement::In(key, values) => match values.as_slice() {
                [value] => Some((key.clone(), value.clone())),
                _ => None,
            },
            _ => None,
        };
        self.0.iter().filter_map(one).collect()
    }

    /// Whether a set of labels satisfies all requirements.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => get(key).is_some_and(|v| values.iter().any(|x| x == v)),
            Requirement::NotIn(key, values) => get(key).is_none_or(|v| !values.iter().any(|x| x == v)),
            Requirement::Exists(key) => get(key).is_some(),
            Requirement::Absent(key) => get(key).is_none(),
            Requirement::Greater(key, bound) => {
                get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *bound)
            }
            Requirement::Less(key, bound) => get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *bound),
        })
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
        let found =
            if rest.starts_with('>') { Requirement::Greater(key, bound) } else { Requirement::Less(key, bound) };
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(selector: &str, expect: bool) {
        let labels = [("a", "1"), ("tier", "front"), ("x.io/n", "")];
        let get = |key: &str| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        assert_eq!(Labels::parse(selector).unwrap().matches(get), expect, "{selector}");
    }

    #[test]
    fn label_selectors() {
        for (selector, expect) in [
            ("", true),
            ("a=1", true),
            ("a==1,tier!=back", true),
            ("a = 1 , tier in (front, back)", true),
            ("tier notin (front)", false),
            ("missing notin (x)", true),
            ("!missing,a", true),
            ("!a", false),
            ("a>0,a<2", true),
            ("a>1", false),
            ("x.io/n=", true),
            ("x.io/n in ()", true),
        ] {
            check(selector, expect);
        }
        for bad in ["=", "a=1,", "a in 1", "a in (1", "a>b", "a b", "(a)", "A_/b=c", "!-a", "a=-", "a in (b, c.)"] {
            assert!(Labels::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        /// A selector that names exactly an object's labels selects it, and one that asks for another value does not.
        #[test]
        fn a_selector_made_of_labels_selects(labels in proptest::collection::btree_map("[a-z][a-z0-9]{0,8}", "[a-z0-9]{1,8}", 1..6)) {
            let text = labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
            let selector = Labels::parse(&text).unwrap();
            prop_assert!(selector.matches(|key| labels.get(key).map(String::as_str)));
            let (first, _) = labels.iter().next().unwrap();
            let other = selector.matches(|key| if key == first { Some("-") } else { labels.get(key).map(String::as_str) });
            prop_assert!(!other);
        }

        #[test]
        fn no_text_breaks_the_parser(text in ".{0,60}") {
            let _ = Labels::parse(&text);
        }
    }
}
