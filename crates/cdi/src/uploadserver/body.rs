//! The body of a request as a source: read once, forward, on a thread that may block.

use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};

use axum::body::Bytes;
use disk::Source;
use tokio::sync::mpsc;

/// Pieces that may wait between the network and the decoder.
const AHEAD: usize = 16;

/// A piece of a body, or why there is none.
pub(super) type Piece = Result<Bytes, io::Error>;

/// The two ends of a body.
pub(super) fn channel(size: Option<u64>) -> (mpsc::Sender<Piece>, Sent) {
    let (sender, pieces) = mpsc::channel(AHEAD);
    (sender, Sent { size, reader: Mutex::new(Some(Reader { pieces, current: Bytes::new(), ended: false })) })
}

/// What a client sends.
pub(super) struct Sent {
    size: Option<u64>,
    reader: Mutex<Option<Reader>>,
}

impl Sent {
    /// The bytes, for the first who asks.
    pub(super) fn take(&self) -> io::Result<Box<dyn Read + Send>> {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        let again = || io::Error::new(io::ErrorKind::Unsupported, "what a client sends cannot be read a second time");
        reader.map(|reader| Box::new(reader) as Box<dyn Read + Send>).ok_or_else(again)
    }
}

impl Source for Sent {
    fn size(&self) -> Option<u64> {
        self.size
    }

    fn ranged(&self) -> bool {
        false
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut reader = self.take()?;
        io::copy(&mut (&mut reader).take(offset), &mut io::sink())?;
        Ok(reader)
    }
}

/// The reading end. The body has ended only when an empty piece said so: a connection that breaks is not an end.
struct Reader {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    ended: bool,
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            let broken = || io::Error::new(io::ErrorKind::InvalidData, "the client broke off the upload");
            self.current = self.pieces.blocking_recv().ok_or_else(broken)??;
            self.ended = self.current.is_empty();
        }
        let length = self.current.len().min(into.len());
        into[..length].copy_from_slice(&self.current.split_to(length));
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&'static [u8]]) -> io::Result<Vec<u8>> {
        let (sender, sent) = channel(None);
        for piece in pieces {
            sender.try_send(Ok(Bytes::from_static(piece))).unwrap();
        }
        drop(sender);
        let mut bytes = Vec::new();
        sent.open(0)?.read_to_end(&mut bytes)?;
        assert!(sent.open(0).is_err());
        Ok(bytes)
    }

    #[test]
    fn a_body_that_breaks_off_is_not_one_that_ends() {
        assert_eq!(read(&[b"ab", b"c", b""]).unwrap(), b"abc");
        assert_eq!(read(&[b""]).unwrap(), b"");
        assert_eq!(read(&[b"ab"]).unwrap_err().to_string(), "the client broke off the upload");
        assert!(read(&[]).is_err());
    }
}
