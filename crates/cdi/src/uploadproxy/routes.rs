//! The requests that clients make, and what is checked before one is passed on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Router, middleware};
use kit::certs::Pair;
use kube::Client;

use super::place::Place;
use super::wait;
use crate::mutual::{self, Identity};
use crate::token::{self, ISSUER_APISERVER, Payload, Resource, Verifier, operation};
use crate::unread;

/// As long as an upload may take.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What somebody is told who shows none.
const NO_TOKEN: &str =
    "an upload needs the token of an UploadTokenRequest, in the header \"Authorization: Bearer TOKEN\"";

/// Where keys and certificates are; they are read for each upload, because they are replaced every few hours.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The directory of the certificate that upload servers see, and its key.
    pub client: PathBuf,
    /// The authorities of upload servers.
    pub authorities: PathBuf,
    /// The key that tokens are verified with.
    pub public_key: Option<String>,
    /// The file with it, when it is not given.
    pub public_key_file: PathBuf,
    /// Port of upload servers.
    pub port: u16,
    /// Where upload servers are reached, where their names mean nothing: outside of the cluster's DNS.
    pub dial: Option<SocketAddr>,
}

struct Proxy {
    client: Client,
    keys: Keys,
}

/// The proxy's paths.
pub fn router(client: Client, keys: Keys) -> Router {
    let proxy = Arc::new(Proxy { client, keys });
    let mut router = Router::new().route("/healthz", get(|| async { "OK" }));
    for version in ["v1beta1", "v1alpha1"] {
        for path in ["upload", "upload-async", "upload-form", "upload-form-async", "upload-archive"] {
            let proxy = proxy.clone();
            let handler = move |request: Request| async move { handle(&proxy, request).await };
            router = router.route(&format!("/{version}/{path}"), any(handler));
        }
    }
    let router = router.layer(DefaultBodyLimit::disable());
    router.layer(middleware::from_fn(cross_origin)).layer(middleware::from_fn(unread::read_on))
}

async fn handle(proxy: &Proxy, request: Request) -> Response {
    // Asked without a token by clients that want to know whether the path exists.
    let probing = request.method() == Method::HEAD && !request.headers().contains_key(header::AUTHORIZATION);
    if probing && request.uri().path().ends_with("-async") {
        return StatusCode::OK.into_response();
    }
    match pass(proxy, request).await {
        Ok(response) => response,
        Err((status, why)) => {
            tracing::info!(%status, why, "an upload is refused");
            (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], escaped(&why)).into_response()
        }
    }
}

async fn pass(proxy: &Proxy, request: Request) -> Result<Response, (StatusCode, String)> {
    let bearer = bearer(request.headers()).ok_or_else(|| (StatusCode::BAD_REQUEST, NO_TOKEN.to_owned()))?;
    let verifier = proxy.keys.verifier().await.map_err(|e| (StatusCode::INTERNAL_SERVER_ERROR, e))?;
    let allowed = verifier
        .verify(ISSUER_APISERVER, &bearer, kit::clock::now())
        .map_err(|e| (StatusCode::UNAUTHORIZED, kit::Chain(&e).to_string()))?;
    if allowed.operation != operation::UPLOAD || allowed.resource != Resource::claims() {
        return Err((
            StatusCode::BAD_REQUEST,
            "the token is for something else than an upload into a claim".to_owned(),
        ));
    }
    let Payload { name, namespace, .. } = allowed;
    let place =
        wait::ready(&proxy.client, &namespace, &name).await.map_err(|why| (StatusCode::SERVICE_UNAVAILABLE, why))?;
    let failed = |error: mutual::Error| (StatusCode::BAD_GATEWAY, kit::Chain(&error).to_string());
    forward(&proxy.keys, &place, request).await.map_err(failed)
}

