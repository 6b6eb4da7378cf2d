//! Admission webhooks: an AdmissionReview in, a verdict out, over JSON values.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

/// The question, with the objects as they came.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// Names the question; the answer repeats it.
    pub uid: String,
    /// CREATE, UPDATE, DELETE or CONNECT.
    pub operation: String,
    /// The object's name; may be empty when it is generated.
    pub name: String,
    /// The object's namespace.
    pub namespace: String,
    /// The subresource, such as `status`.
    pub sub_resource: String,
    /// Who asks.
    pub user_info: UserInfo,
    /// The object as it would be; null on DELETE.
    pub object: Value,
    /// The object as it is; null on CREATE.
    pub old_object: Value,
    /// True when nothing will be stored.
    pub dry_run: bool,
}

/// Who asks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserInfo {
    /// The user's name.
    pub username: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// The user's UID, if there is one.
    pub uid: String,
    /// What else is known of the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// One thing wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueInvalid`, `FieldValueRequired`, `FieldValueNotSupported`, `FieldValueDuplicate`, …
    pub reason: &'static str,
    /// The field's path.
    pub field: String,
    /// What is wrong and what to do about it.
    pub message: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Yes, with remarks for the user.
    Allow {
        /// Shown by clients.
        warnings: Vec<String>,
    },
    /// Yes, with these RFC 6902 operations applied.
    Patch(Value),
    /// No: these fields are wrong.
    Invalid(Vec<Cause>),
    /// No.
    Deny {
        /// HTTP code: 403, 409, 422, …
        code: u16,
        /// The reason word of `metav1.Status`.
        reason: &'static str,
        /// The sentence.
        message: String,
    },
}

impl Verdict {
    /// Yes.
    pub fn allow() -> Self {
        Verdict::Allow { warnings: Vec::new() }
    }

    /// No, for `causes`; yes when there are none.
    pub fn of_causes(causes: Vec<Cause>) -> Self {
        if causes.is_empty() { Verdict::allow() } else { Verdict::Invalid(causes) }
    }
}

/// Serves `handler` under `path`.
pub fn route<F>(router: Router, path: &str, handler: F) -> Router
where
    F: Fn(&Request) -> Verdict + Clone + Send + Sync + 'static,
{
    router.route(path, post(move |body: Bytes| async move { answer(&body, &handler) }))
}

/// Serves `handler`, which looks at the cluster, under `path`.
pub fn route_looking<F, Fut>(router: Router, path: &str, handler: F) -> Router
where
    F: Fn(Request) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Verdict> + Send + 'static,
{
    let serve = move |body: Bytes| async move {
        match review(&body) {
            Ok(request) => {
                let uid = request.uid.clone();
                Json(response(&uid, handler(request).await)).into_response()
            }
            Err(message) => (StatusCode::BAD_REQUEST, message).into_response(),
        }
    };
    router.route(path, post(serve))
}

fn answer(body: &[u8], handler: impl Fn(&Request) -> Verdict) -> axum::response::Response {
    match review(body) {
        Ok(request) => Json(response(&request.uid, handler(&request))).into_response(),
        Err(message) => (StatusCode::BAD_REQUEST, message).into_response(),
    }
}

/// Reads an AdmissionReview.
///
/// # Errors
/// A sentence for the caller when it is not one.
pub fn review(body: &[u8]) -> Result<Request, String> {
    #[derive(Deserialize)]
    struct Review {
        request: Option<Request>,
    }
    let review: Review = serde_json::from_slice(body).map_err(|e| format!("not an AdmissionReview: {e}"))?;
    review.request.ok_or_else(|| "the AdmissionReview holds no request".to_owned())
}

/// The AdmissionReview that answers the question `uid`.
pub fn response(uid: &str, verdict: Verdict) -> Value {
    let mut response = json!({ "uid": uid, "allowed": true });
    match verdict {
        Verdict::Allow { warnings } => {
            if !warnings.is_empty() {
                response["warnings"] = json!(warnings);
            }
        }
        Verdict::Patch(patch) => {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(BASE64_STANDARD.encode(patch.to_string()));
        }
        Verdict::Invalid(causes) => {
            let message = causes.iter().map(|c| c.message.as_str()).collect::<Vec<_>>().join(", ");
            let causes: Vec<Value> =
                causes.iter().map(|c| json!({ "reason": c.reason, "field": c.field, "message": c.message })).collect();
            response["allowed"] = json!(false);
            response["status"] = json!({
                "status": "Failure", "message": message, "reason": "Invalid", "code": 422,
                "details": { "causes": causes },
            });
        }
        Verdict::Deny { code, reason, message } => {
            response["allowed"] = json!(false);
            response["status"] = json!({ "status": "Failure", "message": message, "reason": reason, "code": code });
        }
    }
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_names_every_field() {
        let cause = |field: &str| Cause {
            reason: "FieldValueInvalid",
            field: field.into(),
            message: format!("{field} is wrong"),
        };
        let reply = response("1", Verdict::of_causes(vec![cause("spec.a"), cause("spec.b")]));
        assert_eq!(reply["response"]["allowed"], json!(false));
        assert_eq!(reply["response"]["status"]["message"], json!("spec.a is wrong, spec.b is wrong"));
        assert_eq!(reply["response"]["status"]["details"]["causes"][1]["field"], json!("spec.b"));
    }
}
