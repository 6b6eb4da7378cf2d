//! Settings of the kernel's network stack, written in one network namespace.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::error::Error;

/// Reads a setting there; `path` is below `/proc/sys`.
pub(crate) fn read(netns: BorrowedFd<'_>, path: &[&str]) -> Result<String, Error> {
    let file = file(path);
    let what = format!("read {}", file.display());
    let text = sys::namespace::in_netns(netns, || std::fs::read_to_string(&file)).map_err(entered(&file))?;
    text.map(|text| text.trim().to_owned()).map_err(Error::io(what))
}

/// Writes a setting there.
pub(crate) fn write(netns: BorrowedFd<'_>, path: &[&str], value: &str) -> Result<(), Error> {
    let file = file(path);
    let what = format!("write {value:?} to {}", file.display());
    let done = sys::namespace::in_netns(netns, || std::fs::write(&file, value)).map_err(entered(&file))?;
    done.map_err(Error::io(what))
}

/// Writes a setting that kernels without this protocol lack.
pub(crate) fn write_if_there(netns: BorrowedFd<'_>, path: &[&str], value: &str) -> Result<(), Error> {
    match write(netns, path, value) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn file(path: &[&str]) -> PathBuf {
    path.iter().fold(PathBuf::from("/proc/sys"), |file, part| file.join(part))
}

fn entered(file: &std::path::Path) -> impl FnOnce(sys::Error) -> Error {
    let path = file.display().to_string();
    move |source| Error::Namespace { path, source }
}
