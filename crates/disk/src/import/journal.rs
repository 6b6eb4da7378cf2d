//! How far an import by ranges came, in a small file or on the device itself, so that the next one goes on where a killed
//! one was.
//!
//! Written after the data that it speaks of are on stable storage, and believed only for the same source and the same disk.
//! An image that is read forward has none: what unpacks it, and the sum of its bytes, live in memory only.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::tail::Tail;
use crate::target::Target;

/// Layout of the entries, and of the order in which extents are copied.
const VERSION: u32 = 2;

/// Where an import that is interrupted leaves what the next one goes on by, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Where.
    pub place: Place,
    /// What a killed import did since it wrote last is done again.
    pub every: Duration,
}

/// A place that is there before and after an import, and that the disk's users do not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file beside the disk.
    File(PathBuf),
    /// The end of the device that becomes the disk. Whoever made an image may have made its end look like a journal: the
    /// word is one that only the imports into this device know, such as the UID of their claim.
    Device(String),
}

impl Resume {
    /// At `place`, as often as is worth it.
    pub fn at(place: Place) -> Self {
        Self { place, every: Duration::from_secs(5) }
    }
}

/// What has to be the same for an import to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Task {
    version: u32,
    secret: String,
    source: String,
    source_size: u64,
    disk_size: u64,
}

impl Task {
    pub(super) fn new(place: &Place, source: String, source_size: u64, disk_size: u64) -> Self {
        let secret = match place {
            Place::File(_) => String::new(),
            Place::Device(secret) => secret.clone(),
        };
        Self { version: VERSION, secret, source, source_size, disk_size }
    }
}

/// The steps that each reader has done of the batch in work. All batches before are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) batch: u64,
    pub(super) steps: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    task: Task,
    done: Done,
}

/// Where entries are kept.
#[derive(Debug)]
pub(super) enum Store<'a> {
    File(PathBuf),
    Tail(Tail<'a>),
}

impl<'a> Store<'a> {
    /// None where there is no room: an import that is interrupted there begins anew.
    pub(super) fn of(place: &Place, target: &'a Target) -> Option<Self> {
        match place {
            Place::File(path) => Some(Self::File(path.clone())),
            Place::Device(_) => Tail::of(target).map(Self::Tail),
        }
    }

    pub(super) fn tail(&self) -> Option<&Tail<'a>> {
        match self {
            Self::File(_) => None,
            Self::Tail(tail) => Some(tail),
        }
    }

    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::File(path) => Ok(fs::read(path).ok()),
            Self::Tail(tail) => tail.read(),
        }
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        let path = match self {
            Self::File(path) => path,
            Self::Tail(tail) => return tail.write(text),
        };
        let new = temporary(path);
        let mut file = File::create(&new)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&new, path)
    }

    /// The import is over, or starts anew.
    pub(super) fn remove(&self) -> io::Result<()> {
        match self {
            // The second one is there when a full volume had no room for all of it.
            Self::File(path) => [path, &temporary(path)].into_iter().try_for_each(|path| match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }),
            Self::Tail(tail) => tail.erase(),
        }
    }
}

/// Where an entry is written before it takes the place of the one before.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".new");
    name.into()
}

/// The entries of one task.
#[derive(Debug)]
pub(super) struct Journal {
    task: Task,
    every: Duration,
    written: Mutex<Instant>,
}

impl Journal {
    /// Opens the journal of `task`, and says what an earlier import of the same has done. One of another task is removed.
    pub(super) fn open(store: &Store<'_>, task: Task, every: Duration) -> io::Result<(Self, Option<Done>)> {
        let earlier = store.read()?.and_then(|bytes| serde_json::from_slice::<Entry>(&bytes).ok());
        let done = earlier.filter(|entry| entry.task == task).map(|entry| entry.done);
        if done.is_none() {
            store.remove()?;
        }
        Ok((Self { task, every, written: Mutex::new(Instant::now()) }, done))
    }

    /// Writes what `done` says before `sync`, if it is time to.
    pub(super) fn tick(
        &self,
        store: &Store<'_>,
        done: impl FnOnce() -> Done,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        // Whoever holds it is writing.
        let Ok(mut written) = self.written.try_lock() else { return Ok(()) };
        if written.elapsed() < self.every {
            return Ok(());
        }
        self.write(store, &done(), sync)?;
        *written = Instant::now();
        Ok(())
    }

    /// Makes the data safe and then the word that they are there.
    pub(super) fn write(
        &self,
        store: &Store<'_>,
        done: &Done,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        sync()?;
        let entry = Entry { task: self.task.clone(), done: done.clone() };
        store.write(&serde_json::to_vec(&entry)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_task_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let place = Place::File(path.clone());
        let store = Store::File(path.clone());
        let open =
            |source: &str| Journal::open(&store, Task::new(&place, source.into(), 10, 20), Duration::ZERO).unwrap();
        let done = Done { batch: 2, steps: vec![3, 0, 7] };
        let (journal, earlier) = open("a");
        assert_eq!(earlier, None);
        journal.write(&store, &done, || Ok(())).unwrap();
        assert_eq!(open("a").1, Some(done.clone()));
        assert_eq!(open("b").1, None);
        assert_eq!(open("a").1, None);
        fs::write(&path, b"{\"task\":").unwrap();
        assert_eq!(open("a").1, None);
        journal.write(&store, &done, || Ok(())).unwrap();
        fs::write(dir.path().join("journal.new"), "half").unwrap();
        store.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // Without the data there is no word of them.
        journal.write(&store, &done, || Err(io::Error::other("disk"))).unwrap_err();
        assert!(!path.exists());
    }
}
