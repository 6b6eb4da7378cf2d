//! The common instance types and preferences: those that tools, images and templates of others name, so they are known by
//! the same names, with the same values. Pure.
//!
//! ```text
//! series × sizes ───────────┐
//! base + what differs ──────┴─> cluster instance types and cluster preferences
//! ```

mod linux;
mod preference;
mod series;
mod windows;

use kit::operator;
use serde_json::{Value, json};

/// The kind of instance types, and what they are called in addresses.
pub const INSTANCETYPES: (&str, &str) = ("VirtualMachineClusterInstancetype", "virtualmachineclusterinstancetypes");
/// The same of preferences.
pub const PREFERENCES: (&str, &str) = ("VirtualMachineClusterPreference", "virtualmachineclusterpreferences");
/// Both.
pub const KINDS: [(&str, &str); 2] = [INSTANCETYPES, PREFERENCES];

/// The group of both.
pub const GROUP: &str = "instancetype.kubevirt.io";
/// The version of both.
pub const VERSION: &str = "v1beta1";

/// Of the collection whose names and values these are.
const COLLECTION: &str = "v1.7.0";

/// All of them, with `labels` beside their own.
pub fn render(labels: &Value) -> Vec<Value> {
    let mut all = series::render();
    all.extend(linux::render());
    all.extend(windows::render());
    for manifest in &mut all {
        operator::label(manifest, labels);
    }
    all
}

/// A cluster-wide object; the keys of `labels` are those below our group.
fn object(kind: &str, name: &str, labels: &[(&str, String)], annotations: &Value, spec: &Value) -> Value {
    let key = |key: &str| format!("{GROUP}/{key}");
    let mut all = json!({ (key("vendor")): "kubevirt.io", (key("common-instancetypes-version")): COLLECTION });
    for (name, value) in labels {
        all[key(name)] = json!(value);
    }
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind,
        "metadata": { "name": name, "labels": all, "annotations": annotations }, "spec": spec,
    })
}

#[cfg(test)]
mod tests;
