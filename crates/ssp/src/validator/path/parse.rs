//! Reading a path. A path that a client of Kubernetes reads otherwise, or not at all, is refused.

use serde_json::{Number, Value};

use super::{Comparison, Filter, LONGEST, Operand, STEPS, Step};

type Read<T> = Result<T, String>;

/// Longest first, as one is the beginning of another.
const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

const NESTED: &str = "a filter compares what a path of names and entries finds";

/// The steps of a whole path.
pub(super) fn steps(text: &str) -> Read<Vec<Step>> {
    if text.len() > LONGEST {
        return Err(format!("it is longer than {LONGEST} bytes"));
    }
    let mut reader = Reader { left: text, filtering: false };
    let steps = reader.steps()?;
    if !reader.left.is_empty() {
        return Err(format!("unexpected {:?}", reader.left));
    }
    Ok(steps)
}

struct Reader<'a> {
    left: &'a str,
    /// Within a filter, where there is no other: none is deep.
    filtering: bool,
}

impl<'a> Reader<'a> {
    fn eat(&mut self, word: &str) -> bool {
        let rest = self.left.strip_prefix(word);
        self.left = rest.unwrap_or(self.left);
        rest.is_some()
    }

    fn expect(&mut self, word: &str) -> Read<()> {
        if self.eat(word) { Ok(()) } else { Err(format!("{word:?} is missing before {:?}", self.left)) }
    }

    fn space(&mut self) {
        self.left = self.left.trim_start_matches(' ');
    }

    /// As far as there are steps.
    fn steps(&mut self) -> Read<Vec<Step>> {
        let mut steps = Vec::new();
        loop {
            if self.eat("..") {
                steps.push(Step::Deep);
                if !self.left.starts_with('[') {
                    steps.push(self.after_dot()?);
                }
            } else if self.eat(".") {
                steps.push(self.after_dot()?);
            } else if self.eat("[") {
                steps.push(self.bracket()?);
            } else {
                return Ok(steps);
            }
            if steps.len() > STEPS {
                return Err(format!("it has more than {STEPS} steps"));
            }
        }
    }

    fn after_dot(&mut self) -> Read<Step> {
        if self.eat("*") {
            return Ok(Step::Any);
        }
        let mut name = String::new();
        let mut rest = self.left.chars();
        while let Some(c) = rest.clone().next() {
            match c {
                '\\' => {
                    rest.next();
                    name.push(rest.next().ok_or("it ends with a backslash")?);
                }
                '.' | '[' | ']' | '(' | ')' | '{' | '}' | '\'' | '"' | '@' | ',' | ' ' | '=' | '!' | '<' | '>' => break,
                _ => {
                    rest.next();
                    name.push(c);
                }
            }
        }
        if name.is_empty() {
            return Err(format!("a name is missing before {:?}", self.left));
        }
        self.left = rest.as_str();
        Ok(Step::Fields(vec![name]))
    }

    /// What stands in brackets, and the bracket that closes.
    fn bracket(&mut self) -> Read<Step> {
        let step = if self.eat("*") {
            Step::Range { from: None, to: None, step: 1 }
        } else if self.eat("?(") {
            let filter = self.filter()?;
            self.expect(")")?;
            Step::Filter(filter)
        } else if self.left.starts_with(['\'', '"']) {
            Step::Fields(self.list(Self::quoted)?)
        } else {
            self.positions()?
        };
        self.expect("]")?;
        Ok(step)
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let mut all = vec![one(self)?];
        while self.eat(",") {
            self.space();
            all.push(one(self)?);
        }
        Ok(all)
    }

    fn positions(&mut self) -> Read<Step> {
        let from = self.integer()?;
        if !self.eat(":") {
            let mut all = vec![from.ok_or_else(|| format!("a number is missing before {:?}", self.left))?];
            if self.eat(",") {
                self.space();
                all.extend(self.list(|reader| {
                    reader.integer()?.ok_or_else(|| format!("a number is missing before {:?}", reader.left))
                })?);
            }
            return Ok(Step::Entries(all));
        }
        let to = self.integer()?;
        let step = if self.eat(":") { self.integer()?.unwrap_or(1) } else { 1 };
        let step = usize::try_from(step).ok().filter(|step| *step > 0);
        Ok(Step::Range { from, to, step: step.ok_or("the step of a range is at least 1")? })
    }

