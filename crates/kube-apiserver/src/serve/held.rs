//! An answer whose cost is held against its asker until he has read it.
//!
//! Guarantees: a long answer is handed out in pieces, so that what the connection has not yet taken stays here; when the
//! asker takes longer than he may, the answer is dropped, his turn ends, and reading on fails.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};

/// Bytes handed out at once.
const PIECE: usize = 128 * 1024;

/// What is left of an answer.
struct Rest<T> {
    body: Option<Body>,
    /// Of a piece that was larger than may be handed out at once.
    bytes: Bytes,
    turn: Option<T>,
}

/// See the module.
struct Held<T> {
    rest: Arc<Mutex<Rest<T>>>,
    /// Ends with the answer.
    _deadline: Option<kit::Task<()>>,
}

/// `response` with `turn` held until its body is read, dropped, or `patience` has passed; None is for ever. A body no longer
/// than one piece ends the turn at once: the connection's buffer has room for it.
pub(super) fn hold<T: Send + 'static>(response: Response, turn: T, patience: Option<Duration>) -> Response {
    let short = response.body().size_hint().exact().is_some_and(|size| size <= PIECE as u64);
    if short {
        return response;
    }
    response.map(|body| {
        let rest = Arc::new(Mutex::new(Rest { body: Some(body), bytes: Bytes::new(), turn: Some(turn) }));
        let deadline = patience.map(|patience| {
            let rest = Arc::downgrade(&rest);
            let end = async move {
                tokio::time::sleep(patience).await;
                if let Some(rest) = rest.upgrade() {
                    lock(&rest).end();
                }
            };
            kit::spawn("response-deadline", end)
        });
        Body::new(Held { rest, _deadline: deadline })
    })
}

fn lock<T>(rest: &Mutex<Rest<T>>) -> std::sync::MutexGuard<'_, Rest<T>> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Rest<T> {
    fn end(&mut self) {
        self.body = None;
        self.bytes.clear();
        self.turn = None;
    }
}

impl<T: Send + 'static> hyper::body::Body for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut rest = lock(&self.rest);
        let Rest { body, bytes: left, turn } = &mut *rest;
        let Some(body) = body else {
            return Poll::Ready(Some(Err(axum::Error::new("the answer was not read in time"))));
        };
        if left.is_empty() {
            match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => *left = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Poll::Ready(None) => {
                    *turn = None;
                    return Poll::Ready(None);
                }
                other => return other,
            }
        }
        let piece = left.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(left.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        let rest = lock(&self.rest);
        rest.bytes.is_empty() && rest.body.as_ref().is_some_and(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = lock(&self.rest);
        let Some(body) = &rest.body else { return SizeHint::default() };
        match body.size_hint().exact() {
            Some(size) => SizeHint::with_exact(size + rest.bytes.len() as u64),
            None => SizeHint::default(),
        }
    }
}
