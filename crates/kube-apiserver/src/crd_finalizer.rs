//! The end of CustomResourceDefinitions: the finalizer that has a definition's objects deleted before it, and what its names are
//! free for afterwards.

use std::sync::Arc;

use serde_json::Value;

use kube_store::{Key, Object, WriteError};

use crate::ApiServer;
use crate::crd::{CLEANUP, STORAGE, conditions, names, settle_names};
use crate::stamp::now;

/// Gives definitions that waited for their names another try, after one has gone.
pub(crate) async fn after_removal(server: &ApiServer) {
    for object in server.store().list(STORAGE, None).objects {
        let mut crd = object.value();
        if conditions::is_true(&crd, "NamesAccepted") || names::conflict(server.store(), &crd).is_some() {
            continue;
        }
        settle_names(server.store(), &mut crd);
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
        kit::spawn("crd-cleanup", async move { clean_up(&server, &name).await }).detach();
    }
}

/// Goes on with deletions a restart interrupted.
pub(crate) fn resume_deletions(server: &ApiServer) {
    for object in server.store().list(STORAGE, None).objects {
        let server = server.clone();
        let crd = object.value();
        if crd["metadata"]["deletionTimestamp"].is_string() {
            let name = object.key.name.to_string();
            kit::spawn("crd-cleanup", async move { clean_up(&server, &name).await }).detach();
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
