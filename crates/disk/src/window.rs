//! A stream that is read forward, of which the last bytes are kept as long as somebody may want them.

use std::collections::BTreeMap;
use std::io::{self, Read};

use crate::fetch::FetchError;

mod spool;

pub(crate) use spool::Spool;

/// The stretch of a stream that is in memory.
pub(crate) struct Window<'a> {
    reader: Box<dyn Read + Send + 'a>,
    /// Where the first byte that is kept lies in the stream.
    base: u64,
    kept: Vec<u8>,
    /// Bytes of `kept` that are released and not yet moved out.
    gone: usize,
    ended: bool,
    /// Bytes before this were of use already.
    consumed: u64,
    aside: Aside,
}

/// What was passed over, and may yet be of use.
#[derive(Default)]
struct Aside {
    parts: BTreeMap<u64, Vec<u8>>,
    /// Bytes that may be added.
    room: usize,
    /// Has all of it, where there is one.
    spool: Option<Spool>,
}

impl Aside {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        if let Some(spool) = &mut self.spool {
            return spool.put(at, bytes);
        }
        if bytes.is_empty() || bytes.len() > self.room {
            return;
        }
        self.room -= bytes.len();
        match self.parts.last_entry() {
            Some(mut last) if last.key() + last.get().len() as u64 == at => last.get_mut().extend_from_slice(bytes),
            _ => drop(self.parts.insert(at, bytes.to_vec())),
        }
    }

    fn has(&self, at: u64, length: u64) -> bool {
        match &self.spool {
            Some(spool) => spool.has(at, length),
            None => self.part(at, length).is_some(),
        }
    }

    fn get(&mut self, at: u64, length: usize) -> io::Result<&[u8]> {
        if self.spool.is_none() {
            return Ok(self.part(at, length as u64).unwrap_or_default());
        }
        match &mut self.spool {
            Some(spool) if spool.has(at, length as u64) => {
                // The volume fails here, not the image.
                spool.get(at, length).map_err(|source| io::Error::other(FetchError::Source { offset: at, source }))
            }
            _ => Ok(&[]),
        }
    }

    fn part(&self, at: u64, length: u64) -> Option<&[u8]> {
        let (start, part) = self.parts.range(..=at).next_back()?;
        let first = usize::try_from(at - start).ok()?;
        part.get(first..first.checked_add(usize::try_from(length).ok()?)?)
    }
}

impl<'a> Window<'a> {
    /// A stream whose next byte lies at `base`.
    pub(crate) fn new(base: u64, reader: Box<dyn Read + Send + 'a>) -> Self {
        Self { reader, base, kept: Vec::new(), gone: 0, ended: false, consumed: 0, aside: Aside::default() }
    }

    /// Keeps up to `room` bytes of what is passed over from now on, or as many as the spool takes, and nothing of what was.
    pub(crate) fn set_aside(&mut self, room: usize, spool: Option<Spool>) {
        self.aside = Aside { parts: BTreeMap::new(), room, spool };
    }

    /// Whether [`fill`](Self::fill) can give these bytes, as far as the stream has them.
    pub(crate) fn has(&self, offset: u64, length: u64) -> bool {
        offset >= self.base || self.aside.has(offset, length)
    }

    /// Bytes before `offset` were of use, and are of no more.
    pub(crate) fn consume(&mut self, offset: u64) {
        self.consumed = self.consumed.max(offset);
    }

    /// The first byte of the stretch that is in memory.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The first byte that was not read yet.
    pub(crate) fn position(&self) -> u64 {
        self.base + (self.kept.len() - self.gone) as u64
    }

    /// Moves on to `offset`, or as far as was read.
    fn release(&mut self, offset: u64) {
        let end = offset.min(self.position());
        let by = end.saturating_sub(self.base);
        let unused = self.consumed.clamp(self.base, self.base + by);
        let start = self.gone + (unused - self.base) as usize;
        self.aside.put(unused, &self.kept[start..self.gone + by as usize]);
        self.base += by;
        self.gone += by as usize;
        if self.gone == self.kept.len() {
            self.kept.clear();
            self.gone = 0;
        }
    }

    /// The `length` bytes at `offset`, which it [`has`](Self::has). Fewer where the stream ends. What lies between is read
    /// and dropped.
    pub(crate) fn fill(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        if offset < self.base {
            return self.aside.get(offset, length);
        }
        self.release(offset);
        while self.position() < offset && !self.ended {
            let skip = (offset - self.position()).min(256 << 10) as usize;
            self.more(skip)?;
            self.release(offset);
        }
        let have = |window: &Self| window.kept.len() - window.gone;
        if self.gone > 0 && have(self) < length {
            self.kept.drain(..self.gone);
            self.gone = 0;
        }
        while have(self) < length && !self.ended {
            self.more(length - have(self))?;
        }
        let start = self.gone + offset.saturating_sub(self.base).min(have(self) as u64) as usize;
        Ok(&self.kept[start..self.kept.len().min(start + length)])
    }

    fn more(&mut self, length: usize) -> io::Result<()> {
        let old = self.kept.len();
        self.kept.resize(old + length, 0);
        let outcome = loop {
            match self.reader.read(&mut self.kept[old..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        self.kept.truncate(old + outcome.as_ref().map_or(0, |got| *got));
        self.ended = outcome? == 0;
        Ok(())
    }
}

/// The rest of the stream, from the first byte that is kept.
impl Read for Window<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let kept = &self.kept[self.gone..];
        if kept.is_empty() {
            return self.reader.read(buffer);
        }
        let length = kept.len().min(buffer.len());
        buffer[..length].copy_from_slice(&kept[..length]);
        self.release(self.base + length as u64);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_until_released() {
        let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let mut window = Window::new(0, Box::new(bytes.as_slice()));
        assert_eq!(window.fill(10, 5).unwrap(), &bytes[10..15]);
        assert_eq!(window.base(), 10);
        assert_eq!(window.fill(12, 600).unwrap(), &bytes[12..612]);
        assert_eq!(window.fill(12, 20).unwrap(), &bytes[12..32]);
        assert_eq!(window.fill(90_000, 20_000).unwrap(), &bytes[90_000..]);
        assert_eq!(window.fill(200_000, 1).unwrap(), b"");
    }

    #[test]
    fn skipped_bytes_are_set_aside() {
        let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let mut window = Window::new(0, Box::new(bytes.as_slice()));
        window.set_aside(1000, None);
        window.fill(0, 100).unwrap();
        window.consume(100);
        window.fill(600, 10).unwrap();
        assert!(window.has(100, 500) && !window.has(99, 2) && !window.has(100, 501));
        assert_eq!(window.fill(200, 300).unwrap(), &bytes[200..500]);
        // There is no room for so much.
        window.fill(50_000, 10).unwrap();
        assert!(window.has(100, 500) && !window.has(40_000, 1) && window.has(50_000, 1));
    }

    #[test]
    fn the_rest_can_be_read_on() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let mut window = Window::new(0, Box::new(bytes.as_slice()));
        assert_eq!(window.fill(0, 4096).unwrap().len(), 4096);
        let mut all = Vec::new();
        window.read_to_end(&mut all).unwrap();
        assert_eq!(all, bytes);
    }
}
