//! Mounts and the change of root.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::{Error, Result, at, call};

/// How mounts below a point reach other mount namespaces and bind mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Neither sends nor receives.
    Private,
    /// Sends and receives.
    Shared,
    /// Receives only.
    Slave,
}

/// Mounts a new file system of type `kind`; `options` is the comma-separated list the file system itself reads.
pub fn mount(kind: &str, source: &str, target: &Path, flags: MountFlags, options: &str) -> Result<()> {
    let options = CString::new(options)
        .map_err(|_| Error::Protocol(format!("mount options with a NUL byte for {}", target.display())))?;
    rustix::mount::mount(source, target, kind, flags, Some(options.as_c_str())).map_err(at("mount", target))
}

/// A read-write overlay of `lower`, changes kept in `upper`; `work` must be empty, on the file system of `upper`.
pub fn overlay(lower: &Path, upper: &Path, work: &Path, target: &Path) -> Result<()> {
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    mount("overlay", "overlay", target, MountFlags::empty(), &options)
}

/// A bind mount of `source`, with everything mounted below it, on `target`.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    rustix::mount::mount_bind_recursive(source, target).map_err(at("bind", target))
}

/// A bind mount of `source` alone that cannot be written through.
pub fn bind_read_only(source: &Path, target: &Path) -> Result<()> {
    rustix::mount::mount_bind(source, target).map_err(at("bind", target))?;
    rustix::mount::mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, c"")
        .map_err(at("make read-only", target))
}

/// A bind mount of `source`, in which neither device nodes nor set-user-ID programs mean anything: what is written
/// there is somebody else's.
pub fn bind_volume(source: &Path, target: &Path, read_only: bool) -> Result<()> {
    rustix::mount::mount_bind_recursive(source, target).map_err(at("bind", target))?;
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    rustix::mount::mount_remount(target, flags, c"").map_err(at("limit what is mounted at", target))
}

/// Changes the propagation of the mount at `target`, and of everything below it when `recursive`.
pub fn propagate(target: &Path, how: Propagation, recursive: bool) -> Result<()> {
    let mut flags = match how {
        Propagation::Private => MountPropagationFlags::PRIVATE,
        Propagation::Shared => MountPropagationFlags::SHARED,
        Propagation::Slave => MountPropagationFlags::DOWNSTREAM,
    };
    if recursive {
        flags |= MountPropagationFlags::REC;
    }
    rustix::mount::mount_change(target, flags).map_err(at("change the propagation of", target))
}

/// Detaches the mount at `target` with everything below it, even while it is in use. Not being a mount is not an error.
pub fn detach(target: &Path) -> Result<()> {
    match rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(at("unmount", target)(errno)),
    }
}

/// Makes `new_root`, a mount point, the root directory and lets go of the old root with everything mounted below it.
pub fn pivot(new_root: &Path) -> Result<()> {
    std::env::set_current_dir(new_root).map_err(at("enter", new_root))?;
    // The old root ends up stacked on the new one, so it needs no directory of its own to go to.
    rustix::process::pivot_root(".", ".").map_err(at("pivot to", new_root))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(call("detach the old root"))?;
    std::env::set_current_dir("/").map_err(at("enter", Path::new("/")))
}

/// The mount points of this mount namespace, in mount order.
pub fn points() -> Result<Vec<std::path::PathBuf>> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read(table).map_err(at("read", table))?;
    Ok(parse_points(&text))
}

/// The mount points in a mountinfo table, whose octal escapes are undone.
pub fn parse_points(mountinfo: &[u8]) -> Vec<std::path::PathBuf> {
    mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|field| std::ffi::OsStr::from_bytes(&unescape(field)).into())
        .collect()
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| tail.get(..3)).flatten().and_then(|digits| {
            digits.iter().try_fold(0u16, |value, digit| match digit {
                b'0'..=b'7' => Some(value * 8 + u16::from(digit - b'0')),
                _ => None,
            })
        });
        match octal.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(table: &str, expect: &[&str]) {
        let points = parse_points(table.as_bytes());
        assert_eq!(points, expect.iter().map(std::path::PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn mount_points_with_spaces() {
        check(
            "22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:5 / /mnt/a\\040b rw shared:1 - tmpfs t rw\n",
            &["/", "/mnt/a b"],
        );
        check("30 22 0:5 / /odd\\9 rw - tmpfs t rw", &["/odd\\9"]);
        check("", &[]);
    }
}
