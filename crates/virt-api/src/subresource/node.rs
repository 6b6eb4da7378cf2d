//! The leg to virt-handler: mutual TLS to its pod, checked for role and node, one HTTP/1.1 connection for each request.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Method, Request, Response, header};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Context;
use crate::cluster;
use crate::status::Refusal;

const PORT: u16 = 8186;
const DIAL: Duration = Duration::from_secs(5);

/// Sends a request to virt-handler on `node` and returns its answer's head; the body still streams.
pub(super) async fn send(
    context: &Context,
    node: &str,
    method: Method,
    path: &str,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Incoming>, Refusal> {
    let address = cluster::handler(&context.client, &context.namespace, node).await?;
    let failed = |what: &str, error: &(dyn std::error::Error + 'static)| {
        Refusal::unreachable(format!("virt-handler on node {node} {what}: {}", kit::Chain(error)))
    };
    let ip: std::net::IpAddr = address
        .parse()
        .map_err(|_| Refusal::internal(format!("virt-handler on node {node} has the address {address:?}")))?;
    let dialled = timeout(DIAL, TcpStream::connect((ip, PORT))).await;
    let stream = dialled
        .map_err(|_| Refusal::unreachable(format!("virt-handler on node {node} does not answer on {address}:{PORT}")))?
        .map_err(|error| failed("cannot be reached", &error))?;
    let _ = stream.set_nodelay(true);
    // The address is what the pod's status says; who is there, the certificate says.
    let stream =
        context.handlers.connect(stream, node).await.map_err(|error| failed("is not who it should be", &error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed("does not speak HTTP", &error))?;
    kit::spawn("virt-handler", async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to virt-handler ended");
        }
    })
    .detach();
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, format!("virt-handler:{PORT}"))
        .body(body)
        .map_err(|error| Refusal::internal(error.to_string()))?;
    for (key, value) in &headers {
        request.headers_mut().append(key, value.clone());
    }
    sender.send_request(request).await.map_err(|error| failed("did not answer", &error))
}
