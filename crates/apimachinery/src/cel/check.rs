//! What is known of an expression before it is used: its type, the names and fields it may not use, and what it costs at
//! most.
//!
//! Where a type is known only at run time nothing is refused.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, StructExpr, operators as op,
};

use super::eval::library;
use super::types::Type;
use super::{Program, message, signatures};

/// Libraries that the API offers to no expression that is stored, though what runs them knows them.
const NOT_OFFERED: [&str; 2] = ["base64", "math"];
/// The library that it offers to expressions which make messages.
const OF_PATCHES: &str = "jsonpatch";

/// A type, and the cost of coming to a value of it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Of the value.
    pub type_: Type,
    /// At most.
    pub cost: u64,
}

/// Checks an expression that may use `variables`.
///
/// # Errors
/// The checker's sentences, each with its place in the source.
pub fn check(program: &Program, variables: &HashMap<String, Type>) -> Result<Checked, String> {
    checked(program, variables, false)
}

/// The same for an expression that says how an object is changed.
///
/// # Errors
/// As above.
pub fn check_change(program: &Program, variables: &HashMap<String, Type>) -> Result<Checked, String> {
    checked(program, variables, true)
}

fn checked(program: &Program, variables: &HashMap<String, Type>, messages: bool) -> Result<Checked, String> {
    let mut check = Check { source: program.source(), variables, messages, locals: Vec::new(), errors: Vec::new() };
    let checked = check.expr(program.tree());
    if check.errors.is_empty() { Ok(checked) } else { Err(check.errors.join("\n")) }
}

struct Check<'a> {
    source: &'a str,
    variables: &'a HashMap<String, Type>,
    messages: bool,
    locals: Vec<(&'a str, Type)>,
    errors: Vec<String>,
}

fn known(type_: Type, cost: u64) -> Checked {
    Checked { type_, cost }
}

impl<'a> Check<'a> {
    /// Notes an error at the first place of `sign` in the source. Trees hold no places; the first is the likely one.
    fn error(&mut self, sign: &str, what: &str) -> Checked {
        let at = self.source.find(sign).unwrap_or(0);
        let before = &self.source[..at];
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().map_or(0, |start| start.chars().count());
        let shown = self.source.lines().nth(line).unwrap_or_default();
        let text =
            format!("ERROR: <input>:{}:{}: {what}\n | {shown}\n | {}^", line + 1, column + 1, ".".repeat(column));
        if self.errors.len() < 10 && !self.errors.contains(&text) {
            self.errors.push(text);
        }
        known(Type::Dyn, 0)
    }

    fn expr(&mut self, expr: &'a IdedExpr) -> Checked {
        match &expr.expr {
            Expr::Literal(literal) => known(literal_type(literal), 0),
            Expr::Ident(name) => match self.name(name) {
                Some(type_) => known(type_, 1),
                None => self.error(name, &format!("undeclared reference to '{name}' (in container '')")),
            },
            Expr::Select(select) => {
                let operand = self.expr(&select.operand);
                let field = self.field(&operand.type_, &select.field);
                if select.test { known(Type::Bool, operand.cost) } else { known(field, operand.cost + 1) }
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                let mut cost = 10;
                let mut of: Option<Type> = None;
                for (index, element) in list.elements.iter().enumerate() {
                    let element = self.expr(element);
                    cost = u64::saturating_add(cost, element.cost);
                    let type_ = match element.type_ {
                        Type::Optional(of) if list.optional_indices.contains(&index) => (*of).clone(),
                        type_ => type_,
                    };
                    of = Some(of.map_or_else(|| type_.clone(), |before| join(before, &type_)));
                }
                known(Type::List(Arc::new(of.unwrap_or(Type::Dyn)), list.elements.len() as u64), cost)
            }
            Expr::Map(map) => {
                let (mut cost, mut key, mut value) = (30, None, None);
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
                    let (k, v) = (self.expr(&entry.key), self.expr(&entry.value));
                    cost = u64::saturating_add(cost, k.cost.saturating_add(v.cost));
                    key = Some(key.map_or_else(|| k.type_.clone(), |before| join(before, &k.type_)));
                    value = Some(value.map_or_else(|| v.type_.clone(), |before| join(before, &v.type_)));
                }
                let (key, value) = (key.unwrap_or(Type::Dyn), value.unwrap_or(Type::Dyn));
                known(Type::Map(Arc::new(key), Arc::new(value), map.entries.len() as u64), cost)
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(made) => self.message(made),
            Expr::Unspecified => known(Type::Dyn, 0),
        }
    }

