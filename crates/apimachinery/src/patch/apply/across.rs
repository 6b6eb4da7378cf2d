//! Server-side apply to an object whose owners wrote in several versions of its API.
//!
//! What the applier gives up goes unless another owns it, in whichever version that one wrote:
//!
//! ```text
//! merged, in the version of the last apply ── minus what it said ──> pruned
//!   for each version somebody owns fields in: both in that version; pruned gets back what is owned there
//!   in the version of the last apply: pruned gets back what the applier had not owned either
//! pruned, in the version of this apply
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::Draft;
use crate::error::ApiError;
use crate::patch::fieldset::Set;
use crate::patch::managed::Writer;
use crate::patch::typed::{Node, collect, remove};
use crate::patch::versions::{Elsewhere, Form, Versions};
use crate::schema::Schema;

/// The object after `writer` applied `applied` to it. See [`super::apply`], which this is where all owners speak the
/// version of the writer.
///
/// # Errors
/// A refusal of the apply, or why the object could not be converted.
pub async fn apply(
    schema: &Schema,
    live: Option<&Value>,
    applied: &Value,
    writer: Writer<'_>,
    force: bool,
    versions: &impl Versions,
) -> Result<Value, ApiError> {
    let mut draft = Draft::new(schema, live, applied, writer)?;
    if draft.others.iter().chain(&draft.last).all(|entry| entry.api_version == writer.api_version) {
        draft.forget();
        return draft.finish(force, &Elsewhere::default());
    }
    draft.others.retain(|entry| !matches!(form(versions, &writer, &entry.api_version), Form::Gone));
    forget(&mut draft, versions).await?;
    let mut names: Vec<String> = draft.others.iter().map(|entry| entry.api_version.clone()).collect();
    names.retain(|name| name != writer.api_version);
    names.sort_unstable();
    names.dedup();
    let elsewhere = Elsewhere::look(versions, names, live, &draft.merged).await;
    match elsewhere.failure() {
        Some(error) => Err(error.clone()),
        None => draft.finish(force, &elsewhere),
    }
}

fn form(versions: &impl Versions, writer: &Writer<'_>, api_version: &str) -> Form {
    if api_version == writer.api_version { Form::Alike } else { versions.form(api_version) }
}

/// What is owned in one version; its schema is the writer's when it is None.
#[derive(Default)]
struct Owned {
    schema: Option<Arc<Schema>>,
    set: Set,
}

/// [`Draft::forget`] where owners speak several versions.
async fn forget(draft: &mut Draft<'_>, versions: &impl Versions) -> Result<(), ApiError> {
    let Some(last) = &draft.last else { return Ok(()) };
    let own = draft.writer.api_version;
    let mut owned: BTreeMap<&str, Owned> = BTreeMap::new();
    owned.insert(own, Owned { schema: None, set: draft.wanted.clone() });
    for entry in &draft.others {
        let (version, schema) = match form(versions, &draft.writer, &entry.api_version) {
            Form::Gone => continue,
            Form::Alike => (own, None),
            Form::Other(schema) => (entry.api_version.as_str(), Some(schema)),
        };
        let there = owned.entry(version).or_default();
        there.schema = schema;
        there.set.union(&entry.set);
    }
    let (first, schema) = match form(versions, &draft.writer, &last.api_version) {
        Form::Gone => return Ok(()),
        Form::Alike => (own, None),
        Form::Other(schema) => (last.api_version.as_str(), Some(schema)),
    };
    let mut gone = last.set.clone();
    let kept = owned.remove(first).unwrap_or_default().set;
    if first == own {
        gone.subtract(&draft.wanted);
    }
    let mut whole = draft.merged.clone();
    if first != own {
        [whole] = converted(versions, [whole], first).await?;
    }
    let mut pruned = whole.clone();
    remove(schema.as_deref().map_or(draft.root, Node::root), &mut pruned, &gone, &kept);
    if pruned == whole {
        return Ok(());
    }
    let (before, mut version) = (whole.clone(), first);
    // The writer's own version comes last, where the result is wanted.
    let last_one = owned.remove_entry(own);
    for (next, Owned { schema, set }) in owned.into_iter().chain(last_one) {
        [whole, pruned] = converted(versions, [whole, pruned], next).await?;
        let root = schema.as_deref().map_or(draft.root, Node::root);
        let mut kept = collect(root, &pruned);
        let mut lost = collect(root, &whole);
        lost.subtract(&kept);
        kept.union(&set);
        pruned.clone_from(&whole);
        remove(root, &mut pruned, &lost, &kept);
        version = next;
    }
    // With a container went what nobody owns in it. Of that only what the applier itself had owned goes.
    if version != first {
        [pruned] = converted(versions, [pruned], first).await?;
    }
    let root = schema.as_deref().map_or(draft.root, Node::root);
    let (kept, mut lost) = (collect(root, &pruned), collect(root, &before));
    lost.subtract(&kept);
    lost.intersect(&last.set);
    pruned = before;
    remove(root, &mut pruned, &lost, &kept);
    if first != own {
        [pruned] = converted(versions, [pruned], own).await?;
    }
    draft.merged = pruned;
    Ok(())
}

async fn converted<const N: usize>(
    versions: &impl Versions,
    objects: [Value; N],
    version: &str,
) -> Result<[Value; N], ApiError> {
    let converted = versions.convert(objects.into(), version).await?;
    converted.try_into().map_err(|_| ApiError::internal("a conversion has lost objects"))
}

#[cfg(test)]
mod tests;
