//! A webhook's `clientConfig`, and one exchange with it: JSON there, JSON back, within a time and a size.
//!
//! Nothing of a backend's failure but its text reaches a client.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use serde_json::Value;

use apimachinery::pointer::text;

use crate::dial::{self, Backend};
use crate::view::View;

/// Where a webhook listens.
#[derive(Debug)]
enum Target {
    Service { namespace: String, name: String, port: u16, path: String },
    Url(url::Url),
    Broken(String),
}

/// The client of one webhook; keeps its connections.
#[derive(Debug)]
pub struct Client {
    target: Target,
    backend: Option<Backend>,
}

impl Client {
    /// A client for a `clientConfig`; what is wrong with the configuration is told by each call.
    #[must_use]
    pub fn new(config: &Value) -> Self {
        let (target, server_name) = target(config);
        match (backend(config, &server_name), target) {
            (Ok(backend), target) => Self { target, backend: Some(backend) },
            (Err(error), _) => Self { target: Target::Broken(error), backend: None },
        }
    }

    /// Sends a document and yields the answer.
    ///
    /// # Errors
    /// A sentence when the webhook cannot be reached, is too slow, refuses or answers no JSON.
    pub async fn post(&self, view: &dyn View, body: String, timeout: Duration) -> Result<Value, String> {
        let (url, host, addresses) = self.destination(view, timeout).await?;
        let failed = |why: &dyn std::fmt::Display| format!("Post {url:?}: {why}");
        let target = url.splitn(4, '/').nth(3).unwrap_or_default();
        let request = http::Request::post(format!("/{target}"))
            .header(http::header::HOST, &host)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json")
            .body(Bytes::from(body))
            .map_err(|e| failed(&e))?;
        let backend = self.backend.as_ref().ok_or("webhook has no usable client configuration")?;
        let response = backend.send(&addresses, request, timeout).await.map_err(|e| failed(&e))?;
        if !response.status().is_success() {
            return Err(rejection(response.status(), response.body()));
        }
        // serde_json refuses what is nested deeper than 128 levels, the dialler what is larger than 16 MiB.
        serde_json::from_slice(response.body()).map_err(|e| format!("couldn't decode response: {e}"))
    }

    async fn destination(
        &self,
        view: &dyn View,
        timeout: Duration,
    ) -> Result<(String, String, Vec<SocketAddr>), String> {
        let seconds = timeout.as_secs();
        match &self.target {
            Target::Broken(reason) => Err(reason.clone()),
            Target::Service { namespace, name, port, path } => {
                let host = format!("{name}.{namespace}.svc");
                let shown = format!("https://{host}:{port}{path}?timeout={seconds}s");
                let addresses =
                    dial::resolve(view, namespace, name, *port).map_err(|e| format!("Post {shown:?}: {e}"))?;
                Ok((shown, host, addresses))
            }
            Target::Url(url) => {
                let mut shown = url.clone();
                shown.query_pairs_mut().append_pair("timeout", &format!("{seconds}s"));
                let host = url.host_str().unwrap_or_default().to_owned();
                let port = url.port_or_known_default().unwrap_or(443);
                let bare = host.trim_matches(['[', ']']).to_owned();
                let failed = |why: &dyn std::fmt::Display| format!("Post \"{shown}\": {why}");
                let looked_up = tokio::time::timeout(timeout, tokio::net::lookup_host((bare, port))).await;
                let found = looked_up.map_err(|_| failed(&dial::DialError::Timeout))?.map_err(|e| failed(&e))?;
                let addresses: Vec<_> = found.collect();
                if addresses.is_empty() {
                    return Err(failed(&"no such host"));
                }
                Ok((shown.to_string(), host, addresses))
            }
        }
    }
}

/// The sentence for an answer that is no success, as Kubernetes' own client words it.
fn rejection(status: http::StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text: String = text.trim().chars().take(1024).collect();
    match status.as_u16() {
        401 => "the server has asked for the client to provide credentials".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        500..=599 => format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        _ if text.is_empty() => "the server rejected our request for an unknown reason".to_owned(),
        _ => text.lines().next().unwrap_or_default().to_owned(),
    }
}

fn target(client: &Value) -> (Target, String) {
    if let Some(service) = client.get("service").filter(|s| s.is_object()) {
        let (namespace, name) = (text(service, "/namespace").to_owned(), text(service, "/name").to_owned());
        let port = service.get("port").and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(443);
        let path = text(service, "/path");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let server_name = format!("{name}.{namespace}.svc");
        return (Target::Service { namespace, name, port, path }, server_name);
    }
    match url::Url::parse(text(client, "/url")) {
        Ok(url) if url.scheme() == "https" => {
            let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            (Target::Url(url), host)
        }
        _ => (Target::Broken("webhook clientConfig has neither a service nor an https url".into()), "invalid".into()),
    }
}

fn backend(client: &Value, server_name: &str) -> Result<Backend, String> {
    let bundle = text(client, "/caBundle");
    if bundle.is_empty() {
        return Err(
            "tls: failed to verify certificate: x509: certificate signed by unknown authority (no caBundle)".into()
        );
    }
    let pem =
        base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|_| "caBundle is not base64".to_owned())?;
    let config = dial::tls_config(Some(&pem), None).map_err(|e| format!("unable to load root certificates: {e}"))?;
    Ok(Backend::new(server_name, config))
}
