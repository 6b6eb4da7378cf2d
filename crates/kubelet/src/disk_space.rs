//! How full a disk is. A share alone would misjudge: a twentieth of a laptop's disk holds many guests, and nine tenths of
//! a small one may be too few.

use std::path::Path;

/// With this much free no disk is tight, whatever its size.
const AMPLE: u64 = 8 << 30;

/// What is free on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    percent: u64,
    bytes: u64,
}

impl Space {
    /// Of the file system `path` is on, or will be on. None when that cannot be told.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let existing = path.ancestors().find(|path| path.exists())?;
        let stat = rustix::fs::statvfs(existing).ok().filter(|stat| stat.f_blocks > 0)?;
        Some(Self {
            percent: stat.f_bavail.saturating_mul(100) / stat.f_blocks,
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    /// Less than `percent` is free, and not much in bytes either.
    pub(crate) fn is_below(self, percent: u64) -> bool {
        self.percent < percent && self.bytes < AMPLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tight_is_small_in_share_and_in_bytes() {
        let check = |percent, gib: u64, expect| assert_eq!(Space { percent, bytes: gib << 30 }.is_below(15), expect);
        check(4, 20, false);
        check(4, 2, true);
        check(50, 2, false);
    }

    #[test]
    fn a_path_that_is_not_there_yet_is_on_its_parents_disk() {
        assert!(Space::of(Path::new("/no/such/path")).is_some());
    }
}
