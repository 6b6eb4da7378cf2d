//! get and list.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use bytes::Bytes;
use futures::stream;
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::accept::Shape;
use super::options::ListOptions;
use super::selector::{Fields, Labels};
use super::{Call, respond};
use crate::error::ApiError;
use crate::store::{Object, Snapshot};

pub(super) fn get(call: &Call) -> Result<Response, ApiError> {
    let stored = fetch(call)?;
    if call.accept.shape == Shape::Object && !call.accept.yaml {
        return Ok(respond::json_bytes(StatusCode::OK, respond::bytes(call, &stored)?));
    }
    respond::object(call, StatusCode::OK, &respond::tree(call, &stored)?)
}

/// The object the request names.
pub(super) fn fetch(call: &Call) -> Result<Arc<Object>, ApiError> {
    let found = call.server.store().get(&call.storage(), call.namespace(), &call.info.name);
    found.ok_or_else(|| call.not_found(&call.info.name))
}

/// Label and field selector of a request.
pub(super) struct Filter {
    pub(super) labels: Labels,
    pub(super) fields: Fields,
}

impl Filter {
    pub(super) fn parse(call: &Call) -> Result<Self, ApiError> {
        Ok(Self {
            labels: Labels::parse(call.query.get("labelSelector"))?,
            fields: Fields::parse(call.query.get("fieldSelector"), &call.resource)?,
        })
    }
    pub(super) fn matches(&self, object: &Object) -> bool {
        self.labels.matches_object(object) && self.fields.matches(object)
    }
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

/// Where a limited list goes on: the revision of its first page and the last key handed out.
struct Token {
    revision: u64,
    namespace: String,
    name: String,
}

impl Token {
    fn encode(&self) -> String {
        let text = json!({"v": 1, "rv": self.revision, "ns": self.namespace, "name": self.name}).to_string();
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text)
    }
    fn decode(text: &str) -> Result<Self, ApiError> {
        let read = || {
            let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).ok()?;
            let value: Value = serde_json::from_slice(&bytes).ok()?;
            Some(Self {
                revision: value["rv"].as_u64()?,
                namespace: value["ns"].as_str()?.to_owned(),
                name: value["name"].as_str()?.to_owned(),
            })
        };
        read().ok_or_else(|| ApiError::bad_request("continue key is not valid"))
    }
}

pub(super) fn list(call: &Call) -> Result<Response, ApiError> {
    let options = ListOptions::parse(&call.query, false)?;
    let filter = Filter::parse(call)?;
    let (page, revision, next) = page(call, &options, &filter)?;
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if let Some((token, remaining)) = next {
        metadata["continue"] = token.into();
        if filter.is_empty() {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    if call.accept.shape == Shape::Object && !call.accept.yaml {
        return joined(call, &page, &metadata);
    }
    let objects: Vec<Value> = page.iter().map(|object| respond::tree(call, object)).collect::<Result<_, _>>()?;
    let document = match call.accept.shape {
        Shape::Table => {
            let mut table = respond::table(call, &objects, &Value::Null);
            table["metadata"] = metadata;
            table
        }
        Shape::Metadata => {
            let items: Vec<Value> = objects.iter().map(|o| respond::partial(o, "PartialObjectMetadata")).collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
        }
        Shape::Object => json!({"kind": call.resource.list_kind, "apiVersion": call.resource.api_version(),
            "metadata": metadata, "items": objects}),
    };
    respond::encode(call, StatusCode::OK, &document)
}

/// Pieces of a list are at least as long as this, but for the last.
const PIECE: usize = 64 * 1024;

/// Stored bytes put together while they are sent: a list costs no parsing, and however long it is, a piece of memory.
fn joined(call: &Call, page: &[Arc<Object>], metadata: &Value) -> Result<Response, ApiError> {
    let head =
        json!({"kind": call.resource.list_kind, "apiVersion": call.resource.api_version(), "metadata": metadata});
    let mut head = head.to_string();
    head.truncate(head.len() - 1);
    head.push_str(",\"items\":[");
    let objects: Vec<Bytes> = page.iter().map(|object| respond::bytes(call, object)).collect::<Result<_, _>>()?;
    let length = head.len() + objects.iter().map(Bytes::len).sum::<usize>() + objects.len().saturating_sub(1) + 2;
    let mut objects = objects.into_iter().peekable();
    let mut piece = head.into_bytes();
    let mut ended = false;
    let pieces = std::iter::from_fn(move || {
        if ended {
            return None;
        }
        piece.reserve(PIECE.min(length));
        while piece.len() < PIECE
            && let Some(object) = objects.next()
        {
            piece.extend_from_slice(&object);
            if objects.peek().is_some() {
                piece.push(b',');
            }
        }
        if objects.peek().is_none() {
            piece.extend_from_slice(b"]}");
            ended = true;
        }
        Some(Ok::<_, Infallible>(Bytes::from(std::mem::take(&mut piece))))
    });
    let mut response = respond::json_bytes(StatusCode::OK, Body::from_stream(stream::iter(pieces)));
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    Ok(response)
}

type Page = (Vec<Arc<Object>>, u64, Option<(String, usize)>);

fn page(call: &Call, options: &ListOptions, filter: &Filter) -> Result<Page, ApiError> {
    let token = (!options.resume.is_empty()).then(|| Token::decode(&options.resume)).transpose()?;
    let snapshot = snapshot(call, options, token.as_ref())?;
    let mut objects = snapshot.objects;
    if let Some(token) = &token {
        let after = (token.namespace.as_str(), token.name.as_str());
        objects.retain(|object| (&*object.key.namespace, &*object.key.name) > after);
    }
    if !filter.is_empty() {
        objects.retain(|object| filter.matches(object));
    }
    let mut next = None;
    if options.limit > 0 && objects.len() > options.limit {
        let remaining = objects.len() - options.limit;
        objects.truncate(options.limit);
        if let Some(last) = objects.last() {
            let (namespace, name) = (last.key.namespace.to_string(), last.key.name.to_string());
            next = Some((Token { revision: snapshot.revision, namespace, name }.encode(), remaining));
        }
    }
    Ok((objects, snapshot.revision, next))
}

fn snapshot(call: &Call, options: &ListOptions, token: Option<&Token>) -> Result<Snapshot, ApiError> {
    let (store, storage) = (call.server.store(), call.storage());
    let namespace = (!call.info.namespace.is_empty()).then_some(call.info.namespace.as_str());
    if let Some(token) = token {
        if options.revision.is_some_and(|revision| revision != 0) {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        return store.list_at(&storage, namespace, token.revision).map_err(|_| {
            ApiError::expired(
                "The provided continue parameter is too old to display a consistent list result. \
                 You must start a new list without the continue parameter.",
            )
        });
    }
    if options.exact {
        return Ok(store.list_at(&storage, namespace, options.revision.unwrap_or_default())?);
    }
    let snapshot = store.list(&storage, namespace);
    match options.revision {
        Some(asked) if asked > snapshot.revision => {
            let mut error = ApiError::new(
                504,
                "Timeout",
                format!("Too large resource version: {asked}, current: {}", snapshot.revision),
            );
            error.details = Some(json!({"causes": [{"reason": "ResourceVersionTooLarge",
                "message": "Too large resource version"}], "retryAfterSeconds": 1}));
            Err(error)
        }
        _ => Ok(snapshot),
    }
}
