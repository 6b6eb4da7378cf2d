//! The bytes of a volume: all of them, or those that a query or the header `Range` asks for.

use std::io;
use std::ops::Range;

use axum::body::Body;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use nbd::Client;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::asked::{Asked, Refusal};
use super::plain;
use crate::server::pieces;
use crate::server::range::{self, Part};

/// Pieces that are read ahead of the network.
const AHEAD: usize = 2;

/// The answer to a request for what `disk` holds.
pub(super) fn answer(
    disk: Client<UnixStream>,
    asked: &Asked,
    range: Option<&str>,
    method: &Method,
) -> io::Result<Response> {
    let size = disk.size();
    let by_query = asked.offset.is_some() || asked.length.is_some();
    let (status, bytes) = match range::part(range.filter(|_| !by_query), size) {
        Part::Whole => match asked.bytes(size) {
            Ok(bytes) => (StatusCode::OK, bytes),
            Err(refusal) => return Ok(refusal.into_response()),
        },
        Part::Some(bytes) => (StatusCode::PARTIAL_CONTENT, bytes),
        Part::Beyond => return Ok(Refusal::Beyond(size).into_response()),
    };
    let mut response = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CONTENT_LENGTH, bytes.end - bytes.start);
    if status == StatusCode::PARTIAL_CONTENT {
        response =
            response.header(header::CONTENT_RANGE, format!("bytes {}-{}/{size}", bytes.start, bytes.end.max(1) - 1));
    }
    let body = if method == Method::HEAD { Body::empty() } else { Body::from_stream(stream(disk, bytes)) };
    response.body(body).map_err(io::Error::other)
}

fn stream(mut disk: Client<UnixStream>, bytes: Range<u64>) -> impl Stream<Item = io::Result<Bytes>> {
    let (pieces, read) = mpsc::channel(AHEAD);
    kit::spawn("data", async move {
        for (at, length) in pieces::places(bytes.start, bytes.end) {
            let piece = disk.read(at, u32::try_from(length).unwrap_or(u32::MAX)).await;
            let failed = piece.is_err();
            // Whoever asked may have gone.
            if pieces.send(piece.map(Bytes::from).map_err(plain)).await.is_err() || failed {
                break;
            }
        }
    })
    .detach();
    futures::stream::unfold(read, |mut read| async move { read.recv().await.map(|piece| (piece, read)) })
}
