//! What a client still sends when it has its answer.
//!
//! An upload that is refused is answered before it is read. A connection that is closed while bytes of it are unread is
//! reset (a stream of HTTP/2: cancelled), and the client may then never see the answer. So what a handler left is read on
//! and dropped for a moment, in which a client that looks up stops by itself.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use tokio::sync::oneshot;

/// As long as a refused client is listened to.
const LONGEST: Duration = Duration::from_secs(2);
/// As much of it. More than what two ends of a connection keep between them, so that whoever sends has seen the answer.
const MOST: usize = 64 << 20;

/// A layer: reads on what a handler leaves of a body.
pub(crate) async fn read_on(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (unread, left) = oneshot::channel();
    let response = next.run(request.map(|body| Body::new(Watched { body, unread: Some(unread) }))).await;
    kit::spawn("unread", async move {
        // A handler may go on reading while it answers.
        if let Ok(body) = left.await {
            let _ = tokio::time::timeout(LONGEST, drop_some(body)).await;
        }
    })
    .detach();
    response
}

async fn drop_some(body: Body) {
    let mut pieces = body.into_data_stream();
    let mut left = MOST;
    while let Some(Ok(piece)) = pieces.next().await {
        let Some(less) = left.checked_sub(piece.len()) else { return };
        left = less;
    }
}

/// A body that is handed back when it is dropped before its end.
struct Watched {
    body: Body,
    unread: Option<oneshot::Sender<Body>>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.unread = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(unread) = self.unread.take().filter(|_| !self.body.is_end_stream()) {
            // Nobody takes it when the connection is gone.
            let _ = unread.send(std::mem::take(&mut self.body));
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn watched(pieces: &[&'static str]) -> (Body, oneshot::Receiver<Body>) {
        let pieces: Vec<_> =
            pieces.iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece.as_bytes()))).collect();
        let (unread, left) = oneshot::channel();
        let body = Body::from_stream(futures::stream::iter(pieces));
        (Body::new(Watched { body, unread: Some(unread) }), left)
    }

    #[tokio::test]
    async fn the_unread_rest_of_a_body_is_handed_back() {
        let (body, left) = watched(&["a", "b", "c"]);
        let mut pieces = body.into_data_stream();
        assert_eq!(pieces.next().await.unwrap().unwrap(), "a");
        drop(pieces);
        assert_eq!(left.await.unwrap().collect().await.unwrap().to_bytes(), "bc");

        let (body, left) = watched(&["a", "b"]);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "ab");
        assert!(left.await.is_err());
    }
}
