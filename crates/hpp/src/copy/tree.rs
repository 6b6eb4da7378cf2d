//! A directory with all that is in it: owners, modes, times, attributes, hard links, links and special files.
//!
//! Whoever uses the volume may change it meanwhile. Nothing is resolved but beneath the two directories and without
//! following a link; what vanishes before its turn is not copied.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid};
use rustix::io::Errno;
use sys::beneath::Dir;

use super::cause;

const NO_FOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;
/// Attributes longer than the kernel allows do not exist.
const ATTRIBUTE: usize = 64 << 10;

/// Copies all that is in `from` to `to`, which is empty, and what `from` itself is like.
pub(crate) fn tree(from: &Dir, to: &Dir) -> io::Result<()> {
    let mut copy = Copy { from, to, links: HashMap::new() };
    // A directory gets its times last, when nothing is put into it any more.
    let mut done: Vec<(PathBuf, Stat)> = Vec::new();
    let mut pending = vec![PathBuf::from(".")];
    while let Some(path) = pending.pop() {
        let source = match from.openat(&path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => continue,
            other => other.map_err(cause)?,
        };
        let about = rustix::fs::fstat(&source)?;
        let target = to.openat(&path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(cause)?;
        attributes(&source, &target)?;
        for entry in rustix::fs::Dir::read_from(&source)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            pending.extend(copy.entry(&path, &source, &target, entry.file_name())?);
        }
        done.push((path, about));
    }
    for (path, about) in done.iter().rev() {
        let target = to.openat(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(cause)?;
        rustix::fs::fchown(&target, Some(Uid::from_raw(about.st_uid)), Some(Gid::from_raw(about.st_gid)))?;
        rustix::fs::fchmod(&target, Mode::from_raw_mode(about.st_mode))?;
        rustix::fs::futimens(&target, &times(about))?;
    }
    Ok(())
}

struct Copy<'a> {
    from: &'a Dir,
    to: &'a Dir,
    /// Where the first name of a file with several was copied to.
    links: HashMap<(u64, u64), PathBuf>,
}

impl Copy<'_> {
    /// Copies one entry; a directory is made, and its path returned for its own turn.
    fn entry(&mut self, dir: &Path, source: &OwnedFd, target: &OwnedFd, name: &CStr) -> io::Result<Option<PathBuf>> {
        let path = dir.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let about = match rustix::fs::statat(source, name, NO_FOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        match FileType::from_raw_mode(about.st_mode) {
            FileType::Directory => {
                rustix::fs::mkdirat(target, name, Mode::RWXU)?;
                return Ok(Some(path));
            }
            FileType::RegularFile => return self.file(&path, &about, target, name).map(|()| None),
            FileType::Symlink => match rustix::fs::readlinkat(source, name, Vec::new()) {
                Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
                other => rustix::fs::symlinkat(other?, target, name)?,
            },
            kind => rustix::fs::mknodat(target, name, kind, Mode::from_raw_mode(about.st_mode), about.st_rdev)?,
        }
        rustix::fs::chownat(
            target,
            name,
            Some(Uid::from_raw(about.st_uid)),
            Some(Gid::from_raw(about.st_gid)),
            NO_FOLLOW,
        )?;
        rustix::fs::utimensat(target, name, &times(&about), NO_FOLLOW)?;
        Ok(None)
    }

    fn file(&mut self, path: &Path, about: &Stat, target: &OwnedFd, name: &CStr) -> io::Result<()> {
        let identity = (about.st_dev, about.st_ino);
        if let Some(first) = self.links.get(&identity) {
            return Ok(rustix::fs::linkat(self.to, first, target, name, AtFlags::empty())?);
        }
        let from = match self.from.openat(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW) {
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => return Ok(()),
            other => File::from(other.map_err(cause)?),
        };
        // Something else may have taken the name since it was looked at.
        if !from.metadata()?.is_file() {
            return Ok(());
        }
        let to = self.to.create(path, 0o600).map_err(cause)?;
        super::file(&from, &to)?;
        attributes(&from, &to)?;
        rustix::fs::fchown(&to, Some(Uid::from_raw(about.st_uid)), Some(Gid::from_raw(about.st_gid)))?;
        rustix::fs::fchmod(&to, Mode::from_raw_mode(about.st_mode))?;
        rustix::fs::futimens(&to, &times(about))?;
        if about.st_nlink > 1 {
            self.links.insert(identity, path.to_owned());
        }
        Ok(())
    }
}

fn times(about: &Stat) -> Timestamps {
    let at = |seconds: i64, nanos: u64| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanos.cast_signed() };
    Timestamps {
        last_access: at(about.st_atime, about.st_atime_nsec),
        last_modification: at(about.st_mtime, about.st_mtime_nsec),
    }
}

/// Extended attributes, ACLs among them, as far as the other file system takes them.
fn attributes(from: &impl std::os::fd::AsFd, to: &impl std::os::fd::AsFd) -> io::Result<()> {
    let mut names = vec![0; ATTRIBUTE];
    let length = match rustix::fs::flistxattr(from, names.as_mut_slice()) {
        Err(Errno::NOTSUP) => return Ok(()),
        other => other?,
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; ATTRIBUTE];
        let length = match rustix::fs::fgetxattr(from, name, value.as_mut_slice()) {
            Err(Errno::NODATA) => continue,
            other => other?,
        };
        match rustix::fs::fsetxattr(to, name, &value[..length], rustix::fs::XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_copy_is_what_the_original_was() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("sub/deep")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(dir.path().join("secret"), "outside").unwrap();
        fs::write(from.join("sub/f"), "data").unwrap();
        fs::hard_link(from.join("sub/f"), from.join("sub/deep/same")).unwrap();
        symlink("../secret", from.join("out")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, from.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::set_permissions(from.join("sub/f"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(from.join("sub"), fs::Permissions::from_mode(0o2570)).unwrap();
        std::os::unix::fs::chown(from.join("sub/deep"), Some(7), Some(8)).unwrap();
        tree(&Dir::open(&from).unwrap(), &Dir::open(&to).unwrap()).unwrap();

        assert_eq!(fs::read_to_string(to.join("sub/f")).unwrap(), "data");
        assert_eq!(fs::read_link(to.join("out")).unwrap(), Path::new("../secret"));
        let same = |path: &str| {
            let (old, new) =
                (fs::symlink_metadata(from.join(path)).unwrap(), fs::symlink_metadata(to.join(path)).unwrap());
            assert_eq!((old.mode(), old.uid(), old.gid()), (new.mode(), new.uid(), new.gid()), "{path}");
            assert_eq!((old.mtime(), old.mtime_nsec()), (new.mtime(), new.mtime_nsec()), "{path}");
        };
        for path in [".", "sub", "sub/f", "sub/deep", "out", "pipe"] {
            same(path);
        }
        let (one, other) = (fs::metadata(to.join("sub/f")).unwrap(), fs::metadata(to.join("sub/deep/same")).unwrap());
        assert_eq!((one.ino(), one.nlink()), (other.ino(), 2), "the two names are one file");
    }
}
