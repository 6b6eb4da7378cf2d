//! The store: every object as its serialized bytes in memory, a durable copy in one file, one writer.
//!
//! ```text
//!   request --Op--> writer: check preconditions -> assign revisions -> one durable transaction -> publish
//!                                                                                                   |
//!   reads <------------------- buckets (one per resource: sorted map + ring of recent events) <-----+
//!   watches <-- read the ring from their own position; woken by the bucket
//! ```
//!
//! Guarantees: an acknowledged write survives `kill -9` and power loss; readers never see a write before it is durable;
//! every write has its own revision; a list's revision is a position from which a watch misses and repeats nothing.

pub mod archive;
mod bucket;
#[cfg(test)]
mod crash;
mod disk;
mod event;
pub mod expiry;
mod medium;
mod object;
mod row;
mod trees;
mod watch;
mod writer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use bucket::Bucket;
pub use event::Event;
pub use object::{Body, EventKind, Key, LINE_TAIL, Object, to_json};
use trees::Trees;
pub use watch::Watch;
use writer::{Change, Writer};

/// The store's file in its directory.
pub const FILE: &str = "objects.redb";
/// Beside it, the last revision that was acknowledged.
pub const PROMISES: &str = "acknowledged";

/// The position asked for is older than what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Asked for.
    pub asked: u64,
    /// Oldest position that can still be served.
    pub oldest: u64,
}

/// Why a write was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Create of a key that exists.
    #[error("the object exists")]
    Exists,
    /// Update or delete of a key that does not.
    #[error("the object does not exist")]
    Missing,
    /// The object has another revision than the caller last saw.
    #[error("the object has been modified")]
    Changed,
    /// The transaction could not be made durable; nothing of it is visible.
    #[error("the write could not be made durable")]
    Disk,
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be made or looked at.
    #[error("cannot use the data directory {path}")]
    Directory {
        /// The directory.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file cannot be read or written.
    #[error("cannot open the store {path}")]
    File {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another process has it.
    #[error("the store {path} is in use by another process")]
    Busy {
        /// The file.
        path: String,
    },
    /// What lies there is not what was written. Nothing of it is used, because what is missing cannot be known.
    #[error("the store {path} is damaged: {what}; restore a backup")]
    Damaged {
        /// The file.
        path: String,
        /// How that shows.
        what: String,
    },
    /// Written by a program that knows more.
    #[error(
        "the store {path} has format {format}, and this program knows formats up to {known}; use the newer program"
    )]
    Newer {
        /// The file.
        path: String,
        /// Its format.
        format: u64,
        /// The newest one known here.
        known: u64,
    },
    /// The writer thread cannot start.
    #[error("cannot start the store's writer")]
    Thread {
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl OpenError {
    fn damaged(path: &str, what: &str) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.to_owned() }
    }

    /// What the database says, in our words.
    fn of(path: &str, error: redb::Error) -> Self {
        use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::Busy { path: path.to_owned() },
            redb::Error::Corrupted(what) => Self::damaged(path, &what),
            redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableDoesNotExist(_)
            | redb::Error::UpgradeRequired(_) => Self::damaged(path, "it is a database of something else"),
            redb::Error::Io(error) if error.kind() == UnexpectedEof => Self::damaged(path, "its end is missing"),
            redb::Error::Io(error) if matches!(error.kind(), InvalidData | InvalidInput) => {
                Self::damaged(path, &error.to_string())
            }
            error => Self::File { path: path.to_owned(), source: error.into() },
        }
    }
}

/// A consistent view of one resource.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Position of the view.
    pub revision: u64,
    /// Objects in order of namespace and name.
    pub objects: Vec<Arc<Object>>,
}

/// What readers, watchers and the writer share.
#[derive(Debug)]
struct Shared {
    buckets: RwLock<HashMap<String, Arc<Bucket>>>,
    /// Everything up to here is published.
    revision: Arc<AtomicU64>,
    /// Revision when the store was opened: nothing older is in any ring.
    opened_at: u64,
    history: usize,
    /// Whether the last transaction could not be made durable.
    failing: AtomicBool,
}

