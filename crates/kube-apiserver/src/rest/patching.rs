//! patch: JSON patch, merge patch, strategic merge patch, server-side apply.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use super::write::{Edit, change, insert, shape, shape_sent};
use super::{Call, decode, meta, owners, respond};
use crate::error::{ApiError, Cause};
use crate::patch::strategic;

/// Operations of one JSON patch at most.
const OPERATIONS: usize = 10_000;

pub(super) async fn patch(call: &Call, body: Body) -> Result<Response, ApiError> {
    patch_part(call, body, "").await
}

/// Patches the object, or the part of it a subresource writes.
pub(super) async fn patch_part(call: &Call, body: Body, subresource: &'static str) -> Result<Response, ApiError> {
    call.query.check_write()?;
    let patch = read(call, body).await?;
    let edit = Edit::part(subresource, "PatchOptions");
    if let Patch::Apply(wanted) = &patch
        && subresource.is_empty()
        && let Some(created) = create(call, wanted).await?
    {
        return respond::written(call, StatusCode::CREATED, created);
    }
    let stored = change(call, &edit, |current| {
        let mut new = match &patch {
            Patch::Apply(wanted) => owners::merge(call, Some(current), wanted, subresource)?,
            patch => patch.apply(call, current)?,
        };
        meta::check_identity(&call.resource, &mut new, call.namespace(), &call.info.name)?;
        let refused = shape(call, &mut new, Vec::new())?;
        if !refused.is_empty() {
            let message = format!(
                "Invalid value: {}: strict decoding error: {}",
                Value::from(new.to_string()),
                refused.join(", ")
            );
            return Err(ApiError::invalid(
                "",
                "",
                "",
                vec![Cause { reason: "FieldValueInvalid".into(), message, field: "patch".into() }],
            ));
        }
        Ok(new)
    })
    .await?;
    respond::written(call, StatusCode::OK, stored)
}

/// Creates the applied object when there is none yet; None when there is.
async fn create(call: &Call, wanted: &Value) -> Result<Option<respond::Written>, ApiError> {
    if call.server.store().get(&call.storage(), call.namespace(), &call.info.name).is_some() {
        return Ok(None);
    }
    for field in ["uid", "resourceVersion"] {
        if !meta::text(wanted, field).is_empty() {
            let why = format!(
                "{field} mismatch: the provided object specified {field} {}, and no existing object was found",
                meta::text(wanted, field)
            );
            return Err(call.conflict(&call.info.name, &why));
        }
    }
    // Who may patch may not thereby create.
    let create = crate::request::RequestInfo { verb: "create".into(), ..call.info.clone() };
    call.server.authorize(&call.user, &create)?;
    let mut new = owners::merge(call, None, wanted, "")?;
    shape_sent(call, &mut new, Vec::new())?;
    match insert(call, new).await {
        Err(error) if error.reason == "AlreadyExists" => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// A decoded patch.
pub(super) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

pub(super) async fn read(call: &Call, body: Body) -> Result<Patch, ApiError> {
    let bytes = decode::read(call, body).await?;
    parse(call, &bytes)
}

fn parse(call: &Call, bytes: &Bytes) -> Result<Patch, ApiError> {
    match decode::content_type(call).as_str() {
        "application/json-patch+json" => {
            let (value, _) = decode::json(bytes)?;
            if value.as_array().is_some_and(|list| list.len() > OPERATIONS) {
                let text = format!("The allowed maximum operations in a JSON patch is {OPERATIONS}");
                return Err(ApiError::new(413, "RequestEntityTooLarge", text));
            }
            serde_json::from_value(value)
                .map(Patch::Json)
                .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
        }
        "application/merge-patch+json" => Ok(Patch::Merge(object(decode::json(bytes)?.0)?)),
        "application/strategic-merge-patch+json" if call.resource.crd.is_none() => {
            Ok(Patch::Strategic(object(decode::json(bytes)?.0)?))
        }
        owners::APPLY => {
            let (mut wanted, duplicates) = decode::yaml(bytes)?;
            if !duplicates.is_empty() && call.query.get("fieldValidation") == "Strict" {
                let fields: Vec<String> = duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
                return Err(ApiError::bad_request(format!("strict decoding error: {}", fields.join(", "))));
            }
            if call.info.subresource != "scale" {
                meta::check_identity(&call.resource, &mut wanted, call.namespace(), &call.info.name)?;
            }
            Ok(Patch::Apply(object(wanted)?))
        }
        other => {
            let mut known = vec!["application/json-patch+json", "application/merge-patch+json"];
            if call.resource.crd.is_none() {
                known.push("application/strategic-merge-patch+json");
            }
            known.push("application/apply-patch+yaml");
            Err(ApiError::new(
                415,
                "UnsupportedMediaType",
                format!(
                    "the body of the request was in an unknown format - accepted media types include: {} (got {other})",
                    known.join(", ")
                ),
            ))
        }
    }
}

fn object(value: Value) -> Result<Value, ApiError> {
    if value.is_object() { Ok(value) } else { Err(ApiError::bad_request("the patch must be an object")) }
}

impl Patch {
    pub(super) fn apply(&self, call: &Call, current: &Value) -> Result<Value, ApiError> {
        let mut new = current.clone();
        match self {
            Self::Json(patch) => json_patch::patch(&mut new, patch).map_err(|error| {
                ApiError::new(
                    422,
                    "Invalid",
                    format!("the server rejected our request due to an error in our request: {error}"),
                )
            })?,
            Self::Merge(patch) => json_patch::merge(&mut new, patch),
            Self::Strategic(patch) => new = strategic::merge(&call.resource.schema, current, patch)?,
            // Only where the object itself is applied are its owners known; a part such as a scale is merged.
            Self::Apply(patch) => json_patch::merge(&mut new, patch),
        }
        Ok(new)
    }
}
