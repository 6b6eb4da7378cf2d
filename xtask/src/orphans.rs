//! Source files that no module names: the compiler does not see them, so nobody notices that they have gone stale.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One finding for each file among `files` that no program, library or test reaches by its `mod` items.
///
/// # Errors
/// When a file cannot be read, or is no Rust.
pub(crate) fn findings(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut sources = BTreeMap::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let text =
            std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))?;
        sources.insert(path.clone(), text);
    }
    let lost = unreached(&sources)?.into_iter();
    Ok(lost.map(|path| format!("{} is part of no program: no `mod` names it", path.display())).collect())
}

fn unreached(sources: &BTreeMap<PathBuf, String>) -> Result<Vec<PathBuf>> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<(PathBuf, PathBuf)> =
        sources.keys().filter(|path| begins(path)).map(|path| (path.clone(), parent(path))).collect();
    while let Some((path, folder)) = open.pop() {
        let Some(text) = sources.get(&path) else { continue };
        if reached.insert(path.clone()) {
            let file = syn::parse_file(text).with_context(|| format!("{} is no Rust", path.display()))?;
            declared(&file.items, &parent(&path), &folder, &mut open);
        }
    }
    Ok(sources.keys().filter(|path| !reached.contains(*path)).cloned().collect())
}

/// Whether cargo begins with the file.
fn begins(path: &Path) -> bool {
    let parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap_or_default()).collect();
    match parts.as_slice() {
        [.., "src", "lib.rs" | "main.rs"] | [.., "src", "bin", _] | [.., "build.rs"] => true,
        [.., "tests" | "examples" | "benches" | "fuzz_targets", _] => !parts.contains(&"src"),
        [.., "tests" | "examples" | "benches", _, "main.rs"] => true,
        _ => false,
    }
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or_default()
}

/// Adds the files that modules without a body may be in, each with the folder of its own modules. `beside` is where the file
/// lies, and `folder` where its modules do.
fn declared(items: &[syn::Item], beside: &Path, folder: &Path, open: &mut Vec<(PathBuf, PathBuf)>) {
    for item in items {
        let syn::Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        let name = name.trim_start_matches("r#");
        if let Some((_, items)) = &module.content {
            declared(items, beside, &folder.join(name), open);
        } else if let Some(path) = module.attrs.iter().find_map(said) {
            let path = beside.join(path);
            open.push((path.clone(), parent(&path)));
        } else {
            open.push((folder.join(format!("{name}.rs")), folder.join(name)));
            open.push((folder.join(name).join("mod.rs"), folder.join(name)));
        }
    }
}

/// What `#[path = "…"]` says.
fn said(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(value) = &pair.value else { return None };
    match &value.lit {
        syn::Lit::Str(text) if pair.path.is_ident("path") => Some(text.value()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_no_module_names_are_found() {
        let files = [
            ("a/src/lib.rs", "mod b; mod inline { mod c; } #[cfg(test)] #[path = \"b/more.rs\"] mod tests;"),
            ("a/src/b.rs", "mod d;"),
            ("a/src/b/d.rs", ""),
            ("a/src/b/more.rs", ""),
            ("a/src/b/stale.rs", ""),
            ("a/src/inline/c.rs", ""),
            ("a/src/c.rs", ""),
            ("a/tests/it/main.rs", "mod e;"),
            ("a/tests/it/e.rs", ""),
            ("a/tests/it/f.rs", ""),
            ("a/build.rs", ""),
        ];
        let sources = files.into_iter().map(|(path, text)| (PathBuf::from(path), text.to_owned())).collect();
        let found = unreached(&sources).unwrap();
        let names: Vec<&str> = found.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(names, ["a/src/b/stale.rs", "a/src/c.rs", "a/tests/it/f.rs"]);
    }
}
