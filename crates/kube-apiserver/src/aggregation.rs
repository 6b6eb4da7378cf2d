//! Extension API servers: requests of their group versions are passed on with the user's identity in headers, upgrades
//! byte for byte.
//!
//! Guarantees: identity headers of the client never get through; the backend sees our front-proxy certificate; a backend
//! that is down costs its own requests a 503 and nobody else anything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use hyper_util::rt::TokioIo;

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};

use crate::dial;
use crate::pki::Pair;
use crate::registry::{Aggregated, Registry};
use crate::view::View;

pub mod documents;
pub mod specifications;

/// What delegation needs; one for each server.
pub struct Delegation {
    view: Arc<dyn View>,
    front: Pair,
    configs: Mutex<HashMap<Option<Vec<u8>>, Arc<rustls::ClientConfig>>>,
    /// Discovery documents of delegated versions.
    pub documents: documents::Documents,
    /// OpenAPI documents of delegated versions.
    pub specifications: specifications::Specifications,
}

impl std::fmt::Debug for Delegation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delegation").finish_non_exhaustive()
    }
}

/// Headers that belong to one hop.
const HOP: [&str; 7] =
    ["connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"];

impl Delegation {
    /// Delegation that identifies itself with `front`.
    #[must_use]
    pub fn new(view: Arc<dyn View>, front: Pair) -> Self {
        Self {
            view,
            front,
            configs: Mutex::default(),
            documents: documents::Documents::default(),
            specifications: specifications::Specifications::default(),
        }
    }

    /// The backend of a request, if it is delegated.
    #[must_use]
    pub fn concerns(&self, registry: &Registry, info: &RequestInfo) -> Option<Aggregated> {
        if registry.aggregated.is_empty() {
            return None;
        }
        let mut parts = info.path.trim_start_matches('/').split('/');
        let (group, version) = match (parts.next(), parts.next(), parts.next()) {
            (Some("apis"), Some(group), Some(version)) => (group, version),
            _ => return None,
        };
        registry.aggregated.iter().find(|a| a.group == group && a.version == version).cloned()
    }

    fn config(&self, target: &Aggregated) -> Result<Arc<rustls::ClientConfig>, dial::DialError> {
        let key = target.ca_bundle.clone().filter(|_| !target.insecure_skip_tls_verify);
        if key.is_none() && !target.insecure_skip_tls_verify {
            return Err(dial::DialError::Tls(
                "certificate signed by unknown authority (the APIService has no caBundle)".into(),
            ));
        }
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = configs.get(&key) {
            return Ok(config.clone());
        }
        let client = Some((self.front.certificate.as_str(), self.front.key.as_str()));
        let config = dial::tls_config(key.as_deref(), client)?;
        if configs.len() > 64 {
            configs.clear();
        }
        configs.insert(key, config.clone());
        Ok(config)
    }

    /// Opens a TLS connection to a ready endpoint of the backend.
    ///
    /// # Errors
    /// When none is ready or it cannot be reached.
    pub async fn connect(
        &self,
        target: &Aggregated,
    ) -> Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, dial::DialError> {
        let (namespace, name, port) = &target.service;
        let config = self.config(target)?;
        let addresses = dial::resolve(&*self.view, namespace, name, *port)?;
        let (_, stream) = dial::connect_any(&addresses, &format!("{name}.{namespace}.svc"), &config).await?;
        Ok(stream)
    }

    /// Passes a request on and the answer back.
    pub async fn forward(&self, target: &Aggregated, user: &User, request: Request) -> Response {
        match self.exchange(target, user, request).await {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(group = %target.group, version = %target.version, %error, "extension server failed");
                let message = format!("error trying to reach service: {error}");
                ApiError::new(503, "ServiceUnavailable", message).into_response()
            }
        }
    }

    async fn exchange(&self, target: &Aggregated, user: &User, request: Request) -> Result<Response, dial::DialError> {
        let stream = self.connect(target).await?;
        let (namespace, name) = (&target.service.0, &target.service.1);
        pass(stream, &format!("{name}.{namespace}.svc"), |headers| identify(headers, user), request).await
    }
}

fn identify(headers: &mut HeaderMap, user: &User) {
    let own: Vec<HeaderName> = headers.keys().filter(|k| k.as_str().starts_with("x-remote-")).cloned().collect();
    for name in own {
        headers.remove(name);
    }
    let value = |text: &str| HeaderValue::from_str(text).or_else(|_| HeaderValue::from_bytes(text.as_bytes()));
    if let Ok(name) = value(&user.name) {
        headers.insert("x-remote-user", name);
    }
    if let Some(uid) = Some(&user.uid).filter(|u| !u.is_empty()).and_then(|u| value(u).ok()) {
        headers.insert("x-remote-uid", uid);
    }
    for group in user.groups.iter().filter_map(|g| value(g).ok()) {
        headers.append("x-remote-group", group);
    }
    const KEY: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');
    for (key, values) in &user.extra {
        let key = format!("x-remote-extra-{}", percent_encoding::utf8_percent_encode(&key.to_lowercase(), KEY));
        let Ok(name) = HeaderName::from_bytes(key.as_bytes()) else { continue };
        for v in values.iter().filter_map(|v| value(v).ok()) {
            headers.append(name.clone(), v);
        }
    }
}

/// Sends a request over an open connection; an upgrade becomes a pipe between the two connections.
///
/// # Errors
/// When the backend breaks off before its answer's head.
pub async fn pass<S>(
    stream: S,
    host: &str,
    adjust: impl FnOnce(&mut HeaderMap),
    mut request: Request,
) -> Result<Response, dial::DialError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let fail = |e: &dyn std::fmt::Display| dial::DialError::Http(e.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| fail(&e))?;
    kit::spawn("aggregated-connection", connection.with_upgrades()).detach();
    let upgrade = request.headers().get(header::UPGRADE).cloned();
    let ours = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut outgoing = http::Request::builder().method(parts.method).uri(path).body(body).map_err(|e| fail(&e))?;
    let headers = outgoing.headers_mut();
    for (name, value) in &parts.headers {
        if !HOP.contains(&name.as_str()) && name != header::HOST && name != header::UPGRADE {
            headers.append(name.clone(), value.clone());
        }
    }
    headers.insert(header::HOST, HeaderValue::from_str(host).map_err(|e| fail(&e))?);
    adjust(headers);
    if let Some(protocol) = &upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
    let mut response = sender.send_request(outgoing).await.map_err(|e| fail(&e))?;
    if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        if let Some(ours) = ours {
            let theirs = hyper::upgrade::on(&mut response);
            let copying = async move {
                if let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) {
                    let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(ours), &mut TokioIo::new(theirs)).await;
                }
            };
            kit::spawn("aggregated-stream", copying).detach();
        }
        let (parts, _) = response.into_parts();
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    let (mut parts, body) = response.into_parts();
    for name in HOP {
        parts.headers.remove(name);
    }
    Ok(Response::from_parts(parts, Body::new(body)))
}
