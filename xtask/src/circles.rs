//! Modules that use each other in a circle. Where some do, none can be read, tested or moved without the others.
//!
//! Compared are the children of one module: what one of them uses of another, anywhere below, is an edge between the two. A child
//! may use what its parent defines: they are one folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

/// A module's path below its crate.
type Module = Vec<String>;
/// Which children of a module use which, with one place for each.
type Uses = BTreeMap<(String, String), String>;

/// One finding for each circle in the sources among `files`.
///
/// # Errors
/// When a file cannot be read, or is no Rust.
pub(crate) fn findings(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut crates: BTreeMap<PathBuf, Vec<(Module, PathBuf)>> = BTreeMap::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        if let Some((source, module)) = place(path) {
            crates.entry(source).or_default().push((module, path.clone()));
        }
    }
    let mut found = Vec::new();
    for (source, modules) in crates {
        let mut parsed = Vec::new();
        for (module, path) in modules {
            let text =
                std::fs::read_to_string(root.join(&path)).with_context(|| format!("cannot read {}", path.display()))?;
            let file = syn::parse_file(&text).with_context(|| format!("{} is no Rust", path.display()))?;
            parsed.push((module, file));
        }
        let circles = of_crate(&parsed).into_iter();
        found.extend(circles.map(|circle| Circle {
            within: source.join(&circle.within).display().to_string().trim_end_matches('/').to_owned(),
            ..circle
        }));
    }
    Ok(found.iter().map(Circle::to_string).collect())
}

/// A circle among the children of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Circle {
    /// The module's path.
    within: String,
    names: Vec<String>,
    /// What uses what, a shortest way round.
    example: String,
}

impl std::fmt::Display for Circle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { within, names, example } = self;
        write!(f, "{within}: {} modules use each other in a circle: {}; {example}", names.len(), names.join(", "))
    }
}

/// The `src` folder that `path` lies in, and the module it is; nothing for programs and tests beside a library.
fn place(path: &Path) -> Option<(PathBuf, Module)> {
    let parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap_or_default()).collect();
    let at = parts.iter().position(|part| *part == "src")?;
    let (source, below) = parts.split_at(at + 1);
    if below.first() == Some(&"bin") {
        return None;
    }
    let mut module: Module = below.iter().map(|part| part.trim_end_matches(".rs").to_owned()).collect();
    if matches!(below, ["lib.rs" | "main.rs"]) {
        module.clear();
    }
    Some((source.iter().collect(), module))
}

