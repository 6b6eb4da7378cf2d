//! get and list.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use serde_json::json;

use apimachinery::error::{ApiError, Cause};
use apimachinery::labels::Labels;
use kube_store::{Gone, Object, Snapshot};

use super::options::ListOptions;
use super::page::Token;
use super::respond::Items;
use super::selector::{Fields, has_labels};
use super::{Call, options, respond};
use crate::accept::Encoding;

pub(super) async fn get(call: &Call) -> Result<Response, ApiError> {
    let current = call.server.store().revision();
    if let Some(asked) = options::revision(&call.query)?.filter(|asked| *asked > current) {
        return Err(too_large(asked, current));
    }
    let stored = fetch(call)?;
    if call.accept.is_plain() {
        return Ok(respond::json_bytes(StatusCode::OK, respond::stored_bytes(call, stored).await?));
    }
    respond::object(call, StatusCode::OK, &respond::tree(call, &stored).await?)
}

/// The refusal of a position that is older than what is remembered.
pub(super) fn expired(gone: Gone) -> ApiError {
    ApiError::expired(format!("too old resource version: {} ({})", gone.asked, gone.oldest))
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
        let mut fields = Fields::parse(call.query.get("fieldSelector"), &call.resource)?;
        // What was authorized as the one name is the only one that is told.
        fields.select_name(&call.info.selected_name);
        Ok(Self { labels: Labels::parse(call.query.get("labelSelector"))?, fields })
    }
    pub(super) fn matches(&self, object: &Object) -> bool {
        has_labels(object, &self.labels) && self.fields.matches(object)
    }
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

pub(super) async fn list(call: &Call) -> Result<Response, ApiError> {
    let options = ListOptions::parse(&call.query, false)?;
    let filter = Filter::parse(call)?;
    let (page, revision, next) = page(call, &options, &filter).await?;
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if let Some((token, remaining)) = next {
        metadata["continue"] = token.into();
        if filter.is_empty() {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    let resource = &call.resource;
    if call.accept.is_plain() {
        let head = json!({"kind": resource.list_kind, "apiVersion": resource.api_version(), "metadata": metadata});
        // `metadata` is an object too: its brace is trimmed with the outer one.
        let head = format!("{}}},\"items\":[", head.to_string().trim_end_matches('}'));
        return respond::stored_list(call, head, page).await;
    }
    let _turn = labour(call, page.len()).await;
    let items = match (items(call, &page, call.accept.encoding).await, call.accept.instead) {
        (Err(error), Some(encoding)) if error.reason == "NotAcceptable" => items(call, &page, encoding).await,
        (items, _) => items,
    };
    respond::list(call, items?, metadata)
}

/// What a list shows of objects.
async fn items(call: &Call, page: &[Arc<Object>], encoding: Encoding) -> Result<Items, ApiError> {
    let mut items = Items::new(call, encoding)?;
    // What a webhook converts is converted with one call.
    let together = if call.resource.crd.is_some() { page.len().max(1) } else { BREATH };
    for part in page.chunks(together) {
        let converted = call.server.in_versions(&call.resource, part).await?;
        converted.into_iter().try_for_each(|object| items.push(respond::shaped(call, object)))?;
        tokio::task::yield_now().await;
    }
    Ok(items)
}

/// Objects looked into between two chances for others.
const BREATH: usize = 64;

/// Lets other requests have the thread now and then.
async fn breathe(index: usize) {
    if index % BREATH == BREATH - 1 {
        tokio::task::yield_now().await;
    }
}

/// The turn of a request that looks into many objects: a user has one at a time.
async fn labour(call: &Call, objects: usize) -> Option<tokio::sync::OwnedSemaphorePermit> {
    if objects <= 4 * BREATH { None } else { call.server.edges().fairness.labour(&call.user.name).await }
}

type Page = (Vec<Arc<Object>>, u64, Option<(String, usize)>);

async fn page(call: &Call, options: &ListOptions, filter: &Filter) -> Result<Page, ApiError> {
    let token = (!options.resume.is_empty()).then(|| Token::decode(&options.resume)).transpose()?;
    let snapshot = snapshot(call, options, token.as_ref())?;
    let mut objects = snapshot.objects;
    if let Some(token) = &token {
        objects.retain(|object| token.is_before(&object.key, &call.info.namespace));
    }
    if !filter.fields.is_empty() {
        let _turn = labour(call, objects.len()).await;
        let mut matching = Vec::new();
        for (index, object) in objects.into_iter().enumerate() {
            breathe(index).await;
            if filter.matches(&object) {
                matching.push(object);
            }
        }
        objects = matching;
    } else if !filter.labels.is_empty() {
        objects.retain(|object| filter.matches(object));
    }
    let mut next = None;
    if options.limit > 0 && objects.len() > options.limit {
        let remaining = objects.len() - options.limit;
        objects.truncate(options.limit);
        if let Some(last) = objects.last() {
            next = Some((Token::after(&last.key, &call.info.namespace, snapshot.revision).encode(), remaining));
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
        return match token.revision {
            Some(revision) => store.list_at(&storage, namespace, revision).map_err(|_| token.expired()),
            None => Ok(store.list(&storage, namespace)),
        };
    }
    let asked = options.revision.unwrap_or_default();
    let snapshot = store.list(&storage, namespace);
    if asked > snapshot.revision {
        return Err(too_large(asked, snapshot.revision));
    }
    if options.exact { Ok(store.list_at(&storage, namespace, asked).map_err(expired)?) } else { Ok(snapshot) }
}

/// The answer to a client that has seen a revision which this store has not reached.
pub(super) fn too_large(asked: u64, current: u64) -> ApiError {
    let mut error = ApiError::new(504, "Timeout", format!("Too large resource version: {asked}, current: {current}"));
    error.details = Some(json!({"retryAfterSeconds": 1}));
    error.causes = vec![Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    }];
    error
}
