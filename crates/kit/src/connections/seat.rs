//! What a connection takes up, given back when its bytes end: an upgrade takes the bytes over, and with them the seat.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use super::Connected;

/// A place among all connections and among those of its user.
#[derive(Debug)]
pub struct Seat {
    connected: Arc<Connected>,
    _slot: OwnedSemaphorePermit,
}

impl Seat {
    /// Held until it is dropped.
    pub fn new(connected: Arc<Connected>, slot: OwnedSemaphorePermit) -> Self {
        Self { connected, _slot: slot }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connected.leave();
    }
}

/// See the module.
#[derive(Debug)]
pub struct Seated<S> {
    stream: S,
    _seat: Seat,
}

impl<S> Seated<S> {
    /// `stream` with its seat.
    pub fn new(stream: S, seat: Seat) -> Self {
        Self { stream, _seat: seat }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Seated<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Seated<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
