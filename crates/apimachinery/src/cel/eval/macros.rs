//! Macros the parser leaves as calls: `cel.bind`, `optMap`, `optFlatMap`, `sortBy`, and comprehensions of two variables.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::common::ast::{CallExpr, Expr, operators as op};
use kube_cel::cel::{IdedExpr, Value};

use super::operators;
use super::{Eval, Fault, elements, key, map_of, none, some};

/// The value of a macro; None when the call is none.
pub(crate) fn expand<'a>(eval: &mut Eval<'a>, call: &'a CallExpr) -> Option<Result<Value, Fault>> {
    let target = call.target.as_deref()?;
    let outcome = match (call.func_name.as_str(), call.args.as_slice()) {
        ("bind", [name, value, body]) if matches!(&target.expr, Expr::Ident(cel) if cel == "cel") => {
            let name = simple(name)?;
            eval.value(value).and_then(|value| bound(eval, name, value, body))
        }
        (kind @ ("optMap" | "optFlatMap"), [name, body]) => {
            let name = simple(name)?;
            eval.value(target).and_then(|value| {
                let Some(held) = operators::as_optional(&value) else { return Err(Fault::overload()) };
                let Some(held) = held.cloned() else { return Ok(none()) };
                let inner = bound(eval, name, held, body)?;
                Ok(if kind == "optMap" { some(inner) } else { inner })
            })
        }
        ("sortBy", [name, by]) => {
            let name = simple(name)?;
            sorted(eval, target, name, by)
        }
        (kind @ ("all" | "exists" | "exists_one" | "existsOne"), [first, second, body]) => {
            let names = (simple(first)?, simple(second)?);
            quantified(eval, kind, target, names, body)
        }
        (kind @ ("transformList" | "transformMap" | "transformMapEntry"), [first, second, rest @ ..])
            if matches!(rest.len(), 1 | 2) =>
        {
            let names = (simple(first)?, simple(second)?);
            transformed(eval, kind, target, names, rest)
        }
        _ => return None,
    };
    Some(outcome)
}

fn simple(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Ident(name) => Some(name),
        _ => None,
    }
}

fn bound<'a>(eval: &mut Eval<'a>, name: &'a str, value: Value, body: &'a IdedExpr) -> Result<Value, Fault> {
    eval.locals.push((name, value));
    let outcome = eval.value(body);
    eval.locals.pop();
    outcome
}

/// Index and item, or key and value.
fn pairs(range: &Value) -> Result<Vec<(Value, Value)>, Fault> {
    match range {
        Value::List(list) => Ok((0..).map(Value::Int).zip(list.iter().cloned()).collect()),
        Value::Map(map) => Ok(map.map.iter().map(|(key, value)| (key.into(), value.clone())).collect()),
        _ => Err(Fault::overload()),
    }
}

fn with_pair<'a>(
    eval: &mut Eval<'a>,
    names: (&'a str, &'a str),
    pair: &(Value, Value),
    body: &'a IdedExpr,
) -> Result<Value, Fault> {
    eval.pay(1)?;
    eval.locals.push((names.0, pair.0.clone()));
    let outcome = bound(eval, names.1, pair.1.clone(), body);
    eval.locals.pop();
    outcome
}

fn quantified<'a>(
    eval: &mut Eval<'a>,
    kind: &str,
    range: &'a IdedExpr,
    names: (&'a str, &'a str),
    body: &'a IdedExpr,
) -> Result<Value, Fault> {
    let range = eval.value(range)?;
    let (mut count, mut fault) = (0, None);
    for pair in pairs(&range)? {
        match with_pair(eval, names, &pair, body) {
            Ok(Value::Bool(true)) if kind == "exists" => return Ok(Value::Bool(true)),
            Ok(Value::Bool(false)) if kind == "all" => return Ok(Value::Bool(false)),
            Ok(Value::Bool(holds)) => count += usize::from(holds),
            Ok(_) => return Err(Fault::overload()),
            Err(error) if kind.contains("ne") || error == Fault::Spent => return Err(error),
            Err(error) => fault = Some(error),
        }
    }
    match (fault, kind) {
        (Some(error), _) => Err(error),
        (None, "all") => Ok(Value::Bool(true)),
        (None, "exists") => Ok(Value::Bool(false)),
        (None, _) => Ok(Value::Bool(count == 1)),
    }
}

fn transformed<'a>(
    eval: &mut Eval<'a>,
    kind: &str,
    range: &'a IdedExpr,
    names: (&'a str, &'a str),
    rest: &'a [IdedExpr],
) -> Result<Value, Fault> {
    let range = eval.value(range)?;
    let (filter, body) = match rest {
        [filter, body] => (Some(filter), body),
        [body] => (None, body),
        _ => return Err(Fault::overload()),
    };
    let (mut list, mut map) = (Vec::new(), HashMap::new());
    for pair in pairs(&range)? {
        if let Some(filter) = filter {
            match with_pair(eval, names, &pair, filter)? {
                Value::Bool(true) => {}
                Value::Bool(false) => continue,
                _ => return Err(Fault::overload()),
            }
        }
        let value = with_pair(eval, names, &pair, body)?;
        match (kind, value) {
            ("transformList", value) => list.push(value),
            ("transformMap", value) => {
                map.insert(key(pair.0)?, value);
            }
            (_, Value::Map(entry)) => {
                for (key, value) in entry.map.iter() {
                    if map.insert(key.clone(), value.clone()).is_some() {
                        return Err(Fault::new("insert failed: key already exists"));
                    }
                }
            }
            _ => return Err(Fault::overload()),
        }
    }
    Ok(if kind == "transformList" { Value::List(Arc::new(list)) } else { map_of(map) })
}

fn sorted<'a>(eval: &mut Eval<'a>, range: &'a IdedExpr, name: &'a str, by: &'a IdedExpr) -> Result<Value, Fault> {
    let range = eval.value(range)?;
    let mut keyed = Vec::new();
    for item in elements(&range)? {
        eval.pay(1)?;
        keyed.push((bound(eval, name, item.clone(), by)?, item));
    }
    let mut fault = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let less = |a: &Value, b: &Value| operators::binary(op::LESS, a.clone(), b.clone());
        match (less(a, b), less(b, a)) {
            (Ok(Value::Bool(true)), _) => Ordering::Less,
            (_, Ok(Value::Bool(true))) => Ordering::Greater,
            (Err(error), _) => {
                fault = Some(error);
                Ordering::Equal
            }
            _ => Ordering::Equal,
        }
    });
    match fault {
        Some(error) => Err(error),
        None => Ok(Value::List(Arc::new(keyed.into_iter().map(|(_, item)| item).collect()))),
    }
}
