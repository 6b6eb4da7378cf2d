//! get and list.

use std::sync::Arc;

use axum::response::Response;
use base64::Engine as _;
use http::StatusCode;
use serde_json::{Value, json};

use super::accept::Shape;
use super::options::ListOptions;
use super::selector::{Fields, Labels};
use super::{Call, respond};
use crate::error::ApiError;
use crate::store::{Object, Snapshot};

pub(super) async fn get(call: &Call) -> Result<Response, ApiError> {
    let stored = fetch(call)?;
    if call.accept.shape == Shape::Object && !call.accept.yaml {
        return Ok(respond::json_bytes(StatusCode::OK, respond::bytes(call, &[stored]).await?.concat()));
    }
    respond::object(call, StatusCode::OK, &respond::tree(call, &stored).await?)
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

pub(super) async fn list(call: &Call) -> Result<Response, ApiError> {
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
        return Ok(respond::json_bytes(StatusCode::OK, joined(call, &page, &metadata).await?));
    }
    let objects: Vec<Value> = call.server.in_versions(&call.resource, &page).await?;
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

/// Stored bytes put together: a list costs a copy and no parsing.
async fn joined(call: &Call, page: &[Arc<Object>], metadata: &Value) -> Result<Vec<u8>, ApiError> {
    let head =
        json!({"kind": call.resource.list_kind, "apiVersion": call.resource.api_version(), "metadata": metadata});
    let mut out = Vec::with_capacity(page.iter().map(|o| o.json.len() + 1).sum::<usize>() + 256);
    out.extend_from_slice(head.to_string().trim_end_matches('}').as_bytes());
    // `metadata` is an object too: its brace was trimmed with the outer one.
    out.extend_from_slice(b"},\"items\":[");
    for (index, object) in respond::bytes(call, page).await?.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(object);
    }
    out.extend_from_slice(b"]}");
    Ok(out)
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
