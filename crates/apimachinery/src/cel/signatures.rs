//! What functions and operators take, give and cost.

use std::sync::Arc;

use kube_cel::cel::common::ast::operators as op;

use super::authorizer;
use super::types::Type;

pub(super) enum Found {
    /// The function takes these operands.
    Result(Type),
    /// It takes others.
    Overload,
    /// There is no such function.
    Unknown,
}

use Found::{Overload, Result, Unknown};

/// The type of a call.
pub(super) fn result(namespace: Option<&str>, name: &str, operands: &[Type], on_target: bool) -> Found {
    if let Some(found) = operator(name, operands) {
        return found;
    }
    if let Some(space) = namespace {
        return in_namespace(space, name, operands);
    }
    let target = operands.first();
    let text = |position: usize| matches!(operands.get(position), Some(Type::String(_) | Type::Dyn));
    let longest = || Type::String(operands.iter().map(Type::size).fold(0, u64::saturating_add));
    match (name, operands.len()) {
        ("size", 1) => match &operands[0] {
            Type::String(_) | Type::Bytes(_) | Type::List(..) | Type::Map(..) | Type::Dyn => Result(Type::Int),
            _ => Overload,
        },
        ("startsWith" | "endsWith" | "matches" | "contains", 2) => match (name, &operands[0]) {
            _ if text(0) && text(1) => Result(Type::Bool),
            _ => Overload,
        },
        // How long the text of a number becomes, estimates of Kubernetes do not know.
        ("string", 1) => Result(Type::String(match &operands[0] {
            Type::Bool | Type::Int | Type::Uint | Type::Double | Type::Timestamp | Type::Duration => u64::MAX,
            other => other.size().max(64),
        })),
        ("int", 1) if !on_target => Result(Type::Int),
        ("uint", 1) if !on_target => Result(Type::Uint),
        ("double", 1) if !on_target => Result(Type::Double),
        ("bool", 1) if !on_target => Result(Type::Bool),
        ("bytes", 1) if !on_target => Result(Type::Bytes(operands[0].size())),
        ("dyn", 1) if !on_target => Result(Type::Dyn),
        ("type", 1) if !on_target => Result(Type::Opaque("type")),
        ("timestamp", 1) if !on_target => Result(Type::Timestamp),
        ("duration", 1) if !on_target => Result(Type::Duration),
        (
            "isSorted"
            | "isQuantity"
            | "isURL"
            | "isIP"
            | "isCIDR"
            | "isSemver"
            | "isGreaterThan"
            | "isLessThan"
            | "isInteger"
            | "isLoopback"
            | "isUnspecified"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "containsIP"
            | "containsCIDR"
            | "hasValue"
            | "allowed"
            | "errored",
            _,
        ) => Result(Type::Bool),
        (
            "compareTo" | "asInteger" | "sign" | "family" | "prefixLength" | "indexOf" | "lastIndexOf" | "major"
            | "minor" | "patch" | "getFullYear" | "getMonth" | "getDayOfYear" | "getDayOfMonth" | "getDate"
            | "getDayOfWeek" | "getHours" | "getMinutes" | "getSeconds" | "getMilliseconds",
            _,
        ) => Result(Type::Int),
        ("asApproximateFloat", 1) => Result(Type::Double),
        ("lowerAscii" | "upperAscii" | "trim" | "charAt" | "substring" | "find", _) => match target {
            Some(Type::String(_) | Type::Dyn) => Result(Type::String(target.map_or(1, Type::size))),
            _ => Overload,
        },
        ("replace", 3 | 4) if text(0) => Result(longest()),
        ("format", 2) if text(0) => Result(Type::TEXT),
        ("split", 2 | 3) | ("findAll", 2 | 3) if text(0) => {
            let size = target.map_or(1, Type::size);
            Result(Type::List(Arc::new(Type::String(size)), size))
        }
        ("join", 1 | 2) => match target {
            Some(Type::List(of, size)) => Result(Type::String(of.size().saturating_mul(*size))),
            Some(Type::Dyn) => Result(Type::TEXT),
            _ => Overload,
        },
        ("getScheme" | "getHost" | "getHostname" | "getPort" | "getEscapedPath" | "reason" | "error", 1) => {
            Result(Type::String(1024))
        }
        ("min" | "max" | "sum" | "first" | "last", 1) => match target {
            Some(Type::List(of, _)) if matches!(name, "min" | "max" | "sum") => Result((**of).clone()),
            Some(Type::List(of, _)) => Result(Type::Optional(of.clone())),
            Some(Type::Dyn) => Result(Type::Dyn),
            _ => Overload,
        },
        ("reverse" | "sort" | "distinct" | "slice", _) => Result(target.cloned().unwrap_or(Type::Dyn)),
        ("value", 1) => match target {
            Some(Type::Optional(of)) => Result((**of).clone()),
            _ => Result(Type::Dyn),
        },
        ("orValue", 2) => match target {
            Some(Type::Optional(of)) if **of != Type::Dyn => Result((**of).clone()),
            _ => Result(operands[1].clone()),
        },
        ("or", 2) => Result(target.cloned().unwrap_or(Type::Dyn)),
        (
            "quantity" | "url" | "ip" | "cidr" | "semver" | "add" | "sub" | "masked" | "getQuery" | "validate"
            | "flatten" | "path" | "group" | "resource" | "subresource" | "namespace" | "name" | "check"
            | "serviceAccount" | "fieldSelector" | "labelSelector",
            _,
        ) => Result(Type::Dyn),
        _ => Unknown,
    }
}

