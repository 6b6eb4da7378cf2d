//! Conditions of a signing request, and which of them each way of writing may change. Pure.

use serde_json::{Value, json};

use apimachinery::pointer::{items, text};

/// Whether a condition is there; one that is there is true.
pub(super) fn is(csr: &Value, kind: &str) -> bool {
    items(csr, "/status/conditions").iter().any(|condition| text(condition, "/type") == kind)
}

/// Adds a condition.
pub(super) fn set(csr: &mut Value, kind: &str, reason: &str, message: &str) {
    let now = crate::stamp::now();
    let condition = json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now});
    match csr.pointer_mut("/status/conditions") {
        Some(Value::Array(list)) => list.push(condition),
        _ => csr["status"]["conditions"] = json!([condition]),
    }
}

fn decides(condition: &Value) -> bool {
    matches!(text(condition, "/type"), "Approved" | "Denied")
}

/// A write of `approval` changes the conditions and nothing else; each new one gets its times.
pub(crate) fn keep_approval(old: &Value, new: &mut Value) {
    let conditions = items(new, "/status/conditions").to_vec();
    for field in ["spec", "status"] {
        new[field] = old.get(field).cloned().unwrap_or_else(|| json!({}));
    }
    stamp(old, new, conditions);
}

/// A write of `status` leaves what was decided as it was.
pub(crate) fn keep_others(old: &Value, new: &mut Value) {
    let decided = items(old, "/status/conditions").iter().filter(|condition| decides(condition)).cloned();
    let other = items(new, "/status/conditions").iter().filter(|condition| !decides(condition)).cloned();
    let conditions = decided.chain(other).collect();
    stamp(old, new, conditions);
}

fn stamp(old: &Value, new: &mut Value, mut conditions: Vec<Value>) {
    let now = crate::stamp::now();
    let before = items(old, "/status/conditions");
    for condition in &mut conditions {
        let same = before.iter().find(|other| text(other, "/type") == text(condition, "/type"));
        let unset = |condition: &Value, field: &str| condition.get(field).is_none_or(Value::is_null);
        if unset(condition, "lastUpdateTime") {
            condition["lastUpdateTime"] = now.as_str().into();
        }
        if unset(condition, "lastTransitionTime") {
            let since = same.and_then(|same| same.get("lastTransitionTime")).filter(|time| !time.is_null()).cloned();
            condition["lastTransitionTime"] = since.unwrap_or_else(|| now.as_str().into());
        }
        if unset(condition, "status") {
            condition["status"] = "True".into();
        }
    }
    if conditions.is_empty() {
        if let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) {
            status.remove("conditions");
        }
    } else {
        new["status"]["conditions"] = Value::Array(conditions);
    }
}