fn of_crate(parsed: &[(Module, syn::File)]) -> Vec<Circle> {
    let mut of_tests = BTreeSet::new();
    let mut names: BTreeMap<Module, BTreeMap<String, Module>> = BTreeMap::new();
    let known: BTreeSet<Module> = parsed.iter().map(|(module, _)| module.clone()).collect();
    for (module, file) in parsed {
        for item in &file.items {
            match item {
                syn::Item::Mod(declared) if for_tests(&declared.attrs) => {
                    of_tests.insert(below(module, &declared.ident.to_string()));
                }
                syn::Item::Use(exported) if !matches!(exported.vis, syn::Visibility::Inherited) => {
                    let mut leaves = Vec::new();
                    leaves_of(&exported.tree, &mut Vec::new(), &mut leaves);
                    for (path, name) in leaves {
                        let reached =
                            Reader { module, depth: 0, known: &known, names: &BTreeMap::new(), edges: Vec::new() };
                        if let Some(target) = reached.resolve(&path) {
                            names.entry(module.clone()).or_default().insert(name, target);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    let mut uses: BTreeMap<Module, Uses> = BTreeMap::new();
    for (module, file) in parsed {
        if (0..=module.len()).any(|length| of_tests.contains(&module[..length])) {
            continue;
        }
        let mut reader = Reader { module, depth: 0, known: &known, names: &names, edges: Vec::new() };
        reader.visit_file(file);
        for (target, path) in reader.edges {
            let shared = module.iter().zip(&target).take_while(|(one, other)| one == other).count();
            if let (Some(from), Some(to)) = (module.get(shared), target.get(shared)) {
                let place =
                    format!("{} uses {path}", if module.is_empty() { "lib".to_owned() } else { module.join("/") });
                uses.entry(module[..shared].to_vec()).or_default().entry((from.clone(), to.clone())).or_insert(place);
            }
        }
    }
    let mut found = Vec::new();
    for (parent, uses) in &uses {
        for circle in circles(uses) {
            let example: Vec<&str> = shortest(&circle, uses).into_iter().map(String::as_str).collect();
            let names = circle.into_iter().collect();
            found.push(Circle { within: parent.join("/"), names, example: example.join(", ") });
        }
    }
    found
}

fn below(module: &[String], name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .any(|one| one.path().is_ident("cfg") && one.parse_args::<syn::Ident>().is_ok_and(|word| word == "test"))
}

/// The paths that a `use` names, each with the name it has here.
fn leaves_of(tree: &syn::UseTree, before: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves_of(&path.tree, before, leaves);
            before.pop();
        }
        syn::UseTree::Name(name) if name.ident == "self" => {
            leaves.push((before.clone(), before.last().cloned().unwrap_or_default()));
        }
        syn::UseTree::Name(name) => leaves.push((below(before, &name.ident.to_string()), name.ident.to_string())),
        syn::UseTree::Rename(name) => leaves.push((below(before, &name.ident.to_string()), name.rename.to_string())),
        syn::UseTree::Glob(_) => leaves.push((before.clone(), "*".to_owned())),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| leaves_of(tree, before, leaves)),
    }
}

/// Reads what a module uses.
struct Reader<'a> {
    module: &'a Module,
    /// How many modules are open that are written inside of the file.
    depth: usize,
    known: &'a BTreeSet<Module>,
    /// What modules export that others define.
    names: &'a BTreeMap<Module, BTreeMap<String, Module>>,
    edges: Vec<(Module, String)>,
}

impl Reader<'_> {
    /// The module of this crate that `path` leads to, if it leads to one.
    fn resolve(&self, path: &[String]) -> Option<Module> {
        let mut rest = path.iter().map(|part| part.trim_start_matches("r#")).peekable();
        let mut inside = self.depth;
        let mut at = match *rest.peek()? {
            "crate" => {
                rest.next();
                Module::new()
            }
            "self" | "super" => {
                let mut at = self.module.clone();
                rest.next_if(|part| *part == "self");
                while rest.next_if(|part| *part == "super").is_some() {
                    if inside > 0 { inside -= 1 } else { drop(at.pop()) }
                }
                at
            }
            first if inside == 0 && self.known.contains(&below(self.module, first)) => self.module.clone(),
            _ => return None,
        };
        for name in rest {
            let child = below(&at, name);
            if self.known.contains(&child) {
                at = child;
            } else {
                return Some(self.names.get(&at).and_then(|names| names.get(name)).cloned().unwrap_or(at));
            }
        }
        Some(at)
    }

    fn take(&mut self, path: &[String]) {
        if let Some(target) = self.resolve(path) {
            self.edges.push((target, path.join("::")));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            self.depth += 1;
            visit::visit_item_mod(self, item);
            self.depth -= 1;
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut leaves = Vec::new();
        leaves_of(&item.tree, &mut Vec::new(), &mut leaves);
        leaves.iter().for_each(|(path, _)| self.take(path));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        // A single word is a local, or was imported.
        if parts.len() > 1 {
            self.take(&parts);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Ok(arguments) =
            call.parse_body_with(syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated)
        {
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
    }
}

/// The largest sets in which each leads to each.
fn circles(uses: &Uses) -> Vec<BTreeSet<String>> {
    let reach = |from: &str| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            let next = uses.keys().filter(|(one, other)| one == at && one != other).map(|(_, other)| other.as_str());
            open.extend(next.filter(|other| reached.insert((*other).to_owned())));
        }
        reached
    };
    let names: BTreeSet<&String> = uses.keys().map(|(from, _)| from).collect();
    let reached: BTreeMap<&String, BTreeSet<String>> = names.iter().map(|name| (*name, reach(name))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for name in names {
        if reached[name].contains(name) && !found.iter().any(|circle| circle.contains(name)) {
            let back = |other: &&String| reached.get(other).is_some_and(|reached| reached.contains(name));
            found.push(reached[name].iter().filter(back).cloned().collect());
        }
    }
    found
}

/// The places of a shortest way round `circle`.
fn shortest<'a>(circle: &BTreeSet<String>, uses: &'a Uses) -> Vec<&'a String> {
    let mut best: Option<Vec<&String>> = None;
    for start in circle {
        let mut ways: Vec<(&String, Vec<&String>)> = vec![(start, Vec::new())];
        let mut seen = BTreeSet::new();
        'search: while !ways.is_empty() {
            let mut next = Vec::new();
            for (at, way) in &ways {
                for ((_, to), place) in
                    uses.iter().filter(|((from, to), _)| from == *at && from != to && circle.contains(to))
                {
                    let mut way = way.clone();
                    way.push(place);
                    if to == start {
                        if best.as_ref().is_none_or(|best| way.len() < best.len()) {
                            best = Some(way);
                        }
                        break 'search;
                    }
                    if seen.insert(to) {
                        next.push((to, way));
                    }
                }
            }
            ways = next;
        }
    }
    best.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(modules: &[(&str, &str)], expect: &[&str]) {
        let module = |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let parsed: Vec<_> =
            modules.iter().map(|(path, text)| (module(path), syn::parse_file(text).unwrap())).collect();
        let found: Vec<String> = of_crate(&parsed).into_iter().map(|circle| circle.example).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn siblings_must_not_use_each_other() {
        check(&[("", "mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "pub struct B;")], &[]);
        let circle = "a uses crate::b::B, b uses super::a::f";
        check(&[("", "mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "fn g() { super::a::f() }")], &[circle]);
    }

    #[test]
    fn children_may_use_what_their_parent_defines() {
        check(&[("", "mod a;"), ("a", "mod b; use b::B; struct A;"), ("a/b", "use super::A; struct B;")], &[]);
    }

    #[test]
    fn submodules_count_for_their_folder() {
        let circle = "a/c uses crate::b::B, b uses crate::a::A";
        let b = ("b", "fn f() { let _ = vec![crate::a::A]; }");
        check(&[("", "mod a; mod b;"), ("a", "mod c;"), ("a/c", "use crate::b::B;"), b], &[circle]);
    }

    #[test]
    fn a_name_that_the_root_exports_belongs_to_its_module() {
        let root = ("", "mod a; mod error; pub use error::Error;");
        let circle = "a uses crate::Error, error uses crate::a::A";
        check(&[root, ("a", "use crate::Error;"), ("error", "use crate::a::A;")], &[circle]);
    }

    #[test]
    fn a_finding_names_the_modules() {
        let names = vec!["x".to_owned(), "y".to_owned()];
        let circle = Circle { within: "a/src".to_owned(), names, example: "x uses y".to_owned() };
        assert_eq!(circle.to_string(), "a/src: 2 modules use each other in a circle: x, y; x uses y");
    }

    #[test]
    fn tests_may_use_everything() {
        let a = ("a", "use crate::b::B;");
        check(&[("", "mod a; mod b;"), a, ("b", "#[cfg(test)] mod tests { use crate::a::A; }")], &[]);
        check(&[("", "mod a; mod b;"), a, ("b", "#[cfg(test)] mod tests;"), ("b/tests", "use crate::a::A;")], &[]);
    }
}
