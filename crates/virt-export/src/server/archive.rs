//! The files of a volume as a compressed archive, made while it is sent.

use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::Stream;
use tokio::sync::mpsc;

/// Pieces that may wait for the network.
const AHEAD: usize = 8;
/// The size of a piece.
const PIECE: usize = 256 << 10;

/// The archive of what is beneath `root`.
pub(super) fn stream(root: PathBuf) -> impl Stream<Item = io::Result<Bytes>> {
    let (send, receive) = mpsc::channel(AHEAD);
    // A thread of its own: a client takes as long as it likes, and the shared ones read disks.
    std::thread::spawn(move || {
        let pieces = Pieces { send: send.clone(), held: Vec::with_capacity(PIECE) };
        let packed = disk::pack(&root, true, GzEncoder::new(pieces, Compression::fast()));
        if let Err(error) = packed.and_then(GzEncoder::finish).and_then(|mut rest| rest.flush()) {
            tracing::warn!(root = %root.display(), %error, "an archive was not completed");
            // The client is to know that what it has is not all. One that is gone needs no telling.
            let _ = send.blocking_send(Err(error));
        }
    });
    futures::stream::unfold(receive, |mut receive| async move { Some((receive.recv().await?, receive)) })
}

/// Hands on what is written to it.
struct Pieces {
    send: mpsc::Sender<io::Result<Bytes>>,
    held: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = Bytes::from(std::mem::replace(&mut self.held, Vec::with_capacity(PIECE)));
        if piece.is_empty() {
            return Ok(());
        }
        self.send.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
