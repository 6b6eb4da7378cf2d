//! Bytes as they come from a source: counted, summed up, and continued after a link that dropped.

use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use crate::checksum::{Checksum, Hasher};
use crate::progress::Progress;
use crate::source::{Source, is_final};

/// Attempts in a row that brought no byte. A source that knows its protocol has made several of its own in each.
const ATTEMPTS: u32 = 3;
/// Between the second attempt and the third; doubled from then on.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What all readers of one import add to.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    pub(crate) progress: &'a Progress,
    hasher: Mutex<Option<Hasher>>,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(progress: &'a Progress, hasher: Option<Hasher>) -> Self {
        Self { progress, hasher: Mutex::new(hasher) }
    }

    /// The sum of the first reader that was made with it. Later readers add nothing.
    pub(crate) fn checksum(&self) -> Option<Checksum> {
        self.hasher.lock().unwrap_or_else(PoisonError::into_inner).take().map(Hasher::finish)
    }

    fn hash(&self, bytes: &[u8]) {
        if let Some(hasher) = self.hasher.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            hasher.update(bytes);
        }
    }
}

/// Why a source's reader failed for good, within the [`io::Error`] that passes through whatever unpacks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("at byte {offset}")]
    Source {
        offset: u64,
        #[source]
        source: io::Error,
    },
    #[error("cancelled")]
    Cancelled,
}

/// A reader that comes back after its source's reader failed.
pub(crate) struct Fetch<'a> {
    source: &'a dyn Source,
    tally: &'a Tally<'a>,
    reader: Option<Box<dyn Read + Send>>,
    offset: u64,
    fruitless: u32,
    /// Bytes before the reader's place are dealt with, which is so for the one that reads everything.
    whole: bool,
}

impl<'a> Fetch<'a> {
    /// Everything, from the start; the tally sums it up and the progress follows it.
    pub(crate) fn whole(source: &'a dyn Source, tally: &'a Tally<'a>) -> io::Result<Self> {
        Self::open(source, tally, 0, true)
    }

    /// What lies at `offset`.
    pub(crate) fn part(source: &'a dyn Source, tally: &'a Tally<'a>, offset: u64) -> io::Result<Self> {
        Self::open(source, tally, offset, false)
    }

    fn open(source: &'a dyn Source, tally: &'a Tally<'a>, offset: u64, whole: bool) -> io::Result<Self> {
        let mut fetch = Self { source, tally, reader: None, offset, fruitless: 0, whole };
        match source.open(offset) {
            Ok(reader) => fetch.reader = Some(reader),
            // A part is opened while the import runs: a link that drops then is worth another attempt.
            Err(error) if whole => return Err(fetch.failed(error)),
            Err(error) => fetch.retry(error)?,
        }
        Ok(fetch)
    }

    fn failed(&self, source: io::Error) -> io::Error {
        io::Error::other(FetchError::Source { offset: self.offset, source })
    }

    /// Waits before the next attempt, or gives up.
    fn retry(&mut self, error: io::Error) -> io::Result<()> {
        self.reader = None;
        if !self.source.ranged() || is_final(&error) || self.fruitless >= ATTEMPTS {
            return Err(self.failed(error));
        }
        if self.fruitless > 0 {
            let until = Instant::now() + PAUSE.saturating_mul(1 << (self.fruitless - 1)).min(LONGEST_PAUSE);
            while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                self.check()?;
                park_timeout(left.min(PAUSE));
            }
        }
        self.fruitless += 1;
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        if self.tally.progress.is_cancelled() { Err(io::Error::other(FetchError::Cancelled)) } else { Ok(()) }
    }

    /// One attempt. No byte where more are known to follow is a link that dropped.
    fn attempt(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(self.source.open(self.offset)?),
        };
        let got = reader.read(buffer)?;
        match self.source.size() {
            Some(size) if got == 0 && self.offset < size => {
                let what = format!("the source ended after {} of {size} bytes", self.offset);
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
            }
            _ => Ok(got),
        }
    }
}

impl Read for Fetch<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Some servers end a whole body with an error.
        if buffer.is_empty() || self.source.size().is_some_and(|size| self.offset >= size) {
            return Ok(0);
        }
        loop {
            self.check()?;
            match self.attempt(buffer) {
                Ok(got) => {
                    self.fruitless = 0;
                    self.offset += got as u64;
                    self.tally.progress.add_fetched(got as u64);
                    if self.whole {
                        self.tally.hash(&buffer[..got]);
                        self.tally.progress.set_done(self.offset);
                    }
                    return Ok(got);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.retry(error)?,
            }
        }
    }
}
