//! Evaluation: a walk over the tree in which every step is paid for.
//!
//! Costs are those of Kubernetes: a name or a field is 1, a call 1 and more where it reads what has a length, a list 10,
//! a map 30.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, StructExpr, operators as op,
};
use kube_cel::cel::objects::{Key, KeyRef, Map, OptionalValue};
use kube_cel::cel::{IdedExpr, Value};

pub(super) mod library;
mod macros;
mod operators;

use super::{Fault, builtin, message};

/// What is left to spend.
#[derive(Clone, Copy, Debug)]
pub struct Budget(u64);

impl Budget {
    /// A budget of `units`.
    #[must_use]
    pub fn new(units: u64) -> Self {
        Self(units)
    }
    /// What is left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.0
    }
    pub(super) fn pay(&mut self, units: u64) -> Result<(), Fault> {
        self.0 = self.0.checked_sub(units).ok_or_else(|| {
            self.0 = 0;
            Fault::Spent
        })?;
        Ok(())
    }
}

/// The names an expression may use.
pub trait Bindings {
    /// The value of a variable; None when there is none of this name.
    fn get(&self, name: &str) -> Option<Value>;
    /// A field of a variable whose fields are computed when they are asked for.
    fn field(&self, _variable: &str, _field: &str, _budget: &mut Budget) -> Option<Result<Value, Fault>> {
        None
    }
    /// Whether the expression may make messages, which say how an object is changed.
    fn messages(&self) -> bool {
        false
    }
}

/// Variables with values.
#[derive(Clone, Debug, Default)]
pub struct Variables(HashMap<String, Value>);

impl Variables {
    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }
}

impl Bindings for Variables {
    fn get(&self, name: &str) -> Option<Value> {
        self.0.get(name).cloned()
    }
}

pub(super) fn evaluate(tree: &IdedExpr, bindings: &dyn Bindings, budget: &mut Budget) -> Result<Value, Fault> {
    Eval { bindings, budget, locals: Vec::new() }.value(tree)
}

pub(super) struct Eval<'a> {
    pub(super) bindings: &'a dyn Bindings,
    pub(super) budget: &'a mut Budget,
    /// Variables of comprehensions, the innermost last.
    pub(super) locals: Vec<(&'a str, Value)>,
}

impl<'a> Eval<'a> {
    pub(super) fn pay(&mut self, units: u64) -> Result<(), Fault> {
        self.budget.pay(units)
    }

    pub(super) fn value(&mut self, expr: &'a IdedExpr) -> Result<Value, Fault> {
        match &expr.expr {
            Expr::Literal(literal) => Ok(constant(literal)),
            Expr::Ident(name) => {
                self.pay(1)?;
                self.name(name)
            }
            Expr::Select(select) => {
                if let Expr::Ident(variable) = &select.operand.expr
                    && !select.test
                    && !self.is_local(variable)
                    && let Some(found) = self.bindings.field(variable, &select.field, self.budget)
                {
                    return found;
                }
                let operand = self.value(&select.operand)?;
                if select.test {
                    return has(&operand, &select.field).map(Value::Bool);
                }
                self.pay(1)?;
                field(&operand, &select.field)
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                self.pay(10)?;
                let mut items = Vec::with_capacity(list.elements.len());
                for (index, element) in list.elements.iter().enumerate() {
                    let value = self.value(element)?;
                    if list.optional_indices.contains(&index) {
                        items.extend(optional(&value)?.cloned());
                    } else {
                        items.push(value);
                    }
                }
                Ok(Value::List(Arc::new(items)))
            }
            Expr::Map(map) => {
                self.pay(30)?;
                let mut entries = HashMap::with_capacity(map.entries.len());
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { return Err(Fault::overload()) };
                    let key = key(self.value(&entry.key)?)?;
                    let value = self.value(&entry.value)?;
                    let value = if entry.optional { optional(&value)?.cloned() } else { Some(value) };
                    if let Some(value) = value
                        && entries.insert(key, value).is_some()
                    {
                        return Err(Fault::new("Failed with repeated key"));
                    }
                }
                Ok(map_of(entries))
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(message) => self.message(message),
            Expr::Unspecified => Err(Fault::new("unspecified expression")),
        }
    }

    fn message(&mut self, made: &'a StructExpr) -> Result<Value, Fault> {
        let name = made.type_name.as_str();
        if !self.bindings.messages() || !message::exists(name) {
            return Err(Fault::new(format!("undeclared reference to '{name}'")));
        }
        self.pay(40)?;
        let mut fields = BTreeMap::new();
        for entry in &made.entries {
            let EntryExpr::StructField(entry) = &entry.expr else { return Err(Fault::overload()) };
            if !message::has_field(name, &entry.field) {
                return Err(Fault::new(format!("no such field: {}", entry.field)));
            }
            let value = self.value(&entry.value)?;
            let value = if entry.optional { optional(&value)?.cloned() } else { Some(value) };
            if let Some(value) = value
                && fields.insert(entry.field.clone(), value).is_some()
            {
                return Err(Fault::new(format!("the field {} is set twice", entry.field)));
            }
        }
        Ok(message::Message::value(name, fields))
    }

