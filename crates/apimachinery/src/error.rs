//! API errors: every refusal leaves the server as a `metav1.Status` with reason, causes and the HTTP code.
//!
//! Guarantees: `code` equals the HTTP status; a validation error carries one cause per bad field; no internal source text
//! (paths, SQL, panics) reaches the client.

use serde::Serialize;
use serde_json::{Value, json};

/// One entry of `status.details.causes`: `reason` is a `CauseType` word such as `FieldValueInvalid`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// `FieldValueInvalid`, `FieldValueRequired`, `FieldValueNotSupported`, `FieldValueDuplicate`, `FieldValueForbidden`, …
    pub reason: String,
    /// What is wrong and what would be accepted.
    pub message: String,
    /// JSON path of the field, `spec.containers[0].image`; empty for what is not about a field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// A refusal, ready to be sent.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// The `metav1.StatusReason`, `NotFound`, `Conflict`, `Invalid`, …
    pub reason: &'static str,
    /// Human sentence.
    pub message: String,
    /// `status.details` without the causes (`name`, `group`, `kind`, `uid`, `retryAfterSeconds`).
    pub details: Option<Value>,
    /// Field errors.
    pub causes: Vec<Cause>,
    /// A token with which a list may go on in spite of the error.
    pub resume: Option<Box<str>>,
}

impl ApiError {
    /// An error with no details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, causes: Vec::new(), resume: None }
    }
    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }
    /// 500; the message must say nothing the client may not know.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }
    /// 404 of an object: `pods "a" not found`.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", qualified(group, resource)))
            .about(group, resource, name)
    }
    /// 409 on create.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", qualified(group, resource)))
            .about(group, resource, name)
    }
    /// 409 on update with a stale resourceVersion or a failed precondition.
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(group, resource)),
        )
        .about(group, resource, name)
    }
    /// 403 as RBAC and admission say it.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let object = if name.is_empty() {
            format!("{} is forbidden", qualified(group, resource))
        } else {
            format!("{} {name:?} is forbidden", qualified(group, resource))
        };
        Self::new(403, "Forbidden", format!("{object}: {why}")).about(group, resource, name)
    }
    /// 410 of a watch or a continue token that is too old.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }
    /// 422 with one cause for each field, worded as Kubernetes words it: `Kind "name" is invalid: field: …`.
    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> Self {
        let qualified_kind = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let list = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect::<Vec<_>>();
        let text = if list.len() == 1 { list.concat() } else { format!("[{}]", list.join(", ")) };
        let mut error = Self::new(422, "Invalid", format!("{qualified_kind} {name:?} is invalid: {text}"));
        let known = [("name", name), ("group", group), ("kind", kind)].into_iter().filter(|(_, text)| !text.is_empty());
        error.details = Some(known.map(|(key, text)| (key.to_owned(), Value::from(text))).collect());
        error.causes = causes;
        error
    }

    fn about(mut self, group: &str, resource: &str, name: &str) -> Self {
        let mut details = json!({"kind": resource});
        if !group.is_empty() {
            details["group"] = group.into();
        }
        if !name.is_empty() {
            details["name"] = name.into();
        }
        self.details = Some(details);
        self
    }

    /// The `metav1.Status` document.
    pub fn to_status(&self) -> Value {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code});
        let mut details = self.details.clone().unwrap_or_else(|| json!({}));
        if !self.causes.is_empty() {
            details["causes"] = json!(self.causes);
        }
        if details.as_object().is_some_and(|d| !d.is_empty()) {
            status["details"] = details;
        }
        if let Some(token) = &self.resume {
            status["metadata"]["continue"] = (**token).into();
        }
        status
    }
}

fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

impl axum::response::IntoResponse for ApiError {
    fn into_response(self) -> axum::response::Response {
        let code = http::StatusCode::from_u16(self.code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let wait = self.details.as_ref().and_then(|details| details["retryAfterSeconds"].as_u64());
        let mut response = (code, axum::Json(self.to_status())).into_response();
        if let Some(seconds) = wait {
            response.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
