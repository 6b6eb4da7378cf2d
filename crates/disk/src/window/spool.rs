//! What was passed over and may yet be of use, in a file without a name on the volume that is filled. It goes with its process.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The part of the volume's free space that is taken at most: the disk needs the rest.
const PART: u64 = 2;

/// A sparse copy of a stream.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    /// Where the stretches that are kept begin and end.
    kept: BTreeMap<u64, u64>,
    /// Bytes that may be added.
    room: u64,
    read: Vec<u8>,
}

impl Spool {
    /// In this directory, which is not changed.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        let unnamed = rustix::fs::OFlags::TMPFILE.bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(unnamed).open(directory)?;
        let free = rustix::fs::fstatvfs(&file)?;
        let room = free.f_bavail.saturating_mul(free.f_frsize) / PART;
        Ok(Self { file, kept: BTreeMap::new(), room, read: Vec::new() })
    }

    /// Keeps `bytes`, unless there is no room: whoever wants them learns that they are gone.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        let length = bytes.len() as u64;
        if length > self.room || self.file.write_all_at(bytes, at).is_err() {
            return;
        }
        self.room -= length;
        match self.kept.last_entry() {
            Some(mut last) if *last.get() == at => *last.get_mut() += length,
            _ => drop(self.kept.insert(at, at + length)),
        }
    }

    /// Whether all of these are kept.
    pub(super) fn has(&self, at: u64, length: u64) -> bool {
        let stretch = self.kept.range(..=at).next_back();
        stretch.is_some_and(|(_, end)| at.checked_add(length).is_some_and(|wanted| wanted <= *end))
    }

    /// Bytes that are kept.
    pub(super) fn get(&mut self, at: u64, length: usize) -> io::Result<&[u8]> {
        self.read.resize(length, 0);
        self.file.read_exact_at(&mut self.read, at)?;
        Ok(&self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spool_has_exactly_the_pieces_put_in() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(dir.path()).unwrap();
        spool.put(10, b"one");
        spool.put(13, b"two");
        spool.put(20, b"three");
        for (at, length, expect) in [(10, 6, true), (11, 3, true), (9, 1, false), (10, 7, false), (15, 6, false)] {
            assert_eq!(spool.has(at, length), expect, "{length} bytes at {at}");
        }
        assert!(!spool.has(20, u64::MAX));
        assert_eq!(spool.get(12, 3).unwrap(), b"etw");
        spool.room = 2;
        spool.put(30, b"four");
        assert!(!spool.has(30, 4));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