    pub(super) fn is_local(&self, name: &str) -> bool {
        self.locals.iter().any(|(local, _)| *local == name)
    }

    /// Whether a name means a value here, so that `name.function()` is a call on it.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.is_local(name) || self.bindings.get(name).is_some()
    }

    fn name(&mut self, name: &str) -> Result<Value, Fault> {
        if let Some((_, value)) = self.locals.iter().rev().find(|(local, _)| *local == name) {
            return builtin::failure(value).map_or_else(|| Ok(value.clone()), |text| Err(Fault::Error(text)));
        }
        let bound = self.bindings.get(name);
        bound.or_else(|| builtin::type_named(name)).ok_or_else(|| undeclared(name))
    }

    fn call(&mut self, call: &'a CallExpr) -> Result<Value, Fault> {
        match (call.func_name.as_str(), call.args.as_slice()) {
            (op::LOGICAL_AND, [left, right]) => self.either(left, right, false),
            (op::LOGICAL_OR, [left, right]) => self.either(left, right, true),
            (op::CONDITIONAL, [condition, yes, no]) => match self.value(condition)? {
                Value::Bool(true) => self.value(yes),
                Value::Bool(false) => self.value(no),
                _ => Err(Fault::overload()),
            },
            (op::NOT_STRICTLY_FALSE, [condition]) => match self.value(condition) {
                Ok(Value::Bool(value)) => Ok(Value::Bool(value)),
                Err(Fault::Spent) => Err(Fault::Spent),
                Ok(_) | Err(Fault::Error(_)) => Ok(Value::Bool(true)),
            },
            (op::ADD, [accumulated, more]) if is_accumulator(accumulated) => {
                // Taken out of its variable, so that adding to it does not copy it.
                let place = self.locals.iter().rposition(|(name, _)| *name == ACCUMULATOR);
                let so_far = place.map(|at| std::mem::replace(&mut self.locals[at].1, Value::Null));
                self.pay(1)?;
                let more = self.value(more)?;
                operators::binary(op::ADD, so_far.unwrap_or(Value::Null), more)
            }
            (op::OPT_SELECT | op::OPT_INDEX, [operand, index]) => {
                let (operand, index) = (self.value(operand)?, self.value(index)?);
                self.pay(1)?;
                opt_index(&operand, &index)
            }
            (op::INDEX, [operand, index]) => {
                let (operand, index) = (self.value(operand)?, self.value(index)?);
                self.pay(1)?;
                if let Some(held) = operators::as_optional(&operand) {
                    return Ok(held.map_or_else(none, |held| match operators::index(held, &index) {
                        Ok(value) => some(value),
                        Err(_) => none(),
                    }));
                }
                operators::index(&operand, &index)
            }
            (name, [left, right]) if call.target.is_none() && operators::is_binary(name) => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                self.pay(operators::cost(name, &left, &right))?;
                operators::binary(name, left, right)
            }
            (name @ (op::LOGICAL_NOT | op::NEGATE), [operand]) => {
                let operand = self.value(operand)?;
                self.pay(1)?;
                operators::unary(name, &operand)
            }
            _ => match macros::expand(self, call) {
                Some(outcome) => outcome,
                None => library::call(self, call),
            },
        }
    }

    /// And (`decides` false) or or (`decides` true): a failing side does not matter when the other one decides.
    fn either(&mut self, left: &'a IdedExpr, right: &'a IdedExpr, decides: bool) -> Result<Value, Fault> {
        let first = self.value(left);
        match first {
            Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(decides)),
            Err(Fault::Spent) => return Err(Fault::Spent),
            _ => {}
        }
        match (first, self.value(right)?) {
            (_, Value::Bool(value)) if value == decides => Ok(Value::Bool(decides)),
            (Ok(Value::Bool(_)), Value::Bool(value)) => Ok(Value::Bool(value)),
            (Err(fault), _) => Err(fault),
            _ => Err(Fault::overload()),
        }
    }

    fn comprehension(&mut self, c: &'a ComprehensionExpr) -> Result<Value, Fault> {
        let range = self.value(&c.iter_range)?;
        let start = self.value(&c.accu_init)?;
        let items = elements(&range)?;
        let depth = self.locals.len();
        self.locals.push((&c.accu_var, start));
        let outcome = self.iterate(c, items, depth).and_then(|()| self.value(&c.result));
        self.locals.truncate(depth);
        outcome
    }

    fn iterate(&mut self, c: &'a ComprehensionExpr, items: Vec<Value>, accu: usize) -> Result<(), Fault> {
        for item in items {
            self.pay(1)?;
            if let Value::Bool(false) = self.value(&c.loop_cond)? {
                break;
            }
            self.locals.push((&c.iter_var, item));
            let next = self.value(&c.loop_step);
            self.locals.truncate(accu + 1);
            // A failing step of `exists` may be outweighed by a later one; the logic of the steps sees to that.
            self.locals[accu].1 = match next {
                Ok(value) => value,
                Err(Fault::Error(text)) if is_logic(&c.loop_step) => builtin::failed(text),
                Err(fault) => return Err(fault),
            };
        }
        Ok(())
    }
}

