//! A SPDY connection served: one task reads, one writes, streams come out.
//!
//! Guarantees: buffers are bounded, so a stream that nobody reads stops the connection's reader (there is no flow control
//! between these peers); dropping the session or its end ends all its streams.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Decoder, Encoder, Frame, Headers};

const FRAMES: usize = 64;
const PIECES: usize = 16;
const STREAMS: usize = 1024;
/// RST_STREAM: the stream is refused.
const REFUSED: u32 = 3;

/// A stream opened by the peer.
#[derive(Debug)]
pub struct SpdyStream {
    /// Identifier.
    pub id: u32,
    /// Headers, names in lower case.
    pub headers: Headers,
    /// What the peer sends; ends with its FIN, a reset or the connection.
    pub incoming: mpsc::Receiver<Bytes>,
    /// The other direction.
    pub writer: StreamWriter,
}

/// The sending half of a stream.
#[derive(Clone, Debug)]
pub struct StreamWriter {
    id: u32,
    frames: mpsc::Sender<Frame>,
}

impl StreamWriter {
    /// Sends bytes; false when the connection has ended.
    pub async fn write(&self, data: Bytes) -> bool {
        // The length of a data frame has 24 bits.
        const LARGEST: usize = 0x00ff_0000;
        let mut rest = data;
        while rest.len() > LARGEST {
            let piece = rest.split_to(LARGEST);
            if self.frames.send(Frame::Data { id: self.id, fin: false, data: piece }).await.is_err() {
                return false;
            }
        }
        self.frames.send(Frame::Data { id: self.id, fin: false, data: rest }).await.is_ok()
    }

    /// Says that nothing more comes.
    pub async fn finish(&self) {
        let _ = self.frames.send(Frame::Data { id: self.id, fin: true, data: Bytes::new() }).await;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    streams: mpsc::Receiver<SpdyStream>,
    ended: CancellationToken,
    /// Told once everything is written.
    written: Option<oneshot::Receiver<()>>,
    _guard: DropGuard,
}

impl Session {
    /// Starts serving.
    pub fn start<R, W>(read: R, write: W) -> Self
    where
        R: Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
        W: Sink<Bytes, Error = io::Error> + Send + Unpin + 'static,
    {
        let (frames, outgoing) = mpsc::channel(FRAMES);
        let (opened, streams) = mpsc::channel(FRAMES);
        let ended = CancellationToken::new();
        let (done, written) = oneshot::channel();
        let writing = async move {
            write_frames(write, outgoing).await;
            let _ = done.send(());
        };
        // What is queued is sent though nobody waits for it.
        kit::spawn("spdy-write", writing).detach();
        let token = ended.clone();
        let reading = async move {
            let _guard = token.clone().drop_guard();
            tokio::select! {
                () = token.cancelled() => {}
                () = read_frames(read, frames, opened) => {}
            }
        };
        kit::spawn("spdy-read", reading).detach();
        Self { streams, _guard: ended.clone().drop_guard(), ended, written: Some(written) }
    }

    /// The next stream the peer opens; None when the connection has ended.
    pub async fn accept(&mut self) -> Option<SpdyStream> {
        self.streams.recv().await
    }

    /// Cancelled when the connection has ended.
    #[must_use]
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Stops reading, sends what is queued and closes. The caller has dropped the streams' writers.
    pub async fn close(mut self) {
        self.ended.cancel();
        while self.streams.recv().await.is_some() {}
        if let Some(written) = self.written.take() {
            let _ = tokio::time::timeout(std::time::Duration::from_secs(10), written).await;
        }
    }
}

async fn write_frames<W>(mut write: W, mut frames: mpsc::Receiver<Frame>)
where
    W: Sink<Bytes, Error = io::Error> + Unpin,
{
    let mut encoder = Encoder::default();
    while let Some(frame) = frames.recv().await {
        let Ok(bytes) = encoder.encode(&frame) else { break };
        if write.feed(bytes).await.is_err() {
            return;
        }
        if frames.is_empty() && write.flush().await.is_err() {
            return;
        }
    }
    let _ = write.close().await;
}

async fn read_frames<R>(mut read: R, frames: mpsc::Sender<Frame>, opened: mpsc::Sender<SpdyStream>)
where
    R: Stream<Item = io::Result<Bytes>> + Unpin,
{
    let mut decoder = Decoder::default();
    let mut open: HashMap<u32, mpsc::Sender<Bytes>> = HashMap::new();
    while let Some(Ok(bytes)) = read.next().await {
        decoder.feed(&bytes);
        loop {
            let frame = match decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "SPDY connection broken off");
                    return;
                }
            };
            if !take(frame, &mut open, &frames, &opened).await {
                return;
            }
        }
    }
}

/// Handles one frame; false ends the connection.
async fn take(
    frame: Frame,
    open: &mut HashMap<u32, mpsc::Sender<Bytes>>,
    frames: &mpsc::Sender<Frame>,
    opened: &mpsc::Sender<SpdyStream>,
) -> bool {
    match frame {
        Frame::SynStream { id, fin, headers } => {
            open.retain(|_, pieces| !pieces.is_closed());
            if open.len() >= STREAMS || open.contains_key(&id) {
                return frames.send(Frame::Reset { id, status: REFUSED }).await.is_ok();
            }
            let (pieces, incoming) = mpsc::channel(PIECES);
            if !fin {
                open.insert(id, pieces);
            }
            let writer = StreamWriter { id, frames: frames.clone() };
            frames.send(Frame::SynReply { id, fin: false, headers: Headers::new() }).await.is_ok()
                && opened.send(SpdyStream { id, headers, incoming, writer }).await.is_ok()
        }
        Frame::Data { id, fin, data } => {
            if let Some(pieces) = open.get(&id).filter(|_| !data.is_empty()) {
                // A stream that nobody reads any more is drained into nothing.
                let _ = pieces.send(data).await;
            }
            if fin {
                open.remove(&id);
            }
            true
        }
        Frame::Headers { id, fin: true } | Frame::Reset { id, .. } => {
            open.remove(&id);
            true
        }
        Frame::Ping(id) => frames.send(Frame::Ping(id)).await.is_ok(),
        Frame::GoAway | Frame::SynReply { .. } | Frame::Headers { .. } | Frame::Ignored => true,
    }
}
