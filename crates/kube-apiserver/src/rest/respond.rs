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
    pub(super) async fn tree(self, call: &Call) -> Result<Value, ApiError> {
        match self {
            Self::Stored(object) => tree(call, &object).await,
            Self::Tree(value) => Ok(value),
        }
    }
}

/// The answer to a write; the stored bytes, where they are what was asked for.
pub(super) async fn written(call: &Call, code: StatusCode, written: Written) -> Result<Response, ApiError> {
    match written {
        Written::Stored(stored) if call.accept.shape == Shape::Object && !call.accept.yaml => {
            Ok(json_bytes(code, stored_bytes(call, stored).await?))
        }
        other => object(call, code, &other.tree(call).await?),
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
pub(super) async fn tree(call: &Call, stored: &Object) -> Result<Value, ApiError> {
    call.server.in_version(&call.resource, stored).await
}

/// One stored object as bytes.
pub(super) async fn stored_bytes(call: &Call, stored: Arc<Object>) -> Result<Bytes, ApiError> {
    Ok(bytes(call, &[stored]).await?.into_iter().next().unwrap_or_default())
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

/// One object of a list in the shape the client accepts: a table's row stands for its object.
pub(super) fn shaped(call: &Call, object: Value) -> Value {
    match call.accept.shape {
        Shape::Object => object,
        Shape::Metadata => partial(&object, "PartialObjectMetadata"),
        Shape::Table => {
            crate::table::line(&call.resource, &object, call.query.get("includeObject"), jiff::Timestamp::now())
        }
    }
}

/// A list of what [`shaped`] has made.
pub(super) fn list(call: &Call, items: Vec<Value>, metadata: Value) -> Result<Response, ApiError> {
    let document = match call.accept.shape {
        Shape::Table => {
            let mut table = render(&call.resource, &[], "");
            table["metadata"] = metadata;
            table["rows"] = items.into();
            table
        }
        Shape::Metadata => {
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
        }
        Shape::Object => json!({"kind": call.resource.list_kind, "apiVersion": call.resource.api_version(),
            "metadata": metadata, "items": items}),
    };
    encode(call, StatusCode::OK, &document)
}

/// Bytes of one frame of a long answer: what a reader who does not read costs beyond the objects themselves.
pub(super) const FRAME: usize = 128 * 1024;

/// A list put together of stored bytes, a frame at a time as the client reads: it costs a copy and no parsing.
pub(super) async fn stored_list(call: &Call, head: String, page: Vec<Arc<Object>>) -> Result<Response, ApiError> {
    let mut items = bytes(call, &page).await?.into_iter().peekable();
    let mut next = Some(head.into_bytes());
    let mut frames = std::iter::from_fn(move || {
        let mut frame = next.take()?;
        while let Some(item) = items.next() {
            frame.extend_from_slice(&item);
            if items.peek().is_some() {
                frame.push(b',');
            }
            if frame.len() >= FRAME && items.peek().is_some() {
                next = Some(Vec::with_capacity(FRAME + 16 * 1024));
                return Some(frame);
            }
        }
        frame.extend_from_slice(b"]}");
        Some(frame)
    });
    let first = frames.next().unwrap_or_default();
    let body = if first.len() < FRAME {
        Body::from(first)
    } else {
        let frames =
            std::iter::once(first).chain(frames).map(|frame| Ok::<_, std::convert::Infallible>(Bytes::from(frame)));
        Body::from_stream(futures::stream::iter(frames))
    };
    Ok(json_bytes(StatusCode::OK, body))
}

/// The metadata of an object alone.
pub(super) fn partial(object: &Value, kind: &str) -> Value {
    json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// The same of an object as it is stored.
pub(super) fn partial_bytes(object: &Object) -> Bytes {
    const HEAD: &str = "{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":";
    [HEAD, object.metadata(), "}"].concat().into()
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
