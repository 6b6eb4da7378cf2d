//! The Common Expression Language as Kubernetes uses it: rules of custom resources, admission policies, conditions of
//! webhooks.
//!
//! ```text
//! source -> parser (crate cel) -> tree -> check: types, undeclared names, estimated cost    (when it is written)
//!                                      -> eval: a value, within a budget                    (when it is used)
//! ```
//!
//! Guarantees: neither parsing nor evaluation can crash or hang the server, whoever wrote the expression: sources and
//! trees are bounded, and each step of an evaluation is paid from a budget.

pub mod authorizer;
mod builtin;
pub mod check;
pub mod device;
pub mod eval;
pub mod fault;
pub mod message;
mod parse;
mod signatures;
pub mod types;
pub mod value;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::Expr;

pub use eval::{Bindings, Budget, Variables};
pub use fault::Fault;
pub use kube_cel::cel::Value;

/// What one evaluation may cost.
pub const PER_CALL: u64 = 1_000_000;
/// What all evaluations about one object may cost together.
pub const PER_OBJECT: u64 = 10_000_000;
/// What the conditions that decide whether a webhook or policy is concerned may cost together.
pub const MATCH_CONDITIONS: u64 = PER_OBJECT / 4;

/// A parsed expression.
#[derive(Debug)]
pub struct Program {
    source: String,
    tree: IdedExpr,
}

impl Program {
    /// Parses.
    ///
    /// # Errors
    /// The parser's sentences with the place in the source.
    pub fn compile(source: &str) -> Result<Self, String> {
        Ok(Self { source: source.to_owned(), tree: parse::parse(source)? })
    }

    /// As written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn tree(&self) -> &IdedExpr {
        &self.tree
    }

    /// Whether a free variable of this name occurs.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        let mut found = false;
        parse::visit(&self.tree, &mut |expr| found |= matches!(expr, Expr::Ident(ident) if ident == name));
        found
    }

    /// The value, paid from `budget`.
    ///
    /// # Errors
    /// When the evaluation fails, or the budget is spent.
    pub fn evaluate(&self, bindings: &dyn Bindings, budget: &mut Budget) -> Result<Value, Fault> {
        eval::evaluate(&self.tree, bindings, budget)
    }
}

#[cfg(test)]
mod tests;
