//! delete and deletecollection: preconditions, finalizers, propagation, graceful deletion.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use apimachinery::error::ApiError;
use kube_store::{Object, WriteError};

use super::admit::{self, Operation, Write};
use super::options::ListOptions;
use super::read::Filter;
use super::respond::Items;
use super::{Call, MODIFIED, meta, respond};
use crate::accept::Shape;
use crate::strategy;

mod options;

pub(super) use options::Options;

const TRIES: usize = 20;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

pub(super) async fn delete(call: &Call, body: Body) -> Result<Response, ApiError> {
    call.query.check_write("DeleteOptions")?;
    let options = Options::read(call, body).await?;
    match remove(call, &call.info.name, &options).await? {
        // What is left of the object, or what was removed: kinds differ in what they answer.
        Outcome::Waiting(object) => respond::object(call, StatusCode::OK, &object),
        Outcome::Removed(object) if strategy::returns_deleted(&call.resource) => {
            respond::object(call, StatusCode::OK, &object)
        }
        Outcome::Removed(object) => {
            let mut details = json!({"name": meta::text(&object, "name"), "kind": call.resource.plural, "uid": meta::text(&object, "uid")});
            if !call.resource.group.is_empty() {
                details["group"] = call.resource.group.clone().into();
            }
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            respond::encode(call, StatusCode::OK, &status)
        }
    }
}

/// What a deletion has come to.
pub(super) enum Outcome {
    /// The object stays until its finalizers or its grace period are over.
    Waiting(Value),
    /// It is gone; its last state.
    Removed(Value),
}

/// Deletes one object, or begins to.
pub(super) async fn remove(call: &Call, name: &str, options: &Options) -> Result<Outcome, ApiError> {
    for _ in 0..TRIES {
        let stored =
            call.server.store().get(&call.storage(), call.namespace(), name).ok_or_else(|| call.not_found(name))?;
        match Box::pin(remove_once(call, name, &stored, options)).await {
            Err(None) => {}
            Err(Some(error)) => return Err(error),
            Ok(outcome) => return Ok(outcome),
        }
    }
    Err(call.conflict(name, MODIFIED))
}

/// `Err(None)`: another writer was faster.
async fn remove_once(
    call: &Call,
    name: &str,
    stored: &Arc<Object>,
    options: &Options,
) -> Result<Outcome, Option<ApiError>> {
    let old = Arc::new(respond::tree(call, stored).await?);
    options.check(call, &old)?;
    let write = Write {
        operation: Operation::Delete,
        name,
        old: Some(&old),
        options: "DeleteOptions",
        dry_run: options.dry_run,
    };
    admit::validate(call, &write, None).await?;
    let old = Arc::unwrap_or_clone(old);
    let mut new = old.clone();
    let grace = begin(call, &mut new, options);
    let waits = !meta::finalizers(&new).is_empty() || grace > 0 || !strategy::removable(&call.resource, &new);
    if options.dry_run {
        return Ok(if waits { Outcome::Waiting(new) } else { Outcome::Removed(old) });
    }
    let store = call.server.store();
    let raced = |error: WriteError| match error {
        WriteError::Changed => None,
        other => Some(call.store_error(name, &other)),
    };
    if waits {
        if new == old {
            return Ok(Outcome::Waiting(old));
        }
        let converted = call.server.to_storage(&call.resource, new).await?;
        let updated = store.update(call.key(name), converted, stored.revision).await.map_err(raced)?;
        crate::after_write::written(&call.server, &call.resource, &updated).await;
        return Ok(Outcome::Waiting(respond::tree(call, &updated).await?));
    }
    let last = store.delete(call.key(name), stored.revision).await.map_err(raced)?;
    crate::after_write::removed(&call.server, &call.resource, &last).await;
    Ok(Outcome::Removed(respond::tree(call, &last).await?))
}

/// Marks the object as being deleted; yields the seconds of grace it still has.
fn begin(call: &Call, object: &mut Value, options: &Options) -> i64 {
    let wanted = strategy::grace(&call.resource, object, options.grace);
    let mut finalizers: Vec<String> = meta::finalizers(object).into_iter().map(str::to_owned).collect();
    if let Some(policy) = &options.propagation {
        finalizers.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
        match policy.as_str() {
            "Orphan" => finalizers.push(ORPHAN.to_owned()),
            "Foreground" => finalizers.push(FOREGROUND.to_owned()),
            _ => {}
        }
    }
    let metadata = &mut object["metadata"];
    if finalizers.is_empty() {
        if let Some(map) = metadata.as_object_mut() {
            map.remove("finalizers");
        }
    } else {
        metadata["finalizers"] = json!(finalizers);
    }
    if metadata["deletionTimestamp"].is_string() {
        // A second deletion may only shorten the wait.
        let left = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if wanted < left {
            metadata["deletionGracePeriodSeconds"] = wanted.into();
            metadata["deletionTimestamp"] = crate::stamp::after(wanted).into();
            return wanted;
        }
        return left;
    }
    metadata["deletionTimestamp"] = crate::stamp::after(wanted).into();
    metadata["deletionGracePeriodSeconds"] = wanted.into();
    if let Some(generation) = metadata["generation"].as_i64() {
        metadata["generation"] = (generation + 1).into();
    }
    strategy::deletion_began(&call.resource, object);
    wanted
}

pub(super) async fn collection(call: &Call, body: Body) -> Result<Response, ApiError> {
    call.query.check_write("DeleteOptions")?;
    if matches!(call.accept.shape, Shape::Metadata(_)) {
        return Err(respond::metadata_of_list(call));
    }
    let options = Options::read(call, body).await?;
    let filter = Filter::parse(call)?;
    let list = ListOptions::parse(&call.query, false)?;
    let snapshot =
        call.server.store().list(&call.storage(), Some(call.namespace()).filter(|_| call.resource.namespaced));
    let mut items = Vec::new();
    let limit = if list.limit == 0 { usize::MAX } else { list.limit };
    for object in snapshot.objects.iter().filter(|object| filter.matches(object)).take(limit) {
        match remove(call, &object.key.name, &options).await {
            Ok(Outcome::Removed(object) | Outcome::Waiting(object)) => items.push(respond::shaped(call, object)),
            Err(error) if error.reason == "NotFound" => {}
            Err(error) => return Err(error),
        }
    }
    let metadata = json!({"resourceVersion": call.server.store().revision().to_string()});
    respond::list(call, Items::Trees(items), metadata)
}
