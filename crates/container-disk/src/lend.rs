//! Opening the files and handing them to whoever may have them.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::answer;

/// Where an image keeps its disk unless the volume names a path.
const DEFAULT_DIRECTORY: &str = "/disk";

/// Puts this program at `target`, for the containers that share its directory.
pub(crate) fn install(target: &Path) -> io::Result<()> {
    let program = std::env::current_exe()?;
    // Written beside and renamed: nobody ever runs half of it.
    let partial = target.with_extension("partial");
    fs::copy(&program, &partial)?;
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o755))?;
    fs::rename(&partial, target)
}

/// Lends the files until SIGTERM, which ends the process at once: it holds nothing that needs care.
pub(crate) fn serve(socket: &Path, paths: &[PathBuf]) -> io::Result<()> {
    sys::signal::exit_when_asked().map_err(io::Error::other)?;
    // A socket left by an earlier run of this container; the next connect finds ours.
    if fs::symlink_metadata(socket).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(socket)?;
    }
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
    for stream in listener.incoming() {
        // A caller that goes away, or may not have the file, is no reason to stop lending.
        let _ = answer_one(&stream?, paths);
    }
    Ok(())
}

fn answer_one(stream: &UnixStream, paths: &[PathBuf]) -> io::Result<()> {
    let peer = sys::peer::peer(stream).map_err(io::Error::other)?;
    if peer.uid != rustix::process::geteuid().as_raw() {
        return send(stream, &answer::error("this user may not have the disk"), &[]);
    }
    match open_all(paths) {
        Ok(files) => files.iter().try_for_each(|(path, file)| {
            let size = file.metadata()?.len();
            send(stream, &answer::file(&path.to_string_lossy(), size), &[file.as_fd()])
        }),
        Err(error) => send(stream, &answer::error(&error.to_string()), &[]),
    }
}

fn open_all(paths: &[PathBuf]) -> io::Result<Vec<(PathBuf, File)>> {
    if paths.is_empty() {
        let path = only_file(Path::new(DEFAULT_DIRECTORY))?;
        return Ok(vec![(path.clone(), open(&path)?)]);
    }
    paths.iter().map(|path| open(path).map(|file| (path.clone(), file))).collect()
}

pub(crate) fn open(path: &Path) -> io::Result<File> {
    let named = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            error.kind(),
            format!("the image holds no file {}: correct the path, or the image", path.display()),
        ),
        io::ErrorKind::PermissionDenied => io::Error::new(
            error.kind(),
            format!("{} cannot be read by user 107: let others read it in the image", path.display()),
        ),
        _ => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    };
    let file = File::open(path).map_err(named)?;
    if !file.metadata().map_err(named)?.is_file() {
        return Err(named(io::Error::other("not a regular file")));
    }
    Ok(file)
}

pub(crate) fn only_file(directory: &Path) -> io::Result<PathBuf> {
    let found = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
    let mut files = Vec::new();
    match fs::read_dir(directory) {
        Ok(entries) => {
            for entry in entries {
                let path = entry.map_err(found)?.path();
                if path.is_file() {
                    files.push(path);
                }
            }
        }
        // As good as an empty one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(found(error)),
    }
    match (files.pop(), files.len()) {
        (Some(path), 0) => Ok(path),
        (None, _) => Err(io::Error::other(format!(
            "no disk in {}: the image must hold exactly one file there, or the volume must name its path",
            directory.display()
        ))),
        (Some(_), others) => Err(io::Error::other(format!(
            "{} files in {}: the image must hold exactly one there, or the volume must name its path",
            others + 1,
            directory.display()
        ))),
    }
}

fn send(stream: &UnixStream, message: &str, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    sys::fdpass::send(stream, message.as_bytes(), files).map_err(io::Error::other)
}
