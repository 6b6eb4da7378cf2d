//! Expressions that select devices: what they know of a device, what they may cost, and whether one fits.
//!
//! Guarantees: an expression that is refused when it is written is never evaluated; evaluation is paid from the caller's
//! budget; a domain that a device says nothing of is empty, a name that it does not have is an error.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kube_cel::cel::common::ast::{Expr, LiteralValue};
use kube_cel::cel::objects::Key;
use serde_json::Value;

use super::eval::map_of;
use super::types::{Object, Type};
use super::{Budget, Fault, PER_CALL, Program, Value as Cel, Variables, check, parse};

/// An expression in bytes at most.
pub const LONGEST: usize = 10 * 1024;
/// What the check of one device may cost, and what an expression is estimated to cost at most.
pub const COST: u64 = PER_CALL;
/// Attributes and capacities of a device together at most.
pub const PROPERTIES: u64 = 32;
/// The text of an attribute in bytes at most.
pub const TEXT: usize = 64;

/// A compiled expression.
#[derive(Debug)]
pub struct Selector {
    program: Program,
    /// The texts it names: among them the domains it looks up.
    named: BTreeSet<String>,
}

impl Selector {
    /// Parses an expression and checks its type and its cost.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn compile(source: &str) -> Result<Self, String> {
        if source.len() > LONGEST {
            return Err(format!("may not be more than {LONGEST} bytes"));
        }
        let program = Program::compile(source)?;
        let checked = check::check(&program, &HashMap::from([("device".to_owned(), device())]))?;
        if !matches!(checked.type_, Type::Bool | Type::Dyn) {
            return Err(format!("must evaluate to bool or the unknown type, not {}", checked.type_));
        }
        if checked.cost > COST {
            return Err(format!("too complex, exceeds cost limit: its estimated cost is {} of {COST}", checked.cost));
        }
        let mut named = BTreeSet::new();
        parse::visit(program.tree(), &mut |expr| {
            if let Expr::Literal(LiteralValue::String(text)) = expr {
                named.insert(text.inner().to_owned());
            }
        });
        Ok(Self { program, named })
    }

    /// Whether the device fits, paid from `budget`; the evaluation costs at most [`COST`].
    ///
    /// # Errors
    /// When the expression fails on this device, or the budget is spent.
    pub fn fits(&self, device: &Facts, budget: &mut Budget) -> Result<bool, Fault> {
        // Whatever the expression does, its view of the device is made first.
        budget.pay(self.named.len() as u64 + device.properties())?;
        let mut call = Budget::new(budget.left().min(COST));
        let before = call.left();
        let bindings = Variables::default().with("device", device.value(&self.named));
        let outcome = self.program.evaluate(&bindings, &mut call);
        budget.pay(before - call.left())?;
        match outcome? {
            Cel::Bool(fits) => Ok(fits),
            _ => Err(Fault::Error("the expression must evaluate to a bool".to_owned())),
        }
    }
}

/// What an expression may use of a device.
fn device() -> Type {
    let properties = || {
        let by_name = Type::Map(Arc::new(Type::String(TEXT as u64)), Arc::new(Type::Dyn), PROPERTIES);
        Type::Map(Arc::new(Type::String(TEXT as u64)), Arc::new(by_name), PROPERTIES)
    };
    let fields = [
        ("driver".to_owned(), Type::String(63)),
        ("attributes".to_owned(), properties()),
        ("capacity".to_owned(), properties()),
        ("allowMultipleAllocations".to_owned(), Type::Bool),
    ];
    Type::Object(Arc::new(Object { name: "kubernetes.DRADevice".to_owned(), fields: fields.into() }))
}

type Domains = BTreeMap<String, HashMap<Key, Cel>>;

/// A device as expressions see it.
#[derive(Clone, Debug)]
pub struct Facts {
    driver: String,
    attributes: Domains,
    capacity: Domains,
}

impl Facts {
    /// Reads a device of a slice: `attributes` and `capacity` are the maps of these names.
    #[must_use]
    pub fn of(driver: &str, attributes: &Value, capacity: &Value) -> Self {
        let amount = |value: &Value| converted("quantity(v)", value["value"].as_str()?);
        Self {
            driver: driver.to_owned(),
            attributes: by_domain(driver, attributes, attribute),
            capacity: by_domain(driver, capacity, amount),
        }
    }

    fn properties(&self) -> u64 {
        self.attributes.values().chain(self.capacity.values()).map(|properties| properties.len() as u64).sum()
    }

