//! Answers as `metav1.Status`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
pub(crate) use kit::refusal::Refusal;
use serde_json::json;

/// 409, worded as clients expect conflicts of virtual machines.
pub(crate) fn conflict(kind: &str, name: &str, message: &str) -> Refusal {
    let text = format!("Operation cannot be fulfilled on {kind}.kubevirt.io \"{name}\": {message}");
    Refusal::new(StatusCode::CONFLICT, "Conflict", text)
}

/// The answer to a request that was done and has nothing to show.
pub(crate) fn done() -> Response {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200 });
    (StatusCode::OK, Json(body)).into_response()
}
