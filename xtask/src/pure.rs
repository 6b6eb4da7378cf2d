//! What plans and statuses may not do: ask anybody, wait, or read a clock. Everything they decide by is in their input.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

/// Modules of these names, and what lies below them.
const PURE: [&str; 2] = ["plan", "status"];
/// Paths, or ends of paths, that do something. One that begins with `::` may follow anything.
const ACTS: [&str; 16] = [
    "std::fs",
    "std::io",
    "std::process",
    "std::thread",
    "tokio",
    "rustix",
    "kube::Api",
    "kube::Client",
    "kit::apply",
    "clock::now",
    "clock::time",
    "clock::micro_time",
    "Timestamp::now",
    "Zoned::now",
    "Instant::now",
    "SystemTime::now",
];

/// One finding for each thing that a plan or a status among `files` does.
///
/// # Errors
/// When a file cannot be read, or is no Rust.
pub(crate) fn findings(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files.iter().filter(|path| is_pure(path)) {
        let text =
            std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))?;
        let file = syn::parse_file(&text).with_context(|| format!("{} is no Rust", path.display()))?;
        found.extend(acts(&file).into_iter().map(|act| {
            format!("{}: a plan or a status is computed from its input alone, without {act}", path.display())
        }));
    }
    Ok(found)
}

/// Programs whose `status` is a command.
const PROGRAMS: [&str; 2] = ["ferrovirt", "virtctl"];

fn is_pure(path: &Path) -> bool {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let ["crates", name, "src", below @ ..] = parts.as_slice() else { return false };
    if PROGRAMS.contains(name) {
        return false;
    }
    let named = below.iter().any(|part| PURE.contains(&part.trim_end_matches(".rs")));
    named
        && path.extension().is_some_and(|end| end == "rs")
        && !below.iter().any(|part| part.trim_end_matches(".rs") == "tests")
}

fn acts(file: &syn::File) -> Vec<String> {
    let mut reader = Reader { found: Vec::new() };
    reader.visit_file(file);
    reader.found
}

struct Reader {
    found: Vec<String>,
}

impl Reader {
    fn take(&mut self, path: &str) {
        let has =
            |act: &&&str| path == **act || path.starts_with(&format!("{act}::")) || path.ends_with(&format!("::{act}"));
        if ACTS.iter().any(|act| has(&act)) {
            self.found.push(format!("`{path}`"));
        }
    }

    fn take_tree(&mut self, tree: &syn::UseTree, before: &str) {
        let join = |name: &syn::Ident| if before.is_empty() { name.to_string() } else { format!("{before}::{name}") };
        match tree {
            syn::UseTree::Path(path) => self.take_tree(&path.tree, &join(&path.ident)),
            syn::UseTree::Name(name) if name.ident == "self" => self.take(before),
            syn::UseTree::Name(name) => self.take(&join(&name.ident)),
            syn::UseTree::Rename(name) => self.take(&join(&name.ident)),
            syn::UseTree::Glob(_) => self.take(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.take_tree(tree, before)),
        }
    }
}

fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .any(|one| one.path().is_ident("cfg") && one.parse_args::<syn::Ident>().is_ok_and(|word| word == "test"))
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.take_tree(&item.tree, "");
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if parts.len() > 1 {
            self.take(&parts.join("::"));
        }
        visit::visit_path(self, path);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if signature.asyncness.is_some() {
            self.found.push(format!("`async fn {}`", signature.ident));
        }
        visit::visit_signature(self, signature);
    }

    fn visit_expr_await(&mut self, wait: &'ast syn::ExprAwait) {
        self.found.push("`.await`".to_owned());
        visit::visit_expr_await(self, wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        assert_eq!(acts(&syn::parse_file(text).unwrap()), expect);
    }

    #[test]
    fn clocks_and_io_are_found_in_plans() {
        check("use jiff::Timestamp; fn plan(now: Timestamp) -> bool { now > Timestamp::UNIX_EPOCH }", &[]);
        check("use kube::{Api, ResourceExt};", &["`kube::Api`"]);
        check("fn f() { let now = jiff::Timestamp::now(); }", &["`jiff::Timestamp::now`"]);
        check("use kit::clock; fn f() { clock::now(); }", &["`clock::now`"]);
        check("use kit::clock; fn f() { clock::seconds(now); }", &[]);
        check("async fn f() { g().await }", &["`async fn f`", "`.await`"]);
        check("#[cfg(test)] mod tests { use tokio::time; }", &[]);
    }

    #[track_caller]
    fn check_path(path: &str, expect: bool) {
        assert_eq!(is_pure(Path::new(path)), expect);
    }

    #[test]
    fn plans_and_statuses_of_crates_are_pure() {
        check_path("crates/virt-controller/src/vm/plan.rs", true);
        check_path("crates/virt-controller/src/backup/plan/pull.rs", true);
        check_path("crates/virt-controller/src/backup/plan/tests.rs", false);
        check_path("crates/virt-controller/src/vm/plans.rs", false);
        check_path("xtask/src/plan.rs", false);
        check_path("crates/ferrovirt/src/status.rs", false);
    }
}
