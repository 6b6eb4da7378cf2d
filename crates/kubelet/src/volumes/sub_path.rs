//! subPath: a part of a volume, pinned by descriptor so that no link inside the volume leads out of it.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};

use crate::error::{Error, Result};

/// Binds `sub` of the volume at `root` to `target` (made as file or directory) and returns `target`. A directory that
/// is missing is made, with the mode of the volume: whoever may write to the volume may write there. Links inside the
/// volume are followed as long as they stay in it.
pub(crate) fn bind(root: &Path, sub: &str, target: &Path) -> Result<PathBuf> {
    if Path::new(sub).components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(Error::Invalid(format!("subPath {sub:?} must be a relative path without \"..\"")));
    }
    sys::mount::detach(target).map_err(mount_error(target))?;
    let base: OwnedFd = File::open(root).map_err(Error::file("open volume", root))?.into();
    let pinned =
        pin(&base, sub).map_err(|source| Error::File { what: "open subPath", path: root.join(sub), source })?;
    let meta = File::from(pinned.try_clone().map_err(Error::file("open subPath", root.join(sub)))?)
        .metadata()
        .map_err(Error::file("inspect", root.join(sub)))?;
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
    }
    if meta.is_dir() {
        fs::create_dir_all(target).map_err(Error::file("create", target))?;
    } else {
        File::create(target).map_err(Error::file("create", target))?;
    }
    let source = PathBuf::from(format!("/proc/self/fd/{}", pinned.as_raw_fd()));
    sys::mount::bind(&source, target).map_err(mount_error(target))?;
    Ok(target.to_path_buf())
}

fn mount_error(target: &Path) -> impl FnOnce(sys::Error) -> Error {
    move |error| Error::File { what: "bind subPath at", path: target.into(), source: std::io::Error::other(error) }
}

fn pin(base: &OwnedFd, sub: &str) -> std::io::Result<OwnedFd> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(base.as_fd(), sub, flags, Mode::empty(), inside) {
        Err(rustix::io::Errno::NOENT) => {}
        other => return Ok(other?),
    }
    let mut at: OwnedFd = base.try_clone()?;
    let mode = File::from(base.try_clone()?).metadata()?.permissions().mode() & 0o7777;
    for part in Path::new(sub).components() {
        let name = part.as_os_str();
        at = match openat2(at.as_fd(), name, flags | OFlags::DIRECTORY, Mode::empty(), inside) {
            Err(rustix::io::Errno::NOENT) => {
                match mkdirat(at.as_fd(), name, Mode::from_raw_mode(mode)) {
                    // The umask took its part of the mode, and by a descriptor it is no link's target that changes.
                    Ok(()) => {
                        let own = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let made = openat2(at.as_fd(), name, own, Mode::empty(), inside)?;
                        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
                    }
                    Err(rustix::io::Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                openat2(at.as_fd(), name, flags | OFlags::DIRECTORY, Mode::empty(), inside)?
            }
            other => other?,
        };
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_do_not_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        fs::create_dir_all(root.join("real")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("out")).unwrap();
        std::os::unix::fs::symlink("real", root.join("in")).unwrap();
        let base: OwnedFd = File::open(&root).unwrap().into();
        assert!(pin(&base, "out").is_err());
        assert!(pin(&base, "out/passwd").is_err());
        assert!(pin(&base, "in").is_ok());
        assert!(pin(&base, "made/deep").is_ok() && root.join("made/deep").is_dir());
        assert!(bind(&root, "../v", &dir.path().join("t")).is_err());
    }

    #[test]
    fn created_sub_paths_have_the_mode_of_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o2775] {
            let root = dir.path().join(format!("{mode:o}"));
            fs::create_dir(&root).unwrap();
            fs::set_permissions(&root, fs::Permissions::from_mode(mode)).unwrap();
            pin(&File::open(&root).unwrap().into(), "a/b").unwrap();
            for made in ["a", "a/b"] {
                assert_eq!(fs::metadata(root.join(made)).unwrap().permissions().mode() & 0o7777, mode, "{made}");
            }
        }
    }
}
