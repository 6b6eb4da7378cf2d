//! The step from a write to admission and back.

use std::sync::Arc;

use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::patch::json;
use apimachinery::schema::{self, prune};

use super::Call;
use crate::admission::quota::Turn;
use crate::admission::{self, Attributes};
use crate::strategy;

/// What is done to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
}

/// A write on its way to admission.
pub(super) struct Write<'a> {
    pub(super) operation: Operation,
    pub(super) name: &'a str,
    pub(super) old: Option<&'a Arc<Value>>,
    pub(super) options: &'static str,
    /// Whether nothing will be stored.
    pub(super) dry_run: bool,
}

fn attributes(call: &Call, write: &Write<'_>, object: Option<Value>) -> Attributes {
    Attributes {
        info: call.info.clone(),
        user: call.user.clone(),
        resource: call.resource.clone(),
        operation: match write.operation {
            Operation::Create => admission::Operation::Create,
            Operation::Update => admission::Operation::Update,
            Operation::Delete => admission::Operation::Delete,
        },
        namespace: call.info.namespace.clone(),
        name: write.name.to_owned(),
        object,
        old: write.old.cloned(),
        options: options(call, write),
        dry_run: write.dry_run,
    }
}

/// The options of the request as a document.
fn options(call: &Call, write: &Write<'_>) -> Value {
    let mut options = serde_json::json!({"kind": write.options, "apiVersion": "meta.k8s.io/v1"});
    for field in ["fieldManager", "fieldValidation"] {
        let value = call.query.get(field);
        if !value.is_empty() {
            options[field] = value.into();
        }
    }
    if write.dry_run {
        options["dryRun"] = serde_json::json!(["All"]);
    }
    options
}

/// Runs the mutating part of admission; what it adds is defaulted like what the client sent. The plugins of this server
/// add only fields there are, and to an object that exists none that have defaults; policies and webhooks add anything.
pub(super) async fn mutate(call: &Call, write: &Write<'_>, object: &mut Value) -> Result<(), ApiError> {
    let mut attributes = attributes(call, write, Some(object.take()));
    let admission = &call.server.edges().admission;
    let mutated = admission.mutate(&mut attributes, &call.server.registry(), strategy::set_defaults).await?;
    mutated.warnings.into_iter().for_each(|text| call.warn(text));
    *object = attributes.object.unwrap_or_default();
    let custom = call.resource.crd.is_some();
    if mutated.changed || custom {
        if json::depth(object) > json::DEPTH {
            let text = format!("admission nested the object too deeply: at most {} levels are accepted", json::DEPTH);
            return Err(ApiError::internal(text));
        }
        prune::unknown(&call.resource.schema, object);
        if custom {
            prune::unset(&call.resource.schema, object);
        }
    }
    if mutated.changed || custom || write.operation == Operation::Create {
        schema::defaults::apply(&call.resource.schema, object);
        strategy::set_defaults(&call.resource, object);
    }
    Ok(())
}

/// The same for an object that is about to be stored; it is lent, not copied.
pub(super) async fn validate_new(call: &Call, write: &Write<'_>, object: &mut Value) -> Result<Option<Turn>, ApiError> {
    let attributes = attributes(call, write, Some(object.take()));
    let outcome = call.server.edges().admission.validate(&attributes, &call.server.registry()).await;
    *object = attributes.object.unwrap_or_default();
    let admitted = outcome?;
    admitted.warnings.into_iter().for_each(|text| call.warn(text));
    Ok(admitted.turn)
}

/// Runs the validating part of admission; a deletion has no new object. What it yields is held until the write is stored.
pub(super) async fn validate(call: &Call, write: &Write<'_>, object: Option<&Value>) -> Result<Option<Turn>, ApiError> {
    let attributes = attributes(call, write, object.cloned());
    let admitted = call.server.edges().admission.validate(&attributes, &call.server.registry()).await?;
    admitted.warnings.into_iter().for_each(|text| call.warn(text));
    Ok(admitted.turn)
}
