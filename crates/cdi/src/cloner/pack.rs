//! What is read of a claim's device, and how much went into a stream.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A writer that counts.
pub(super) struct Counted<'a, W> {
    inner: W,
    bytes: &'a AtomicU64,
}

impl<'a, W> Counted<'a, W> {
    pub(super) fn new(inner: W, bytes: &'a AtomicU64) -> Self {
        Self { inner, bytes }
    }

    pub(super) fn into_inner(self) -> W {
        self.inner
    }
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The bytes of a device, or of one file.
pub(super) fn device<W: Write>(path: &Path, total: &AtomicU64, mut into: W) -> io::Result<W> {
    let mut device = File::open(path)?;
    total.store(device.seek(SeekFrom::End(0))?, Ordering::Relaxed);
    device.rewind()?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match device.read(&mut buffer)? {
            0 => return Ok(into),
            length => into.write_all(&buffer[..length])?,
        }
    }
}
