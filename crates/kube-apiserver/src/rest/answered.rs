//! Resources that are answered and never stored: access reviews, token reviews, token requests.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use apimachinery::error::ApiError;

use super::{Call, decode, not_allowed, respond};
use crate::admission::{Attributes, Operation};
use crate::authz::reviews;

/// Whether the request is one of them.
pub(super) fn concerns(call: &Call) -> bool {
    matches!(
        (call.info.group.as_str(), call.info.resource.as_str(), call.info.subresource.as_str()),
        ("authorization.k8s.io", _, "")
            | ("authentication.k8s.io", "tokenreviews" | "selfsubjectreviews", "")
            | ("", "serviceaccounts", "token")
    )
}

pub(super) async fn create(call: &Call, body: Body) -> Result<Response, ApiError> {
    if call.info.verb != "create" {
        return Err(not_allowed());
    }
    let bytes = decode::read(call, body).await?;
    let (mut document, duplicates) = decode::document(call, &bytes)?;
    if call.info.subresource.is_empty() && document.is_object() {
        super::write::shape_sent(call, &mut document, duplicates)?;
    }
    let edges = call.server.edges();
    let answer = match (call.info.group.as_str(), call.info.resource.as_str()) {
        ("authorization.k8s.io", _) => reviews::create(call.server.authorizer(), &call.user, &call.info, document)?,
        (_, "tokenreviews") if document["spec"]["token"].as_str().unwrap_or_default().is_empty() => {
            return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
        }
        (_, "tokenreviews") => edges.authenticator.tokens.review(document),
        (_, "selfsubjectreviews") => reviews::self_subject(&call.user),
        _ => token(call, &document)?,
    };
    respond::encode(call, StatusCode::CREATED, &answer)
}

fn token(call: &Call, document: &Value) -> Result<Value, ApiError> {
    // A node asks for tokens of its own pods only.
    let attributes = Attributes {
        info: call.info.clone(),
        user: call.user.clone(),
        resource: call.resource.clone(),
        operation: Operation::Create,
        namespace: call.info.namespace.clone(),
        name: call.info.name.clone(),
        object: Some(document.clone()),
        old: None,
        options: json!({}),
        dry_run: call.dry_run(),
    };
    crate::admission::node_restriction::check(&**call.server.store(), call.server.authorizer(), &attributes)?;
    call.server.edges().authenticator.tokens.request(&call.info, document)
}