impl Shared {
    fn new(revision: u64, objects: Vec<Object>, history: usize) -> Self {
        let shared = Self {
            buckets: RwLock::default(),
            revision: Arc::new(AtomicU64::new(revision)),
            opened_at: revision,
            history: history.max(16),
            failing: AtomicBool::new(false),
        };
        for object in objects {
            shared.bucket(&object.key.resource).load(object);
        }
        shared
    }

    fn bucket(&self, resource: &str) -> Arc<Bucket> {
        if let Some(bucket) = self.buckets.read().unwrap_or_else(PoisonError::into_inner).get(resource) {
            return bucket.clone();
        }
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        buckets
            .entry(resource.to_owned())
            .or_insert_with(|| Arc::new(Bucket::new(self.opened_at, self.history, self.revision.clone())))
            .clone()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    writer: Writer,
    trees: Trees,
}

impl Store {
    /// Opens the store in `dir`, or one that lives in memory only.
    pub fn open(dir: Option<&Path>, history: usize) -> Result<Arc<Self>, OpenError> {
        let (disk, objects) = dir.map(disk::Disk::open).transpose()?.unzip();
        let revision = disk.as_ref().map_or(disk::FIRST, disk::Disk::revision);
        let shared = Arc::new(Shared::new(revision, objects.unwrap_or_default(), history));
        let writer = Writer::start(shared.clone(), disk)?;
        Ok(Arc::new(Self { shared, writer, trees: Trees::default() }))
    }

    /// Whether writes are taken: the last one could be made durable, and the writer runs.
    pub fn is_writable(&self) -> bool {
        !self.shared.failing.load(Ordering::Acquire) && self.writer.runs()
    }

    /// The newest published revision.
    pub fn revision(&self) -> u64 {
        self.shared.revision.load(Ordering::Acquire)
    }

    /// One object.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.shared.bucket(resource).get(namespace, name)
    }

    /// One object as a tree, for those who look at the same few again and again.
    pub fn tree(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.get(resource, namespace, name).map(|object| self.trees.of(&object))
    }

    /// The objects of a snapshot as trees. Those of a long one are made anew: they would only displace others.
    pub fn trees(&self, snapshot: &Snapshot) -> Vec<Arc<Value>> {
        if snapshot.objects.len() <= trees::FEW {
            return snapshot.objects.iter().map(|object| self.trees.of(object)).collect();
        }
        snapshot.objects.iter().map(|object| Arc::new(object.value())).collect()
    }

    /// All objects of a resource, or those of one namespace.
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> Snapshot {
        self.shared.bucket(resource).list(namespace)
    }

    /// The same as it was at a revision, as far back as the resource's history reaches.
    pub fn list_at(&self, resource: &str, namespace: Option<&str>, revision: u64) -> Result<Snapshot, Gone> {
        self.shared.bucket(resource).list_at(namespace, revision)
    }

    /// Revision of the resource's last change; caches of decisions are keyed by it.
    pub fn changed_at(&self, resource: &str) -> u64 {
        self.shared.bucket(resource).changed_at()
    }

    /// Every resource that has or had objects, in order.
    fn resources(&self) -> Vec<String> {
        let buckets = self.shared.buckets.read().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = buckets.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Number of objects of a resource.
    pub fn count(&self, resource: &str) -> usize {
        self.shared.bucket(resource).len()
    }

    /// Changes after `from`. A position in the future is refused like one too old: it belongs to another store.
    pub fn watch(&self, resource: &str, namespace: Option<&str>, from: u64) -> Result<Watch, Gone> {
        Watch::new(self.shared.bucket(resource), namespace, from)
    }

    /// Stores a new object; its resourceVersion is set here.
    pub async fn create(&self, key: Key, object: Value) -> Result<Arc<Object>, WriteError> {
        self.writer.write(key, Change::Create(Body::new(object))).await
    }

    /// Replaces the object which the caller saw at `seen`.
    pub async fn update(&self, key: Key, object: Value, seen: u64) -> Result<Arc<Object>, WriteError> {
        self.writer.write(key, Change::Update(Body::new(object), seen)).await
    }

    /// Removes the object which the caller saw at `seen`; yields its last state, with the revision of the removal.
    pub async fn delete(&self, key: Key, seen: u64) -> Result<Arc<Object>, WriteError> {
        self.writer.write(key, Change::Delete(seen)).await
    }
}
