//! Writing past the page cache, for a pod whose memory is so tight that what it wrote counts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

/// Offsets, lengths and addresses are multiples of this; no device has larger sectors.
const ALIGNED: usize = 4096;
/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

/// `file`, opened a second time. None where its file system cannot write past the cache.
pub(super) fn reopen(file: &File) -> Option<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().write(true).custom_flags(flags).open(again).ok()
}

/// A buffer that the kernel takes as it is.
#[derive(Debug)]
pub(super) struct Direct<'a> {
    file: &'a File,
    room: Vec<u8>,
    start: usize,
}

impl<'a> Direct<'a> {
    pub(super) fn new(file: &'a File) -> Self {
        let room = vec![0; PIECE + ALIGNED];
        let start = room.as_ptr().align_offset(ALIGNED);
        Self { file, room, start }
    }

    /// Writes the whole blocks among `bytes`, and returns which those are. What is around them is left to the caller, and
    /// so is everything where the kernel refuses.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<std::ops::Range<usize>> {
        let first = ((offset.next_multiple_of(ALIGNED as u64) - offset) as usize).min(bytes.len());
        let last = first + (bytes.len() - first) / ALIGNED * ALIGNED;
        let mut at = first;
        while at < last {
            let piece = &bytes[at..last.min(at + PIECE)];
            let aligned = &mut self.room[self.start..self.start + piece.len()];
            aligned.copy_from_slice(piece);
            match self.file.write_all_at(aligned, offset + at as u64) {
                Ok(()) => at += piece.len(),
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => return Err(error),
            }
        }
        Ok(first..at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_are_written_wherever_they_lie() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(4 << 20).unwrap();
        let Some(again) = reopen(&file) else { return };
        let mut direct = Direct::new(&again);
        let bytes: Vec<u8> = (0..(2 << 20) + 777).map(|at: usize| (at % 251) as u8 + 1).collect();
        for (offset, expect) in [(0, 0..2 << 20), (4096, 0..2 << 20), (100, 3996..2_097_052)] {
            let written = direct.write(offset, &bytes).unwrap();
            if written.is_empty() {
                return;
            }
            assert_eq!(written, expect);
            let found = std::fs::read(&path).unwrap();
            let at = offset as usize + written.start;
            assert!(found[at..at + written.len()] == bytes[written]);
        }
        assert_eq!(direct.write(10, &bytes[..100]).unwrap(), 100..100);
    }
}
