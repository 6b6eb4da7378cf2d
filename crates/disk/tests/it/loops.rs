//! Devices and file systems that a test makes and takes away. Both need root.

use std::ffi::CString;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

/// A loop device, for as long as a test runs.
pub(crate) struct Loop {
    backing: File,
    pub(crate) path: PathBuf,
}

impl Loop {
    pub(crate) fn of(bytes: &[u8], dir: &Path) -> Self {
        let file = dir.join("backing");
        std::fs::write(&file, bytes).unwrap();
        let backing = File::options().read(true).write(true).open(file).unwrap();
        let path = sys::loop_device::attach(&backing, Path::new("/dev")).unwrap();
        Self { backing, path }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = sys::loop_device::detach(&self.backing, Path::new("/dev"));
    }
}

/// A file system that holds so many bytes and no more.
pub(crate) struct Room {
    pub(crate) path: PathBuf,
}

impl Room {
    pub(crate) fn of(bytes: u64, dir: &Path) -> Self {
        let path = dir.join("room");
        std::fs::create_dir(&path).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), Some(size(bytes).as_c_str())).unwrap();
        Self { path }
    }

    pub(crate) fn grow(&self, bytes: u64) {
        mount_remount(&self.path, MountFlags::empty(), size(bytes).as_c_str()).unwrap();
    }
}

fn size(bytes: u64) -> CString {
    CString::new(format!("size={bytes}")).unwrap()
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}
