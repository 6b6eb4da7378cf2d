//! Project quotas: what the files of a tree may take of a file system, whoever owns them. XFS and ext4 have them,
//! where they
//! are mounted with `prjquota`.
//!
//! A tree's files carry the number of their project, which new files get from their directory. Everything goes by a
//! descriptor
//! of the tree: neither a device nor a mount table is needed.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use crate::{Result, call};

const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820;
/// New files and directories get their directory's project.
const INHERIT: u32 = 0x200;
/// Commands of quotactl with the type, project, in the last byte.
const GET: libc::c_long = (0x80_0007 << 8) | 2;
const SET: libc::c_long = (0x80_0008 << 8) | 2;
const STATE: libc::c_long = (0x5805 << 8) | 2;
/// Project quotas are kept, and heeded.
const ENFORCED: u16 = 1 << 4 | 1 << 5;
/// Which field of a quota is meant: the limits of space.
const SPACE_LIMITS: u32 = 1;
/// Limits are counted in these.
const BLOCK: u64 = 1024;

/// `struct fsxattr` of the kernel.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    pad: [u8; 8],
}

/// `struct if_dqblk` of the kernel.
#[repr(C)]
#[derive(Default)]
struct Quota {
    hard_limit: u64,
    soft_limit: u64,
    space: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    inodes: u64,
    time: u64,
    inode_time: u64,
    valid: u32,
}

/// `struct fs_quota_stat` of the kernel.
#[repr(C)]
#[derive(Default)]
struct State {
    version: i8,
    flags: u16,
    pad: i8,
    files: [[u64; 3]; 2],
    in_core: u32,
    times: [i32; 3],
    warnings: [u16; 2],
}

/// What a project has and may have, in bytes; a limit of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What its files take.
    pub used: u64,
    /// What they may take.
    pub limit: u64,
}

fn control<T>(on: impl AsFd, command: libc::c_long, project: u32, data: &mut T) -> std::io::Result<()> {
    let fd = libc::c_long::from(on.as_fd().as_raw_fd());
    let project = libc::c_long::from(project);
    // SAFETY: each command reads or writes one `T`, the structure that it is documented with, which is live and
    // exclusively borrowed.
    let answer = unsafe { libc::syscall(libc::SYS_quotactl_fd, fd, command, project, std::ptr::from_mut(data)) };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Whether the file system of `on` keeps to the limits of projects.
pub fn is_enforced(on: impl AsFd) -> bool {
    let mut state = State::default();
    // Kernels and file systems without quotas have many ways to say so.
    control(on, STATE, 0, &mut state).is_ok() && state.flags & ENFORCED == ENFORCED
}

/// What a project has and may have on the file system of `on`; nothing is known of one that never was.
pub fn usage(on: impl AsFd, project: u32) -> Result<Usage> {
    let mut quota = Quota::default();
    match control(on, GET, project, &mut quota) {
        Ok(()) => Ok(Usage { used: quota.space, limit: quota.hard_limit.saturating_mul(BLOCK) }),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(Usage::default()),
        Err(error) => Err(call("read a quota")(error)),
    }
}

/// Lets the project take `bytes` of the file system of `on`; 0 is as much as there is.
pub fn limit(on: impl AsFd, project: u32, bytes: u64) -> Result<()> {
    let mut quota = Quota { hard_limit: bytes.div_ceil(BLOCK), valid: SPACE_LIMITS, ..Quota::default() };
    control(on, SET, project, &mut quota).map_err(call("set a quota"))
}

/// Makes a directory, and what comes into it from now on, the project's.
pub fn assign(directory: impl AsFd, project: u32) -> Result<()> {
    let fd = directory.as_fd().as_raw_fd();
    let mut attributes = Attributes::default();
    // SAFETY: GET_ATTRIBUTES writes one `fsxattr`, which is live and exclusively borrowed.
    if unsafe { libc::ioctl(fd, GET_ATTRIBUTES, &raw mut attributes) } != 0 {
        return Err(call("read the project of a directory")(std::io::Error::last_os_error()));
    }
    attributes.project = project;
    attributes.flags |= INHERIT;
    // SAFETY: SET_ATTRIBUTES reads one `fsxattr`, which is live.
    if unsafe { libc::ioctl(fd, SET_ATTRIBUTES, &raw const attributes) } != 0 {
        return Err(call("set the project of a directory")(std::io::Error::last_os_error()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!((size_of::<Attributes>(), size_of::<Quota>(), size_of::<State>()), (28, 72, 80));
    }

    #[test]
    fn a_file_system_without_quotas_is_known() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert!(!is_enforced(&proc));
        assert!(usage(&proc, 7).is_err() && limit(&proc, 7, 1 << 20).is_err());
    }
}
