//! Which crates read which fields of the API, by the compiler's word: crates/api/tests/it/reads.txt.
//!
//! A copy of the workspace, in which every field of the API's types is deprecated, is checked: each use of a field is a warning that
//! names the field's type, whatever the code calls its variables. Tests are not compiled, and neither what judges a field
//! (admission) nor what shows it (virtctl) counts. It takes minutes; the test beside the list takes none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Where the list is.
const LIST: &str = "crates/api/tests/it/reads.txt";
/// The crates whose code acts on objects.
const ACTING: [&str; 12] = [
    "cdi",
    "domain",
    "hpp",
    "instancetype",
    "kit",
    "origin",
    "virt-api",
    "virt-controller",
    "virt-export",
    "virt-handler",
    "virt-launcher",
    "virt-operator",
];
/// Files that only judge what is written.
const JUDGES: [&str; 4] = [
    "crates/virt-api/src/validate",
    "crates/virt-api/src/hyperv.rs",
    "crates/virt-operator/src/webhook",
    "crates/cdi/src/apiserver/validate",
];

/// Writes the list, or only compares it when `check`.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let copy = target.join("reads");
    mirror(root, &copy)?;
    let list = text(&reads(&copy, &target)?);
    let file = root.join(LIST);
    let held = std::fs::read_to_string(&file).unwrap_or_default();
    ensure!(!check || held == list, "{LIST} differs from what the code reads: run `cargo xtask codegen reads`");
    std::fs::write(&file, list).with_context(|| format!("cannot write {}", file.display()))
}

/// Brings `copy` up to date with the tracked files below `root`; what did not change keeps its time.
fn mirror(root: &Path, copy: &Path) -> Result<()> {
    let listed = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output().context("cannot run git")?;
    for name in String::from_utf8(listed.stdout)?.split('\0').filter(|name| !name.is_empty()) {
        // A file that was deleted and not yet committed.
        let Ok(content) = std::fs::read(root.join(name)) else { continue };
        let content = match std::str::from_utf8(&content) {
            Ok(source) if is_marked(name) => marked(source).into_bytes(),
            _ => content,
        };
        let place = copy.join(name);
        if std::fs::read(&place).is_ok_and(|held| held == content) {
            continue;
        }
        std::fs::create_dir_all(place.parent().unwrap_or(copy))?;
        std::fs::write(&place, content).with_context(|| format!("cannot write {}", place.display()))?;
    }
    Ok(())
}

/// Whether `file` has types of the API.
fn is_marked(file: &str) -> bool {
    file.starts_with("crates/api/src/generated/") || file == "crates/api/src/hpp.rs"
}

/// `source` with every public field deprecated.
fn marked(source: &str) -> String {
    let mark = |line: &str| {
        let field = line.strip_prefix("    pub ").is_some_and(|rest| {
            rest.split_once(": ").is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        });
        if field { format!("    #[deprecated]\n{line}\n") } else { format!("{line}\n") }
    };
    source.lines().map(mark).collect()
}

/// The crates that read each field, by module, type and field.
fn reads(copy: &Path, target: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(copy).args(["check", "--quiet", "--offline", "--message-format=json"]);
    // Of its own: cargo tells crates apart by their place in the workspace, and these are not the workspace's.
    cargo.env("CARGO_TARGET_DIR", target.join("reads/target"));
    for package in ACTING {
        cargo.args(["-p", package]);
    }
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "the marked copy in {} does not compile", copy.display());
    let mut reads: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: Value = serde_json::from_str(line).context("cannot read what cargo says")?;
        if let Some((field, package)) = read(&message["message"]) {
            reads.entry(field).or_default().insert(package);
        }
    }
    if reads.is_empty() {
        bail!("no field of the API is read: does rustc warn in other words?");
    }
    Ok(reads)
}

/// The field that `warning` is about and the crate that reads it, unless it is written or judged there.
fn read(warning: &Value) -> Option<(String, String)> {
    if warning["code"]["code"] != "deprecated" {
        return None;
    }
    let path = warning["message"].as_str()?.split('`').nth(1)?;
    let span = warning["spans"].as_array()?.iter().find(|span| span["is_primary"] == true)?;
    let file = span["file_name"].as_str()?;
    if is_marked(file) || JUDGES.iter().any(|judge| file.starts_with(judge)) || is_written(span) {
        return None;
    }
    let package = file.strip_prefix("crates/")?.split('/').next()?;
    if package != "api" && !ACTING.contains(&package) {
        return None;
    }
    Some((name(path)?, package.to_owned()))
}

/// A field by module, type and name, where the module is called by its file: other crates know it by another path.
fn name(path: &str) -> Option<String> {
    let modules = [
        ("generated::kubevirt_v1", "kubevirt_v1"),
        ("kubevirt::v1", "kubevirt_v1"),
        ("generated::cdi_v1beta1", "cdi_v1beta1"),
        ("cdi::v1beta1", "cdi_v1beta1"),
        ("hpp", "hpp"),
    ];
    let (module, field) = path.rsplit_once("::").and_then(|(rest, field)| {
        let (module, of) = rest.rsplit_once("::")?;
        Some((module, format!("{of}::{field}")))
    })?;
    let (_, file) = modules.into_iter().find(|(known, _)| module.ends_with(known))?;
    Some(format!("{file}::{field}"))
}

/// Whether the field is named to be given a value: in the expression of a struct, or left of `=`.
fn is_written(span: &Value) -> bool {
    let Some(last) = span["text"].as_array().and_then(|lines| lines.last()) else { return false };
    let end = last["highlight_end"].as_u64().and_then(|end| usize::try_from(end).ok()).unwrap_or(1) - 1;
    let after: String = last["text"].as_str().unwrap_or_default().chars().skip(end).collect();
    let after = after.trim_start();
    after.starts_with("= ") || (after.starts_with(": ") && !after.starts_with("::"))
}

fn text(reads: &BTreeMap<String, BTreeSet<String>>) -> String {
    let head = "# Generated by `cargo xtask codegen reads`: the crates that read each field.\n".to_owned();
    let line = |(field, crates): (&String, &BTreeSet<String>)| {
        format!("{field} {}\n", crates.iter().map(String::as_str).collect::<Vec<_>>().join(" "))
    };
    reads.iter().map(line).fold(head, |all, line| all + &line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_public_field_is_marked() {
        let source = "pub struct Disk {\n    #[serde(default)]\n    pub io: Option<String>,\n}\n    pub fn of() {}\n";
        let expect = "pub struct Disk {\n    #[serde(default)]\n    #[deprecated]\n    pub io: Option<String>,\n}\n    pub fn of() {}\n";
        assert_eq!(marked(source), expect);
    }

    #[test]
    fn a_field_that_is_given_a_value_is_not_read() {
        let of = |text: &str, end: u64| {
            let span = json!({ "file_name": "crates/domain/src/x.rs", "is_primary": true, "text": [{ "text": text, "highlight_end": end }] });
            let path = "use of deprecated field `api::kubevirt::v1::Disk::io`";
            read(&json!({ "code": { "code": "deprecated" }, "message": path, "spans": [span] }))
        };
        assert_eq!(of("disk.io.clone()", 8), Some(("kubevirt_v1::Disk::io".to_owned(), "domain".to_owned())));
        assert_eq!(of("disk.io == None", 8), Some(("kubevirt_v1::Disk::io".to_owned(), "domain".to_owned())));
        assert_eq!(of("disk.io = None;", 8), None);
        assert_eq!(of("Disk { io: None }", 10), None);
    }
}
