//! Functions. Those that are common, that read text, or that the library has otherwise than Kubernetes are here; the
//! libraries of Kubernetes (quantities, addresses, URLs, versions, formats, sets, lists, dates) are crate `kube-cel`'s.

use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr};
use kube_cel::cel::{Context, IdedExpr, Value};

use super::operators::{as_optional, size, traversal, weight, worded};
use super::{Eval, Fault, none, some};
use crate::cel::{authorizer, builtin};

/// Names that stand before functions without being variables.
pub(crate) const NAMESPACES: [&str; 11] =
    ["optional", "sets", "math", "base64", "strings", "lists", "jsonpatch", "format", "ip", "cidr", "cel"];

/// Parameters of a function at most; a name for each.
const NAMES: [&str; 8] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"];

thread_local! {
    static LIBRARY: Context<'static> = Context::default().with_all();
}

pub(crate) fn call<'a>(eval: &mut Eval<'a>, call: &'a CallExpr) -> Result<Value, Fault> {
    let namespace = match call.target.as_deref() {
        Some(IdedExpr { expr: Expr::Ident(name), .. }) if NAMESPACES.contains(&name.as_str()) && !eval.knows(name) => {
            Some(name.as_str())
        }
        _ => None,
    };
    let target = match (&call.target, namespace) {
        (Some(target), None) => Some(eval.value(target)?),
        _ => None,
    };
    let mut operands: Vec<Value> = target.iter().cloned().collect();
    for argument in &call.args {
        operands.push(eval.value(argument)?);
    }
    if target.is_some()
        && let Some(outcome) = authorizer::call(&call.func_name, &operands)
    {
        eval.pay(if call.func_name == "check" { authorizer::COST } else { 1 })?;
        return outcome;
    }
    if namespace.is_none()
        && let Some(outcome) = native(eval, &call.func_name, &operands, target.is_some())
    {
        return outcome;
    }
    eval.pay(cost(&call.func_name, &operands))?;
    let outcome = bridged(call, namespace, target.as_ref(), operands)?;
    Ok(match (namespace, call.func_name.as_str(), outcome) {
        // A format of an unknown name is none.
        (Some("format"), "named", Value::Null) => none(),
        (Some("format"), "named", found) => some(found),
        (_, _, outcome) => outcome,
    })
}

/// What a function of the library costs: at least what it takes to hand the values over.
fn cost(name: &str, operands: &[Value]) -> u64 {
    let all: u64 = operands.iter().map(|operand| weight(operand, crate::cel::PER_OBJECT)).sum();
    let pairs = || operands.iter().map(size).fold(1, u64::saturating_mul);
    let own = match name {
        "contains" | "equivalent" | "intersects" | "distinct" => pairs(),
        "find" | "findAll" | "replace" | "split" | "join" | "format" | "validate" => {
            traversal(operands.iter().map(size).sum::<u64>() * 4)
        }
        "sort" | "flatten" | "lists.range" | "range" => operands.iter().map(size).sum::<u64>() * 4,
        _ => 1,
    };
    own.max(all).max(1)
}

/// Calls a function of the library: values become variables, because it takes expressions.
fn bridged(
    call: &CallExpr,
    namespace: Option<&str>,
    target: Option<&Value>,
    mut operands: Vec<Value>,
) -> Result<Value, Fault> {
    let ident = |name: &str| IdedExpr { id: 0, expr: Expr::Ident(name.to_owned()) };
    let arguments = if target.is_some() { operands.split_off(1) } else { operands };
    if arguments.len() > NAMES.len() {
        return Err(Fault::overload());
    }
    // `lists.range(n)` and `replace` make values out of nothing or of little; they may not be larger than an object.
    if call.func_name == "range" && matches!(arguments.first(), Some(Value::Int(n)) if *n > 100_000) {
        return Err(Fault::Spent);
    }
    let call = || {
        LIBRARY.with(|library| {
            let mut scope = library.new_inner_scope();
            if let Some(target) = target {
                scope.add_variable_from_value("target", target.clone());
            }
            let args = arguments.iter().zip(NAMES).map(|(value, name)| {
                scope.add_variable_from_value(name, value.clone());
                ident(name)
            });
            let args = args.collect();
            let receiver = namespace.or(target.map(|_| "target"));
            let bridged = CallExpr {
                func_name: call.func_name.clone(),
                target: receiver.map(|name| Box::new(ident(name))),
                args,
            };
            scope.resolve(&IdedExpr { id: 0, expr: Expr::Call(bridged) }).map_err(worded)
        })
    };
    // The library is made for values it knows; one that it does not foresee must not end the request.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    outcome.unwrap_or_else(|_| Err(Fault::new("the function failed on these values")))
}

