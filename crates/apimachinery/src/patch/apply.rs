//! Server-side apply: the applier states the fields it wants, the server merges them and remembers that it does.
//!
//! ```text
//! live ── overlay ──> merged ── minus fields dropped since the last apply and owned by nobody ──> result
//! applied ─┘             └── clashes with other owners ──> 409, or with force they lose the fields
//! ```

pub mod across;

use serde_json::Value;

use super::check;
use super::fieldset::Set;
use super::lastapplied;
use super::managed::{self, Entry, Writer};
use super::typed::{Node, clashes, collect, overlay, remove, retain_present};
use super::versions::Elsewhere;
use crate::error::{ApiError, Cause};
use crate::schema::Schema;

/// Owner of what an object held before anybody applied it, when no owners were recorded.
const BEFORE_FIRST: &str = "before-first-apply";

/// The object after `writer` applied `applied` to it, where all owners speak the version of the writer.
///
/// The caller has removed from `applied` what the endpoint does not write (`status` on the main resource). An apply that
/// changes nothing returns the live object as it is, managed fields and their times included.
pub fn apply(
    schema: &Schema,
    live: Option<&Value>,
    applied: &Value,
    writer: Writer<'_>,
    force: bool,
) -> Result<Value, ApiError> {
    let mut draft = Draft::new(schema, live, applied, writer)?;
    draft.forget();
    draft.finish(force, &Elsewhere::default())
}

/// An apply under way.
struct Draft<'a> {
    root: Node<'a>,
    live: Option<&'a Value>,
    applied: &'a Value,
    writer: Writer<'a>,
    /// The object with what is applied laid over it.
    merged: Value,
    /// The fields that are applied, also those that are applied as null.
    wanted: Set,
    /// The owners but the applier.
    others: Vec<Entry>,
    /// What the applier applied last.
    last: Option<Entry>,
}

impl<'a> Draft<'a> {
    fn new(
        schema: &'a Schema,
        live: Option<&'a Value>,
        applied: &'a Value,
        writer: Writer<'a>,
    ) -> Result<Self, ApiError> {
        let root = Node::root(schema);
        if !applied["metadata"]["managedFields"].is_null() {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        if let Some(why) = check::refusal(root, applied) {
            let (name, namespace) = (&applied["metadata"]["name"], &applied["metadata"]["namespace"]);
            // The code that Kubernetes answers with.
            let text = format!(
                "failed to create typed patch object ({}/{}; {}, Kind={}): {why}",
                namespace.as_str().unwrap_or_default(),
                name.as_str().unwrap_or_default(),
                writer.api_version,
                applied["kind"].as_str().unwrap_or_default()
            );
            return Err(ApiError::new(500, "", text));
        }
        let mut merged = live.cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        overlay(root, &mut merged, applied);
        let wanted = collect(root, applied);

        let mut others = live.map(managed::entries).unwrap_or_default();
        if let Some(live) = live.filter(|_| others.is_empty()) {
            let before = Writer { manager: BEFORE_FIRST, subresource: "", ..writer };
            others.push(before.entry("Update", collect(root, live)));
        }
        let mine = others.iter().position(|entry| entry.is_of(&writer, "Apply"));
        let last = mine.map(|at| others.remove(at));
        Ok(Self { root, live, applied, writer, merged, wanted, others, last })
    }

    /// Removes what this applier asked for last time and no longer does, and nobody else owns.
    fn forget(&mut self) {
        let Some(last) = &self.last else { return };
        let mut gone = last.set.clone();
        gone.subtract(&self.wanted);
        if gone.is_empty() {
            return;
        }
        let mut kept = self.wanted.clone();
        self.others.iter().for_each(|other| kept.union(&other.set));
        remove(self.root, &mut self.merged, &gone, &kept);
    }

    /// The object with its owners, if they agree.
    fn finish(mut self, force: bool, elsewhere: &Elsewhere) -> Result<Value, ApiError> {
        let before = self.others.clone();
        let inherited =
            if force { Set::default() } else { lastapplied::inherited(self.root, self.live, self.writer.manager) };
        self.resolve(force, &inherited, elsewhere)?;
        retain_present(&mut self.wanted, self.root, &self.merged);
        lastapplied::remember(&mut self.merged, self.applied, self.writer.manager);
        for entry in &mut self.others {
            match elsewhere.of(&entry.api_version) {
                Some(Ok(shown)) => retain_present(&mut entry.set, shown.root(), &shown.after),
                Some(Err(_)) => {}
                None => retain_present(&mut entry.set, self.root, &self.merged),
            }
        }
        let last = self.last.as_ref();
        let same = self.live.filter(|live| **live == self.merged);
        let owns_the_same =
            last.is_some_and(|last| last.set == self.wanted && last.api_version == self.writer.api_version);
        if let Some(live) = same.filter(|_| owns_the_same && before == self.others) {
            return Ok(live.clone());
        }
        let mut entries = self.others;
        let mut entry = self.writer.entry("Apply", self.wanted);
        if same.is_some() {
            // The time is that of the last change.
            entry.time = self.last.map(|last| last.time).unwrap_or_default();
        }
        entries.push(entry);
        managed::store(&mut self.merged, entries);
        Ok(self.merged)
    }

    /// Finds the fields others own and this apply changes: an error unless all of them are `inherited`, and with force
    /// theirs no longer.
    fn resolve(&mut self, force: bool, inherited: &Set, elsewhere: &Elsewhere) -> Result<(), ApiError> {
        let mut taken: Vec<(usize, Set)> = Vec::new();
        let mut conflicts: Vec<(String, Vec<String>)> = Vec::new();
        for (at, entry) in self.others.iter().enumerate() {
            let clash = match elsewhere.of(&entry.api_version) {
                Some(Ok(shown)) => {
                    let all = collect(shown.root(), &shown.after);
                    clashes(shown.root(), shown.before.as_ref(), &shown.after, &entry.set, &all)
                }
                Some(Err(_)) => Set::default(),
                None => clashes(self.root, self.live, &self.merged, &entry.set, &self.wanted),
            };
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
            self.others[at].set.subtract(&clash);
        }
        Ok(())
    }
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
