//! Answers: objects as stored bytes where possible, in the shape and encoding the client accepts.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::Call;
use super::accept::Shape;
use crate::error::ApiError;
use crate::registry::Resource;
use crate::store::Object;

/// A JSON body already serialized.
pub(super) fn json_bytes(code: StatusCode, bytes: impl Into<Body>) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], bytes.into()).into_response()
}

/// One object that exists as a tree, in its own version.
pub(super) fn object(call: &Call, code: StatusCode, object: &Value) -> Result<Response, ApiError> {
    let shaped;
    let answer = match call.accept.shape {
        Shape::Object => object,
        Shape::Metadata => {
            shaped = partial(object, "PartialObjectMetadata");
            &shaped
        }
        Shape::Table => {
            shaped = table(call, std::slice::from_ref(object), &object["metadata"]["resourceVersion"]);
            &shaped
        }
    };
    encode(call, code, answer)
}

/// Any document, as JSON or YAML.
pub(super) fn encode(call: &Call, code: StatusCode, document: &Value) -> Result<Response, ApiError> {
    if call.accept.yaml {
        let text = serde_saphyr::to_string(document).map_err(|_| ApiError::internal("the answer has no YAML form"))?;
        return Ok((code, [(header::CONTENT_TYPE, "application/yaml")], text).into_response());
    }
    Ok(json_bytes(code, document.to_string()))
}

/// A stored object in the version asked for, as a tree.
pub(super) async fn tree(call: &Call, stored: &Object) -> Result<Value, ApiError> {
    call.server.in_version(&call.resource, stored).await
}

/// Stored objects as bytes; no work where the version asked for is the stored one, and one conversion for the rest.
pub(super) async fn bytes(call: &Call, stored: &[Arc<Object>]) -> Result<Vec<Bytes>, ApiError> {
    let others: Vec<Arc<Object>> =
        stored.iter().filter(|object| !call.resource.serves_bytes(object)).cloned().collect();
    let mut converted = call.server.in_versions(&call.resource, &others).await?.into_iter();
    let served = |object: &Arc<Object>| {
        if call.resource.serves_bytes(object) {
            return object.json.clone();
        }
        converted.next().unwrap_or_default().to_string().into()
    };
    Ok(stored.iter().map(served).collect())
}

/// The metadata of an object alone.
pub(super) fn partial(object: &Value, kind: &str) -> Value {
    json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// A Table of objects.
pub(super) fn table(call: &Call, objects: &[Value], revision: &Value) -> Value {
    let include = call.query.get("includeObject");
    let mut table = render(&call.resource, objects, include);
    table["metadata"] = json!({"resourceVersion": revision});
    table
}

pub(super) fn render(resource: &Resource, objects: &[Value], include: &str) -> Value {
    crate::table::render(resource, objects, include, jiff::Timestamp::now())
}
