//! The serial console's log, kept small: a guest may print for ever, the pod's disk does not grow for ever.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Largest size of the log; the newest half is kept beside it when it is cut.
const LIMIT: u64 = 2 << 20;

/// Cuts the log when it is too long. QEMU appends to it, so what follows starts at the beginning again.
pub(crate) fn trim(path: &Path) -> std::io::Result<bool> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    if length <= LIMIT {
        return Ok(false);
    }
    let mut tail = vec![0; usize::try_from(LIMIT / 2).unwrap_or(0)];
    file.read_exact_at(&mut tail, length - LIMIT / 2)?;
    let mut kept = path.as_os_str().to_owned();
    kept.push(".0");
    std::io::Write::write_all(&mut File::create(kept)?, &tail)?;
    file.set_len(0)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_newest_half_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, vec![b'a'; 2 << 20]).unwrap();
        assert!(!super::trim(&path).unwrap());
        std::fs::write(&path, [vec![b'a'; 2 << 20], vec![b'b'; 1 << 20]].concat()).unwrap();
        assert!(super::trim(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(std::fs::read(directory.path().join("log.0")).unwrap(), vec![b'b'; 1 << 20]);
        assert!(!super::trim(&directory.path().join("none")).unwrap());
    }
}
