//! CustomResourceDefinitions: from stored objects to served resources.

pub(crate) mod check;
pub(crate) mod conditions;
pub mod convert;
pub(crate) mod fields;
mod form;
pub(crate) mod names;
mod served;

use serde_json::{Value, json};

use kube_store::Store;

pub(crate) use served::registry;

/// Keeps a definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
pub(crate) const STORAGE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// Fills in what a new or changed definition gets from the server: names, finalizer, stored versions.
pub(crate) fn prepare(crd: &mut Value) {
    let names = &mut crd["spec"]["names"];
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    if !kind.is_empty() && names["singular"].as_str().unwrap_or_default().is_empty() {
        names["singular"] = kind.to_lowercase().into();
    }
    if !kind.is_empty() && names["listKind"].as_str().unwrap_or_default().is_empty() {
        names["listKind"] = format!("{kind}List").into();
    }
    form::canonical(&mut crd["spec"]);
    if crd["spec"]["conversion"].is_null() {
        crd["spec"]["conversion"] = json!({"strategy": "None"});
    }
    if !crd["metadata"]["deletionTimestamp"].is_string() {
        let mut finalizers = crd["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|f| f == CLEANUP) {
            finalizers.push(CLEANUP.into());
        }
        crd["metadata"]["finalizers"] = finalizers.into();
    }
    let storage = crd["spec"]["versions"].as_array().into_iter().flatten().find(|v| v["storage"] == true);
    if let Some(storage) = storage.map(|version| Value::from(version["name"].as_str().unwrap_or_default())) {
        let mut stored = crd["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
        if !stored.contains(&storage) {
            stored.push(storage);
        }
        crd["status"]["storedVersions"] = stored.into();
    }
}

/// Accepts the names of a definition, unless another one of its group has them already.
pub(crate) fn settle_names(store: &Store, crd: &mut Value) {
    let now = crate::stamp::now();
    let conflict = names::conflict(store, crd);
    conditions::names(crd, conflict.as_ref(), &now);
    if conflict.is_none() {
        crd["status"]["acceptedNames"] = crd["spec"]["names"].clone();
    } else if crd["status"]["acceptedNames"].is_null() {
        crd["status"]["acceptedNames"] = json!({"plural": "", "kind": ""});
    }
    conditions::approval(crd, &now);
}
