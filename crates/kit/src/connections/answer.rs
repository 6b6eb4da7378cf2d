//! An answer that keeps something until it has been read: so a request counts until its answer has left.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// `response` which keeps `guard` until its body is read or dropped.
pub fn until_read<T: Send + Unpin + 'static>(response: Response, guard: T) -> Response {
    response.map(|body| Body::new(Guarded { body, _guard: guard }))
}

struct Guarded<T> {
    body: Body,
    _guard: T,
}

impl<T: Unpin> hyper::body::Body for Guarded<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
