//! patch: JSON patch, merge patch, strategic merge patch, server-side apply.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::patch::{json, strategic};

use super::write::{Edit, Produce, change_by, insert, shape, shape_sent};
use super::{Call, decode, meta, owners, respond};

pub(super) async fn patch(call: &Call, body: Body) -> Result<Response, ApiError> {
    patch_part(call, body, "").await
}

/// Patches the object, or the part of it a subresource writes.
pub(super) async fn patch_part(call: &Call, body: Body, subresource: &'static str) -> Result<Response, ApiError> {
    call.query.check_write("PatchOptions")?;
    call.query.check_patch(owners::applies(call))?;
    let (patch, duplicates) = read(call, body).await?;
    let edit = Edit::part(subresource, "PatchOptions");
    if let Patch::Apply(wanted) = &patch
        && subresource.is_empty()
        && let Some(created) = create(call, wanted).await?
    {
        return respond::written(call, StatusCode::CREATED, created).await;
    }
    let stored = change_by(call, &edit, Patching { call, patch, duplicates, subresource }).await?;
    respond::written(call, StatusCode::OK, stored).await
}

/// A patch of an object, or of the part of it a subresource writes.
struct Patching<'a> {
    call: &'a Call,
    patch: Patch,
    duplicates: Vec<String>,
    subresource: &'static str,
}

impl Produce for Patching<'_> {
    async fn produce(&self, current: &Value) -> Result<Value, ApiError> {
        let call = self.call;
        let mut new = self.patch.apply(call, current, self.subresource).await?;
        meta::check_named(&new, &call.info.name)?;
        if let Some(why) = meta::other_kind(&call.resource, &new).filter(|_| call.resource.crd.is_none()) {
            return Err(respond::unreadable(&new, &why));
        }
        meta::check_type(&call.resource, &new)?;
        meta::check_identity(&call.resource, &mut new, call.namespace(), &call.info.name)?;
        bounded(call, &new)?;
        let refused = shape(call, Some(current), &mut new, self.duplicates.clone())?;
        if !refused.is_empty() {
            return Err(respond::unreadable(&new, &format!("strict decoding error: {}", refused.join(", "))));
        }
        Ok(new)
    }
}

/// Counts what is written to it.
struct Counter(usize);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Refuses an object which patches have made larger than one could be sent.
fn bounded(call: &Call, object: &Value) -> Result<(), ApiError> {
    let limit = call.server.config().body_limit;
    let mut size = Counter(0);
    serde_json::to_writer(&mut size, object).map_err(|_| ApiError::internal("the patched object has no JSON form"))?;
    let Counter(size) = size;
    if size <= limit {
        return Ok(());
    }
    let text = format!("Request entity too large: the patched object has {size} bytes, limit is {limit}");
    Err(ApiError::new(413, "RequestEntityTooLarge", text))
}

/// Creates the applied object when there is none yet; None when there is.
async fn create(call: &Call, wanted: &Value) -> Result<Option<respond::Written>, ApiError> {
    if call.server.store().get(&call.storage(), call.namespace(), &call.info.name).is_some() {
        return Ok(None);
    }
    meta::check_named(wanted, &call.info.name)?;
    for field in ["uid", "resourceVersion"] {
        // As when it is posted, what is only tried may say which revision it was.
        let tried = field == "resourceVersion" && call.dry_run();
        if !meta::text(wanted, field).is_empty() && !tried {
            let why = format!(
                "{field} mismatch: the provided object specified {field} {}, and no existing object was found",
                meta::text(wanted, field)
            );
            return Err(call.conflict(&call.info.name, &why));
        }
    }
    // Who may patch may not thereby create.
    let create = apimachinery::request::RequestInfo { verb: "create".into(), ..call.info.clone() };
    call.server.authorize(&call.user, &create)?;
    let mut new = owners::merge(call, None, wanted, "").await?;
    meta::check_identity(&call.resource, &mut new, call.namespace(), &call.info.name)?;
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

/// Reads a patch, and the paths of fields it names twice.
pub(super) async fn read(call: &Call, body: Body) -> Result<(Patch, Vec<String>), ApiError> {
    let bytes = decode::read(call, body).await?;
    parse(call, &bytes)
}

fn parse(call: &Call, bytes: &Bytes) -> Result<(Patch, Vec<String>), ApiError> {
    match decode::content_type(call).as_str() {
        "application/json-patch+json" => {
            let (list, duplicates) = decode::json(bytes)?;
            Ok((Patch::Json(json::decode(list)?), duplicates))
        }
        "application/merge-patch+json" => {
            let (patch, duplicates) = decode::json(bytes)?;
            Ok((Patch::Merge(object(patch)?), duplicates))
        }
        "application/strategic-merge-patch+json" if call.resource.crd.is_none() => {
            let (patch, duplicates) = decode::json(bytes)?;
            Ok((Patch::Strategic(object(patch)?), duplicates))
        }
        owners::APPLY => {
            let (mut wanted, duplicates) = decode::yaml(bytes)?;
            if !duplicates.is_empty() && call.query.get("fieldValidation") == "Strict" {
                let fields: Vec<String> = duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
                return Err(ApiError::bad_request(format!("strict decoding error: {}", fields.join(", "))));
            }
            if ["apiVersion", "kind"].iter().any(|field| wanted[field].as_str().is_none_or(str::is_empty)) {
                let (version, kind) = (&wanted["apiVersion"], &wanted["kind"]);
                let said = [version, kind].map(|said| said.as_str().unwrap_or_default());
                return Err(ApiError::bad_request(format!("invalid object type: {}, Kind={}", said[0], said[1])));
            }
            if call.info.subresource != "scale" {
                // That it is another object's name is said of the object that would be stored.
                meta::check_identity(&call.resource, &mut wanted, call.namespace(), "")?;
            }
            Ok((Patch::Apply(object(wanted)?), duplicates))
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
    /// The object after the patch; an apply says which part of it is written.
    pub(super) async fn apply(&self, call: &Call, current: &Value, subresource: &str) -> Result<Value, ApiError> {
        match self {
            Self::Json(patch) => json::apply(current, patch),
            Self::Merge(patch) => {
                let mut new = current.clone();
                json_patch::merge(&mut new, patch);
                Ok(new)
            }
            Self::Strategic(patch) => strategic::merge(&call.resource.schema, current, patch),
            Self::Apply(wanted) => owners::merge(call, Some(current), wanted, subresource).await,
        }
    }
}
