//! The lines of watches that are not the stored bytes: rows of Tables, metadata, objects in another version.
//!
//! Each is made once, by whichever of its watchers comes first, and is at hand for the others while they catch up. Tables
//! tell ages, so their lines are good for the second they were made in.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::OnceCell;

use apimachinery::error::ApiError;
use kube_store::EventKind;

use crate::accept::{Encoding, Shape};
use crate::registry::Resource;

/// Lines that are kept at most, and their bytes.
const LINES: usize = 4096;
const BYTES: usize = 8 << 20;

/// What a line tells, and how.
#[derive(Clone, Debug)]
pub(crate) struct Telling {
    /// The version it is told in, as the definition is now.
    pub(crate) resource: Arc<Resource>,
    /// The change: no other has this revision.
    pub(crate) revision: u64,
    pub(crate) kind: EventKind,
    pub(crate) shape: Shape,
    pub(crate) encoding: Encoding,
    /// What of its object a row carries.
    pub(crate) include: String,
    /// Whether a Table begins with its columns.
    pub(crate) header: bool,
    /// The second, where the line depends on it.
    pub(crate) second: i64,
}

impl Telling {
    fn parts(&self) -> (*const Resource, u64, EventKind, (Shape, Encoding), &str, bool, i64) {
        let resource = Arc::as_ptr(&self.resource);
        let form = (self.shape, self.encoding);
        (resource, self.revision, self.kind, form, &self.include, self.header, self.second)
    }
}

impl PartialEq for Telling {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Telling {}

impl Hash for Telling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

type Cell = Arc<OnceCell<Bytes>>;

#[derive(Default)]
struct Recent {
    cells: HashMap<Telling, Cell>,
    /// Oldest first.
    order: VecDeque<Telling>,
    /// Bytes of the lines that are made.
    bytes: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Lines {
    recent: Mutex<Recent>,
}

impl Lines {
    /// The line, from `make` unless a watcher had it made already.
    pub(crate) async fn line(
        &self,
        telling: Telling,
        make: impl AsyncFnOnce() -> Result<Bytes, ApiError>,
    ) -> Result<Bytes, ApiError> {
        let cell = self.cell(&telling);
        let mut made = false;
        let line = cell
            .get_or_try_init(|| {
                made = true;
                make()
            })
            .await?
            .clone();
        if made {
            self.keep(&telling, &cell, line.len());
        }
        Ok(line)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cell(&self, telling: &Telling) -> Cell {
        let mut recent = self.recent();
        if let Some(cell) = recent.cells.get(telling) {
            return cell.clone();
        }
        recent.order.push_back(telling.clone());
        recent.cells.entry(telling.clone()).or_default().clone()
    }

    /// Counts a line that was made, and forgets the oldest ones beyond the bounds.
    fn keep(&self, telling: &Telling, cell: &Cell, bytes: usize) {
        let mut recent = self.recent();
        if recent.cells.get(telling).is_some_and(|kept| Arc::ptr_eq(kept, cell)) {
            recent.bytes += bytes;
        }
        while recent.order.len() > LINES || recent.bytes > BYTES {
            let Some(oldest) = recent.order.pop_front() else { break };
            let gone = recent.cells.remove(&oldest);
            let bytes = gone.and_then(|cell| cell.get().map(Bytes::len)).unwrap_or(0);
            recent.bytes = recent.bytes.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn telling(resource: &Arc<Resource>, revision: u64) -> Telling {
        Telling {
            resource: resource.clone(),
            revision,
            kind: EventKind::Added,
            shape: Shape::Table(crate::accept::Meta::V1),
            encoding: Encoding::Json,
            include: String::new(),
            header: false,
            second: 7,
        }
    }

    #[tokio::test]
    async fn a_line_is_made_once_and_anew_after_a_failure() {
        let (lines, resource) = (Lines::default(), Arc::default());
        let failed = lines.line(telling(&resource, 1), async || Err(ApiError::internal("no"))).await;
        assert!(failed.is_err());
        let first = lines.line(telling(&resource, 1), async || Ok("a".into())).await.unwrap();
        let second = lines.line(telling(&resource, 1), async || panic!("it is there")).await.unwrap();
        assert_eq!(first.as_ptr(), second.as_ptr());
        let later = Telling { second: 8, ..telling(&resource, 1) };
        assert_eq!(lines.line(later, async || Ok("b".into())).await.unwrap(), "b");
        let redefined = telling(&Arc::default(), 1);
        assert_eq!(lines.line(redefined, async || Ok("c".into())).await.unwrap(), "c");
    }

    #[tokio::test]
    async fn old_lines_are_forgotten() {
        let (lines, resource) = (Lines::default(), Arc::default());
        let large = Bytes::from(vec![0; BYTES / 4]);
        for revision in 0..10 {
            lines.line(telling(&resource, revision), async || Ok(large.clone())).await.unwrap();
        }
        {
            let recent = lines.recent();
            assert_eq!((recent.cells.len(), recent.order.len(), recent.bytes), (4, 4, BYTES));
        }
        for revision in 10..2 * LINES as u64 {
            lines.line(telling(&resource, revision), async || Ok("x".into())).await.unwrap();
        }
        let recent = lines.recent();
        assert_eq!((recent.cells.len(), recent.order.len(), recent.bytes), (LINES, LINES, LINES));
    }
}
