//! UploadTokenRequests: who may create one gets a token, with which cdi-uploadproxy takes an upload for that claim.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cdi::v1beta1::{UploadTokenRequest, UploadTokenRequestStatus};
use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use kit::clock;
use kit::gate::Question;
use kit::refusal::Refusal;
use kit::server::Peer;

use super::Context;
use crate::token::{self, Payload, Resource, operation};

/// The group this server adds to the API.
pub(crate) const GROUP: &str = api::cdi::constants::UPLOAD_GROUP;
/// Its versions, the preferred one first.
pub(crate) const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
const BODY: usize = 1 << 20;

/// The resource in both versions.
pub(crate) fn router(context: &Arc<Context>) -> Router {
    let router = VERSIONS.into_iter().fold(Router::new(), |router, version| {
        router.route(&format!("/apis/{GROUP}/{version}/namespaces/{{namespace}}/uploadtokenrequests"), post(create))
    });
    router.with_state(context.clone())
}

async fn create(
    State(context): State<Arc<Context>>,
    Path(namespace): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let user = context.gate.user(parts.extensions.get::<Peer>(), &parts.headers)?;
    let question = Question {
        group: GROUP,
        version: VERSIONS[0],
        verb: "create",
        namespace: namespace.clone(),
        resource: "uploadtokenrequests".to_owned(),
        subresource: String::new(),
        name: String::new(),
    };
    context.gate.allow(&user, &question).await?;
    let body = axum::body::to_bytes(body, BODY).await;
    let body = body.map_err(|_| Refusal::bad_request("an UploadTokenRequest is at most 1 MiB long"))?;
    let granted = grant(&context.signer, &namespace, &body)?;
    Ok((StatusCode::OK, Json(granted)).into_response())
}

fn grant(signer: &token::Signer, namespace: &str, body: &Bytes) -> Result<UploadTokenRequest, Refusal> {
    let read = serde_json::from_slice::<UploadTokenRequest>(body);
    let mut request =
        read.map_err(|error| Refusal::bad_request(format!("this is not an UploadTokenRequest: {error}")))?;
    if request.spec.pvc_name.is_empty() {
        return Err(Refusal::bad_request("spec.pvcName is empty: name the claim to upload into"));
    }
    if request.spec.pvc_name.contains('/') {
        let name = &request.spec.pvc_name;
        return Err(Refusal::bad_request(format!(
            "spec.pvcName is {name:?}: name a claim of the request's own namespace, {namespace}, without a slash"
        )));
    }
    let payload = Payload {
        operation: operation::UPLOAD.to_owned(),
        name: request.spec.pvc_name.clone(),
        namespace: namespace.to_owned(),
        resource: Resource::claims(),
        params: BTreeMap::new(),
    };
    let token = signer.sign(token::ISSUER_APISERVER, payload, clock::now(), token::LIFETIME);
    let token = token.map_err(|error| Refusal::internal(error.to_string()))?;
    request.metadata.namespace = Some(namespace.to_owned());
    request.metadata.creation_timestamp.get_or_insert_with(clock::time);
    request.status = Some(UploadTokenRequestStatus { token: Some(token) });
    Ok(request)
}
