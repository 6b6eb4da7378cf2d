//! A tar archive that becomes the content of a volume. Whoever wrote it chooses names only beneath that volume.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sys::beneath::Dir;
use tar::EntryType;

mod names;

use names::{create, inside, make, replace, stays};

use super::Error;
use super::compression::plain;
use crate::checksum::{Checksum, Hasher};

/// Zeros of this length that are aligned to it become holes.
const BLOCK: usize = 64 << 10;

/// Where the links of an archive may point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Beneath the volume: the archive is a stranger's.
    Inside,
    /// Anywhere: the archive is a volume of the user's own, which is copied as it is.
    Anywhere,
}

/// Fills `directory` with the archive that `stream` carries, compressed or not, and returns how many bytes its files have.
/// What was there is removed first, so that an interrupted try leaves nothing behind; `lost+found` stays.
///
/// # Errors
/// When the stream is not a whole archive, does not add up to `checksum`, an entry must not be unpacked, or the volume does
/// not take it. A volume whose stream does not add up is empty afterwards.
pub fn unpack(
    stream: Box<dyn Read + Send>,
    directory: &Path,
    links: Links,
    checksum: Option<&Checksum>,
) -> Result<u64, Error> {
    let fill = |stream| {
        let mut written = 0;
        let filled = fill(stream, directory, links, &mut written);
        filled.map(|()| written).map_err(|error| if is_full(&error) { Error::Full { written } } else { error })
    };
    let Some(expected) = checksum else { return fill(stream) };
    let summed = Summed(Arc::new(Mutex::new((stream, Some(Hasher::new(expected.algorithm()))))));
    let mut rest = summed.clone();
    let bytes = fill(Box::new(summed));
    // The sum is of the stream as it came; what is behind the archive's end belongs to it.
    let read = |source| Error::Io { what: "read the archive", source };
    if bytes.is_ok() {
        io::copy(&mut rest, &mut io::sink()).map_err(read)?;
        let found = rest.0.lock().unwrap_or_else(PoisonError::into_inner).1.take().map(Hasher::finish);
        if let Some(found) = found.filter(|found| found != expected) {
            clear(directory).map_err(|source| Error::Io { what: "empty the volume", source })?;
            return Err(Error::Checksum { expected: expected.clone(), found });
        }
    }
    bytes
}

/// Gives the file `name` of the archive that `stream` carries, and its length, to `take`; the rest of the stream is read, so
/// that whoever sends it is not cut off.
///
/// # Errors
/// When the stream is not a whole archive, or holds no such file.
pub fn file_in<T>(
    mut stream: Box<dyn Read + Send>,
    name: &str,
    take: impl FnOnce(&mut dyn Read, u64) -> T,
) -> Result<T, Error> {
    let read = |source| Error::Io { what: "read the archive", source };
    let mut taken = None;
    let mut take = Some(take);
    let mut archive = tar::Archive::new(&mut stream);
    for entry in archive.entries().map_err(read)? {
        let mut entry = entry.map_err(read)?;
        let path = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        let wanted = inside(&path).is_ok_and(|path| path.is(name));
        if wanted && let Some(take) = take.take() {
            let size = entry.size();
            taken = Some(take(&mut entry, size));
        }
    }
    io::copy(&mut stream, &mut io::sink()).map_err(read)?;
    taken.ok_or_else(|| Error::Image(format!("the volume that is copied has no file {name}")))
}

/// A stream in two hands, and the sum of what came.
#[derive(Clone)]
struct Summed(Arc<Mutex<Counted>>);

/// A stream and the sum of it, until that is taken.
type Counted = (Box<dyn Read + Send>, Option<Hasher>);

impl Read for Summed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut both = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let length = both.0.read(into)?;
        if let Some(hasher) = &mut both.1 {
            hasher.update(&into[..length]);
        }
        Ok(length)
    }
}

