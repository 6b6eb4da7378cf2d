//! Paths of rules: the part of JSONPath that Kubernetes' clients know, below a machine's `spec.template`. Pure.
//!
//! A step of one name that finds nothing anywhere is a path that leads nowhere; a filter or a range may find nothing.

mod parse;

use std::cmp::Ordering;

use serde_json::Value;

/// What paths of rules begin with.
pub const PREFIX: &str = "jsonpath::";
/// Bytes of the longest path.
pub const LONGEST: usize = 1024;
/// Steps of the longest path.
pub const STEPS: usize = 64;

/// A path, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    text: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// `.name`, `['name']`, and `['name','other']`.
    Fields(Vec<String>),
    /// `.*`: every field or entry.
    Any,
    /// `[*]` is the range without bounds.
    Range { from: Option<i64>, to: Option<i64>, step: usize },
    /// `[0]`, `[-1]` and `[0,2]`.
    Entries(Vec<i64>),
    /// `..`: the value, and everything below it.
    Deep,
    /// `[?(@.name == 'root')]`.
    Filter(Filter),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// None asks whether there is anything.
    compared: Option<(Comparison, Operand)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    /// A path below the entry, of names and entries alone.
    Below(Vec<Step>),
    Value(Value),
}

/// Why there is no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It does not begin with [`PREFIX`].
    #[error("parameter is not JSONPath: {0}")]
    Prefix(String),
    /// It cannot be read.
    #[error("invalid JSONPath: {0}")]
    Syntax(String),
}

/// Why nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// The path leads nowhere.
    Nowhere,
    /// The budget is spent.
    Spent,
}

/// How many values may still be looked at.
#[derive(Clone, Copy, Debug)]
pub struct Budget(usize);

impl Budget {
    /// Of that many.
    pub fn new(values: usize) -> Self {
        Budget(values)
    }

    fn take(&mut self) -> Result<(), Nothing> {
        self.0 = self.0.checked_sub(1).ok_or(Nothing::Spent)?;
        Ok(())
    }
}

impl Path {
    /// Reads `jsonpath::…`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let Some(path) = text.strip_prefix(PREFIX) else { return Err(Malformed::Prefix(text.to_owned())) };
        let path = path.strip_prefix('$').unwrap_or(path);
        let steps = parse::steps(path).map_err(Malformed::Syntax)?;
        Ok(Path { text: path.to_owned(), steps })
    }

    /// The path without what it begins with, as refusals name the field.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What lies at the path in `template`, in its order.
    ///
    /// # Errors
    /// When it leads nowhere, or `budget` is spent.
    pub fn find<'a>(&self, template: &'a Value, budget: &mut Budget) -> Result<Vec<&'a Value>, Nothing> {
        walk(&self.steps, template, budget)
    }
}

fn walk<'a>(steps: &[Step], root: &'a Value, budget: &mut Budget) -> Result<Vec<&'a Value>, Nothing> {
    let mut found = vec![root];
    for step in steps {
        let mut next = Vec::new();
        for value in found {
            budget.take()?;
            take(step, value, &mut next, budget)?;
        }
        if next.is_empty() && matches!(step, Step::Fields(_) | Step::Entries(_)) {
            return Err(Nothing::Nowhere);
        }
        found = next;
    }
    Ok(found)
}

