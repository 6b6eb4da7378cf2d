//! /csi/DRIVER: the API server's side reaches a driver that has registered here.
//!
//! The connection is upgraded (`Upgrade: csi`), and from then on its bytes are the driver's socket's: gRPC over HTTP/2
//! without TLS flows inside. This is how the control plane provisions, attaches and grows volumes of drivers that bring
//! nothing of their own to do it.

use axum::extract::{Path as UrlPath, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::{Site, refuse};

const PROTOCOL: &str = "csi";

pub(super) async fn serve(
    State(site): State<Site>,
    UrlPath(name): UrlPath<String>,
    mut request: Request,
) -> Result<Response, Response> {
    let protocol = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !protocol.eq_ignore_ascii_case(PROTOCOL) {
        let message = format!("unable to upgrade: the header \"Upgrade: {PROTOCOL}\" is required");
        return Err(refuse(StatusCode::BAD_REQUEST, message));
    }
    let driver = site.context.csi.drivers.get(&name);
    let driver = driver.map_err(|error| refuse(StatusCode::NOT_FOUND, kit::Chain(&error).to_string()))?;
    let mut socket = UnixStream::connect(&driver.socket).await.map_err(|error| {
        let message = format!("driver {name} does not answer on {}: {error}", driver.socket.display());
        refuse(StatusCode::BAD_GATEWAY, message)
    })?;
    let upgrade = hyper::upgrade::on(&mut request);
    kit::spawn("csi-connection", async move {
        let ended = match upgrade.await {
            Ok(upgraded) => tokio::io::copy_bidirectional(&mut TokioIo::new(upgraded), &mut socket).await.map(drop),
            Err(error) => Err(std::io::Error::other(error)),
        };
        if let Err(error) = ended {
            tracing::debug!(driver = name, %error, "a connection to a CSI driver ended early");
        }
    })
    .detach();
    let headers = [(header::CONNECTION, "Upgrade"), (header::UPGRADE, PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}
