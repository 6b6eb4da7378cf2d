//! Where the database's bytes lie: a file of root's alone, locked, of which a failed synchronisation is remembered.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Database, DatabaseError, StorageBackend};

use super::OpenError;

/// Pages the database keeps in memory; objects themselves are read from our own memory, and what is written again lies in the
/// kernel's page cache.
const CACHE: usize = 4 * 1024 * 1024;

/// A place for a database, which can be opened there again after it failed.
pub(super) trait Medium: Debug + Send {
    /// What messages call it.
    fn name(&self) -> String;
    /// Opens the database, repaired when it was not closed.
    fn attach(&self) -> Result<Database, DatabaseError>;
    /// False once what the medium said to have kept may be lost.
    fn trusted(&self) -> bool;
    /// Notes that everything up to `revision` is durable. The note itself need not be: an old one says less, and nothing
    /// wrong.
    fn promise(&self, revision: u64);
    /// The newest such note that is left; 0 if there is none.
    fn promised(&self) -> u64;
}

/// Opens a database on any backend. One that holds nothing is made a new one only when `fresh`.
pub(super) fn database(backend: impl StorageBackend, fresh: bool) -> Result<Database, DatabaseError> {
    if !fresh && backend.len()? == 0 {
        return Err(DatabaseError::Storage(redb::StorageError::Corrupted("the file is empty".to_owned())));
    }
    Database::builder().set_cache_size(CACHE).create_with_backend(backend)
}

/// A file on disk, and beside it another one with the last promise: without it, damage to the newest transaction could
/// not be told from one that was never finished.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    promises: File,
    /// Set when a synchronisation failed. The kernel then forgets what it could not write and calls the next one a
    /// success, so nothing of this file is believed until another process has read it from the disk.
    distrusted: Arc<AtomicBool>,
}

impl Place {
    /// The store's file in `dir`; `begin` fills a new database. It appears under its name complete or not at all, so
    /// that an empty or torn file is never taken for a new one.
    pub(super) fn open(dir: &Path, begin: impl FnOnce(Database) -> Result<(), redb::Error>) -> Result<Self, OpenError> {
        let path = dir.join(super::FILE);
        let unusable = |source| OpenError::Directory { path: dir.display().to_string(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unusable)?;
        // Secrets lie in it.
        fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(unusable)?;
        let mut promises = OpenOptions::new();
        promises.create(true).truncate(false).read(true).write(true).mode(0o600);
        let promises = promises.open(dir.join(super::PROMISES)).map_err(unusable)?;
        let place = Self { path, promises, distrusted: Arc::default() };
        if !place.path.try_exists().map_err(unusable)? {
            let promised = place.promised();
            if promised > 0 {
                let what = format!("it is not there, and revision {promised} was acknowledged");
                return Err(OpenError::damaged(&place.name(), &what));
            }
            place.create(dir, begin)?;
        }
        Ok(place)
    }

    fn create(&self, dir: &Path, begin: impl FnOnce(Database) -> Result<(), redb::Error>) -> Result<(), OpenError> {
        let fresh = self.path.with_extension("new");
        let failed = |source: redb::Error| OpenError::File { path: fresh.display().to_string(), source: source.into() };
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).mode(0o600).open(&fresh);
        let backend = self.backend(file.map_err(|source| failed(source.into()))?).map_err(|e| failed(e.into()))?;
        let database = database(backend, true).map_err(|source| failed(source.into()))?;
        begin(database).map_err(failed)?;
        let settle = || -> io::Result<()> {
            fs::rename(&fresh, &self.path)?;
            sync_directory(dir)?;
            dir.parent().map_or(Ok(()), sync_directory)
        };
        settle().map_err(|source| failed(source.into()))
    }

    fn backend(&self, file: File) -> Result<Backend, DatabaseError> {
        match file.try_lock() {
            Ok(()) => Ok(Backend { file, distrusted: self.distrusted.clone() }),
            Err(TryLockError::WouldBlock) => Err(DatabaseError::DatabaseAlreadyOpen),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }
}

/// Makes renames and new names in a directory last.
pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}

impl Medium for Place {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn attach(&self) -> Result<Database, DatabaseError> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        database(self.backend(file)?, false)
    }

    fn trusted(&self) -> bool {
        !self.distrusted.load(Ordering::Acquire)
    }

    fn promise(&self, revision: u64) {
        // What cannot be noted is kept all the same.
        let _ = self.promises.write_all_at(&[revision.to_be_bytes(), (!revision).to_be_bytes()].concat(), 0);
    }

    fn promised(&self) -> u64 {
        promise(&self.promises)
    }
}

/// The promise in a file of them; 0 if there is none.
pub(super) fn read_promise(path: &Path) -> u64 {
    File::open(path).map_or(0, |file| promise(&file))
}

fn promise(file: &File) -> u64 {
    let mut bytes = [[0; 8]; 2];
    let [revision, check] = &mut bytes;
    let read = file.read_exact_at(revision, 0).and_then(|()| file.read_exact_at(check, 8));
    let [revision, check] = bytes.map(u64::from_be_bytes);
    if read.is_ok() && revision == !check { revision } else { 0 }
}

#[derive(Debug)]
struct Backend {
    file: File,
    distrusted: Arc<AtomicBool>,
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().inspect_err(|_| self.distrusted.store(true, Ordering::Release))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Said aloud: a child that was forked and has not executed its program yet holds a copy of the descriptor.
    fn close(&self) -> io::Result<()> {
        self.file.unlock()
    }
}
