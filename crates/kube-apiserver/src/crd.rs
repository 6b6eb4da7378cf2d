//! CustomResourceDefinitions: from stored objects to served resources, and the end of both.

pub(crate) mod check;
pub(crate) mod convert;
mod names;
mod served;

use std::sync::Arc;

use serde_json::{Value, json};

pub(crate) use served::registry;

use crate::ApiServer;
use crate::store::{Key, Object};

/// Keeps a definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const STORAGE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// Fills in what a new or changed definition gets from the server: names, conditions, stored versions.
pub(crate) fn prepare(crd: &mut Value) {
    let names = &mut crd["spec"]["names"];
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    if names["singular"].as_str().unwrap_or_default().is_empty() {
        names["singular"] = kind.to_lowercase().into();
    }
    if names["listKind"].as_str().unwrap_or_default().is_empty() {
        names["listKind"] = format!("{kind}List").into();
    }
    let accepted = names.clone();
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
    let storage = storage.map(|version| version["name"].clone()).unwrap_or_default();
    let mut stored = crd["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    if !stored.contains(&storage) {
        stored.push(storage);
    }
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let before = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let condition = |type_: &str, reason: &str, message: &str| {
        let since = before.iter().find(|c| c["type"] == type_ && c["status"] == "True");
        let since = since.map_or_else(|| now.clone().into(), |c| c["lastTransitionTime"].clone());
        json!({"type": type_, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since})
    };
    let mut conditions = vec![
        condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ];
    conditions.extend(before.iter().filter(|c| c["type"] == "Terminating").cloned());
    crd["status"] = json!({"acceptedNames": accepted, "conditions": conditions, "storedVersions": stored});
}

/// Takes its names from a definition which another one of its group has already.
pub(crate) fn settle_names(server: &ApiServer, crd: &mut Value) {
    if let Some((reason, message)) = names::conflict(server.store(), crd) {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        names::refuse(crd, &reason, &message, &now);
    }
}

/// Gives definitions that waited for their names another try, after one has gone.
pub(crate) async fn after_removal(server: &ApiServer) {
    for object in server.store().list(STORAGE, None).objects {
        let mut crd = object.value();
        if names::accepted(&crd) || names::conflict(server.store(), &crd).is_some() {
            continue;
        }
        prepare(&mut crd);
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

/// Deletes all objects of a definition, waits until they are gone, then lets the definition go.
async fn clean_up(server: &ApiServer, name: &str) {
    let store = server.store().clone();
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
                value["metadata"]["deletionTimestamp"] =
                    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
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