    fn message(&mut self, made: &'a StructExpr) -> Checked {
        let name = made.type_name.as_str();
        if !self.messages || !message::exists(name) {
            return self.error(name, &format!("undeclared reference to '{name}' (in container '')"));
        }
        let mut cost: u64 = 40;
        for entry in &made.entries {
            let EntryExpr::StructField(entry) = &entry.expr else { continue };
            let value = self.expr(&entry.value);
            cost = cost.saturating_add(value.cost);
            let given = match value.type_ {
                Type::Optional(of) if entry.optional => (*of).clone(),
                type_ => type_,
            };
            let field = entry.field.as_str();
            if !message::has_field(name, field) {
                self.error(field, &format!("undefined field '{field}'"));
            } else if message::is_text(name, field) && !matches!(given, Type::String(_) | Type::Dyn) {
                let why = format!("expected type of field '{field}' is 'string' but provided type is '{given}'");
                self.error(field, &why);
            }
        }
        let type_ = match name {
            message::OBJECT => Type::Opaque(message::OBJECT),
            message::OPERATION => Type::Opaque(message::OPERATION),
            // What is within an object is checked when it is merged.
            _ => Type::Dyn,
        };
        known(type_, cost)
    }

    fn name(&self, name: &str) -> Option<Type> {
        let local = self.locals.iter().rev().find(|(local, _)| *local == name).map(|(_, type_)| type_.clone());
        local
            .or_else(|| self.variables.get(name).cloned())
            .or_else(|| super::builtin::type_named(name).map(|_| Type::Opaque("type")))
    }

    fn field(&mut self, operand: &Type, name: &str) -> Type {
        match operand {
            Type::Dyn | Type::Opaque(_) => Type::Dyn,
            Type::Map(_, value, _) => (**value).clone(),
            Type::Optional(of) => Type::Optional(Arc::new(self.field(of, name))),
            Type::Object(object) => match object.fields.get(name) {
                Some(of) => of.clone(),
                None => self.error(&format!(".{name}"), &format!("undefined field '{name}'")).type_,
            },
            other => {
                let what = format!("type '{other}' does not support field selection");
                self.error(&format!(".{name}"), &what).type_
            }
        }
    }

    fn overload(&mut self, name: &str, operands: &[&Type], on_target: bool) -> Checked {
        let shown: Vec<String> = operands.iter().map(ToString::to_string).collect();
        let applied = match (on_target, shown.split_first()) {
            (true, Some((target, rest))) => format!("{target}.({})", rest.join(", ")),
            _ => format!("({})", shown.join(", ")),
        };
        let sign = name.trim_matches(['_', '@']);
        self.error(sign, &format!("found no matching overload for '{name}' applied to '{applied}'"))
    }

    fn call(&mut self, call: &'a CallExpr) -> Checked {
        if let Some(checked) = self.special(call) {
            return checked;
        }
        let namespace = match call.target.as_deref() {
            Some(IdedExpr { expr: Expr::Ident(name), .. })
                if library::NAMESPACES.contains(&name.as_str()) && self.name(name).is_none() =>
            {
                Some(name.as_str())
            }
            _ => None,
        };
        let mut cost: u64 = 0;
        let mut types = Vec::new();
        for operand in call.target.as_deref().filter(|_| namespace.is_none()).into_iter().chain(&call.args) {
            let operand = self.expr(operand);
            cost = cost.saturating_add(operand.cost);
            types.push(operand.type_);
        }
        let name = call.func_name.as_str();
        let refs: Vec<&Type> = types.iter().collect();
        let on_target = call.target.is_some() && namespace.is_none();
        let withheld = |space: &&str| NOT_OFFERED.contains(space) || *space == OF_PATCHES && !self.messages;
        if let Some(space) = namespace.filter(withheld) {
            return self.error(space, &format!("undeclared reference to '{space}' (in container '')"));
        }
        if let ("matches", Some(Expr::Literal(LiteralValue::String(pattern)))) =
            (name, call.args.last().map(|last| &last.expr))
            && let Err(error) = regex::Regex::new(pattern.inner())
        {
            let why = error.to_string();
            let last = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
            return self.error(name, &format!("invalid matches argument: {last}"));
        }
        match signatures::result(namespace, name, &types, on_target) {
            signatures::Found::Result(type_) => known(type_, cost.saturating_add(signatures::cost(name, &types))),
            signatures::Found::Overload => self.overload(name, &refs, on_target),
            signatures::Found::Unknown => {
                let full = namespace.map_or_else(|| name.to_owned(), |space| format!("{space}.{name}"));
                self.error(name, &format!("undeclared reference to '{full}' (in container '')"))
            }
        }
    }