    fn integer(&mut self) -> Read<Option<i64>> {
        let digits = self.left.trim_start_matches('-').trim_start_matches(|c: char| c.is_ascii_digit());
        let (number, rest) = self.left.split_at(self.left.len() - digits.len());
        if number.is_empty() {
            return Ok(None);
        }
        self.left = rest;
        number.parse().map(Some).map_err(|_| format!("{number:?} is not a number of an entry"))
    }

    fn quoted(&mut self) -> Read<String> {
        let mut rest = self.left.chars();
        let quote = rest.next().filter(|quote| matches!(quote, '\'' | '"'));
        let quote = quote.ok_or_else(|| format!("a quote is missing before {:?}", self.left))?;
        let mut text = String::new();
        loop {
            match rest.next().ok_or("a quote does not end")? {
                '\\' => text.push(rest.next().ok_or("a quote does not end")?),
                c if c == quote => break,
                c => text.push(c),
            }
        }
        self.left = rest.as_str();
        Ok(text)
    }

    fn filter(&mut self) -> Read<Filter> {
        if std::mem::replace(&mut self.filtering, true) {
            return Err(NESTED.to_owned());
        }
        self.space();
        let left = self.operand()?;
        self.space();
        let mut compared = None;
        for (word, comparison) in COMPARISONS {
            if self.eat(word) {
                self.space();
                compared = Some((comparison, self.operand()?));
                self.space();
                break;
            }
        }
        self.filtering = false;
        Ok(Filter { left, compared })
    }

    fn operand(&mut self) -> Read<Operand> {
        if self.eat("@") {
            let plain = |step: &Step| {
                matches!(step, Step::Fields(names) if names.len() == 1) || matches!(step, Step::Entries(_))
            };
            let steps = self.steps()?;
            return if steps.iter().all(plain) { Ok(Operand::Below(steps)) } else { Err(NESTED.to_owned()) };
        }
        if self.left.starts_with(['\'', '"']) {
            return self.quoted().map(|text| Operand::Value(Value::String(text)));
        }
        let end = self.left.find([')', ' ', '=', '!', '<', '>']).unwrap_or(self.left.len());
        let (word, rest) = self.left.split_at(end);
        let value = match word {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => word.parse::<i64>().ok().map(Value::from).or_else(|| {
                let number = word.parse::<f64>().ok()?;
                Number::from_f64(number).map(Value::Number)
            }),
        };
        self.left = rest;
        value.map(Operand::Value).ok_or_else(|| format!("{word:?} is neither a path, a text, a number, true nor false"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(path: &str, expect: &str) {
        assert_eq!(steps(path).unwrap_err(), expect);
    }

    #[test]
    fn what_is_no_path_is_refused_with_the_place() {
        check("spec", "unexpected \"spec\"");
        check(".", "a name is missing before \"\"");
        check(".a..", "a name is missing before \"\"");
        check(".a}", "unexpected \"}\"");
        check(".a[", "a number is missing before \"\"");
        check(".a[x]", "a number is missing before \"x]\"");
        check(".a[1", "\"]\" is missing before \"\"");
        check(".a[--1]", "\"--1\" is not a number of an entry");
        check(".a[99999999999999999999]", "\"99999999999999999999\" is not a number of an entry");
        check(".a[::0]", "the step of a range is at least 1");
        check(".a['b]", "a quote does not end");
        check(".a['b',c]", "a quote is missing before \"c]\"");
        check(".a[?(@.b == c)]", "\"c\" is neither a path, a text, a number, true nor false");
        check(".a[?(@.b[?(@.c)])]", "a filter compares what a path of names and entries finds");
        check(".a[?(@..b)]", "a filter compares what a path of names and entries finds");
        check(".a\\", "it ends with a backslash");
        check(&".a".repeat(STEPS + 1), "it has more than 64 steps");
        check(&"a".repeat(LONGEST + 1), "it is longer than 1024 bytes");
    }

    proptest! {
        #[test]
        fn any_text_is_a_path_or_refused(text in r#"[.\[\]()@?*:,'" =!<>\\a-c0-9-]{0,40}|\PC{0,60}"#) {
            if let Ok(steps) = steps(&text) {
                prop_assert!(steps.len() <= STEPS + 1);
            }
        }
    }
}
