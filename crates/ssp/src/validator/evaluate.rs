//! Applying rules to a machine. All are applied, so that whoever is refused sees everything that is wrong. Pure.

use std::collections::BTreeSet;

use kit::admission::Cause;
use meta::quantity;
use meta::text::brief;
use serde_json::Value;

use super::path::{Budget, Nothing, Path};
use super::rules::{Bounds, Check, Entry, Failure, Number, Rule, Text, integer, kind};
use super::{defaults, reference};

/// Values that all rules of a machine look at together.
const LOOKS: usize = 200_000;
/// Bytes of what one rule says of a machine.
const SAID: usize = 1024;
const NANOS: i128 = 1_000_000_000;

/// What a rule came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is where `valid` points to.
    Skipped,
    /// It is met.
    Met,
    /// It is not, for this reason.
    Unmet(String),
    /// The same, and who asked is only warned.
    Warned(String),
    /// It could not be applied.
    Failed(Failure),
}

/// A rule's field and message, and what it came to.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The rule.
    pub entry: &'a Entry,
    /// What it came to.
    pub outcome: Outcome,
}

/// Applies `entries` to a VirtualMachine.
pub fn evaluate<'a>(entries: &'a [Entry], machine: &Value) -> Vec<Report<'a>> {
    let template = defaults::complete(machine.pointer("/spec/template").unwrap_or(&Value::Null));
    let reference = reference::template();
    let mut seen = Seen { template: &template, reference: &reference, budget: Budget::new(LOOKS) };
    let mut names = BTreeSet::new();
    let reports = entries.iter().map(|entry| {
        let outcome = match &entry.rule {
            _ if !names.insert(entry.name.as_str()) => Outcome::Failed(Failure::Duplicate),
            Err(failure) => Outcome::Failed(failure.clone()),
            Ok(rule) => seen.apply(rule).unwrap_or_else(Outcome::Failed),
        };
        Report { entry, outcome }
    });
    reports.collect()
}

/// What is wrong with the machine; nothing when it is admitted. When it is not, warnings are causes as well.
pub fn causes(reports: &[Report<'_>]) -> Vec<Cause> {
    if !reports.iter().any(|report| matches!(report.outcome, Outcome::Unmet(_) | Outcome::Failed(_))) {
        return Vec::new();
    }
    let cause = |report: &Report<'_>| {
        Some(Cause { reason: "FieldValueInvalid", field: report.entry.field.clone(), message: report.sentence()? })
    };
    reports.iter().filter_map(cause).collect()
}

/// What the user of a machine that is admitted is warned of.
pub fn warnings(reports: &[Report<'_>]) -> Vec<String> {
    let warned = reports.iter().filter(|report| matches!(report.outcome, Outcome::Warned(_)));
    warned.filter_map(Report::sentence).collect()
}

impl Report<'_> {
    fn sentence(&self) -> Option<String> {
        let why = match &self.outcome {
            Outcome::Skipped | Outcome::Met => return None,
            Outcome::Unmet(why) | Outcome::Warned(why) => why.clone(),
            Outcome::Failed(failure) => failure.to_string(),
        };
        let name = || format!("rule {:?}", self.entry.name);
        let message = if self.entry.message.is_empty() { name() } else { self.entry.message.clone() };
        Some(brief(&format!("{message}: {why}"), SAID).into_owned())
    }
}

/// The machine that is judged, and the one that has everything and nothing in it.
struct Seen<'a> {
    template: &'a Value,
    reference: &'a Value,
    budget: Budget,
}