/// Passes the request on, and the answer back.
async fn forward(keys: &Keys, place: &Place, request: Request) -> Result<Response, mutual::Error> {
    let read = async |path: &PathBuf, what| {
        tokio::fs::read_to_string(path).await.map_err(|e| mutual::Error::Pem { what, source: e.into() })
    };
    let pair = kit::tls::pair(&keys.client).await;
    let Pair { certificate, key } =
        pair.map_err(|e| mutual::Error::Pem { what: "client certificate", source: e.into() })?;
    let authorities = read(&keys.authorities, "authority of upload servers").await?;
    let identity = Identity { certificate: &certificate, key: &key, authorities: &authorities };
    let config = identity.config()?;
    let (mut parts, body) = request.into_parts();
    let path = match (place.archive, parts.uri.path()) {
        (true, path) if path.starts_with("/v1alpha1/") => "/v1alpha1/upload-archive".to_owned(),
        (true, _) => "/v1beta1/upload-archive".to_owned(),
        (false, path) => path.to_owned(),
    };
    hop(&mut parts.headers);
    // The token is the proxy's business.
    parts.headers.remove(header::AUTHORIZATION);
    parts.headers.remove(header::USER_AGENT);
    if let Ok(host) = HeaderValue::try_from(&place.host) {
        parts.headers.insert(header::HOST, host);
    }
    let mut onward = http::Request::new(Body::new(body));
    *onward.method_mut() = parts.method;
    *onward.uri_mut() = http::Uri::try_from(path).unwrap_or_default();
    *onward.headers_mut() = parts.headers;
    let sent = mutual::send_to(config, &place.host, keys.port, keys.dial, onward);
    let late = |_| mutual::Error::Connect { server: place.host.clone(), source: std::io::ErrorKind::TimedOut.into() };
    let answer = tokio::time::timeout(LONGEST, sent).await.map_err(late)??;
    let (mut parts, body) = answer.into_parts();
    hop(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::new(body)))
}

impl Keys {
    async fn verifier(&self) -> Result<Verifier, String> {
        let text = match &self.public_key {
            Some(text) => text.clone(),
            None => tokio::fs::read_to_string(&self.public_key_file)
                .await
                .map_err(|e| format!("cannot read {}: {e}", self.public_key_file.display()))?,
        };
        Verifier::new(&text).map_err(|e: token::Error| kit::Chain(&e).to_string())
    }
}

/// The token in `Authorization: Bearer ...`.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(char::is_whitespace)?;
    let token = token.trim_start();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    let sound = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.bytes().all(plain);
    sound.then(|| token.to_owned())
}

/// Takes out what concerns one connection only.
fn hop(headers: &mut HeaderMap) {
    for name in ["connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"] {
        headers.remove(name);
    }
    // The length, where there is one, frames the body; hyper frames it otherwise.
    headers.remove(header::TRANSFER_ENCODING);
}

/// Text for whoever shows it as a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&#34;")
}

/// Browsers of any origin may upload: the token is what counts.
async fn cross_origin(request: Request, next: Next) -> Response {
    let origin = request.headers().contains_key(header::ORIGIN);
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let preflight = origin
        && request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match preflight {
        true => StatusCode::NO_CONTENT.into_response(),
        false => next.run(request).await,
    };
    let mut allow = |name: HeaderName, value: HeaderValue| response.headers_mut().insert(name, value);
    if origin {
        allow(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        allow(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("upload-offset"));
    }
    if preflight {
        allow(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("HEAD, GET, POST, PUT, PATCH, DELETE"));
        allow(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(HeaderValue::from_static("*")));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stand_behind_the_word_bearer() {
        let check = |value: &'static str, expect: Option<&str>| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
            assert_eq!(bearer(&headers).as_deref(), expect, "{value}");
        };
        check("Bearer abc.def-_~+/", Some("abc.def-_~+/"));
        check("bEaReR  abc", Some("abc"));
        check("Bearer", None);
        check("Bearer ", None);
        check("Bearer a b", None);
        check("Basic abc", None);
        check("Bearer <abc>", None);
    }

    #[test]
    fn refusals_are_safe_to_show() {
        assert_eq!(escaped("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&#34;");
    }
}