fn in_namespace(space: &str, name: &str, operands: &[Type]) -> Found {
    match (space, name) {
        ("optional", "none") => Result(Type::Optional(Arc::new(Type::Dyn))),
        ("optional", "of" | "ofNonZeroValue") => {
            Result(Type::Optional(Arc::new(operands.first().cloned().unwrap_or(Type::Dyn))))
        }
        ("sets", "contains" | "intersects" | "equivalent") | ("ip", "isCanonical") => Result(Type::Bool),
        ("base64", "encode") | ("strings", "quote") | ("jsonpatch", "escapeKey") => {
            Result(Type::String(operands.iter().map(Type::size).sum::<u64>().saturating_mul(2)))
        }
        ("lists", "range") => Result(Type::List(Arc::new(Type::Int), 100_000)),
        ("math" | "format" | "base64" | "lists", _) => Result(Type::Dyn),
        _ => Unknown,
    }
}

fn is_number(type_: &Type) -> bool {
    matches!(type_, Type::Int | Type::Uint | Type::Double)
}

/// Whether values of two types may be the same.
fn comparable(left: &Type, right: &Type) -> bool {
    use std::mem::discriminant;
    let open = |type_: &Type| matches!(type_, Type::Dyn | Type::Opaque(_));
    let scalar = |type_: &Type| {
        is_number(type_)
            || matches!(type_, Type::Bool | Type::String(_) | Type::Bytes(_) | Type::List(..) | Type::Map(..))
    };
    // Only what can be null compares with null.
    if matches!(left, Type::Null) || matches!(right, Type::Null) {
        return !scalar(left) && !scalar(right);
    }
    open(left)
        || open(right)
        || (is_number(left) && is_number(right))
        || discriminant(left) == discriminant(right)
        || matches!((left, right), (Type::Object(_), Type::Map(..)) | (Type::Map(..), Type::Object(_)))
}