/// A date or duration out of its text.
pub(crate) fn convert(function: &str, text: &str) -> Option<Value> {
    let call = CallExpr { func_name: function.to_owned(), target: None, args: Vec::new() };
    bridged(&call, None, None, vec![text.into()]).ok()
}

/// The functions that are here; None for others.
fn native(eval: &mut Eval<'_>, name: &str, operands: &[Value], on_target: bool) -> Option<Result<Value, Fault>> {
    let (cost, outcome) = match (name, operands) {
        ("size", [value]) => (1, length(value)),
        ("contains", [Value::String(text), Value::String(part)]) => {
            (traversal(size(&operands[0])) * traversal(size(&operands[1])), Ok(text.contains(part.as_str()).into()))
        }
        ("startsWith", [Value::String(text), Value::String(part)]) => {
            (traversal(size(&operands[1])), Ok(text.starts_with(part.as_str()).into()))
        }
        ("endsWith", [Value::String(text), Value::String(part)]) => {
            (traversal(size(&operands[1])), Ok(text.ends_with(part.as_str()).into()))
        }
        ("matches", [Value::String(text), Value::String(pattern)]) => {
            let cost = traversal(size(&operands[0]) + 1).saturating_mul(size(&operands[1]).div_ceil(4));
            (cost, matches(text, pattern))
        }
        ("type", [value]) if !on_target => (1, Ok(builtin::type_of(value))),
        ("dyn", [value]) if !on_target => (1, Ok(value.clone())),
        ("bool", [value]) if !on_target => (1, boolean(value)),
        ("bytes", [Value::Bytes(_)]) | ("int", [Value::Int(_)]) if !on_target => (1, Ok(operands[0].clone())),
        ("string", [Value::Bool(value)]) if !on_target => (1, Ok(value.to_string().into())),
        ("timestamp", [Value::Timestamp(_)]) | ("duration", [Value::Duration(_)]) => (1, Ok(operands[0].clone())),
        ("int", [Value::Timestamp(time)]) => (1, Ok(Value::Int(time.timestamp()))),
        ("hasValue", [value]) => (1, optional(value).map(|held| Value::Bool(held.is_some()))),
        ("value", [value]) if as_optional(value).is_some() => {
            (1, optional(value).and_then(|held| held.cloned().ok_or_else(|| Fault::new("optional.none() dereference"))))
        }
        ("sum", [Value::List(list)]) if list.is_empty() => (1, Ok(Value::Int(0))),
        _ => return None,
    };
    Some(eval.pay(cost.max(1)).and(outcome))
}

fn optional(value: &Value) -> Result<Option<&Value>, Fault> {
    as_optional(value).ok_or_else(Fault::overload)
}

fn length(value: &Value) -> Result<Value, Fault> {
    let count = match value {
        Value::String(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(list) => list.len(),
        Value::Map(map) => map.map.len(),
        _ => return Err(Fault::overload()),
    };
    Ok(Value::Int(i64::try_from(count).unwrap_or(i64::MAX)))
}

fn boolean(value: &Value) -> Result<Value, Fault> {
    match value {
        Value::Bool(_) => Ok(value.clone()),
        Value::String(text) => match text.as_str() {
            "true" | "True" | "TRUE" | "t" | "1" => Ok(Value::Bool(true)),
            "false" | "False" | "FALSE" | "f" | "0" => Ok(Value::Bool(false)),
            _ => Err(Fault::new(format!("type conversion error from 'string' to 'bool': {text:?}"))),
        },
        _ => Err(Fault::overload()),
    }
}

fn matches(text: &Arc<String>, pattern: &Arc<String>) -> Result<Value, Fault> {
    match crate::schema::validate::pattern(pattern) {
        Some(regex) => Ok(Value::Bool(regex.is_match(text))),
        None => Err(Fault::new(format!("error parsing regexp: {pattern:?}"))),
    }
}
