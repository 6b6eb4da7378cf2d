//! The agent's HTTPS server: exec, attach, logs, port-forward and CSI drivers for the API server, and a few pages about
//! the node.
//!
//! Only holders of a client certificate of the cluster's authority get here, and each is answered what the API server says
//! it may see or do on this node.

mod attach;
mod authorization;
mod channels;
mod csi;
mod exec;
mod forward;
mod log;
mod metrics;
mod stats;

use std::sync::Arc;

use authorization::Authorization;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Json, Router};
use k8s_openapi::api::core::v1::Pod;
use kit::server::Peer;
use rpc::cri::ContainerState;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::known::Known;

/// What handlers share.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) context: Arc<Context>,
    pub(crate) known: Known,
}

/// Serves until `shutdown`.
pub(crate) async fn run(context: Arc<Context>, known: Known, shutdown: CancellationToken) -> Result<()> {
    let Some(server) = context.config.server.clone() else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let listener = TcpListener::bind(server.address).await;
    let listener = listener.map_err(|source| Error::Listen { what: server.address.to_string(), source })?;
    let gate = Arc::new(Authorization::new(context.client.clone(), &context.config.node_name));
    let router = router(Site { context, known }).layer(middleware::from_fn_with_state(gate, admit));
    kit::server::serve_tls(listener, server.tls, router, shutdown).await;
    Ok(())
}

/// The pages, without the question who asks.
pub(crate) fn router(site: Site) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/pods", get(pods))
        .route("/metrics", get(stats::metrics))
        .route("/stats/summary", get(stats::summary))
        .route("/metrics/resource", get(metrics::resource))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(log::serve))
        .route("/exec/{namespace}/{pod}/{container}", any(exec::serve))
        .route("/attach/{namespace}/{pod}/{container}", any(attach::serve))
        .route("/portForward/{namespace}/{pod}", any(forward::serve))
        .route("/csi/{driver}", get(csi::serve))
        .with_state(site)
}

async fn admit(
    State(gate): State<Arc<Authorization>>,
    peer: Option<Extension<Peer>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(identity) = peer.and_then(|Extension(peer)| peer.identity()) else {
        return refuse(StatusCode::UNAUTHORIZED, "Unauthorized");
    };
    match gate.allows(&identity, request.method(), request.uri().path()).await {
        Ok(true) => next.run(request).await,
        Ok(false) => refuse(StatusCode::FORBIDDEN, format!("{:?} may not use the kubelet for this", identity.name)),
        Err(error) => {
            tracing::warn!(user = identity.name, error = %kit::Chain(&error), "the API server was not asked who may");
            refuse(StatusCode::SERVICE_UNAVAILABLE, "the API server does not say whether this is allowed")
        }
    }
}

async fn pods(State(site): State<Site>) -> impl IntoResponse {
    let pods: Vec<_> =
        site.known.borrow().values().map(|pod| serde_json::to_value(pod.as_ref()).unwrap_or_default()).collect();
    Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}))
}

/// An answer other than the one asked for.
fn refuse(status: StatusCode, message: impl Into<String>) -> Response {
    (status, message.into()).into_response()
}

impl Site {
    /// The pod of that name on this node.
    #[expect(clippy::result_large_err, reason = "a refusal is made once, and is the answer")]
    fn pod(&self, namespace: &str, name: &str) -> Result<Arc<Pod>, Response> {
        let pods = self.known.borrow().clone();
        let found = pods.values().find(|pod| {
            pod.metadata.name.as_deref() == Some(name) && pod.metadata.namespace.as_deref() == Some(namespace)
        });
        found.cloned().ok_or_else(|| refuse(StatusCode::NOT_FOUND, format!("pod \"{name}\" not found on this node")))
    }

    /// The id of the container's running attempt.
    async fn running(&self, pod: &Pod, container: &str) -> Result<String, Response> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let list = self.context.runtime.list_containers(Some(uid)).await;
        let list = list.map_err(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, kit::Chain(&error).to_string()))?;
        let found = list.into_iter().find(|c| {
            c.state() == ContainerState::ContainerRunning && c.metadata.as_ref().is_some_and(|m| m.name == container)
        });
        let missing = || {
            let message = format!("unable to upgrade connection: container not found (\"{container}\")");
            refuse(StatusCode::NOT_FOUND, message)
        };
        found.map(|container| container.id).ok_or_else(missing)
    }
}
