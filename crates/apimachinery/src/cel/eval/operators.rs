//! Operators on values, and what they cost.

use std::cmp::Ordering;
use std::sync::Arc;

use kube_cel::cel::common::ast::operators as op;
use kube_cel::cel::objects::{KeyRef, OptionalValue};
use kube_cel::cel::{ExecutionError, Value};

use super::Fault;
use crate::cel::message;

/// Whether a call is one of the operators of two operands evaluated here.
pub(crate) fn is_binary(name: &str) -> bool {
    matches!(
        name,
        op::ADD
            | op::SUBSTRACT
            | op::MULTIPLY
            | op::DIVIDE
            | op::MODULO
            | op::EQUALS
            | op::NOT_EQUALS
            | op::LESS
            | op::LESS_EQUALS
            | op::GREATER
            | op::GREATER_EQUALS
            | op::IN
    )
}

/// Characters, bytes or elements.
pub(crate) fn size(value: &Value) -> u64 {
    let size = match value {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(list) => list.len(),
        Value::Map(map) => map.map.len(),
        _ => 1,
    };
    size as u64
}

/// All that is in a value, as far as `limit`.
pub(crate) fn weight(value: &Value, limit: u64) -> u64 {
    match value {
        Value::String(text) => 1 + text.len() as u64 / 10,
        Value::Bytes(bytes) => 1 + bytes.len() as u64 / 10,
        Value::List(list) => {
            let mut sum = 1;
            for item in list.iter() {
                sum += weight(item, limit.saturating_sub(sum));
                if sum >= limit {
                    break;
                }
            }
            sum
        }
        Value::Map(map) => weights(map.map.values(), limit),
        Value::Opaque(_) => match (as_optional(value), message::as_message(value)) {
            (Some(Some(held)), _) => 1 + weight(held, limit),
            (_, Some(held)) => weights(held.fields.values(), limit),
            _ => 1,
        },
        _ => 1,
    }
}

fn weights<'a>(items: impl Iterator<Item = &'a Value>, limit: u64) -> u64 {
    let mut sum = 1;
    for item in items {
        sum += 1 + weight(item, limit.saturating_sub(sum));
        if sum >= limit {
            break;
        }
    }
    sum
}

/// Reading a length is paid by tenths.
pub(crate) fn traversal(length: u64) -> u64 {
    length.div_ceil(10)
}

pub(crate) fn cost(name: &str, left: &Value, right: &Value) -> u64 {
    const LIMIT: u64 = crate::cel::PER_OBJECT;
    match name {
        op::ADD => 1.max(traversal(size(left) + size(right))),
        op::EQUALS | op::NOT_EQUALS => 1.max(weight(left, LIMIT).min(weight(right, LIMIT))),
        op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS => 1.max(traversal(size(left).min(size(right)))),
        op::IN => match right {
            Value::List(list) => list.len() as u64 * 1.max(weight(left, LIMIT)),
            _ => 1,
        },
        _ => 1,
    }
}

pub(crate) fn binary(name: &str, left: Value, right: Value) -> Result<Value, Fault> {
    let order = |left: &Value, right: &Value, fits: fn(Ordering) -> bool| match compare(left, right) {
        Some(order) => Ok(Value::Bool(fits(order))),
        // Nothing is less or greater than what is no number.
        None if matches!((left, right), (Value::Float(_), _) | (_, Value::Float(_))) => Ok(Value::Bool(false)),
        None => Err(Fault::overload()),
    };
    match name {
        op::EQUALS => Ok(Value::Bool(left == right)),
        op::NOT_EQUALS => Ok(Value::Bool(left != right)),
        op::LESS => order(&left, &right, Ordering::is_lt),
        op::LESS_EQUALS => order(&left, &right, Ordering::is_le),
        op::GREATER => order(&left, &right, Ordering::is_gt),
        op::GREATER_EQUALS => order(&left, &right, Ordering::is_ge),
        op::IN => contains(&left, &right).map(Value::Bool),
        op::ADD => match (left, right) {
            (Value::Bytes(mut left), Value::Bytes(right)) => {
                Arc::make_mut(&mut left).extend_from_slice(&right);
                Ok(Value::Bytes(left))
            }
            (left, right) => (left + right).map_err(worded),
        },
        op::SUBSTRACT => (left - right).map_err(worded),
        op::MULTIPLY => (left * right).map_err(worded),
        op::DIVIDE => (left / right).map_err(worded),
        op::MODULO => (left % right).map_err(worded),
        _ => Err(Fault::overload()),
    }
}

fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Bytes(left), Value::Bytes(right)) => Some(left.cmp(right)),
        (Value::Null, _) | (_, Value::Null) => None,
        _ => left.partial_cmp(right),
    }
}

fn contains(item: &Value, range: &Value) -> Result<bool, Fault> {
    match range {
        Value::List(list) => Ok(list.contains(item)),
        Value::Map(map) => match item {
            Value::String(text) => Ok(map.get(&KeyRef::String(text)).is_some()),
            Value::Int(n) => Ok(map.get(&KeyRef::Int(*n)).is_some()),
            Value::UInt(n) => Ok(map.get(&KeyRef::Uint(*n)).is_some()),
            Value::Bool(b) => Ok(map.get(&KeyRef::Bool(*b)).is_some()),
            _ => Ok(false),
        },
        _ => Err(Fault::overload()),
    }
}

pub(crate) fn unary(name: &str, operand: &Value) -> Result<Value, Fault> {
    match (name, operand) {
        (op::LOGICAL_NOT, Value::Bool(value)) => Ok(Value::Bool(!value)),
        (op::NEGATE, Value::Int(n)) => n.checked_neg().map(Value::Int).ok_or_else(|| Fault::new("integer overflow")),
        (op::NEGATE, Value::Float(n)) => Ok(Value::Float(-n)),
        _ => Err(Fault::overload()),
    }
}

/// `operand[index]`.
pub(crate) fn index(operand: &Value, index: &Value) -> Result<Value, Fault> {
    match (operand, index) {
        (Value::List(list), _) => {
            let place = match index {
                Value::Int(n) => usize::try_from(*n).ok(),
                Value::UInt(n) => usize::try_from(*n).ok(),
                Value::Float(n) if n.fract() == 0.0 && *n >= 0.0 => Some(*n as usize),
                _ => return Err(Fault::overload()),
            };
            let shown = || match index {
                Value::Int(n) => n.to_string(),
                Value::UInt(n) => n.to_string(),
                _ => String::new(),
            };
            let found = place.and_then(|place| list.get(place)).cloned();
            found.ok_or_else(|| Fault::new(format!("index out of bounds: {}", shown())))
        }
        (Value::Map(map), _) => {
            let (found, shown) = match index {
                Value::String(text) => (map.get(&KeyRef::String(text)), text.to_string()),
                Value::Int(n) => (map.get(&KeyRef::Int(*n)), n.to_string()),
                Value::UInt(n) => (map.get(&KeyRef::Uint(*n)), n.to_string()),
                Value::Bool(b) => (map.get(&KeyRef::Bool(*b)), b.to_string()),
                _ => return Err(Fault::overload()),
            };
            found.cloned().ok_or_else(|| Fault::new(format!("no such key: {shown}")))
        }
        _ => Err(Fault::overload()),
    }
}

/// What an optional holds; None when the value is no optional.
#[expect(clippy::option_option, reason = "whether it is an optional, and whether that holds something")]
pub(crate) fn as_optional(value: &Value) -> Option<Option<&Value>> {
    match value {
        Value::Opaque(held) => held.downcast_ref::<OptionalValue>().map(OptionalValue::value),
        _ => None,
    }
}

/// An error of the library in the words Kubernetes' own evaluator has for it.
pub(crate) fn worded(error: ExecutionError) -> Fault {
    Fault::new(match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::UndeclaredReference(name) => format!("undeclared reference to '{name}' (in container '')"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::FunctionError { message, .. } => message,
        ExecutionError::NoSuchOverload
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::MissingArgumentOrTarget
        | ExecutionError::InvalidArgumentCount { .. } => "no such overload".to_owned(),
        other => other.to_string(),
    })
}
