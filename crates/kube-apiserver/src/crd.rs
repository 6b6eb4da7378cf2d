//! CustomResourceDefinitions: from stored objects to served resources, and the end of both.

pub(crate) mod check;
mod conditions;
pub mod convert;
pub(crate) mod fields;
mod form;
mod names;
mod served;

use std::sync::Arc;

use serde_json::{Value, json};

pub(crate) use served::registry;

use kube_store::{Key, Object, WriteError};

use crate::ApiServer;

/// Keeps a definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const STORAGE: &str = "customresourcedefinitions.apiextensions.k8s.io";

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
pub(crate) fn settle_names(server: &ApiServer, crd: &mut Value) {
    let now = now();
    let conflict = names::conflict(server.store(), crd);
    conditions::names(crd, conflict.as_ref(), &now);
    if conflict.is_none() {
        crd["status"]["acceptedNames"] = crd["spec"]["names"].clone();
    } else if crd["status"]["acceptedNames"].is_null() {
        crd["status"]["acceptedNames"] = json!({"plural": "", "kind": ""});
    }
    conditions::approval(crd, &now);
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Gives definitions that waited for their names another try, after one has gone.
pub(crate) async fn after_removal(server: &ApiServer) {
    for object in server.store().list(STORAGE, None).objects {
        let mut crd = object.value();
        if conditions::is_true(&crd, "NamesAccepted") || names::conflict(server.store(), &crd).is_some() {
            continue;
        }
        settle_names(server, &mut crd);
        // One that changed meanwhile was looked at by whoever changed it.
        let _ = server.store().update(object.key.clone(), crd, object.revision).await;
    }
    server.refresh_registry().await;
}

/// Reacts to a stored definition: one that is being deleted takes its objects with it.
pub(crate) async fn after_write(server: &ApiServer, object: &Arc<Object>) {
    let crd = object.value();
    let waits = crd["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|f| f == CLEANUP));
    if crd["metadata"]["deletionTimestamp"].is_string() && waits {
        let server = server.clone();
        let name = object.key.name.to_string();
        tokio::spawn(async move { clean_up(&server, &name).await });
    }
}

/// Goes on with deletions a restart interrupted.
pub(crate) fn resume_deletions(server: &ApiServer) {
    for object in server.store().list(STORAGE, None).objects {
        let server = server.clone();
        let crd = object.value();
        if crd["metadata"]["deletionTimestamp"].is_string() {
            let name = object.key.name.to_string();
            tokio::spawn(async move { clean_up(&server, &name).await });
        }
    }
}

/// Writes a condition of a definition: type, status, reason, message.
async fn note(server: &ApiServer, name: &str, (type_, status, reason, message): (&str, bool, &str, &str)) {
    while let Some(object) = server.store().get(STORAGE, "", name) {
        let mut crd = object.value();
        conditions::set(&mut crd, type_, status, reason, message, &now());
        match server.store().update(Key::new(STORAGE, "", name), crd, object.revision).await {
            Err(WriteError::Changed) => {}
            _ => break,
        }
    }
    server.refresh_registry().await;
}

/// Deletes all objects of a definition, waits until they are gone, then lets the definition go.
async fn clean_up(server: &ApiServer, name: &str) {
    let store = server.store().clone();
    let begun = "CustomResource deletion is in progress";
    note(server, name, ("Terminating", true, "InstanceDeletionInProgress", begun)).await;
    loop {
        let snapshot = store.list(name, None);
        for object in &snapshot.objects {
            let mut value = object.value();
            let key = Key::new(name, &object.key.namespace, &object.key.name);
            let held = value["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
            // A writer that was faster is met again in the next round.
            if !held {
                let _ = store.delete(key, object.revision).await;
            } else if !value["metadata"]["deletionTimestamp"].is_string() {
                value["metadata"]["deletionTimestamp"] = now().into();
                value["metadata"]["deletionGracePeriodSeconds"] = 0.into();
                let _ = store.update(key, value, object.revision).await;
            }
        }
        if store.count(name) == 0 {
            break;
        }
        let Ok(mut watch) = store.watch(name, None, snapshot.revision) else { continue };
        let _ = watch.next().await;
    }
    note(server, name, ("Terminating", false, "InstanceDeletionCompleted", "removed all instances")).await;
    while let Some(object) = store.get(STORAGE, "", name) {
        let mut crd = object.value();
        let mut left: Vec<Value> = crd["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        left.retain(|finalizer| finalizer != CLEANUP);
        let key = Key::new(STORAGE, "", name);
        let outcome = if left.is_empty() {
            store.delete(key, object.revision).await
        } else {
            crd["metadata"]["finalizers"] = left.into();
            store.update(key, crd, object.revision).await
        };
        if outcome.is_ok() {
            break;
        }
    }
    after_removal(server).await;
}
