//! Reading one document of an extension server's, as the aggregator itself.

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;

use crate::aggregation::Delegation;
use crate::dial::DialError;
use crate::registry::Aggregated;

/// What `target` answers to a GET of `path`, up to `largest` bytes. It may take for ever; that is for the caller to bound.
///
/// # Errors
/// When it cannot be reached, breaks off, or has more to say.
pub(super) async fn get(
    delegation: &Delegation,
    target: &Aggregated,
    path: &str,
    largest: usize,
) -> Result<(StatusCode, Bytes), DialError> {
    let fail = |error: &dyn std::fmt::Display| DialError::Http(error.to_string());
    let stream = delegation.connect(target).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| fail(&e))?;
    // Its answer is read whole before this returns.
    let _connection = kit::spawn("availability-connection", connection);
    let (namespace, name, _) = &target.service;
    let request = http::Request::get(path)
        .header(http::header::HOST, format!("{name}.{namespace}.svc"))
        .header(http::header::ACCEPT, "application/json")
        .header("x-remote-user", "system:kube-aggregator")
        .header("x-remote-group", "system:masters")
        .body(Full::new(Bytes::new()))
        .map_err(|e| fail(&e))?;
    let response = sender.send_request(request).await.map_err(|e| fail(&e))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), largest).collect().await.map_err(|e| fail(&e))?;
    Ok((status, body.to_bytes()))
}
