//! The volumes of a pool: what is kept of each, and its data.
//!
//! ```text
//!  POOL/ID              a directory, or a sparse file for a block volume
//!  POOL/.volumes/ID     what was asked for, as JSON; made before the data and removed after it
//!  POOL/.deleted/ID     data on its way out
//! ```

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sys::beneath::Dir;

use crate::Pool;

const RECORDS: &str = ".volumes";
const DELETED: &str = ".deleted";

/// What is kept of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name it was asked for by.
    pub(crate) name: String,
    /// A file that serves as a block device, and not a directory.
    pub(crate) block: bool,
    /// What was asked for, in bytes; a directory's files may take more.
    pub(crate) size: i64,
    /// It lives as long as the pod that it was made for.
    #[serde(default)]
    pub(crate) ephemeral: bool,
    /// Where it is published. After a restart of the node some of these are no mounts any more.
    #[serde(default)]
    pub(crate) targets: Vec<PathBuf>,
}

/// A volume and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) record: Record,
    pub(crate) pool: Pool,
}

/// The id of the volume of that name: the name itself where it can be a file's, else a digest of it.
pub(crate) fn id(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.len() <= 128 && name.bytes().all(plain) && !name.starts_with('.') {
        return name.to_owned();
    }
    Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes the pool's directories, and finishes deletions that were cut short.
pub(crate) fn prepare(pool: &Pool) -> io::Result<()> {
    for dir in [RECORDS, DELETED] {
        let path = pool.path.join(dir);
        fs::create_dir_all(&path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    for entry in fs::read_dir(pool.path.join(DELETED))?.flatten() {
        remove(&entry.path())?;
    }
    Ok(())
}

/// The volume of that id; an id that no volume can have is one of no volume.
pub(crate) fn find(pools: &[Pool], wanted: &str) -> io::Result<Option<Volume>> {
    if wanted.is_empty() || id(wanted) != wanted {
        return Ok(None);
    }
    for pool in pools {
        match fs::read(record_path(pool, wanted)) {
            Ok(bytes) => {
                let record = serde_json::from_slice(&bytes)?;
                return Ok(Some(Volume { id: wanted.to_owned(), record, pool: pool.clone() }));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// All volumes by id.
pub(crate) fn all(pools: &[Pool]) -> io::Result<Vec<Volume>> {
    let mut found = Vec::new();
    for pool in pools {
        for entry in fs::read_dir(pool.path.join(RECORDS))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                found.extend(find(std::slice::from_ref(pool), &name)?);
            }
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

fn record_path(pool: &Pool, id: &str) -> PathBuf {
    pool.path.join(RECORDS).join(id)
}

impl Volume {
    /// Makes the volume; one that was half made is completed.
    pub(crate) fn create(pool: &Pool, record: Record) -> io::Result<Self> {
        let volume = Volume { id: id(&record.name), record, pool: pool.clone() };
        volume.keep()?;
        volume.ensure()?;
        Ok(volume)
    }

    /// Makes the data if it is not there.
    pub(crate) fn ensure(&self) -> io::Result<()> {
        let path = self.path();
        if self.record.block {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            if file.metadata()?.len() < length(self.record.size) {
                file.set_len(length(self.record.size))?;
            }
            return Ok(());
        }
        if !path.exists() {
            fs::create_dir(&path)?;
            // Whoever the pod runs as writes here, as upstream; the pool above is root's alone to list.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.pool.path.join(&self.id)
    }

    /// Keeps the record: all of it or none, and for good.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let (path, new) =
            (record_path(&self.pool, &self.id), self.pool.path.join(RECORDS).join(format!(".{}", self.id)));
        fs::write(&new, serde_json::to_vec(&self.record)?)?;
        File::open(&new)?.sync_all()?;
        fs::rename(&new, path)
    }

    /// Removes the volume with its data.
    pub(crate) fn delete(&self) -> io::Result<()> {
        let out = self.pool.path.join(DELETED).join(&self.id);
        remove(&out)?;
        match fs::rename(self.path(), &out) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove(&out)?;
        match fs::remove_file(record_path(&self.pool, &self.id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a volume larger: a block volume's file, or what a directory is meant to hold.
    pub(crate) fn grow(&mut self, size: i64) -> io::Result<()> {
        self.record.size = size;
        self.keep()?;
        self.ensure()
    }

    /// The volume's directory or file, pinned: no link leads elsewhere.
    pub(crate) fn open(&self) -> Result<std::os::fd::OwnedFd, sys::Error> {
        Dir::open(&self.pool.path)?.reference(&self.id)
    }

    /// The file of a block volume.
    pub(crate) fn file(&self) -> Result<File, sys::Error> {
        Dir::open(&self.pool.path)?.openat(Path::new(&self.id), OFlags::RDWR).map(File::from)
    }

    /// Something like the volume is where it should be.
    pub(crate) fn is_whole(&self) -> bool {
        let meta = self.open().ok().and_then(|fd| fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok());
        meta.is_some_and(|meta| if self.record.block { meta.is_file() } else { meta.is_dir() })
    }
}

fn length(size: i64) -> u64 {
    u64::try_from(size).unwrap_or(0)
}

/// Removes a file or a tree, following no link; nothing there is as good.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_ids_that_stay_in_the_pool() {
        assert_eq!(id("pvc-1a.b_c"), "pvc-1a.b_c");
        for name in ["../x", "a/b", ".volumes", "", "ü", &"x".repeat(129)] {
            let id = id(name);
            assert!(id.is_empty() || (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())), "{name} -> {id}");
        }
    }

    #[test]
    fn a_deletion_that_was_cut_short_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool { name: "p".into(), path: dir.path().into() };
        prepare(&pool).unwrap();
        let volume = Volume::create(&pool, Record { name: "v".into(), ..Default::default() }).unwrap();
        fs::write(dir.path().join("v/f"), "data").unwrap();
        fs::rename(dir.path().join("v"), dir.path().join(".deleted/v")).unwrap();
        prepare(&pool).unwrap();
        assert!(!dir.path().join(".deleted/v").exists());
        volume.delete().unwrap();
        volume.delete().unwrap();
        assert!(find(&[pool], "v").unwrap().is_none());
    }
}
