//! Parsing within bounds: the parser descends as deep as the source nests, so long sources get a stack of their own,
//! and trees too deep to be walked are refused.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::cel::parser::Parser;

/// Characters of a source at most, as in Kubernetes.
const LENGTH: usize = 100_000;
/// Characters a source may have to be parsed on the caller's stack.
const SHORT: usize = 400;
/// Depth of a tree at most; evaluation and checking recurse this deep.
const DEPTH: usize = 150;
/// Operators, calls, brackets and literals of one source at most: the parser takes time for each.
const TOKENS: usize = 20_000;
const STACK: usize = 256 << 20;

pub(super) fn parse(source: &str) -> Result<IdedExpr, String> {
    let length = source.chars().count();
    if length > LENGTH {
        return Err(format!(
            "ERROR: <input>:-1:0: expression code point size exceeds limit: size: {length}, limit {LENGTH}"
        ));
    }
    let tokens = source.chars().zip(source.chars().skip(1)).filter(|(a, b)| is_word(*a) != is_word(*b)).count();
    if tokens > TOKENS {
        return Err(format!("ERROR: <input>:-1:0: expression has more than {TOKENS} tokens"));
    }
    if length <= SHORT {
        return bounded(source);
    }
    let failed = || "ERROR: <input>:-1:0: expression cannot be parsed".to_owned();
    std::thread::scope(|scope| {
        let parsing = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || bounded(source));
        parsing.map_err(|_| failed())?.join().unwrap_or_else(|_| Err(failed()))
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn bounded(source: &str) -> Result<IdedExpr, String> {
    let parser = Parser::new().enable_optional_syntax(true);
    let tree = parser.parse(source).map_err(|errors| errors.to_string().replace("\n| ", "\n | "))?;
    if depth(&tree) > DEPTH {
        return Err(format!("ERROR: <input>:-1:0: max recursion depth exceeded: expression nests deeper than {DEPTH}"));
    }
    Ok(tree)
}

fn depth(tree: &IdedExpr) -> usize {
    let mut deepest = 0;
    let mut open = vec![(tree, 1)];
    while let Some((expr, level)) = open.pop() {
        deepest = deepest.max(level);
        each_child(&expr.expr, &mut |child| open.push((child, level + 1)));
    }
    deepest
}

/// Calls `seen` with the expression and all below it.
pub(super) fn visit(tree: &IdedExpr, seen: &mut dyn FnMut(&Expr)) {
    let mut open = vec![tree];
    while let Some(expr) = open.pop() {
        seen(&expr.expr);
        each_child(&expr.expr, &mut |child| open.push(child));
    }
}

fn each_child<'a>(expr: &'a Expr, take: &mut dyn FnMut(&'a IdedExpr)) {
    let mut entries = |entries: &'a [kube_cel::cel::common::ast::IdedEntryExpr]| {
        for entry in entries {
            match &entry.expr {
                EntryExpr::StructField(field) => take(&field.value),
                EntryExpr::MapEntry(entry) => {
                    take(&entry.key);
                    take(&entry.value);
                }
            }
        }
    };
    match expr {
        Expr::Map(map) => entries(&map.entries),
        Expr::Struct(message) => entries(&message.entries),
        Expr::Call(call) => {
            call.target.iter().for_each(|target| take(target));
            call.args.iter().for_each(take);
        }
        Expr::Comprehension(c) => {
            [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result].into_iter().for_each(take);
        }
        Expr::List(list) => list.elements.iter().for_each(take),
        Expr::Select(select) => take(&select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}
