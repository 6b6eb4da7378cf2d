//! The way from `kubectl apply` on the client's side to server-side apply.
//!
//! What the client's side applied last is kept in an annotation. An object so applied changes over to `kubectl`'s
//! server-side apply without conflicts, and the annotation is kept up to date for a way back. Only the manager `kubectl`
//! means it so: a client that does not want this names itself otherwise.

use serde_json::Value;

use super::fieldset::Set;
use super::typed::{Node, collect, diff, retain_present};

const MANAGER: &str = "kubectl";
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Bytes all annotations of an object may have together.
const LARGEST: usize = 256 * 1024;

/// The fields which `manager` may take from others without a conflict: those the client's side applied and nobody changed.
pub(super) fn inherited(root: Node<'_>, live: Option<&Value>, manager: &str) -> Set {
    let read = || {
        let live = live.filter(|_| manager == MANAGER)?;
        let last: Value = serde_json::from_str(live["metadata"]["annotations"][ANNOTATION].as_str()?).ok()?;
        let mut set = collect(root, &last);
        set.subtract(&diff(root, Some(&last), live, &mut false));
        retain_present(&mut set, root, live);
        Some(set)
    };
    read().unwrap_or_default()
}

/// Brings the annotation of `merged` up to date, if there is one.
pub(super) fn remember(merged: &mut Value, applied: &Value, manager: &str) {
    if manager != MANAGER || !merged["metadata"]["annotations"][ANNOTATION].is_string() {
        return;
    }
    let mut applied = applied.clone();
    if let Some(annotations) = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let text = format!("{applied}\n");
    merged["metadata"]["annotations"][ANNOTATION] = if text.len() > LARGEST { "" } else { text.as_str() }.into();
}
