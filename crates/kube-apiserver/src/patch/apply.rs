//! Server-side apply: the applier states the fields it wants, the server merges them and remembers that it does.
//!
//! ```text
//! live ── overlay ──> merged ── minus fields dropped since the last apply and owned by nobody ──> result
//! applied ─┘             └── clashes with other owners ──> 409, or with force they lose the fields
//! ```

use jiff::Timestamp;
use serde_json::Value;

use super::check;
use super::fieldset::Set;
use super::lastapplied;
use super::managed::{self, Entry};
use super::typed::{Node, clashes, collect, overlay, remove, retain_present};
use crate::error::{ApiError, Cause};
use crate::schema::Schema;

/// Owner of what an object held before anybody applied it, when no owners were recorded.
const BEFORE_FIRST: &str = "before-first-apply";

/// The object after `manager` applied `applied` to it.
///
/// The caller has removed from `applied` what the endpoint does not write (`status` on the main resource). An apply that
/// changes nothing returns the live object as it is, managed fields and their times included.
#[expect(
    clippy::too_many_arguments,
    reason = "the identity of a writer is several words, and the call sites have them apart"
)]
pub fn apply(
    schema: &Schema,
    live: Option<&Value>,
    applied: &Value,
    manager: &str,
    force: bool,
    api_version: &str,
    subresource: &str,
    now: Timestamp,
) -> Result<Value, ApiError> {
    let root = Node::root(schema);
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    if let Some(why) = check::refusal(root, applied) {
        let (name, namespace) = (&applied["metadata"]["name"], &applied["metadata"]["namespace"]);
        return Err(ApiError::bad_request(format!(
            "failed to create typed patch object ({}/{}; {api_version}, Kind={}): {why}",
            namespace.as_str().unwrap_or_default(),
            name.as_str().unwrap_or_default(),
            applied["kind"].as_str().unwrap_or_default()
        )));
    }

    let mut merged = live.cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    overlay(root, &mut merged, applied);
    let mut wanted = collect(root, applied);
    retain_present(&mut wanted, root, &merged);

    let mut entries = live.map(managed::entries).unwrap_or_default();
    if let Some(live) = live.filter(|_| entries.is_empty()) {
        entries.push(Entry {
            manager: BEFORE_FIRST.to_owned(),
            operation: "Update".to_owned(),
            api_version: api_version.to_owned(),
            time: managed::stamp(now),
            subresource: String::new(),
            set: collect(root, live),
        });
    }
    let mine = entries.iter().position(|e| e.is(manager, "Apply", api_version, subresource));
    let last = mine.map(|at| entries.remove(at));
    let before = entries.clone();

    if let Some(last) = &last {
        drop_forgotten(root, &mut merged, &last.set, &wanted, &entries);
    }
    let inherited = if force { Set::default() } else { lastapplied::inherited(root, live, manager) };
    resolve(root, live, &merged, &wanted, &mut entries, force, &inherited)?;
    lastapplied::remember(&mut merged, applied, manager);
    for entry in &mut entries {
        retain_present(&mut entry.set, root, &merged);
    }

    let unchanged = last.as_ref().is_some_and(|last| last.set == wanted && last.api_version == api_version)
        && before == entries
        && live.is_some_and(|live| *live == merged);
    if let (true, Some(live)) = (unchanged, live) {
        return Ok(live.clone());
    }
    entries.push(Entry {
        manager: manager.to_owned(),
        operation: "Apply".to_owned(),
        api_version: api_version.to_owned(),
        time: managed::stamp(now),
        subresource: subresource.to_owned(),
        set: wanted,
    });
    managed::store(&mut merged, entries);
    Ok(merged)
}

/// Removes what this applier asked for last time and no longer does, and nobody else owns.
fn drop_forgotten(root: Node<'_>, merged: &mut Value, last: &Set, wanted: &Set, others: &[Entry]) {
    let mut gone = last.clone();
    gone.subtract(wanted);
    if gone.is_empty() {
        return;
    }
    let mut kept = wanted.clone();
    others.iter().for_each(|other| kept.union(&other.set));
    remove(root, merged, &gone, &kept);
}

/// Finds the fields others own and this apply changes: an error unless all of them are `inherited`, and with force theirs
/// no longer.
fn resolve(
    root: Node<'_>,
    live: Option<&Value>,
    merged: &Value,
    wanted: &Set,
    entries: &mut [Entry],
    force: bool,
    inherited: &Set,
) -> Result<(), ApiError> {
    let mut taken: Vec<(usize, Set)> = Vec::new();
    let mut conflicts: Vec<(String, Vec<String>)> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let clash = clashes(root, live, merged, &entry.set, wanted);
        let mut refused = clash.clone();
        refused.subtract(inherited);
        if !refused.is_empty() {
            conflicts.push((introduce(entry), refused.paths()));
        }
        if !clash.is_empty() {
            taken.push((at, clash));
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(conflict(&conflicts));
    }
    for (at, clash) in taken {
        entries[at].set.subtract(&clash);
    }
    Ok(())
}

fn introduce(entry: &Entry) -> String {
    let mut text = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", entry.subresource));
    }
    if entry.operation == "Update" {
        text.push_str(&format!(" using {}", entry.api_version));
    }
    text
}

fn conflict(conflicts: &[(String, Vec<String>)]) -> ApiError {
    let count: usize = conflicts.iter().map(|(_, paths)| paths.len()).sum();
    let message = match conflicts {
        [(who, paths)] if count == 1 => {
            format!("Apply failed with 1 conflict: conflict with {who}: {}", paths.concat())
        }
        _ => {
            let lines: Vec<String> = conflicts
                .iter()
                .flat_map(|(who, paths)| {
                    std::iter::once(format!("conflicts with {who}:"))
                        .chain(paths.iter().map(|path| format!("- {path}")))
                })
                .collect();
            format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
        }
    };
    let mut error = ApiError::new(409, "Conflict", message);
    error.causes = conflicts
        .iter()
        .flat_map(|(who, paths)| {
            paths.iter().map(move |path| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {who}"),
                field: path.clone(),
            })
        })
        .collect();
    error
}

#[cfg(test)]
#[path = "apply/tests.rs"]
mod tests;