    fn value(&self, named: &BTreeSet<String>) -> Cel {
        let domains = |known: &Domains| {
            let mut all: HashMap<Key, Cel> =
                named.iter().map(|name| (Key::String(Arc::new(name.clone())), map_of(HashMap::new()))).collect();
            for (domain, properties) in known {
                all.insert(Key::String(Arc::new(domain.clone())), map_of(properties.clone()));
            }
            map_of(all)
        };
        let field = |name: &str| Key::String(Arc::new(name.to_owned()));
        map_of(HashMap::from([
            (field("driver"), Cel::String(Arc::new(self.driver.clone()))),
            (field("attributes"), domains(&self.attributes)),
            (field("capacity"), domains(&self.capacity)),
            (field("allowMultipleAllocations"), Cel::Bool(false)),
        ]))
    }
}

/// The properties of a device by their domain; one without a domain is of the driver's.
fn by_domain(driver: &str, properties: &Value, read: impl Fn(&Value) -> Option<Cel>) -> Domains {
    let mut domains = Domains::new();
    for (name, value) in properties.as_object().into_iter().flatten() {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        if let Some(value) = read(value) {
            domains.entry(domain.to_owned()).or_default().insert(Key::String(Arc::new(name.to_owned())), value);
        }
    }
    domains
}

fn attribute(value: &Value) -> Option<Cel> {
    if let Some(number) = value["int"].as_i64() {
        return Some(Cel::Int(number));
    }
    if let Some(truth) = value["bool"].as_bool() {
        return Some(Cel::Bool(truth));
    }
    if let Some(text) = value["string"].as_str() {
        return Some(Cel::String(Arc::new(text.to_owned())));
    }
    converted("semver(v)", value["version"].as_str()?)
}

/// A text as a value of a library.
fn converted(source: &str, text: &str) -> Option<Cel> {
    let program = Program::compile(source).ok()?;
    let bindings = Variables::default().with("v", Cel::String(Arc::new(text.to_owned())));
    program.evaluate(&bindings, &mut Budget::new(PER_CALL)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts() -> Facts {
        let attributes = json!({"model": {"string": "a100"}, "other.example.com/cores": {"int": 8},
            "healthy": {"bool": true}, "firmware": {"version": "1.10.0"}});
        Facts::of("gpu.example.com", &attributes, &json!({"memory": {"value": "40Gi"}}))
    }

    #[track_caller]
    fn check(source: &str, expect: Result<bool, &str>) {
        let got = Selector::compile(source)
            .map_err(|error| format!("refused: {error}"))
            .and_then(|selector| selector.fits(&facts(), &mut Budget::new(COST)).map_err(|fault| fault.to_string()));
        match (got, expect) {
            (Ok(got), Ok(expect)) => assert_eq!(got, expect, "{source}"),
            (Err(got), Err(expect)) => assert!(got.contains(expect), "{source}: {got}"),
            (got, expect) => panic!("{source}: {got:?}, not {expect:?}"),
        }
    }

    #[test]
    fn expressions_read_attributes_and_capacity_of_a_device() {
        check("device.driver == 'gpu.example.com'", Ok(true));
        check("device.attributes['gpu.example.com'].model == 'a100'", Ok(true));
        check("device.attributes['other.example.com'].cores > 8", Ok(false));
        check("device.attributes['gpu.example.com'].healthy", Ok(true));
        check("device.attributes['gpu.example.com'].firmware.isGreaterThan(semver('1.9.0'))", Ok(true));
        check("device.capacity['gpu.example.com'].memory.compareTo(quantity('30Gi')) >= 0", Ok(true));
        check("cel.bind(own, device.attributes['gpu.example.com'], own.healthy && own.model == 'h100')", Ok(false));
    }

    #[test]
    fn missing_attributes_are_errors_of_the_expression() {
        check("has(device.attributes['nobody.example.com'].model)", Ok(false));
        check("device.attributes['nobody.example.com'].model == 'x'", Err("no such key: model"));
        check("device.attributes['gpu.example.com'].model", Err("must evaluate to a bool"));
    }

    #[test]
    fn expressions_are_checked_when_they_are_compiled() {
        check("device.name == 'x'", Err("refused"));
        check("node == 'x'", Err("refused"));
        check("device.driver", Err("refused: must evaluate to bool"));
        check(&format!("device.driver == '{}'", "x".repeat(LONGEST)), Err("refused: may not be more than 10240 bytes"));
        let nested = "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, device.attributes.all(d, \
                      device.attributes.all(e, a == b && c == d && d == e)))))";
        check(nested, Err("refused: too complex"));
    }

    #[test]
    fn a_spent_budget_is_said() {
        let selector = Selector::compile("device.driver.matches('.*')").unwrap();
        assert_eq!(selector.fits(&facts(), &mut Budget::new(1)), Err(Fault::Spent));
    }
}
