//! Taints of nodes.

use std::collections::HashSet;

use serde_json::Value;

use super::{one_of, required};
use crate::error::Cause;
use crate::schema::validate::cause;

/// A word inside a text of the API.
fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Taints of a node.
pub(super) fn node(node: &Value, causes: &mut Vec<Cause>) {
    let mut known = HashSet::new();
    for (index, taint) in node["spec"]["taints"].as_array().into_iter().flatten().enumerate() {
        let at = format!("spec.taints[{index}]");
        if word(taint, "key").is_empty() {
            required(&format!("{at}.key"), causes);
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if word(taint, "effect").is_empty() {
            required(&format!("{at}.effect"), causes);
        } else {
            one_of(&format!("{at}.effect"), &taint["effect"], &effects, causes);
        }
        if !known.insert((word(taint, "key"), word(taint, "effect"))) {
            let mut message = format!("Duplicate value: {taint}");
            message.push_str(": taints must be unique by key and effect pair");
            causes.push(cause("FieldValueDuplicate", &at, message));
        }
    }
}
