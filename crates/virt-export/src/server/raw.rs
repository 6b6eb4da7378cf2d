//! A disk, or a file, as it is: whole, or the range that was asked for.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;

use super::pieces::{self, ZEROS};
use super::range::{self, Part};
use super::volume::Disk;

/// Pieces that are read ahead of the network.
const AHEAD: usize = 2;

/// The answer to a request for `disk`.
pub(super) fn answer(disk: Disk, kind: &'static str, method: &Method, asked: &HeaderMap) -> Response {
    let Disk { file, size, tag } = disk;
    let tag = format!("\"{tag}\"");
    let said = |name: HeaderName| asked.get(name).and_then(|value| value.to_str().ok());
    let same = said(header::IF_RANGE).is_none_or(|wanted| wanted == tag);
    let (status, bytes) = match range::part(said(header::RANGE).filter(|_| same), size) {
        Part::Whole => (StatusCode::OK, 0..size),
        Part::Some(bytes) => (StatusCode::PARTIAL_CONTENT, bytes),
        Part::Beyond => {
            let size = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            return (StatusCode::RANGE_NOT_SATISFIABLE, size).into_response();
        }
    };
    let length = bytes.end - bytes.start;
    let mut response = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, kind)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::ETAG, tag)
        .header(header::CONTENT_LENGTH, length);
    if status == StatusCode::PARTIAL_CONTENT {
        response =
            response.header(header::CONTENT_RANGE, format!("bytes {}-{}/{size}", bytes.start, bytes.end.max(1) - 1));
    }
    let body = if method == Method::HEAD { Body::empty() } else { Body::from_stream(stream(file, bytes)) };
    response.body(body).unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

fn stream(file: File, bytes: Range<u64>) -> impl futures::Stream<Item = io::Result<Bytes>> {
    let file = Arc::new(file);
    let pieces = futures::stream::iter(pieces::places(bytes.start, bytes.end)).map(move |place| {
        let file = file.clone();
        async move {
            let read = tokio::task::spawn_blocking(move || pieces::read(&file, place)).await;
            let read = read.map_err(io::Error::other)??;
            Ok(read.map_or(Bytes::from_static(&ZEROS[..place.1]), Bytes::from))
        }
    });
    pieces.buffered(AHEAD)
}
