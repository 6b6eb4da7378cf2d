//! Where an image's bytes go: a file with holes, or a block device. What is zero is not written.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;

mod direct;

use direct::Direct;

/// What is zero in whole blocks of this size stays a hole.
const BLOCK: usize = 4096;
/// Zeros to compare with and to write.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
/// Written bytes after which the kernel is told that we will not read them: else they fill the memory that the pod is
/// allowed, and the last flush takes as long as all the rest.
const WRITE_BEHIND: u64 = 32 << 20;

/// An open file or device and how much it may hold.
#[derive(Debug)]
pub struct Target {
    file: File,
    device: bool,
    capacity: u64,
    /// The same, past the page cache.
    direct: Option<File>,
}

impl Target {
    /// A regular file of up to `capacity` bytes, made when it is missing. An import empties it first.
    pub fn file(path: &Path, capacity: u64) -> io::Result<Self> {
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o660).custom_flags(nofollow);
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self { file, device: false, capacity, direct: None })
    }

    /// A block device, of its own size.
    pub fn device(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt as _;
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        if !file.metadata()?.file_type().is_block_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a block device"));
        }
        let capacity = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, device: true, capacity, direct: None })
    }

    /// What is written to it from now on does not pass through the page cache, where the file system can do that.
    #[must_use]
    pub fn uncached(self) -> Self {
        Self { direct: direct::reopen(&self.file), ..self }
    }

    /// Bytes it may hold.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn is_device(&self) -> bool {
        self.device
    }

    /// Bytes that it takes from its volume.
    pub fn allocated(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// Everything up to `size` reads as zero afterwards, and nothing is left of what was there.
    pub(crate) fn clear(&self, size: u64) -> io::Result<()> {
        if !self.device {
            self.file.set_len(0)?;
            return self.file.set_len(size);
        }
        if size == 0 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, size) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::NOSYS | Errno::INVAL) => self.write_zeros(0, size),
            Err(error) => Err(error.into()),
        }
    }

    /// Claims the space of `size` bytes before they are written.
    pub(crate) fn preallocate(&self, size: u64) -> io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        if self.device {
            // The space of a thin device is claimed by zeros that it has to keep.
            return match fallocate(&self.file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 0, size) {
                Ok(()) => Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::NOSYS | Errno::INVAL) => self.write_zeros(0, size),
                Err(error) => Err(error.into()),
            };
        }
        match fallocate(&self.file, FallocateFlags::empty(), 0, size) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(0, size),
            Err(error) => Err(error.into()),
        }
    }

    /// Claims the space of the holes of a file that is written already. Where the file system cannot, they stay holes.
    pub(crate) fn claim_holes(&self, size: u64) -> io::Result<()> {
        if self.device || size == 0 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::empty(), 0, size) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn write_zeros(&self, mut offset: u64, end: u64) -> io::Result<()> {
        while offset < end {
            let length = (end - offset).min(ZEROS.len() as u64) as usize;
            self.file.write_all_at(&ZEROS[..length], offset)?;
            offset += length as u64;
        }
        Ok(())
    }

    /// Fills `bytes` with what is at `offset`.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Writes all of `bytes`, zero or not.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// The length of a file; a device keeps its own.
    pub(crate) fn resize(&self, size: u64) -> io::Result<()> {
        if self.device { Ok(()) } else { self.file.set_len(size) }
    }

    /// Nothing of the data is left.
    pub(crate) fn discard(&self) -> io::Result<()> {
        if self.device { self.clear(self.capacity) } else { self.file.set_len(0) }
    }

    /// What is written so far is on stable storage.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Whether a file has this length at least; a device has its own.
    pub(crate) fn is_as_long(&self, size: u64) -> io::Result<bool> {
        Ok(self.device || self.file.metadata()?.len() >= size)
    }

    pub(crate) fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Writes what is not zero, for one thread of an import.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    target: &'a Target,
    direct: Option<Direct<'a>>,
    behind: u64,
    /// What was written since the kernel was told.
    span: Option<(u64, u64)>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(target: &'a Target) -> Self {
        Self { target, direct: target.direct.as_ref().map(Direct::new), behind: 0, span: None }
    }

    /// Writes `bytes` at `offset`, but for the blocks of them that are zero. Says how many were written.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<u64> {
        let mut written = 0;
        for run in runs(offset, bytes) {
            let at = offset + run.start as u64;
            written += run.len() as u64;
            let (start, end) = self.span.unwrap_or((at, at));
            self.span = Some((start.min(at), end.max(at + run.len() as u64)));
            self.put(at, &bytes[run])?;
        }
        self.behind += written;
        if self.behind >= WRITE_BEHIND {
            self.behind = 0;
            let (start, end) = self.span.take().unwrap_or_default();
            // Advice: a file system that cannot follow it is as good.
            let _ = fadvise(&self.target.file, start, NonZeroU64::new(end - start), Advice::DontNeed);
        }
        Ok(written)
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let done = match &mut self.direct {
            Some(direct) => direct.write(offset, bytes)?,
            None => 0..0,
        };
        let file = &self.target.file;
        file.write_all_at(&bytes[..done.start], offset)?;
        file.write_all_at(&bytes[done.end..], offset + done.end as u64)
    }
}

/// The parts of `bytes` that are not zero, in blocks as they lie on the target.
fn runs(offset: u64, bytes: &[u8]) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let first = BLOCK - (offset % BLOCK as u64) as usize;
    let block_end = move |at: usize| if at < first { first } else { at + BLOCK };
    let mut at = 0;
    std::iter::from_fn(move || {
        let zero = |at: usize, end: usize| bytes[at..end] == ZEROS[..end - at];
        while at < bytes.len() {
            let end = block_end(at).min(bytes.len());
            if !zero(at, end) {
                break;
            }
            at = end;
        }
        let start = at;
        while at < bytes.len() {
            let end = block_end(at).min(bytes.len());
            if zero(at, end) {
                break;
            }
            at = end;
        }
        (start < at).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(offset: u64, bytes: &[u8], expect: &[(usize, usize)]) {
        assert_eq!(runs(offset, bytes).map(|run| (run.start, run.end)).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn zero_blocks_are_left_out() {
        check(0, &[], &[]);
        check(0, &[0; 10_000], &[]);
        check(0, &[1; 10_000], &[(0, 10_000)]);
        let mut one = vec![0; 5 * BLOCK];
        one[2 * BLOCK + 7] = 1;
        check(0, &one, &[(2 * BLOCK, 3 * BLOCK)]);
        // Blocks are those of the target: the byte lies in the target's third block, whose start is cut.
        check(100, &one, &[(2 * BLOCK - 100, 3 * BLOCK - 100)]);
        one[4 * BLOCK] = 1;
        check(0, &one, &[(2 * BLOCK, 3 * BLOCK), (4 * BLOCK, 5 * BLOCK)]);
    }

    #[test]
    fn holes_stay_holes() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::file(&dir.path().join("disk.img"), 1 << 30).unwrap();
        target.clear(16 << 20).unwrap();
        let mut writer = Writer::new(&target);
        assert_eq!(writer.write(1 << 20, &[0; 65536]).unwrap(), 0);
        assert_eq!(writer.write(2 << 20, &[7; 65536]).unwrap(), 65536);
        target.sync_all().unwrap();
        assert!(target.allocated().unwrap() <= 128 << 10);
        assert_eq!(target.file.metadata().unwrap().len(), 16 << 20);
        target.preallocate(16 << 20).unwrap();
        assert!(target.allocated().unwrap() >= 16 << 20);
    }
}
