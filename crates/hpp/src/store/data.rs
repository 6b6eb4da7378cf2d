//! Data of a volume or of a snapshot: one directory or one file in a directory of its pool.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sys::beneath::Dir;
use sys::loop_device;

use crate::copy;

/// Where the data is, and what kind it is of.
#[derive(Clone, Debug)]
pub(crate) struct Data<'a> {
    pub(super) dir: PathBuf,
    pub(super) id: &'a str,
    pub(super) block: bool,
    pub(super) deleted: PathBuf,
}

impl Data<'_> {
    fn path(&self) -> PathBuf {
        self.dir.join(self.id)
    }

    /// Makes the data if it is not there, and a file at least this large.
    pub(super) fn ensure(&self, size: i64) -> io::Result<()> {
        let path = self.path();
        if self.block {
            let length = u64::try_from(size).unwrap_or(0);
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            if file.metadata()?.len() < length {
                file.set_len(length)?;
            }
            return Ok(());
        }
        if !path.exists() {
            fs::create_dir(&path)?;
            // Whoever the pod runs as writes here, as upstream; the pool above is root's alone to list.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        }
        Ok(())
    }

    /// Becomes a copy of `from`, where nothing or nothing in it is yet, and stays it when the power fails.
    pub(super) fn copy(&self, from: &Data<'_>, dev: &Path) -> io::Result<()> {
        if self.block {
            let original = from.file()?;
            // What was written to the device is in its file only then.
            if let Some(device) = loop_device::find(&original, dev).map_err(copy::cause)? {
                File::open(device)?.sync_all()?;
            }
            self.ensure(0)?;
            let to = self.file()?;
            copy::file(&original, &to)?;
            return to.sync_all();
        }
        self.ensure(0)?;
        let (from, to) = (from.directory()?, self.directory()?);
        copy::tree(&from, &to)?;
        let whole = to.openat(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY).map_err(copy::cause)?;
        Ok(rustix::fs::syncfs(whole)?)
    }

    /// Removes the data; not being there is as good.
    pub(super) fn delete(&self) -> io::Result<()> {
        let out = self.deleted.join(self.id);
        remove(&out)?;
        match fs::rename(self.path(), &out) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove(&out)
    }

    /// The directory or file, pinned: no link leads elsewhere.
    pub(crate) fn open(&self) -> Result<OwnedFd, sys::Error> {
        Dir::open(&self.dir)?.reference(self.id)
    }

    /// The directory of data that is one, opened to be read.
    pub(super) fn readable(&self) -> io::Result<File> {
        let opened =
            Dir::open(&self.dir).and_then(|dir| dir.openat(Path::new(self.id), OFlags::RDONLY | OFlags::DIRECTORY));
        opened.map(File::from).map_err(copy::cause)
    }

    fn directory(&self) -> io::Result<Dir> {
        Dir::open(&self.dir).and_then(|dir| dir.dir(self.id)).map_err(copy::cause)
    }

    /// The file of block data.
    pub(crate) fn file(&self) -> io::Result<File> {
        let opened = Dir::open(&self.dir).and_then(|dir| dir.openat(Path::new(self.id), OFlags::RDWR));
        opened.map(File::from).map_err(copy::cause)
    }

    /// Something like it is where it should be.
    pub(crate) fn is_whole(&self) -> bool {
        let meta = self.open().ok().and_then(|fd| fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok());
        meta.is_some_and(|meta| if self.block { meta.is_file() } else { meta.is_dir() })
    }
}

/// Removes a file or a tree, following no link; nothing there is as good.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
