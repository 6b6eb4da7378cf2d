//! Where a download goes: a file, in which zeros become holes, or standard output.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// Shorter holes are not worth a call.
const HOLE: usize = 4096;

/// Where it goes.
pub(super) struct Sink {
    out: Out,
    /// Bytes taken.
    taken: u64,
}

enum Out {
    /// A file that can have holes.
    Sparse(File),
    Plain(Box<dyn Write + Send>),
}

impl Sink {
    /// The file, which is emptied.
    pub(super) fn file(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        let out = if file.metadata()?.is_file() { Out::Sparse(file) } else { Out::Plain(Box::new(file)) };
        Ok(Self { out, taken: 0 })
    }

    pub(super) fn stdout() -> Self {
        Self { out: Out::Plain(Box::new(io::stdout())), taken: 0 }
    }

    /// Forgets what was taken. What is written where nothing can be taken back stays.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        match &mut self.out {
            Out::Sparse(file) => {
                file.set_len(0)?;
                file.rewind()?;
            }
            Out::Plain(_) if self.taken > 0 => {
                return Err(io::Error::other(format!("{} bytes are written, and cannot be taken back", self.taken)));
            }
            Out::Plain(_) => {}
        }
        self.taken = 0;
        Ok(())
    }

    /// Bytes taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Makes the file as long as what it was given: it may end with a hole.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        match &mut self.out {
            Out::Sparse(file) => file.set_len(self.taken),
            Out::Plain(out) => out.flush(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.out {
            // Pieces come as the network cuts them: a hole may begin and end anywhere in one.
            Out::Sparse(file) if bytes.first() == Some(&0) => {
                let zeros = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
                file.seek(SeekFrom::Current(i64::try_from(zeros).unwrap_or(i64::MAX)))?;
                self.taken += zeros as u64;
                Ok(zeros)
            }
            Out::Sparse(file) => {
                let data = bytes.chunks(HOLE).take_while(|chunk| chunk.len() < HOLE || **chunk != [0; HOLE]);
                let data = data.map(<[u8]>::len).sum();
                file.write_all(&bytes[..data])?;
                self.taken += data as u64;
                Ok(data)
            }
            Out::Plain(out) => {
                out.write_all(bytes)?;
                self.taken += bytes.len() as u64;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            Out::Sparse(file) => file.flush(),
            Out::Plain(out) => out.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn zeros_become_holes_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mut data = vec![0; 8 << 20];
        data[5_000_000..5_000_010].fill(7);
        data[..3].fill(1);
        let mut sink = Sink::file(&path).unwrap();
        for piece in data.chunks(10_007) {
            sink.write_all(piece).unwrap();
        }
        sink.finish().unwrap();
        assert_eq!(sink.taken(), data.len() as u64);
        assert!(std::fs::read(&path).unwrap() == data);
        assert!(path.metadata().unwrap().blocks() * 512 < 4 << 20);
        sink.restart().unwrap();
        sink.write_all(b"\0anew").unwrap();
        sink.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap().as_slice(), sink.taken()), (&b"\0anew"[..], 5));
    }

    #[test]
    fn a_pipe_cannot_restart_after_bytes_were_written() {
        let mut sink = Sink { out: Out::Plain(Box::new(io::sink())), taken: 0 };
        sink.restart().unwrap();
        sink.write_all(b"data").unwrap();
        assert_eq!(sink.restart().unwrap_err().to_string(), "4 bytes are written, and cannot be taken back");
    }
}
