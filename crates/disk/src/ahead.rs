//! Reading on a thread of its own, so that fetching, unpacking and writing go on side by side.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

const CHUNK: usize = 256 << 10;
/// Chunks that wait to be taken.
const DEPTH: usize = 4;

/// What a thread read, in order. Dropping it ends the thread at its next chunk.
#[derive(Debug)]
pub(crate) struct Ahead {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: Sender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Ahead {
    /// Starts to read. The scope ends when `reader` returns from the read it is in.
    pub(crate) fn spawn<'scope>(
        scope: &'scope Scope<'scope, '_>,
        name: &str,
        reader: impl Read + Send + 'scope,
    ) -> io::Result<Self> {
        let (full_in, full) = sync_channel(DEPTH);
        let (empty, empty_out) = channel();
        Builder::new().name(name.to_owned()).spawn_scoped(scope, move || pump(reader, &full_in, &empty_out))?;
        Ok(Self { full, empty, chunk: Vec::new(), at: 0, ended: false })
    }
}

fn pump(mut reader: impl Read, full: &SyncSender<io::Result<Vec<u8>>>, empty: &Receiver<Vec<u8>>) {
    loop {
        let mut chunk = empty.try_recv().unwrap_or_default();
        chunk.resize(CHUNK, 0);
        let mut filled = 0;
        let outcome = loop {
            match reader.read(&mut chunk[filled..]) {
                Ok(0) => break Ok(()),
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if filled == CHUNK {
                break Ok(());
            }
        };
        let last = filled < CHUNK;
        chunk.truncate(filled);
        // An empty chunk says that this is the end. A failed send says that nobody wants to know.
        if filled > 0 && full.send(Ok(chunk)).is_err() {
            return;
        }
        if let Err(error) = outcome {
            let _ = full.send(Err(error));
            return;
        }
        if last {
            let _ = full.send(Ok(Vec::new()));
            return;
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() {
            if self.ended {
                return Ok(0);
            }
            let chunk = self.full.recv().map_err(|_| io::Error::other("the reading thread ended"))??;
            self.ended = chunk.is_empty();
            // The thread may have ended already.
            let _ = self.empty.send(std::mem::replace(&mut self.chunk, chunk));
            self.at = 0;
        }
        let length = buffer.len().min(self.chunk.len() - self.at);
        buffer[..length].copy_from_slice(&self.chunk[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_arrives_in_order() {
        for length in [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 17, 20 * CHUNK] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            std::thread::scope(|scope| {
                let mut read = Vec::new();
                Ahead::spawn(scope, "test", bytes.as_slice()).unwrap().read_to_end(&mut read).unwrap();
                assert!(read == bytes, "{length} bytes");
            });
        }
    }

    #[test]
    fn an_error_comes_after_what_was_read_before_it() {
        struct Fails(usize);
        impl Read for Fails {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let left = self.0.min(buffer.len());
                self.0 -= left;
                if left == 0 { Err(io::Error::other("link")) } else { Ok(left) }
            }
        }
        std::thread::scope(|scope| {
            let mut read = Vec::new();
            let error = Ahead::spawn(scope, "test", Fails(CHUNK + 5)).unwrap().read_to_end(&mut read).unwrap_err();
            assert_eq!((read.len(), error.to_string().as_str()), (CHUNK + 5, "link"));
        });
    }

    #[test]
    fn a_reader_that_is_given_up_ends() {
        std::thread::scope(|scope| {
            let mut first = [0; 10];
            Ahead::spawn(scope, "test", io::repeat(7)).unwrap().read_exact(&mut first).unwrap();
        });
    }
}