/// Adds to `out` what `step` finds in `value`.
fn take<'a>(step: &Step, value: &'a Value, out: &mut Vec<&'a Value>, budget: &mut Budget) -> Result<(), Nothing> {
    let entries = value.as_array().map(Vec::as_slice).unwrap_or_default();
    match step {
        Step::Fields(names) => {
            for name in names {
                budget.take()?;
                out.extend(value.get(name).filter(|value| !value.is_null()));
            }
        }
        Step::Entries(positions) => {
            for position in positions {
                budget.take()?;
                out.extend(absolute(*position, entries.len()).and_then(|position| entries.get(position)));
            }
        }
        Step::Any => {
            for child in children(value) {
                budget.take()?;
                out.push(child);
            }
        }
        Step::Range { from, to, step } => {
            let bound =
                |bound: i64| usize::try_from(if bound < 0 { bound + length(entries) } else { bound }).unwrap_or(0);
            let from = from.map_or(0, bound);
            let to = to.map_or(entries.len(), bound).min(entries.len());
            for entry in entries.get(from..to).unwrap_or_default().iter().step_by(*step) {
                budget.take()?;
                out.push(entry);
            }
        }
        Step::Deep => {
            // The depth of what is looked at is the depth that JSON was read with.
            let mut left = vec![value];
            while let Some(value) = left.pop() {
                budget.take()?;
                out.push(value);
                let first = left.len();
                left.extend(children(value));
                left[first..].reverse();
            }
        }
        Step::Filter(filter) => {
            for entry in entries {
                budget.take()?;
                if filter.holds(entry, budget)? {
                    out.push(entry);
                }
            }
        }
    }
    Ok(())
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(entries) => Box::new(entries.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn length(entries: &[Value]) -> i64 {
    i64::try_from(entries.len()).unwrap_or(i64::MAX)
}

fn absolute(position: i64, length: usize) -> Option<usize> {
    if position >= 0 {
        return usize::try_from(position).ok();
    }
    length.checked_sub(usize::try_from(position.unsigned_abs()).ok()?)
}

impl Filter {
    fn holds(&self, entry: &Value, budget: &mut Budget) -> Result<bool, Nothing> {
        let left = self.left.values(entry, budget)?;
        let Some((comparison, right)) = &self.compared else { return Ok(!left.is_empty()) };
        let right = right.values(entry, budget)?;
        // Of several values there is none to compare.
        let ([left], [right]) = (left.as_slice(), right.as_slice()) else { return Ok(false) };
        Ok(comparison.holds(left, right))
    }
}

impl Operand {
    fn values<'a>(&'a self, entry: &'a Value, budget: &mut Budget) -> Result<Vec<&'a Value>, Nothing> {
        match self {
            Operand::Value(value) => Ok(vec![value]),
            Operand::Below(steps) => match walk(steps, entry, budget) {
                Err(Nothing::Nowhere) => Ok(Vec::new()),
                found => found,
            },
        }
    }
}

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
                (Some(left), Some(right)) => Some(left.cmp(&right)),
                _ => left.as_f64().zip(right.as_f64()).and_then(|(left, right)| left.partial_cmp(&right)),
            },
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            _ => None,
        };
        match self {
            Comparison::Equal => order == Some(Ordering::Equal),
            Comparison::Unequal => order != Some(Ordering::Equal),
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::AtMost => order.is_some_and(Ordering::is_le),
            Comparison::Greater => order == Some(Ordering::Greater),
            Comparison::AtLeast => order.is_some_and(Ordering::is_ge),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> Value {
        json!({ "metadata": { "labels": { "kubevirt.io/size": "tiny" } }, "spec": { "domain": { "devices": { "disks": [
            { "name": "root", "disk": { "bus": "virtio" }, "bootOrder": 1 },
            { "name": "seed", "disk": { "bus": "sata" } },
            { "name": "cd", "cdrom": { "bus": "sata" }, "bootOrder": 2 },
        ] } } } })
    }

    #[track_caller]
    fn check(path: &str, expect: Value) {
        let path = Path::parse(&format!("{PREFIX}{path}")).unwrap();
        let found = path.find(&template(), &mut Budget::new(1000)).map(|found| json!(found));
        assert_eq!(found, Ok(expect), "{}", path.text());
    }

    #[track_caller]
    fn check_nowhere(path: &str) {
        let path = Path::parse(&format!("{PREFIX}{path}")).unwrap();
        assert_eq!(path.find(&template(), &mut Budget::new(1000)), Err(Nothing::Nowhere), "{}", path.text());
    }

    #[test]
    fn paths_find_values_in_their_order() {
        const DISKS: &str = ".spec.domain.devices.disks";
        check(".metadata.labels.kubevirt\\.io/size", json!(["tiny"]));
        check("$.metadata.labels['kubevirt.io/size']", json!(["tiny"]));
        check(".metadata[\"labels\"].*", json!(["tiny"]));
        check(&format!("{DISKS}[*].disk.bus"), json!(["virtio", "sata"]));
        check(&format!("{DISKS}[0].name"), json!(["root"]));
        check(&format!("{DISKS}[-1].name"), json!(["cd"]));
        check(&format!("{DISKS}[0,2].name"), json!(["root", "cd"]));
        check(&format!("{DISKS}[0,9].name"), json!(["root"]));
        check(&format!("{DISKS}[1:].name"), json!(["seed", "cd"]));
        check(&format!("{DISKS}[:-1].name"), json!(["root", "seed"]));
        check(&format!("{DISKS}[::2].name"), json!(["root", "cd"]));
        check(&format!("{DISKS}[0]['name','bootOrder']"), json!(["root", 1]));
        check(&format!("{DISKS}[?(@.name == 'root')].disk.bus"), json!(["virtio"]));
        check(&format!("{DISKS}[?(@.bootOrder > 1)].name"), json!(["cd"]));
        check(&format!("{DISKS}[?(@.bootOrder<=1)].name"), json!(["root"]));
        check(&format!("{DISKS}[?(@.cdrom)].cdrom.bus"), json!(["sata"]));
        check(&format!("{DISKS}[?(@.name != \"root\")].name"), json!(["seed", "cd"]));
        check(&format!("{DISKS}[?(@.name == 5)]"), json!([]));
        check("..bus", json!(["virtio", "sata", "sata"]));
    }

    #[test]
    fn a_name_that_is_nowhere_is_an_error_and_an_empty_choice_is_not() {
        check_nowhere(".spec.domain.cpu.cores");
        check_nowhere(".spec.domain.devices.disks[3]");
        check_nowhere(".spec.domain.devices.disks[-4]");
        check_nowhere(".spec.domain.devices.disks[?(@.name == 'x')].name");
        check(".spec.domain.devices.disks[?(@.name == 'x')]", json!([]));
        check(".spec.domain[*]", json!([]));
        check("", json!([template()]));
    }

    #[test]
    fn a_path_that_fans_out_without_an_end_stops() {
        let path = Path::parse(&format!("{PREFIX}{}", "..*".repeat(30))).unwrap();
        let deep = (0..100).fold(json!(0), |inner, _| json!([inner]));
        assert_eq!(path.find(&deep, &mut Budget::new(100_000)), Err(Nothing::Spent));
        let path = Path::parse(&format!("{PREFIX}{}", "[0,0,0,0,0,0,0,0,0,0]".repeat(20))).unwrap();
        assert_eq!(path.find(&deep, &mut Budget::new(100_000)), Err(Nothing::Spent));
    }
}
