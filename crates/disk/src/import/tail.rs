//! The last bytes of a device, which hold an import's journal while it runs and the disk's own bytes once it is complete.
//!
//! ```text
//! | the disk, written in place ............ | slot 0 | slot 1 |
//!                                           ^ start: what belongs here waits in memory until everything else is written
//! ```
//! The slots are written in turn, so that an entry that a power cut tears leaves the one before it.

use std::io;
use std::sync::{Mutex, PoisonError};

use crate::layout::{Extent, crc32c};
use crate::target::{Target, Writer};

const SLOT: u64 = 32 << 10;
const LENGTH: u64 = 2 * SLOT;
const MAGIC: &[u8; 8] = b"cdi-jrnl";
/// Magic, checksum, length, number.
const HEAD: usize = 24;
const CHECKSUM: usize = 8;

#[derive(Debug)]
pub(super) struct Tail<'a> {
    target: &'a Target,
    start: u64,
    /// The disk's own bytes.
    kept: Mutex<Vec<u8>>,
    /// The number of the newest entry; each is one more than the one before.
    newest: Mutex<u64>,
}

impl<'a> Tail<'a> {
    /// Of a device that has room for it.
    pub(super) fn of(target: &'a Target) -> Option<Self> {
        let start = target.capacity().checked_sub(LENGTH).filter(|_| target.is_device())?;
        Some(Self { target, start, kept: Mutex::new(vec![0; LENGTH as usize]), newest: Mutex::new(0) })
    }

    /// The newest entry that is whole.
    pub(super) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let mut newest = None;
        for slot in 0..2 {
            let mut bytes = vec![0; SLOT as usize];
            self.target.read(self.start + slot * SLOT, &mut bytes)?;
            newest = newest.max(entry(&bytes));
        }
        let mut number = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *number = newest.as_ref().map_or(0, |(number, _)| *number);
        Ok(newest.map(|(_, text)| text))
    }

    /// Writes an entry, and returns when it is on stable storage.
    pub(super) fn write(&self, text: &[u8]) -> io::Result<()> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *newest + 1;
        let mut bytes = Vec::with_capacity(SLOT as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(text);
        if bytes.len() as u64 > SLOT {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the entry is larger than its slot"));
        }
        bytes.resize(SLOT as usize, 0);
        let sum = crc32c(&bytes, CHECKSUM);
        bytes[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
        self.target.write(self.start + number % 2 * SLOT, &bytes)?;
        self.target.sync()?;
        *newest = number;
        Ok(())
    }

    /// Makes both slots worthless, where there is an entry.
    pub(super) fn erase(&self) -> io::Result<()> {
        if self.read()?.is_none() {
            return Ok(());
        }
        self.target.write(self.start, &[0; LENGTH as usize])?;
        self.target.sync()
    }

    /// Whether some of the extent's bytes wait in memory: they are not there after a crash.
    pub(super) fn withholds(&self, extent: &Extent) -> bool {
        extent.guest.saturating_add(extent.length) > self.start
    }

    /// Writes what may be written already, and keeps what may not. Says how many bytes were written.
    pub(super) fn divert(&self, writer: &mut Writer<'_>, guest: u64, bytes: &[u8]) -> io::Result<u64> {
        let before = self.start.saturating_sub(guest).min(bytes.len() as u64) as usize;
        let (now, later) = bytes.split_at(before);
        if !later.is_empty() {
            let at = (guest + before as u64 - self.start) as usize;
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let place = kept.get_mut(at..at + later.len());
            place.ok_or(io::ErrorKind::StorageFull)?.copy_from_slice(later);
        }
        writer.write(guest, now)
    }

    /// Puts the disk's own bytes where the journal was.
    pub(super) fn restore(&self) -> io::Result<()> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.target.write(self.start, &kept)
    }
}

/// The number and the text in a slot.
fn entry(slot: &[u8]) -> Option<(u64, Vec<u8>)> {
    let field = |at: usize| slot.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    if !slot.starts_with(MAGIC) || field(CHECKSUM)? != crc32c(slot, CHECKSUM) {
        return None;
    }
    let length = field(12)? as usize;
    let number = u64::from_le_bytes(slot.get(16..HEAD)?.try_into().ok()?);
    Some((number, slot.get(HEAD..HEAD.checked_add(length)?)?.to_vec()))
}