fn fill(stream: Box<dyn Read + Send>, directory: &Path, links: Links, bytes: &mut u64) -> Result<(), Error> {
    let opened = |source: sys::Error| Error::Io { what: "open the volume", source: io::Error::other(source) };
    let volume = Dir::open(directory).map_err(opened)?;
    clear(directory).map_err(|source| Error::Io { what: "empty the volume", source })?;
    let read = |source| Error::Io { what: "read the archive", source };
    let mut archive = tar::Archive::new(plain(stream).map_err(read)?);
    let bound = bound(directory, links).map_err(|source| Error::Io { what: "measure the volume", source })?;
    let mut times = Vec::new();
    for entry in archive.entries().map_err(read)? {
        let mut entry = entry.map_err(read)?;
        let path = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        let refused = |why| Error::Entry { path: path.to_string_lossy().chars().take(200).collect(), why };
        let inside = inside(&path).map_err(refused)?;
        let mode = Mode::from_raw_mode(entry.header().mode().unwrap_or(0o644) & 0o777);
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            continue;
        }
        let Some((parent, name)) = inside.split() else {
            // The volume's own directory: its mode is the storage's matter.
            continue;
        };
        let parent = make(&volume, &parent).map_err(|source| Error::Io { what: "make a directory", source })?;
        match kind {
            EntryType::Directory => {
                // The owner has to be able to write below it while the archive is unpacked.
                let made = rustix::fs::mkdirat(&parent, name, mode | Mode::RWXU);
                let made = if made == Err(Errno::EXIST) { Ok(()) } else { made };
                made.map_err(|e| Error::Io { what: "make a directory", source: e.into() })?;
                times.push((inside.path(), entry.header().mtime().unwrap_or(0), mode));
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let written = |source| Error::Io { what: "write a file of the archive", source };
                if bytes.saturating_add(entry.size()) > bound {
                    return Err(refused("the archive's files are far larger than the volume"));
                }
                let file = create(&parent, name, mode).map_err(written)?;
                copy(&mut entry, &file, bytes)?;
                stamp(&file, entry.header().mtime().unwrap_or(0)).map_err(written)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or_else(|| refused("it is a link to nothing"))?;
                let target = Path::new(OsStr::from_bytes(&target));
                if links == Links::Inside && !stays(&inside, target) {
                    return Err(refused("it is a link that leads out of the volume"));
                }
                let made = replace(&parent, name, || rustix::fs::symlinkat(target, &parent, name));
                made.map_err(|e| Error::Io { what: "make a link", source: e.into() })?;
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().ok_or_else(|| refused("it is a link to nothing"))?;
                let target = names::inside(Path::new(OsStr::from_bytes(&target))).map_err(refused)?;
                let (from, to) = target.split().ok_or_else(|| refused("it is a link to the volume itself"))?;
                let from = Path::new(".").join(from);
                let from = volume.dir(&from).map_err(|_| refused("it is a link to a file that is not there"))?;
                // The name is not followed: a link to a link is a link.
                let made = replace(&parent, name, || rustix::fs::linkat(&from, to, &parent, name, AtFlags::empty()));
                made.map_err(|e| match e {
                    Errno::NOENT => refused("it is a link to a file that is not there"),
                    e => Error::Io { what: "make a link", source: e.into() },
                })?;
            }
            _ => return Err(refused("it is neither a file, a directory nor a link")),
        }
    }
    finish(&volume, &times).map_err(|source| Error::Io { what: "finish the volume's directories", source })?;
    let sync = rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    sync.and_then(rustix::fs::syncfs).map_err(|e| Error::Io { what: "flush the volume", source: e.into() })
}

/// Bytes that the files of an archive may have. Holes take no space but time: a stranger's archive may say that it has
/// any number of them.
fn bound(directory: &Path, links: Links) -> io::Result<u64> {
    const SPARSE: u64 = 16;
    let volume = rustix::fs::statvfs(directory)?;
    Ok(match links {
        Links::Inside => volume.f_blocks.saturating_mul(volume.f_frsize).saturating_mul(SPARSE),
        Links::Anywhere => u64::MAX,
    })
}

/// Whether the storage has no room for more.
fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let mut next = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let kind = kind.or_else(|| error.downcast_ref::<Errno>().map(|errno| errno.kind()));
        if kind.is_some_and(full) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Removes all that a directory holds, but for what the file system keeps there itself.
fn clear(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == "lost+found" {
            continue;
        }
        // Neither follows a link.
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Copies an entry's bytes; runs of zeros stay holes, whether the archive knew of them or not.
fn copy(entry: &mut impl Read, file: &File, bytes: &mut u64) -> Result<(), Error> {
    let mut buffer = vec![0; BLOCK];
    let mut at = 0;
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match entry.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { what: "read the archive", source }),
            }
        }
        let written = |source| Error::Io { what: "write a file of the archive", source };
        if filled == 0 {
            return file.set_len(at).map_err(written);
        }
        if buffer[..filled].iter().any(|byte| *byte != 0) {
            file.write_all_at(&buffer[..filled], at).map_err(written)?;
        }
        at += filled as u64;
        *bytes += filled as u64;
    }
}

fn stamp(file: &File, seconds: u64) -> io::Result<()> {
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds))
}

/// Directories get their mode and time last: both change while they are filled, or keep them from being filled.
fn finish(volume: &Dir, directories: &[(PathBuf, u64, Mode)]) -> io::Result<()> {
    for (path, seconds, mode) in directories.iter().rev() {
        let directory = volume.openat(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(io::Error::other)?;
        let directory = File::from(directory);
        stamp(&directory, *seconds)?;
        rustix::fs::fchmod(&directory, *mode)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
