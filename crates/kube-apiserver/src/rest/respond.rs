//! Answers: objects as stored bytes where possible, in the shape and encoding the client accepts.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use apimachinery::error::{ApiError, Cause};
use kube_store::{Object, to_json};

use super::{Call, protobuf};
use crate::accept::{Accept, Encoding, Meta, Shape, not_acceptable};
use crate::registry::Resource;

/// A JSON body already serialized.
pub(super) fn json_bytes(code: StatusCode, bytes: impl Into<Body>) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], bytes.into()).into_response()
}

/// One object that exists as a tree, in its own version.
pub(super) fn object(call: &Call, code: StatusCode, object: &Value) -> Result<Response, ApiError> {
    let shaped;
    let answer = match call.accept.shape {
        Shape::Object => object,
        Shape::Metadata(meta) => {
            shaped = partial(object, meta);
            &shaped
        }
        Shape::Table(meta) => {
            shaped = table(call, std::slice::from_ref(object), meta, &object["metadata"]["resourceVersion"]);
            &shaped
        }
        Shape::MetadataList(_) => {
            let kind = &call.resource.kind;
            let why =
                format!("you requested PartialObjectMetadataList, but the requested object is not a list ({kind})");
            return Err(not_acceptable(why));
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
        Written::Stored(stored) if call.accept.is_plain() => Ok(json_bytes(code, stored_bytes(call, stored).await?)),
        other => object(call, code, &other.tree(call).await?),
    }
}

/// Any document, in the encoding the client accepts.
pub(super) fn encode(call: &Call, code: StatusCode, document: &Value) -> Result<Response, ApiError> {
    let mut encoding = call.accept.encoding;
    if encoding == Encoding::Protobuf {
        match protobuf::encode(document) {
            Ok(bytes) => return Ok(protobuf_bytes(code, bytes)),
            Err(unfit) => encoding = call.accept.instead.ok_or_else(|| not_acceptable(unfit.to_string()))?,
        }
    }
    if encoding == Encoding::Yaml {
        let text = serde_saphyr::to_string(document).map_err(|_| ApiError::internal("the answer has no YAML form"))?;
        return Ok((code, [(header::CONTENT_TYPE, "application/yaml")], text).into_response());
    }
    Ok(json_bytes(code, document.to_string()))
}

fn protobuf_bytes(code: StatusCode, bytes: Vec<u8>) -> Response {
    (code, [(header::CONTENT_TYPE, protobuf::MEDIA_TYPE)], bytes).into_response()
}

/// A refusal, in the encoding the client accepts; it has no other shape.
pub(super) fn refusal(accept: Accept, error: ApiError) -> Response {
    let status = error.to_status();
    let written = match accept.encoding {
        Encoding::Protobuf => protobuf::encode(&status).ok().map(|bytes| (bytes, protobuf::MEDIA_TYPE)),
        Encoding::Yaml if accept.shape == Shape::Object => {
            serde_saphyr::to_string(&status).ok().map(|text| (text.into_bytes(), "application/yaml"))
        }
        _ => None,
    };
    let mut response = error.into_response();
    if let Some((bytes, media_type)) = written {
        // The length is that of the body again when it is sent.
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = bytes.into();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    response
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
        to_json(&converted.next().unwrap_or_default()).into()
    };
    Ok(stored.iter().map(served).collect())
}

/// One object of a list in the shape the client accepts: a table's row stands for its object. What kind a shipped object is,
/// its list says.
pub(super) fn shaped(call: &Call, mut object: Value) -> Value {
    match call.accept.shape {
        Shape::Object => {
            if let Some(map) = object.as_object_mut().filter(|_| call.resource.crd.is_none()) {
                map.retain(|key, _| key != "apiVersion" && key != "kind");
            }
            object
        }
        Shape::Metadata(meta) | Shape::MetadataList(meta) => partial(&object, meta),
        Shape::Table(meta) => {
            let include = call.query.get("includeObject");
            let mut row = crate::table::line(&call.resource, &object, include, kit::clock::now());
            in_version(&mut row, meta);
            row
        }
    }
}

/// What [`shaped`] has made for a list, written at once where that takes less room.
pub(super) enum Items {
    Trees(Vec<Value>),
    Protobuf(protobuf::Items),
}

impl Items {
    pub(super) fn new(call: &Call, encoding: Encoding) -> Result<Self, ApiError> {
        if encoding != Encoding::Protobuf {
            return Ok(Self::Trees(Vec::new()));
        }
        let resource = &call.resource;
        let items = match call.accept.shape {
            Shape::Metadata(_) => return Err(metadata_of_list(call)),
            Shape::MetadataList(meta) => protobuf::Items::new(meta.api_version(), "PartialObjectMetadata"),
            _ => protobuf::Items::new(&resource.api_version(), &resource.kind),
        };
        items.map(Self::Protobuf).map_err(|unfit| not_acceptable(unfit.to_string()))
    }
    pub(super) fn push(&mut self, object: Value) -> Result<(), ApiError> {
        match self {
            Self::Trees(trees) => {
                trees.push(object);
                Ok(())
            }
            Self::Protobuf(items) => items.push(&object).map_err(|unfit| not_acceptable(unfit.to_string())),
        }
    }
}

/// A list of what [`shaped`] has made.
pub(super) fn list(call: &Call, items: Items, metadata: Value) -> Result<Response, ApiError> {
    let items = match items {
        Items::Trees(trees) => trees,
        Items::Protobuf(items) => {
            let kind = match call.accept.shape {
                Shape::MetadataList(_) => "PartialObjectMetadataList",
                _ => &call.resource.list_kind,
            };
            let bytes = items.list(kind, &metadata).map_err(|unfit| not_acceptable(unfit.to_string()))?;
            return Ok(protobuf_bytes(StatusCode::OK, bytes));
        }
    };
    let document = match call.accept.shape {
        Shape::Table(meta) => {
            let mut table = render(&call.resource, &[], "", meta);
            table["metadata"] = metadata;
            table["rows"] = items.into();
            table
        }
        Shape::MetadataList(meta) => {
            json!({"kind": "PartialObjectMetadataList", "apiVersion": meta.api_version(), "metadata": metadata, "items": items})
        }
        Shape::Metadata(_) => return Err(metadata_of_list(call)),
        Shape::Object => json!({"kind": call.resource.list_kind, "apiVersion": call.resource.api_version(),
            "metadata": metadata, "items": items}),
    };
    encode(call, StatusCode::OK, &document)
}

/// The answer to who wants of a list the metadata of one object.
pub(super) fn metadata_of_list(call: &Call) -> ApiError {
    let kind = &call.resource.list_kind;
    not_acceptable(format!("you requested PartialObjectMetadata, but the requested object is a list ({kind})"))
}

/// Bytes of one frame of a long answer: what a reader who does not read costs beyond the objects themselves.
pub(super) const FRAME: usize = 128 * 1024;

/// A list put together of stored bytes, a frame at a time as the client reads: it costs a copy and no parsing.
pub(super) async fn stored_list(call: &Call, head: String, page: Vec<Arc<Object>>) -> Result<Response, ApiError> {
    let mut items = bytes(call, &page).await?.into_iter().peekable();
    // What kind a shipped object is, its list says.
    let untyped = call.resource.crd.is_none();
    let mut next = Some(head.into_bytes());
    let mut frames = std::iter::from_fn(move || {
        let mut frame = next.take()?;
        while let Some(item) = items.next() {
            match untyped.then(|| without_type(&item)).flatten() {
                Some(fields) => {
                    frame.push(b'{');
                    frame.extend_from_slice(fields);
                }
                None => frame.extend_from_slice(&item),
            }
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

/// What follows apiVersion and kind in the bytes of an object that begins with them.
fn without_type(object: &[u8]) -> Option<&[u8]> {
    let version = object.strip_prefix(b"{\"apiVersion\":\"")?;
    let end = version.iter().position(|byte| *byte == b'"')?;
    let kind = version[end..].strip_prefix(b"\",\"kind\":\"")?;
    let end = kind.iter().position(|byte| *byte == b'"')?;
    kind[end..].strip_prefix(b"\",")
}

/// The metadata of an object alone.
pub(super) fn partial(object: &Value, meta: Meta) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta.api_version(), "metadata": object["metadata"]})
}

/// The same of an object as it is stored.
pub(super) fn partial_bytes(object: &Object) -> Bytes {
    const HEAD: &str = "{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":";
    [HEAD, object.metadata(), "}"].concat().into()
}

/// A Table of objects.
fn table(call: &Call, objects: &[Value], meta: Meta, revision: &Value) -> Value {
    let include = call.query.get("includeObject");
    let mut table = render(&call.resource, objects, include, meta);
    table["metadata"] = json!({"resourceVersion": revision});
    table
}

pub(super) fn render(resource: &Resource, objects: &[Value], include: &str, meta: Meta) -> Value {
    let mut table = crate::table::render(resource, objects, include, kit::clock::now());
    if meta != Meta::V1 {
        table["apiVersion"] = meta.api_version().into();
        table["rows"].as_array_mut().into_iter().flatten().for_each(|row| in_version(row, meta));
    }
    table
}

/// The metadata in a Table's row, in the version of the Table.
fn in_version(row: &mut Value, meta: Meta) {
    if row["object"]["kind"] == "PartialObjectMetadata" {
        row["object"]["apiVersion"] = meta.api_version().into();
    }
}

/// The answer to a patch of which no object of the kind comes.
pub(super) fn unreadable(patched: &Value, why: &str) -> ApiError {
    let message = format!("Invalid value: {}: {why}", Value::from(patched.to_string()));
    ApiError::invalid("", "", "", vec![Cause { reason: "FieldValueInvalid".into(), message, field: "patch".into() }])
}