    /// Operators whose operands are not all evaluated, and macros.
    fn special(&mut self, call: &'a CallExpr) -> Option<Checked> {
        let name = call.func_name.as_str();
        let local = |expr: &'a IdedExpr| match &expr.expr {
            Expr::Ident(name) => Some(name.as_str()),
            _ => None,
        };
        Some(match (name, call.args.as_slice(), call.target.as_deref()) {
            (op::CONDITIONAL, [condition, yes, no], None) => {
                let condition = self.expr(condition);
                let (yes, no) = (self.expr(yes), self.expr(no));
                if !matches!(condition.type_, Type::Bool | Type::Dyn) {
                    return Some(self.overload(name, &[&condition.type_, &yes.type_, &no.type_], false));
                }
                known(join(yes.type_, &no.type_), condition.cost.saturating_add(yes.cost.max(no.cost)))
            }
            (op::NOT_STRICTLY_FALSE, [condition], None) => known(Type::Bool, self.expr(condition).cost + 1),
            ("bind", [variable, value, body], Some(target)) if local(target) == Some("cel") => {
                let value = self.expr(value);
                let body = self.within(&[(local(variable)?, value.type_)], body);
                known(body.type_, value.cost.saturating_add(body.cost))
            }
            ("optMap" | "optFlatMap", [variable, body], Some(target)) => {
                let target = self.expr(target);
                let held = match &target.type_ {
                    Type::Optional(of) => (**of).clone(),
                    _ => Type::Dyn,
                };
                let body = self.within(&[(local(variable)?, held)], body);
                let type_ = if name == "optMap" { Type::Optional(Arc::new(body.type_)) } else { body.type_ };
                known(type_, target.cost.saturating_add(body.cost))
            }
            ("all" | "exists" | "exists_one" | "existsOne", [first, second, body], Some(target)) => {
                let (range, pair, size) = self.pairs(target);
                let body = self.within(&[(local(first)?, pair.0), (local(second)?, pair.1)], body);
                known(Type::Bool, range.saturating_add(body.cost.saturating_add(3).saturating_mul(size)))
            }
            ("transformList" | "transformMap" | "transformMapEntry", [first, second, rest @ ..], Some(target)) => {
                let (mut cost, pair, size) = self.pairs(target);
                let mut last = Type::Dyn;
                for part in rest {
                    let names = [(local(first)?, pair.0.clone()), (local(second)?, pair.1.clone())];
                    let part = self.within(&names, part);
                    cost = cost.saturating_add(part.cost.saturating_add(12).saturating_mul(size));
                    last = part.type_;
                }
                let type_ = match name {
                    "transformList" => Type::List(Arc::new(last), size),
                    "transformMap" => Type::Map(Arc::new(pair.0), Arc::new(last), size),
                    _ => Type::Dyn,
                };
                known(type_, cost)
            }
            ("sortBy", [variable, by], Some(target)) => {
                let range = self.expr(target);
                let (of, size) = self.range(&range.type_);
                let by = self.within(&[(local(variable)?, of)], by);
                known(range.type_, range.cost.saturating_add(by.cost.saturating_add(10).saturating_mul(size)))
            }
            _ => return None,
        })
    }

    fn within(&mut self, names: &[(&'a str, Type)], body: &'a IdedExpr) -> Checked {
        let depth = self.locals.len();
        self.locals.extend(names.iter().cloned());
        let checked = self.expr(body);
        self.locals.truncate(depth);
        checked
    }

    /// What a comprehension runs over: the type of its variable, and how often at most.
    fn range(&mut self, type_: &Type) -> (Type, u64) {
        match type_ {
            Type::List(of, size) => ((**of).clone(), *size),
            Type::Map(key, _, size) => ((**key).clone(), *size),
            Type::Dyn => (Type::Dyn, 1),
            other => {
                let what = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                (self.error(".", &what).type_, 1)
            }
        }
    }

    fn pairs(&mut self, target: &'a IdedExpr) -> (u64, (Type, Type), u64) {
        let range = self.expr(target);
        let (_, size) = self.range(&range.type_);
        let pair = match range.type_ {
            Type::List(of, _) => (Type::Int, (*of).clone()),
            Type::Map(key, value, _) => ((*key).clone(), (*value).clone()),
            _ => (Type::Dyn, Type::Dyn),
        };
        (range.cost, pair, size)
    }

    fn comprehension(&mut self, c: &'a ComprehensionExpr) -> Checked {
        let range = self.expr(&c.iter_range);
        let (of, size) = self.range(&range.type_);
        let start = self.expr(&c.accu_init);
        let depth = self.locals.len();
        // A list that is collected can hold anything until it is known what is put in.
        self.locals.push((&c.accu_var, start.type_));
        let condition = self.expr(&c.loop_cond);
        self.locals.push((&c.iter_var, of));
        let step = self.expr(&c.loop_step);
        self.locals.truncate(depth);
        let collected = match step.type_ {
            Type::List(of, _) => Type::List(of, size),
            other => other,
        };
        let result = self.within(&[(&c.accu_var, collected)], &c.result);
        let each = condition.cost.saturating_add(step.cost);
        let cost = range.cost.saturating_add(start.cost).saturating_add(each.saturating_mul(size));
        known(result.type_, cost.saturating_add(result.cost))
    }
}

/// A type for values of either.
fn join(one: Type, other: &Type) -> Type {
    match (one, other) {
        (Type::String(a), Type::String(b)) => Type::String(a.max(*b)),
        (Type::List(a, n), Type::List(b, m)) => {
            let of = match (&*a, &**b) {
                (Type::Dyn, _) => b.clone(),
                (_, Type::Dyn) => a,
                _ if a == *b => a,
                _ => Arc::new(Type::Dyn),
            };
            Type::List(of, n.max(*m))
        }
        (one, other) if one == *other => one,
        _ => Type::Dyn,
    }
}

fn literal_type(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(value) => Type::Bytes(value.inner().len() as u64),
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(value) => Type::String(value.inner().len() as u64),
        LiteralValue::UInt(_) => Type::Uint,
    }
}
