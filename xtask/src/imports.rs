//! One style of imports: a `use` names one module, and braces hold names of that module alone. A line then says where a name
//! comes from, is found by a search, and is added or taken away without touching others.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::UseTree;
use syn::visit::{self, Visit};

/// One finding for each file among `files` with a `use` of several modules.
///
/// # Errors
/// When a file cannot be read, or is no Rust.
pub(crate) fn findings(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let text =
            std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))?;
        let file = syn::parse_file(&text).with_context(|| format!("{} is no Rust", path.display()))?;
        found.extend(
            nested(&file)
                .map(|first| format!("{}: a `use` names one module; below {first} are several", path.display())),
        );
    }
    Ok(found)
}

/// The first part of the first `use` with a path inside of braces.
fn nested(file: &syn::File) -> Option<String> {
    #[derive(Default)]
    struct Search(Option<String>);
    impl<'ast> Visit<'ast> for Search {
        fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
            if self.0.is_none() && holds_path(&item.tree, false) {
                self.0 = Some(first(&item.tree));
            }
            visit::visit_item_use(self, item);
        }
    }
    let mut search = Search::default();
    search.visit_file(file);
    search.0
}

fn holds_path(tree: &UseTree, in_braces: bool) -> bool {
    match tree {
        UseTree::Path(path) => in_braces || holds_path(&path.tree, in_braces),
        UseTree::Group(group) => in_braces || group.items.iter().any(|item| holds_path(item, true)),
        _ => false,
    }
}

fn first(tree: &UseTree) -> String {
    match tree {
        UseTree::Path(path) => path.ident.to_string(),
        UseTree::Name(name) => name.ident.to_string(),
        _ => "{}".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(nested(&syn::parse_file(text).unwrap()).as_deref(), expect, "{text}");
    }

    #[test]
    fn a_use_of_several_modules_is_found() {
        check("use std::sync::{Arc, Mutex};", None);
        check("use std::fmt::{self, Write as _};", None);
        check("use std::sync::*;", None);
        check("use std::{fmt, io};", None);
        check("use std::{fmt, sync::Arc};", Some("std"));
        check("use api::{cdi::{A, B}};", Some("api"));
        check("mod inner { fn f() { use a::{b::C, d}; } }", Some("a"));
        check("use {std::fmt, std::io};", Some("{}"));
    }
}
