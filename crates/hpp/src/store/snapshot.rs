//! Snapshots: copies of volumes that nobody writes, in the pool of their volume.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DELETED, Data, SNAPSHOT_RECORDS, SNAPSHOTS, Volume};
use crate::{Pool, record};

/// What is kept of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name it was asked for by.
    pub(crate) name: String,
    /// The id of the volume it is of, which may be gone.
    pub(crate) volume: String,
    /// Whether the volume is a block device.
    pub(crate) block: bool,
    /// The least size of a volume made of it.
    pub(crate) size: i64,
    /// When it was taken, in seconds since 1970.
    pub(crate) taken: i64,
    /// It is not complete yet. When nobody is taking it any more, that was cut short.
    #[serde(default)]
    pub(crate) taking: bool,
}

/// A snapshot and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) id: String,
    pub(crate) record: Record,
    pub(crate) pool: Pool,
}

impl Snapshot {
    /// A snapshot of the volume as it is to be, of which nothing is there yet.
    pub(crate) fn planned(name: &str, volume: &Volume, taken: i64) -> Self {
        let record = Record {
            name: name.to_owned(),
            volume: volume.id.clone(),
            block: volume.record.block,
            size: volume.record.size,
            taken,
            taking: true,
        };
        Snapshot { id: record::id(name), record, pool: volume.pool.clone() }
    }

    /// The snapshot of that id; an id that none can have is one of no snapshot.
    pub(crate) fn find(pools: &[Pool], id: &str) -> io::Result<Option<Self>> {
        for pool in pools {
            if let Some(record) = record::read(&pool.path.join(SNAPSHOT_RECORDS), id)? {
                return Ok(Some(Snapshot { id: id.to_owned(), record, pool: pool.clone() }));
            }
        }
        Ok(None)
    }

    /// All snapshots by id.
    pub(crate) fn all(pools: &[Pool]) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for pool in pools {
            for id in record::ids(&pool.path.join(SNAPSHOT_RECORDS))? {
                found.extend(Self::find(std::slice::from_ref(pool), &id)?);
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Where its data is.
    pub(crate) fn data(&self) -> Data<'_> {
        let dir = self.pool.path.join(SNAPSHOTS);
        Data { dir, id: &self.id, block: self.record.block, deleted: self.pool.path.join(DELETED).join(SNAPSHOTS) }
    }

    /// Takes the snapshot anew, and says that it is whole.
    pub(crate) fn take(&mut self, from: &Data<'_>, dev: &Path) -> io::Result<()> {
        std::fs::create_dir_all(self.pool.path.join(DELETED).join(SNAPSHOTS))?;
        self.data().delete()?;
        self.data().copy(from, dev)?;
        self.record.taking = false;
        self.keep()
    }

    /// Keeps the record: all of it or none, and for good.
    pub(crate) fn keep(&self) -> io::Result<()> {
        record::keep(&self.pool.path.join(SNAPSHOT_RECORDS), &self.id, &self.record)
    }

    /// Removes the snapshot with its data.
    pub(crate) fn delete(&self) -> io::Result<()> {
        std::fs::create_dir_all(self.pool.path.join(DELETED).join(SNAPSHOTS))?;
        self.data().delete()?;
        record::forget(&self.pool.path.join(SNAPSHOT_RECORDS), &self.id)
    }
}