fn operator(name: &str, operands: &[Type]) -> Option<Found> {
    let bools = || operands.iter().all(|type_| matches!(type_, Type::Bool | Type::Dyn));
    let boolean = |fits: bool| Some(if fits { Result(Type::Bool) } else { Overload });
    match (name, operands) {
        (op::LOGICAL_AND | op::LOGICAL_OR | op::LOGICAL_NOT, _) => boolean(bools()),
        (op::NEGATE, [Type::Int | Type::Double | Type::Dyn]) => Some(Result(operands[0].clone())),
        (op::EQUALS | op::NOT_EQUALS, [left, right]) => boolean(comparable(left, right)),
        (op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS, [left, right]) => {
            let ordered = |type_: &Type| {
                is_number(type_)
                    || matches!(
                        type_,
                        Type::Bool | Type::String(_) | Type::Bytes(_) | Type::Timestamp | Type::Duration | Type::Dyn
                    )
            };
            boolean(ordered(left) && ordered(right) && comparable(left, right))
        }
        (op::IN, [_, Type::List(..) | Type::Map(..) | Type::Dyn]) => Some(Result(Type::Bool)),
        (op::INDEX, [Type::List(of, _), Type::Int | Type::Uint | Type::Double | Type::Dyn]) => {
            Some(Result((**of).clone()))
        }
        (op::INDEX, [Type::Map(_, value, _), _]) => Some(Result((**value).clone())),
        (op::INDEX, [Type::Dyn | Type::Optional(_), _]) => Some(Result(Type::Dyn)),
        (op::OPT_INDEX, [Type::List(of, _) | Type::Map(_, of, _), _]) => Some(Result(Type::Optional(of.clone()))),
        (op::OPT_INDEX | op::OPT_SELECT, _) => Some(Result(Type::Optional(Arc::new(Type::Dyn)))),
        (op::ADD, [Type::String(a), Type::String(b)]) => Some(Result(Type::String(a.saturating_add(*b)))),
        (op::ADD, [Type::Bytes(a), Type::Bytes(b)]) => Some(Result(Type::Bytes(a.saturating_add(*b)))),
        (op::ADD, [Type::List(a, n), Type::List(b, m)]) => {
            let of = if **a == Type::Dyn { b } else { a };
            Some(Result(Type::List(of.clone(), n.saturating_add(*m))))
        }
        (op::ADD, [Type::Timestamp, Type::Duration] | [Type::Duration, Type::Timestamp])
        | (op::SUBSTRACT, [Type::Timestamp, Type::Duration]) => Some(Result(Type::Timestamp)),
        (op::ADD | op::SUBSTRACT, [Type::Duration, Type::Duration])
        | (op::SUBSTRACT, [Type::Timestamp, Type::Timestamp]) => Some(Result(Type::Duration)),
        (op::ADD | op::SUBSTRACT | op::MULTIPLY | op::DIVIDE | op::MODULO, [left, right]) => {
            Some(match (left, right) {
                (Type::Dyn, other) | (other, Type::Dyn) => Result(other.clone()),
                (left, right) if is_number(left) && left == right => Result(left.clone()),
                _ => Overload,
            })
        }
        (op::NEGATE | op::IN | op::INDEX, _) => Some(Overload),
        _ => None,
    }
}

/// A share of a length, rounded up.
fn part(size: u64, of: u64) -> u64 {
    size.div_ceil(of)
}

/// What the call itself costs at most.
pub(super) fn cost(name: &str, operands: &[Type]) -> u64 {
    let size = |position: usize| operands.get(position).map_or(1, Type::size);
    match name {
        op::LOGICAL_AND | op::LOGICAL_OR => 0,
        "startsWith" | "endsWith" => part(size(1), 10),
        op::IN => match operands.get(1) {
            Some(Type::List(..)) => size(1),
            _ => 1,
        },
        "matches" | "find" | "findAll" => part(size(0).saturating_add(1), 10).saturating_mul(part(size(1), 4).max(1)),
        "contains" => part(size(0), 10).saturating_mul(part(size(1), 10)),
        op::ADD => match operands.first() {
            Some(Type::String(_) | Type::Bytes(_)) => part(size(0).saturating_add(size(1)), 10),
            _ => 1,
        },
        op::EQUALS | op::NOT_EQUALS | op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS => {
            part(size(0).min(size(1)), 10).max(1)
        }
        "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" | "distinct" | "sort" | "flatten" => size(0),
        "url" | "isURL" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "replace" | "split" | "quantity"
        | "isQuantity" | "ip" | "isIP" | "cidr" | "isCIDR" | "semver" | "isSemver" | "format" | "validate" => {
            part(size(0), 10).max(1)
        }
        "join" => match operands.first() {
            Some(Type::List(of, items)) => part(of.size().saturating_mul(*items), 10),
            _ => 1,
        },
        "intersects" | "equivalent" => size(0).saturating_mul(size(1)),
        "check" => authorizer::COST,
        _ => 1,
    }
}