/// The variable in which macros collect.
const ACCUMULATOR: &str = "@result";

fn is_accumulator(expr: &IdedExpr) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if name == ACCUMULATOR)
}

fn is_logic(step: &IdedExpr) -> bool {
    matches!(&step.expr, Expr::Call(call) if matches!(call.func_name.as_str(), op::LOGICAL_AND | op::LOGICAL_OR))
}

fn undeclared(name: &str) -> Fault {
    Fault::new(format!("undeclared reference to '{name}' (in container '')"))
}

fn constant(literal: &LiteralValue) -> Value {
    match literal {
        LiteralValue::Boolean(value) => Value::Bool(*value.inner()),
        LiteralValue::Bytes(value) => Value::Bytes(Arc::new(value.inner().to_vec())),
        LiteralValue::Double(value) => Value::Float(*value.inner()),
        LiteralValue::Int(value) => Value::Int(*value.inner()),
        LiteralValue::Null => Value::Null,
        LiteralValue::String(value) => Value::String(Arc::new(value.inner().to_owned())),
        LiteralValue::UInt(value) => Value::UInt(*value.inner()),
    }
}

/// The items of a list, or the keys of a map.
pub(super) fn elements(range: &Value) -> Result<Vec<Value>, Fault> {
    match range {
        Value::List(list) => Ok(list.to_vec()),
        Value::Map(map) => Ok(map.map.keys().map(Value::from).collect()),
        _ => Err(Fault::overload()),
    }
}

pub(super) fn key(value: Value) -> Result<Key, Fault> {
    match value {
        Value::String(text) => Ok(Key::String(text)),
        Value::Int(n) => Ok(Key::Int(n)),
        Value::UInt(n) => Ok(Key::Uint(n)),
        Value::Bool(b) => Ok(Key::Bool(b)),
        _ => Err(Fault::new("unsupported key type")),
    }
}

pub(super) fn map_of(entries: HashMap<Key, Value>) -> Value {
    Value::Map(Map { map: Arc::new(entries) })
}

pub(super) fn some(value: Value) -> Value {
    Value::Opaque(Arc::new(OptionalValue::of(value)))
}

pub(super) fn none() -> Value {
    Value::Opaque(Arc::new(OptionalValue::none()))
}

/// What an optional holds.
fn optional(value: &Value) -> Result<Option<&Value>, Fault> {
    operators::as_optional(value).ok_or_else(Fault::overload)
}

fn has(operand: &Value, name: &str) -> Result<bool, Fault> {
    match operand {
        Value::Map(map) => Ok(map.get(&KeyRef::String(name)).is_some()),
        other if let Some(held) = message::as_message(other) => Ok(held.fields.contains_key(name)),
        other => match operators::as_optional(other) {
            Some(held) => held.map_or(Ok(false), |held| has(held, name)),
            None => Err(Fault::overload()),
        },
    }
}

fn field(operand: &Value, name: &str) -> Result<Value, Fault> {
    match operand {
        Value::Map(map) => {
            map.get(&KeyRef::String(name)).cloned().ok_or_else(|| Fault::new(format!("no such key: {name}")))
        }
        other if let Some(held) = message::as_message(other) => {
            held.fields.get(name).cloned().ok_or_else(|| Fault::new(format!("no such key: {name}")))
        }
        other => match operators::as_optional(other) {
            Some(_) => opt_index(other, &Value::String(Arc::new(name.to_owned()))),
            None => Err(Fault::overload()),
        },
    }
}

/// `operand[?index]` and `operand.?index`.
fn opt_index(operand: &Value, index: &Value) -> Result<Value, Fault> {
    let inner = match operators::as_optional(operand) {
        Some(None) => return Ok(none()),
        Some(Some(inner)) => inner,
        None => operand,
    };
    match inner {
        Value::Map(_) | Value::List(_) => Ok(operators::index(inner, index).map_or_else(|_| none(), some)),
        _ => Err(Fault::overload()),
    }
}
