//! Paths that name no resource: health, version, discovery, OpenAPI.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use apimachinery::request::RequestInfo;
use kube_store::archive;

use super::respond::json_bytes;
use crate::accept::not_acceptable;
use crate::registry::Aggregated;
use crate::{ApiServer, discovery};

/// The Kubernetes release whose API this server follows.
pub(crate) const MINOR: &str = "33";

pub(crate) fn serve(server: &ApiServer, info: &RequestInfo, parts: &http::request::Parts) -> Response {
    // How a server fares is told whoever asks in whatever way.
    let any_method = info.path == "/" || health(&info.path).is_some();
    if !any_method && !matches!(parts.method, Method::GET | Method::HEAD) {
        return super::not_allowed().into_response();
    }
    let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    document(server, info, accept, parts).unwrap_or_else(|| {
        let known = |group: &str| discovery::group(&server.registry(), group).is_some();
        match info.path.trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
            ["openapi", ..] => StatusCode::NOT_FOUND.into_response(),
            ["api", ..] => super::not_found().into_response(),
            ["apis", group, _] if known(group) => super::not_found().into_response(),
            _ => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
        }
    })
}

/// What is asked of the server's health: all of it (empty) or one check.
fn health(path: &str) -> Option<&str> {
    let rest = ["/healthz", "/livez", "/readyz"].iter().find_map(|root| path.strip_prefix(root))?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

fn document(server: &ApiServer, info: &RequestInfo, accept: &str, parts: &http::request::Parts) -> Option<Response> {
    let registry = server.registry();
    if let Some(check) = health(&info.path) {
        return matches!(check, "" | "ping").then(|| "ok".into_response());
    }
    let segments: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    let found: Value = match segments.as_slice() {
        [""] => {
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]})
        }
        ["version"] => version(),
        ["metrics"] => {
            let text = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
            return Some((text, server.requests().page()).into_response());
        }
        ["backup"] => return Some(backup(server)),
        [".well-known", "openid-configuration"] => openid(),
        ["openid", "v1", "jwks"] => return Some(keys(server, accept)),
        ["openapi", rest @ ..] => return super::specification::serve(server, rest, parts),
        [root @ ("api" | "apis")] => match discovery::aggregated_form(accept) {
            Some(form) => {
                let documents = &server.edges().delegation.documents;
                let fetch =
                    |of: &Aggregated| documents.resources(&of.group, &of.version)?["resources"].as_array().cloned();
                let document = discovery::aggregated(&registry, *root == "api", form, &fetch);
                let mut response = json_bytes(StatusCode::OK, document.to_string());
                if let Ok(value) = discovery::aggregated_media_type(form).parse() {
                    response.headers_mut().insert(header::CONTENT_TYPE, value);
                }
                return Some(response);
            }
            None if *root == "api" => discovery::core_versions("127.0.0.1:6443"),
            None => discovery::group_list(&registry),
        },
        ["api", version] => discovery::resource_list(&registry, "", version)?,
        ["apis", group] => discovery::group(&registry, group)?,
        ["apis", group, version] => discovery::resource_list(&registry, group, version)?,
        _ => return None,
    };
    Some(json_bytes(StatusCode::OK, found.to_string()))
}

/// Every object, at one revision, as lines that `store::archive` reads; the first line says how many there are. No role
/// that comes with the cluster allows it: it takes an administrator.
fn backup(server: &ApiServer) -> Response {
    let archive = archive::Archive::of(server.store());
    let head = json!({"revision": archive.revision, "objects": archive.objects.len()}).to_string() + "\n";
    let lines = archive.objects.into_iter().map(|object| archive::line(&object));
    let lines = std::iter::once(head.into_bytes()).chain(lines).map(Ok::<_, std::convert::Infallible>);
    ([(header::CONTENT_TYPE, "application/jsonl")], Body::from_stream(futures::stream::iter(lines))).into_response()
}

/// The keys service-account tokens are signed with.
fn keys(server: &ApiServer, accept: &str) -> Response {
    const TYPE: &str = "application/jwk-set+json";
    let mut ranges = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim());
    if !accept.trim().is_empty() && !ranges.any(|range| matches!(range, TYPE | "*/*")) {
        return not_acceptable(format!("406: Not Acceptable\n\nAvailable representations: {TYPE}")).into_response();
    }
    ([(header::CONTENT_TYPE, TYPE)], server.edges().authenticator.tokens.key_set().to_string()).into_response()
}

/// How to check service-account tokens without asking the server.
fn openid() -> Value {
    use crate::authn::tokens::ISSUER;
    json!({"issuer": ISSUER, "jwks_uri": format!("{ISSUER}/openid/v1/jwks"), "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"]})
}

fn version() -> Value {
    json!({"major": "1", "minor": MINOR, "gitVersion": format!("v1.{MINOR}.0+ferrovirt.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" })})
}
