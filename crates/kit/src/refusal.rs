//! Refusals as `metav1.Status`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A refusal with its HTTP code and reason word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP code.
    pub code: StatusCode,
    /// Reason word.
    pub reason: &'static str,
    /// The sentence.
    pub message: String,
}

impl Refusal {
    /// Any other.
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Refusal { code, reason, message: message.into() }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", message)
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// 405.
    pub fn not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 502: who was asked did not answer as they should.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "ServiceUnavailable", message)
    }
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let reason = match code {
                    StatusCode::BAD_REQUEST => "BadRequest",
                    StatusCode::NOT_FOUND => "NotFound",
                    StatusCode::CONFLICT => "Conflict",
                    StatusCode::FORBIDDEN => "Forbidden",
                    StatusCode::UNPROCESSABLE_ENTITY => "Invalid",
                    _ => "InternalError",
                };
                Refusal { code, reason, message: status.message.clone() }
            }
            other => Refusal::internal(crate::Chain(&other).to_string()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        (self.code, Json(body)).into_response()
    }
}
