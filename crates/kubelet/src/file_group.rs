//! fsGroup: a volume's files are the pod's group's, readable and writable for it, and so is what is made there later.
//!
//! The files may be changed by others while it happens: each is opened by a descriptor of its directory and no link is
//! followed, so nothing outside of the volume changes its owner.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, chmod, chownat, fstat, openat};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Deeper than any tree that programs can use by path.
const DEPTH: usize = 2048;

/// Gives everything at `path` to `group`; with `on_mismatch` only when the root is not the group's yet.
pub(crate) async fn give(path: PathBuf, group: u32, on_mismatch: bool) -> Result<()> {
    let root = path.clone();
    let work = tokio::task::spawn_blocking(move || walk(&root, group, on_mismatch));
    let outcome =
        work.await.map_err(|error| Error::file("change the group of", &path)(std::io::Error::other(error)))?;
    outcome.map_err(|errno| Error::file("change the group of", &path)(errno.into()))
}

fn walk(root: &Path, group: u32, on_mismatch: bool) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty())?;
    let stat = fstat(&root)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if on_mismatch && stat.st_gid == group && mode.contains(wanted(FileType::Directory)) {
        return Ok(());
    }
    descend(&root, group, 0)?;
    // Last, so that a walk that was cut short is seen to be unfinished.
    own(&root, group)
}

fn descend(dir: &OwnedFd, group: u32, depth: usize) -> Result<(), Errno> {
    if depth > DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let readable = openat(dir, ".", flags, Mode::empty())?;
    for entry in Dir::read_from(&readable)? {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let child =
            match openat(dir, entry.file_name(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
                // Gone while we looked.
                Err(Errno::NOENT) => continue,
                other => other?,
            };
        if FileType::from_raw_mode(fstat(&child)?.st_mode) == FileType::Directory {
            descend(&child, group, depth + 1)?;
        }
        own(&child, group)?;
    }
    Ok(())
}

fn own(file: &OwnedFd, group: u32) -> Result<(), Errno> {
    let stat = fstat(file)?;
    let (kind, mode) = (FileType::from_raw_mode(stat.st_mode), Mode::from_raw_mode(stat.st_mode));
    if stat.st_gid != group {
        chownat(file.as_fd(), "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let wanted = mode | wanted(kind);
    // A link has no mode of its own. Changing the owner may have taken bits away: what is wanted is always set.
    if kind == FileType::Symlink || (wanted == mode && stat.st_gid == group) {
        return Ok(());
    }
    chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), wanted)
}

/// The bits a file of that kind needs for its group.
fn wanted(kind: FileType) -> Mode {
    let both = Mode::from_raw_mode(0o660);
    match kind {
        FileType::Directory => both | Mode::from_raw_mode(0o2110),
        FileType::Symlink => Mode::empty(),
        _ => both,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[tokio::test]
    async fn files_become_the_groups_and_links_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("v"), dir.path().join("outside"));
        fs::create_dir_all(root.join("sub")).unwrap();
        for file in [root.join("sub/f"), outside.clone()] {
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        }
        symlink(&outside, root.join("out")).unwrap();
        give(root.clone(), 2000, false).await.unwrap();
        assert_eq!((mode(&root) & 0o2770, mode(&root.join("sub/f"))), (0o2770, 0o660));
        assert_eq!(fs::metadata(root.join("sub/f")).unwrap().gid(), 2000);
        assert_eq!((mode(&outside), fs::metadata(&outside).unwrap().gid()), (0o600, 0));
        // A root that is right is taken for the whole.
        fs::set_permissions(root.join("sub/f"), fs::Permissions::from_mode(0o600)).unwrap();
        give(root.clone(), 2000, true).await.unwrap();
        assert_eq!(mode(&root.join("sub/f")), 0o600);
        give(root.clone(), 2001, true).await.unwrap();
        assert_eq!(mode(&root.join("sub/f")), 0o660);
    }
}
