//! Locks that end with their holder: the way a process says "I am running" without a stale file ever saying it for it.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{Result, at};

/// A held lock; dropped, or at the latest when the process ends, it is free again. Children do not inherit it.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Drop for Lock {
    /// Said aloud, because closing is not enough: a child that was forked and has not executed its program yet holds a copy of
    /// the descriptor.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Takes the lock at `path`, making the file if needed; None when somebody else holds it.
pub fn acquire(path: &Path) -> Result<Option<Lock>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(at("open", path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock { file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(at("lock", path)(error)),
    }
}

/// The pid of the process that holds the lock at `path`, as numbered in this PID namespace.
pub fn holder(path: &Path) -> Result<Option<u32>> {
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(at("look at", path))?,
    };
    let table = Path::new("/proc/locks");
    let text = std::fs::read_to_string(table).map_err(at("read", table))?;
    let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    Ok(parse_holder(&text, device, metadata.ino()))
}

/// The pid behind a whole-file lock in `/proc/locks`; waiters, which carry an arrow, do not count.
pub fn parse_holder(locks: &str, device: (u32, u32), inode: u64) -> Option<u32> {
    let id = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let is_ours = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&id.as_str());
        if is_ours { fields.get(4)?.parse().ok().filter(|pid| *pid != 0) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_until_it_lets_go() {
        let path = std::env::temp_dir().join(format!("lock-{}", std::process::id()));
        assert_eq!(holder(&path).unwrap(), None);
        let lock = acquire(&path).unwrap().unwrap();
        assert!(acquire(&path).unwrap().is_none());
        assert_eq!(holder(&path).unwrap(), Some(std::process::id()));
        drop(lock);
        assert_eq!(holder(&path).unwrap(), None);
        std::fs::remove_file(path).unwrap();
    }

    #[track_caller]
    fn check(line: &str, expect: Option<u32>) {
        assert_eq!(parse_holder(line, (0xfe, 0), 42), expect);
    }

    #[test]
    fn lines_of_the_table() {
        check("1: FLOCK  ADVISORY  WRITE 77 fe:00:42 0 EOF", Some(77));
        check("1: POSIX  ADVISORY  WRITE 77 fe:00:42 0 EOF", None);
        check("1: FLOCK  ADVISORY  WRITE 77 fe:00:43 0 EOF", None);
        check("1: -> FLOCK  ADVISORY  WRITE 78 fe:00:42 0 EOF", None);
        check("", None);
    }
}
