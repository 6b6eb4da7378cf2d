//! Device nodes.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};

use crate::{Result, at};

/// Character or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Character device.
    Char,
    /// Block device.
    Block,
}

/// Makes a device node with exactly `mode`, whatever the umask; an existing node at `path` is replaced.
pub fn make(path: &Path, kind: Kind, major: u32, minor: u32, mode: u32) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at("replace", path)(error)),
        _ => {}
    }
    let file_type = match kind {
        Kind::Char => FileType::CharacterDevice,
        Kind::Block => FileType::BlockDevice,
    };
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::mknodat(CWD, path, file_type, mode, rustix::fs::makedev(major, minor))
        .map_err(at("make device node", path))?;
    rustix::fs::chmod(path, mode).map_err(at("set the mode of", path))
}

/// Kind, major and minor of the device node at `path`; None when nothing is there or it is no device.
pub fn numbers(path: &Path) -> Option<(Kind, u32, u32)> {
    let stat = rustix::fs::stat(path).ok()?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        _ => return None,
    };
    Some((kind, rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
}

/// Major and minor of a device number, as file metadata give it.
pub fn split(number: u64) -> (u32, u32) {
    (rustix::fs::major(number), rustix::fs::minor(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_known_devices() {
        assert_eq!(numbers(Path::new("/dev/null")), Some((Kind::Char, 1, 3)));
        assert_eq!(numbers(Path::new("/etc/passwd")), None);
        assert_eq!(numbers(Path::new("/nonexistent")), None);
    }
}
