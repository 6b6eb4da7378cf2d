//! Disks without content.

use crate::Target;
use crate::import::{ImportError, Imported};

/// Makes `target` a disk of `size` bytes that reads as zero, its space claimed when `preallocate` says so.
///
/// # Errors
/// When the target does not hold as much, or cannot be written.
pub fn blank(target: &Target, size: u64, preallocate: bool) -> Result<Imported, ImportError> {
    let available = target.capacity();
    if size > available {
        return Err(ImportError::TooLarge { virtual_size: size, available, at_least: false });
    }
    let failed = |op| {
        move |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ImportError::Full { written: 0 },
            _ => ImportError::Target { op, source },
        }
    };
    target.clear(size).map_err(failed("clear"))?;
    if preallocate {
        target.preallocate(size).map_err(failed("claim the space of"))?;
    }
    target.sync_all().map_err(failed("flush"))?;
    Ok(Imported::raw(size, size, 0, preallocate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_disk_takes_space_only_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        std::fs::write(&path, [7; 9000]).unwrap();
        let target = Target::file(&path, 8 << 20).unwrap();
        assert_eq!(blank(&target, 8 << 20, false).unwrap().size, 8 << 20);
        assert_eq!(target.allocated().unwrap(), 0);
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
        assert!(blank(&target, 8 << 20, true).unwrap().preallocated);
        assert!(target.allocated().unwrap() >= 8 << 20);
        assert!(matches!(blank(&target, 9 << 20, false), Err(ImportError::TooLarge { .. })));
    }
}
