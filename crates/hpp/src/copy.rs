//! Copies of data: shared with the original where the file system can (reflink), else its data without its holes.

mod tree;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

pub(crate) use tree::tree;

/// How much is asked of the kernel at a time, and copied at a time where it does not copy.
const AT_ONCE: u64 = 64 << 20;
const BUFFER: usize = 1 << 20;

/// Makes `to`, which is empty, the same as `from` is now.
pub(crate) fn file(from: &File, to: &File) -> io::Result<()> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => Ok(()),
        // No sharing here: another file system, or one that cannot.
        Err(Errno::NOTSUP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS | Errno::PERM) => sparse(from, to),
        Err(error) => Err(error.into()),
    }
}

/// Copies what is not a hole.
fn sparse(from: &File, to: &File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole follows.
            Err(Errno::NXIO) => break,
            // A file system that does not tell holes from data.
            Err(Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        let hole = rustix::fs::seek(from, SeekFrom::Hole(data)).unwrap_or(length).min(length);
        range(from, to, data, hole)?;
        at = hole.max(data + 1);
    }
    Ok(())
}

fn range(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    while at < end {
        let (mut read, mut written) = (at, at);
        let most = usize::try_from((end - at).min(AT_ONCE)).unwrap_or(BUFFER);
        match rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), most) {
            // It became shorter meanwhile.
            Ok(0) => break,
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::XDEV | Errno::INVAL | Errno::NOTSUP | Errno::BADF) => {
                return by_hand(from, to, at, end);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn by_hand(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    while at < end {
        let most = usize::try_from(end - at).map_or(BUFFER, |left| left.min(BUFFER));
        let read = from.read_at(&mut buffer[..most], at)?;
        if read == 0 {
            break;
        }
        to.write_all_at(&buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}

/// The kernel's answer, which says whether there was no room.
pub(crate) fn cause(error: sys::Error) -> io::Error {
    match error {
        sys::Error::Path { source, .. } | sys::Error::Call { source, .. } => source,
        sys::Error::Protocol(text) => io::Error::other(text),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn new(dir: &std::path::Path, name: &str) -> File {
        File::options().read(true).write(true).create(true).truncate(true).open(dir.join(name)).unwrap()
    }

    #[test]
    fn data_is_copied_and_holes_are_not() {
        let dir = tempfile::tempdir().unwrap();
        for copy in [file, sparse, |from: &File, to: &File| by_hand(from, to, 0, 1 << 30)] {
            let (from, to) = (new(dir.path(), "from"), new(dir.path(), "to"));
            from.set_len(8 << 20).unwrap();
            from.write_all_at(b"first", 4096).unwrap();
            from.write_all_at(b"last", (8 << 20) - 4).unwrap();
            copy(&from, &to).unwrap();
            assert_eq!(std::fs::read(dir.path().join("from")).unwrap(), std::fs::read(dir.path().join("to")).unwrap());
        }
        let (from, to) = (new(dir.path(), "from"), new(dir.path(), "to"));
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"x", 32 << 20).unwrap();
        file(&from, &to).unwrap();
        let meta = to.metadata().unwrap();
        assert!(meta.len() == 64 << 20 && meta.blocks() * 512 < 1 << 20, "{} bytes are allocated", meta.blocks() * 512);
    }
}
