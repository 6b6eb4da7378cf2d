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

/// What a write has come to.
pub(super) enum Written {
    /// This is stored.
    Stored(Arc<Object>),
    /// This would be (a dry run), in its own version.
    Tree(Value),
}

impl Written {
    /// In the version asked for.
    pub(super) fn tree(self, call: &Call) -> Result<Value, ApiError> {
        match self {
            Self::Stored(object) => tree(call, &object),
            Self::Tree(value) => Ok(value),
        }
    }
}

/// The answer to a write; the stored bytes, where they are what was asked for.
pub(super) fn written(call: &Call, code: StatusCode, written: Written) -> Result<Response, ApiError> {
    match written {
        Written::Stored(stored) if call.accept.shape == Shape::Object && !call.accept.yaml => {
            Ok(json_bytes(code, bytes(call, &stored)?))
        }
        other => object(call, code, &other.tree(call)?),
    }
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
pub(super) fn tree(call: &Call, stored: &Object) -> Result<Value, ApiError> {
    call.server.in_version(&call.resource, stored.value())
}

/// The same as bytes; no work when the version asked for is the stored one.
pub(super) fn bytes(call: &Call, stored: &Arc<Object>) -> Result<Bytes, ApiError> {
    if call.resource.serves_bytes(&stored.json) {
        return Ok(stored.json.clone());
    }
    Ok(tree(call, stored)?.to_string().into())
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
