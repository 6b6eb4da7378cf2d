//! The durable copy: one redb file with a table of objects and the last revision.

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Key, Object, OpenError};

/// `resource NUL namespace NUL name` -> 8 bytes of revision, then JSON.
const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
/// `revision` -> the last one assigned.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

#[derive(Debug)]
pub(super) struct Disk {
    database: Database,
    path: String,
}

/// One line of a transaction.
pub(super) struct Row<'a> {
    pub(super) key: &'a Key,
    /// None removes.
    pub(super) object: Option<&'a Object>,
}

impl Disk {
    pub(super) fn open(dir: &Path) -> Result<Self, OpenError> {
        std::fs::create_dir_all(dir)
            .map_err(|source| OpenError::Directory { path: dir.display().to_string(), source })?;
        let file = dir.join("objects.redb");
        let path = file.display().to_string();
        let database = Database::builder()
            .set_cache_size(16 * 1024 * 1024)
            .create(&file)
            .map_err(|source| OpenError::File { path: path.clone(), source: Box::new(source) })?;
        Ok(Self { database, path })
    }

    /// Everything there is, with the last revision.
    pub(super) fn load(&self) -> Result<(u64, Vec<Object>), OpenError> {
        let failed = |source: redb::Error| OpenError::File { path: self.path.clone(), source: Box::new(source) };
        let (revision, rows) = self.read().map_err(failed)?;
        let mut objects = Vec::with_capacity(rows.len());
        for (key, row) in rows {
            let damaged = || OpenError::Record { key: String::from_utf8_lossy(&key).replace('\0', "/") };
            objects.push(decode(&key, &row).ok_or_else(damaged)?);
        }
        Ok((revision, objects))
    }

    #[expect(clippy::type_complexity, reason = "rows as they lie on disk, decoded by the one caller")]
    fn read(&self) -> Result<(u64, Vec<(Vec<u8>, Vec<u8>)>), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(OBJECTS)?;
        transaction.open_table(META)?;
        transaction.commit()?;
        let transaction = self.database.begin_read()?;
        let revision = transaction.open_table(META)?.get("revision")?.map_or(1, |guard| guard.value());
        let mut rows = Vec::new();
        for row in transaction.open_table(OBJECTS)?.iter()? {
            let (key, value) = row?;
            rows.push((key.value().to_vec(), value.value().to_vec()));
        }
        Ok((revision, rows))
    }

    /// Makes the rows durable, all or none. When this returns Ok they survive a power cut.
    pub(super) fn commit(&self, revision: u64, rows: &[Row<'_>]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut bytes = Vec::new();
            for row in rows {
                let key = encode_key(row.key);
                match row.object {
                    Some(object) => {
                        bytes.clear();
                        bytes.extend_from_slice(&object.revision.to_be_bytes());
                        bytes.extend_from_slice(&object.json);
                        objects.insert(key.as_slice(), bytes.as_slice())?;
                    }
                    None => {
                        objects.remove(key.as_slice())?;
                    }
                }
            }
            transaction.open_table(META)?.insert("revision", revision)?;
        }
        transaction.commit()?;
        Ok(())
    }
}

fn encode_key(key: &Key) -> Vec<u8> {
    [key.resource.as_bytes(), key.namespace.as_bytes(), key.name.as_bytes()].join(&0)
}

fn decode(key: &[u8], row: &[u8]) -> Option<Object> {
    let mut parts = std::str::from_utf8(key).ok()?.split('\0');
    let key = Key::new(parts.next()?, parts.next()?, parts.next()?);
    let (revision, json) = row.split_first_chunk::<8>()?;
    Object::from_disk(key, u64::from_be_bytes(*revision), json)
}
