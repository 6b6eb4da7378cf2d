//! Names in a volume that somebody else chose: plain ones only, and no link on the way is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use sys::beneath::Dir;

/// Directories below each other; a path has at most 4096 bytes anyway.
const DEPTH: usize = 256;

/// A path of plain names, beneath the volume.
pub(super) struct Inside<'a>(Vec<&'a OsStr>);

impl Inside<'_> {
    /// Whether it is this one name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.0 == [OsStr::new(name)]
    }

    pub(super) fn split(&self) -> Option<(PathBuf, &OsStr)> {
        let (name, parent) = self.0.split_last()?;
        Some((parent.iter().collect(), name))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.iter().collect()
    }
}

pub(super) fn inside(path: &Path) -> Result<Inside<'_>, &'static str> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            // Archives made with absolute names mean them below the place of unpacking.
            Component::RootDir => {}
            Component::ParentDir => return Err("its path leads out of the volume"),
            Component::Prefix(_) => return Err("its path is not one of this system"),
        }
    }
    if names.len() > DEPTH {
        return Err("its path is too deep");
    }
    Ok(Inside(names))
}

/// Whether a link at `link` with this target ends beneath the volume, as it is written.
pub(super) fn stays(link: &Inside<'_>, target: &Path) -> bool {
    let mut depth = link.0.len().saturating_sub(1);
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

/// The directory at `path`, made with its parents where it is missing. Links on the way are not followed.
pub(super) fn make(volume: &Dir, path: &Path) -> io::Result<Dir> {
    if path.as_os_str().is_empty() {
        return volume.dir(".").map_err(io::Error::other);
    }
    let mut at: Option<Dir> = None;
    for name in path {
        let here = at.as_ref().unwrap_or(volume);
        match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = Some(here.dir(name).map_err(io::Error::other)?);
    }
    at.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Does `make`, over whatever else has the name.
pub(super) fn replace(parent: &Dir, name: &OsStr, make: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    match make() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
            make()
        }
        other => other,
    }
}

pub(super) fn create(parent: &Dir, name: &OsStr, mode: Mode) -> io::Result<File> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let file = parent.create(name, 0o600).map_err(io::Error::other)?;
    rustix::fs::fchmod(&file, mode)?;
    Ok(file)
}
