//! A raw connection through a node agent, for parts of the control plane in this process: what `nodes/proxy` is to others.

use std::io;

use axum::body::Body;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Streams;

impl Streams {
    /// Asks the kubelet of `node` to switch the connection to `protocol` at `path`, and yields what is spoken then.
    ///
    /// # Errors
    /// When the node is unknown or does not answer, or when its kubelet refuses: the error carries its answer.
    pub async fn upgrade_on_node(
        &self,
        node: &str,
        path: &str,
        protocol: &str,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>> {
        let kubelet = self.kubelet_of_node(node).map_err(|error| io::Error::other(error.message))?;
        let stream = self.open(&kubelet).await.map_err(|error| io::Error::other(error.message))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        kit::spawn("node-connection", connection.with_upgrades()).detach();
        let request = http::Request::get(path)
            .header(http::header::HOST, kubelet.address.to_string())
            .header(http::header::CONNECTION, "Upgrade")
            .header(http::header::UPGRADE, protocol)
            .body(Body::empty())
            .map_err(io::Error::other)?;
        let mut response = sender.send_request(request).await.map_err(io::Error::other)?;
        if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = response.into_parts();
            let why = super::kubelet::refusal(parts.status, Body::new(body)).await;
            return Err(io::Error::other(format!("node {node}: {}", why.message)));
        }
        let upgraded = hyper::upgrade::on(&mut response).await.map_err(io::Error::other)?;
        Ok(TokioIo::new(upgraded))
    }
}
