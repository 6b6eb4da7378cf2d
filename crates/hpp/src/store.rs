//! The volumes of a pool: what is kept of each, and its data.
//!
//! ```text
//!  POOL/ID                      a directory, or a sparse file for a block volume
//!  POOL/.volumes/ID             what was asked for, as JSON; made before the data and removed after it
//!  POOL/.snapshots/ID           a snapshot's data, like a volume's
//!  POOL/.snapshot-records/ID    what is kept of the snapshot
//!  POOL/.deleted/ID             data on its way out
//! ```

mod data;
mod quota;
mod snapshot;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use data::Data;
pub(crate) use snapshot::Snapshot;

use crate::{Pool, record};

const VOLUMES: &str = ".volumes";
const SNAPSHOTS: &str = ".snapshots";
const SNAPSHOT_RECORDS: &str = ".snapshot-records";
const DELETED: &str = ".deleted";
const LOCK: &str = ".lock";

/// What a volume was filled with when it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Origin {
    /// The data of another volume, by its id.
    Volume(String),
    /// A snapshot, by its id.
    Snapshot(String),
}

/// What is kept of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name it was asked for by.
    pub(crate) name: String,
    /// A file that serves as a block device, and not a directory.
    pub(crate) block: bool,
    /// What was asked for, in bytes. A directory's files may take more, unless it is a project.
    pub(crate) size: i64,
    /// The project that keeps its files to the size, where the file system has quotas of projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<u32>,
    /// What it was filled with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
    /// It is not filled yet. When nobody is filling it any more, filling was cut short.
    #[serde(default)]
    pub(crate) filling: bool,
    /// It lives as long as the pod that it was made for.
    #[serde(default)]
    pub(crate) ephemeral: bool,
    /// Where it is published, by node. After a restart of the node some of these are no mounts any more.
    #[serde(default)]
    pub(crate) targets: BTreeMap<String, Vec<PathBuf>>,
}

impl Record {
    /// Where it is published on a node, as far as is known.
    pub(crate) fn targets_on(&self, node: &str) -> &[PathBuf] {
        self.targets.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Leaves of the node's targets those that are wanted.
    pub(crate) fn retain_on(&mut self, node: &str, wanted: impl FnMut(&PathBuf) -> bool) {
        if let Some(targets) = self.targets.get_mut(node) {
            targets.retain(wanted);
        }
        self.targets.retain(|_, targets| !targets.is_empty());
    }
}

/// A volume and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) record: Record,
    pub(crate) pool: Pool,
}

/// Whether the pool's directories are there.
pub(crate) fn is_prepared(pool: &Pool) -> bool {
    pool.path.join(DELETED).is_dir()
}

/// Makes the pool's directories, and finishes deletions that were cut short.
pub(crate) fn prepare(pool: &Pool) -> io::Result<()> {
    for dir in [VOLUMES, SNAPSHOTS, SNAPSHOT_RECORDS, DELETED] {
        let path = pool.path.join(dir);
        fs::create_dir_all(&path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    for entry in fs::read_dir(pool.path.join(DELETED))?.flatten() {
        data::remove(&entry.path())?;
    }
    Ok(())
}

/// Locks a pool against everybody else until the file is closed.
pub(crate) fn lock(pool: &Path) -> io::Result<File> {
    let path = pool.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Removes what has this id in a pool of which no records are kept.
pub(crate) fn remove_from(pool: &Pool, id: &str) -> io::Result<()> {
    if !record::is_id(id) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    data::remove(&pool.path.join(id))
}

/// The volume of that id; an id that no volume can have is one of no volume.
pub(crate) fn find(pools: &[Pool], id: &str) -> io::Result<Option<Volume>> {
    for pool in pools {
        if let Some(record) = record::read(&pool.path.join(VOLUMES), id)? {
            return Ok(Some(Volume { id: id.to_owned(), record, pool: pool.clone() }));
        }
    }
    Ok(None)
}

/// All volumes by id.
pub(crate) fn all(pools: &[Pool]) -> io::Result<Vec<Volume>> {
    let mut found = Vec::new();
    for pool in pools {
        for id in record::ids(&pool.path.join(VOLUMES))? {
            found.extend(find(std::slice::from_ref(pool), &id)?);
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

impl Volume {
    /// The volume as it is to be, of which nothing is there yet.
    pub(crate) fn planned(pool: &Pool, record: Record) -> Self {
        Volume { id: record::id(&record.name), record, pool: pool.clone() }
    }

    /// Makes an empty volume; one that was half made is completed.
    pub(crate) fn create(pool: &Pool, record: Record) -> io::Result<Self> {
        let mut volume = Self::planned(pool, record);
        volume.keep()?;
        volume.ensure()?;
        Ok(volume)
    }

    /// Where its data is.
    pub(crate) fn data(&self) -> Data<'_> {
        Data {
            dir: self.pool.path.clone(),
            id: &self.id,
            block: self.record.block,
            deleted: self.pool.path.join(DELETED),
        }
    }

    /// Makes the data if it is not there, and its size a limit if it can be one.
    pub(crate) fn ensure(&mut self) -> io::Result<()> {
        self.data().ensure(self.record.size)?;
        quota::bound(self)
    }

    /// Fills the volume anew with what it is made of, and says that it is whole.
    pub(crate) fn fill(&mut self, from: &Data<'_>, dev: &Path) -> io::Result<()> {
        self.data().delete()?;
        if !self.record.block {
            // What comes into it counts from the first byte.
            self.ensure()?;
        }
        self.data().copy(from, dev)?;
        self.ensure()?;
        self.record.filling = false;
        self.keep()
    }

    /// Keeps the record: all of it or none, and for good.
    pub(crate) fn keep(&self) -> io::Result<()> {
        record::keep(&self.pool.path.join(VOLUMES), &self.id, &self.record)
    }

    /// Removes the volume with its data.
    pub(crate) fn delete(&self) -> io::Result<()> {
        self.data().delete()?;
        quota::forget(self);
        record::forget(&self.pool.path.join(VOLUMES), &self.id)
    }

    /// Makes a volume larger: a block volume's file, or what a directory is meant to hold.
    pub(crate) fn grow(&mut self, size: i64) -> io::Result<()> {
        self.record.size = size;
        self.keep()?;
        self.ensure()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_that_was_cut_short_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::local("p", dir.path());
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

    #[test]
    fn a_copy_that_was_cut_short_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::local("p", dir.path());
        prepare(&pool).unwrap();
        let original = Volume::create(&pool, Record { name: "v".into(), ..Default::default() }).unwrap();
        fs::write(dir.path().join("v/f"), "data").unwrap();
        let record = Record { name: "copy".into(), filling: true, ..Default::default() };
        let mut copy = Volume::planned(&pool, record);
        copy.keep().unwrap();
        fs::create_dir(dir.path().join("copy")).unwrap();
        fs::write(dir.path().join("copy/half"), "da").unwrap();
        copy.fill(&original.data(), Path::new("/dev")).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("copy/f")).unwrap(), "data");
        assert!(!dir.path().join("copy/half").exists());
        assert!(!find(&[pool], "copy").unwrap().unwrap().record.filling);
    }
}