impl Seen<'_> {
    fn apply(&mut self, rule: &Rule) -> Result<Outcome, Failure> {
        if let Some(valid) = &rule.valid
            && !self.is_there(valid)?
        {
            return Ok(Outcome::Skipped);
        }
        let unmet = match &rule.check {
            Check::Integer(bounds) => {
                let bounds = self.bounds(bounds)?;
                outside(&some(self.look(&rule.path, as_integer)?)?, bounds)
            }
            Check::Length(bounds) => {
                let bounds = self.bounds(bounds)?;
                let found = some(self.look(&rule.path, as_text)?)?;
                let inside = |text: &String| is_inside(i64::try_from(text.len()).unwrap_or(i64::MAX), bounds);
                let (least, most) = (shown(bounds.0), shown(bounds.1));
                let why = || format!("Lengths of some strings are not in interval [{least}, {most}]");
                (!found.iter().all(inside)).then(why)
            }
            Check::Enum(values) => {
                let values: Vec<String> = values.iter().map(|value| self.text(value)).collect::<Result<_, _>>()?;
                let found = some(self.look(&rule.path, as_text)?)?;
                let why = || format!("Some of [{}] are not in [{}]", found.join(", "), values.join(", "));
                (!found.iter().all(|text| values.contains(text))).then(why)
            }
            Check::Regex(regex) => {
                let found = some(self.look(&rule.path, as_text)?)?;
                let why = || format!("Some of [{}] do not match {regex}", found.join(", "));
                (!found.iter().all(|text| regex.is_match(text))).then(why)
            }
        };
        Ok(match unmet {
            None => Outcome::Met,
            Some(why) if rule.just_warning => Outcome::Warned(why),
            Some(why) => Outcome::Unmet(why),
        })
    }

    fn is_there(&mut self, path: &Path) -> Result<bool, Failure> {
        match path.find(self.template, &mut self.budget) {
            Ok(found) => Ok(!found.is_empty()),
            Err(Nothing::Nowhere) => Ok(false),
            Err(Nothing::Spent) => Err(Failure::Spent),
        }
    }

    /// The values at `path` in the machine; where it says nothing, what any machine has there.
    fn look<T>(&mut self, path: &Path, read: fn(&Value) -> Result<T, Failure>) -> Result<Vec<T>, Failure> {
        let mut of = |template| match path.find(template, &mut self.budget) {
            Ok(found) => found.into_iter().map(read).collect(),
            Err(Nothing::Nowhere) => Err(Failure::Nowhere),
            Err(Nothing::Spent) => Err(Failure::Spent),
        };
        match of(self.template) {
            Err(Failure::Nowhere) => of(self.reference),
            found => found,
        }
    }

    fn bounds(&mut self, bounds: &Bounds) -> Result<(Option<i64>, Option<i64>), Failure> {
        let mut number = |number: &Option<Number>| match number {
            None => Ok(None),
            Some(Number::Is(number)) => Ok(Some(*number)),
            Some(Number::At(path)) => self.look(path, as_integer).and_then(one).map(Some),
        };
        Ok((number(&bounds.least)?, number(&bounds.most)?))
    }

    fn text(&mut self, text: &Text) -> Result<String, Failure> {
        match text {
            Text::Is(text) => Ok(text.clone()),
            Text::At(path) => self.look(path, as_text).and_then(one),
        }
    }
}

fn one<T>(mut found: Vec<T>) -> Result<T, Failure> {
    match found.pop() {
        Some(only) if found.is_empty() => Ok(only),
        Some(_) => Err(Failure::NotOne(found.len() + 1)),
        None => Err(Failure::NotOne(0)),
    }
}

fn some<T>(found: Vec<T>) -> Result<Vec<T>, Failure> {
    if found.is_empty() { Err(Failure::NoValues) } else { Ok(found) }
}

fn as_integer(value: &Value) -> Result<i64, Failure> {
    let quantity = || {
        let nanos = quantity::nanos(value.as_str()?)?;
        if nanos % NANOS == 0 { i64::try_from(nanos / NANOS).ok() } else { None }
    };
    integer(value).or_else(quantity).ok_or(Failure::Mismatch(kind(value), "int or resource.Quantity"))
}

fn as_text(value: &Value) -> Result<String, Failure> {
    value.as_str().map(str::to_owned).ok_or(Failure::Mismatch(kind(value), "string"))
}

fn is_inside(number: i64, (least, most): (Option<i64>, Option<i64>)) -> bool {
    least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most)
}

fn outside(found: &[i64], (least, most): (Option<i64>, Option<i64>)) -> Option<String> {
    let wrong = found.iter().flat_map(|value| {
        let low =
            least.filter(|least| value < least).map(|least| format!("value {value} is lower than minimum [{least}]"));
        let high =
            most.filter(|most| value > most).map(|most| format!("value {value} is higher than maximum [{most}]"));
        low.into_iter().chain(high)
    });
    let wrong: Vec<String> = wrong.collect();
    (!wrong.is_empty()).then(|| wrong.join(", "))
}

fn shown(bound: Option<i64>) -> String {
    bound.map_or_else(|| "N/A".to_owned(), |bound| bound.to_string())
}

#[cfg(test)]
mod tests;
