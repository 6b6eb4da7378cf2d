//! Streams into pods: logs, exec, attach, port-forward and the HTTP proxies.
//!
//! ```text
//!   kubectl 1.31+   --WebSocket v5/v4.channel.k8s.io------+
//!   kubectl older   --SPDY/3.1 streams-------------------+--> channels --WebSocket v5--> kubelet
//!   port-forward    --SPDY/3.1 frames in a WebSocket-----+
//! ```
//!
//! Every buffer is bounded: a side that does not read stops the other side's writer.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};

use crate::admission::{Admission, Attributes, Operation};
use crate::pki::Pair;
use crate::registry::Registry;
use crate::view::View;

mod forward;
mod kubelet;
mod logs;
mod node;
mod options;
mod proxy;
mod remote;
pub mod spdy;
mod upgrade;
mod websocket;

/// What streams need; cheap to clone.
#[derive(Clone)]
pub struct Streams {
    view: Arc<dyn View>,
    /// Towards kubelets; an error when our own key is unusable.
    tls: Result<Arc<rustls::ClientConfig>, String>,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

impl Streams {
    /// Streams that show `pair` to kubelets whose certificates `ca` signed.
    #[must_use]
    pub fn new(view: Arc<dyn View>, ca: &str, pair: &Pair) -> Self {
        let client = Some((pair.certificate.as_str(), pair.key.as_str()));
        let tls = crate::dial::tls_config(Some(ca.as_bytes()), client).map_err(|e| e.to_string());
        Self { view, tls }
    }
}

/// Whether a request is a stream of this module.
#[must_use]
pub fn concerns(info: &RequestInfo) -> bool {
    if !info.group.is_empty() {
        return false;
    }
    let first = info.subresource.split('/').next().unwrap_or_default();
    match info.resource.as_str() {
        "pods" => matches!(first, "log" | "exec" | "attach" | "portforward" | "proxy"),
        "services" | "nodes" => first == "proxy",
        _ => false,
    }
}

/// Serves a stream request that is already authorised.
///
/// # Errors
/// A refusal, by admission or of what is asked for.
pub async fn serve(
    streams: &Streams,
    admission: &Admission,
    registry: &Registry,
    user: &User,
    info: &RequestInfo,
    mut request: Request,
) -> Result<Response, ApiError> {
    match (info.resource.as_str(), info.subresource.split('/').next().unwrap_or_default()) {
        ("pods", "log") => logs::serve(streams, info, request).await,
        ("pods", sub @ ("exec" | "attach")) => {
            admit(admission, registry, user, info, sub, &mut request).await?;
            remote::serve(streams, info, sub, request).await
        }
        ("pods", "portforward") => {
            admit(admission, registry, user, info, "portforward", &mut request).await?;
            forward::serve(streams, info, request).await
        }
        _ => proxy::serve(streams, info, request).await,
    }
}

/// CONNECT is admitted like a write: webhooks and policies may forbid it, and change what is asked for.
async fn admit(
    admission: &Admission,
    registry: &Registry,
    user: &User,
    info: &RequestInfo,
    sub: &str,
    request: &mut Request,
) -> Result<(), ApiError> {
    let Some(resource) = registry.find("", "v1", "pods").cloned() else { return Ok(()) };
    let asked = options::of_query(sub, &kubelet::query(request));
    let mut attributes = Attributes {
        info: info.clone(),
        user: user.clone(),
        resource,
        operation: Operation::Connect,
        namespace: info.namespace.clone(),
        name: info.name.clone(),
        object: Some(asked.clone()),
        old: None,
        options: serde_json::json!({}),
        dry_run: false,
    };
    admission.mutate(&mut attributes, registry, |_, _| {}).await?;
    admission.validate(&attributes, registry).await?;
    if let Some(object) = attributes.object.filter(|object| *object != asked) {
        let changed = format!("{}?{}", request.uri().path(), options::to_query(&object)?);
        *request.uri_mut() = changed
            .parse()
            .map_err(|error| ApiError::internal(format!("the changed request cannot be read: {error}")))?;
    }
    Ok(())
}
