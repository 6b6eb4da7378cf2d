//! The REST verbs, one implementation for every resource: dispatch by the parsed request, never by the raw path.

mod admit;
mod answered;
mod component_status;
pub(crate) mod decode;
mod delete;
mod documents;
mod eviction;
mod meta;
mod options;
mod owners;
mod page;
mod patching;
pub(crate) mod protobuf;
mod read;
mod respond;
mod selector;
mod specification;
mod subresource;
mod watching;
mod write;

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method};
use tokio::sync::oneshot;

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};

use crate::ApiServer;
use crate::accept::{self, Accept};
use crate::registry::Resource;
use crate::serve::fairness::Turn;

use options::Query;

/// Everything a verb needs to know of one request.
struct Call {
    server: ApiServer,
    user: User,
    info: RequestInfo,
    resource: Arc<Resource>,
    query: Query,
    accept: Accept,
    headers: HeaderMap,
    warnings: Mutex<Vec<String>>,
}

impl Call {
    /// Adds a `Warning` header to the response, once.
    fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }
    fn dry_run(&self) -> bool {
        self.query.all("dryRun").any(|value| value == "All")
    }
    fn storage(&self) -> String {
        self.resource.storage_key()
    }
    fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(&self.resource.group, &self.resource.plural, name)
    }
    fn conflict(&self, name: &str, why: &str) -> ApiError {
        ApiError::conflict(&self.resource.group, &self.resource.plural, name, why)
    }
}

const MODIFIED: &str = "the object has been modified; please apply your changes to the latest version and try again";

/// Serves one authenticated request.
pub(crate) async fn handle(server: ApiServer, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let info = match RequestInfo::parse(&parts.method, parts.uri.path(), parts.uri.query()) {
        Ok(info) => info,
        Err(error) => return error.into_response(),
    };
    let Some(user) = parts.extensions.get::<User>().cloned() else {
        return ApiError::new(401, "Unauthorized", "Unauthorized").into_response();
    };
    if let Err(error) = server.authorize(&user, &info) {
        return respond::refusal(Accept::parse(&parts.headers, true).unwrap_or_default(), error);
    }
    let (parts, body) = match server.edges().delegation.concerns(&server.registry(), &info) {
        Some(target) => {
            let request = Request::from_parts(parts, body);
            return server.edges().delegation.forward(&target, &user, request).await;
        }
        None => (parts, body),
    };
    if crate::stream::concerns(&info) {
        let request = Request::from_parts(parts, body);
        let edges = server.edges();
        let registry = server.registry();
        let served = crate::stream::serve(&edges.streams, &edges.admission, &registry, &user, &info, request);
        return Box::pin(served).await.unwrap_or_else(IntoResponse::into_response);
    }
    if !info.is_resource() {
        return documents::serve(&server, &info, &parts);
    }
    let registry = server.registry();
    let Some(resource) = registry.find(&info.group, &info.version, &info.resource).cloned() else {
        return not_found().into_response();
    };
    if parts.method == Method::HEAD {
        return not_allowed().into_response();
    }
    // Kinds that are shipped have a protobuf form, and a Scale is one of them.
    let protobuf = resource.crd.is_none() || info.subresource == "scale";
    let accept = match Accept::parse(&parts.headers, protobuf) {
        Ok(accept) => accept,
        Err(error) => return error.into_response(),
    };
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let call = Call { server, user, info, resource, query, accept, headers: parts.headers, warnings: Mutex::default() };
    if !call.resource.deprecation.is_empty() {
        call.warn(call.resource.deprecation.clone());
    }
    if call.info.is_read() {
        return answer(&call, body).await;
    }
    // A write is finished though its client hangs up: what follows from it (a kind to serve, a namespace's account, a
    // quota's count) must not be left undone. Its body is read before, at the pace and for the patience of the client.
    let body = match decode::read(&call, body).await {
        Ok(bytes) => Body::from(bytes),
        Err(error) => return respond::refusal(call.accept, error),
    };
    let turn = parts.extensions.get::<Turn>().cloned();
    let (answered, finished) = oneshot::channel();
    let write = async move {
        let _turn = turn;
        // Nobody may be there to be answered.
        let _ = answered.send(answer(&call, body).await);
    };
    kit::spawn("write", write).detach();
    finished.await.unwrap_or_else(|_| ApiError::internal("the request could not be finished").into_response())
}

async fn answer(call: &Call, body: Body) -> Response {
    let outcome = dispatch(call, body).await;
    let mut response = outcome.unwrap_or_else(|error| respond::refusal(call.accept, error));
    call.server.requests().count(&call.user, &call.info, response.status());
    for text in call.warnings.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
    response
}

async fn dispatch(call: &Call, body: Body) -> Result<Response, ApiError> {
    let info = &call.info;
    let resource = &call.resource;
    if resource.namespaced && info.namespace.is_empty() {
        // Across namespaces objects are looked at, and nothing else.
        match info.verb.as_str() {
            _ if !info.name.is_empty() => return Err(not_found()),
            "list" | "watch" => {}
            _ => return Err(not_allowed()),
        }
    }
    let about_itself = resource.group.is_empty() && resource.plural == "namespaces" && info.namespace == info.name;
    if !resource.namespaced && !info.namespace.is_empty() && !about_itself {
        return Err(not_found());
    }
    let include = call.query.get("includeObject");
    if matches!(call.accept.shape, accept::Shape::Table(_)) && !matches!(include, "" | "None" | "Metadata" | "Object") {
        return Err(ApiError::bad_request(format!(
            "unrecognized includeObject value: {include:?}: supported values: \"None\", \"Metadata\", \"Object\""
        )));
    }
    if answered::concerns(call) {
        return answered::create(call, body).await;
    }
    if !info.subresource.is_empty() {
        return Box::pin(subresource::serve(call, body)).await;
    }
    let about_one = matches!(info.verb.as_str(), "get" | "update" | "patch" | "delete");
    if !resource.verbs.contains(&info.verb) && resource.crd.is_some() {
        // A definition lacks a verb only while it is being deleted.
        let why = format!("{} not allowed while custom resource definition is terminating", info.verb);
        return Err(ApiError::forbidden(&resource.group, &resource.plural, &info.name, &why));
    }
    if !resource.verbs.contains(&info.verb) || about_one == info.name.is_empty() {
        return Err(not_allowed());
    }
    if component_status::concerns(call) {
        return component_status::serve(call);
    }
    match info.verb.as_str() {
        "get" => read::get(call).await,
        "list" => Box::pin(read::list(call)).await,
        "watch" => watching::watch(call),
        "create" => Box::pin(write::create(call, body)).await,
        "update" => Box::pin(write::update(call, body)).await,
        "patch" => Box::pin(patching::patch(call, body)).await,
        "delete" => Box::pin(delete::delete(call, body)).await,
        "deletecollection" => Box::pin(delete::collection(call, body)).await,
        _ => Err(not_allowed()),
    }
}

fn not_found() -> ApiError {
    ApiError::new(404, "NotFound", "the server could not find the requested resource")
}

fn not_allowed() -> ApiError {
    ApiError::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}
