//! The one writer: drains its queue, makes the batch durable in one transaction, then publishes it.
//!
//! Without a disk there is nothing to wait for and the caller applies its own write under the lock; so tests with paused
//! time never wait for another thread.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::disk::{Disk, Row};
use super::event::Event;
use super::object::EventKind;
use super::{Body, Key, Object, OpenError, Shared, WriteError};

/// What to do with a key.
#[derive(Debug)]
pub(super) enum Change {
    Create(Body),
    Update(Body, u64),
    Delete(u64),
}

type Reply = oneshot::Sender<Result<Arc<Object>, WriteError>>;

#[derive(Debug)]
pub(super) struct Op {
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) reply: Reply,
}

/// Writes that share one transaction at most.
const BATCH: usize = 512;
/// Writes that may wait; further callers wait to enqueue.
const QUEUE: usize = 2048;

#[derive(Debug)]
pub(super) enum Writer {
    Memory { shared: Arc<Shared>, one_at_a_time: Mutex<()> },
    Durable { queue: Option<mpsc::Sender<Op>>, thread: Option<std::thread::JoinHandle<()>> },
}

impl Writer {
    pub(super) fn start(shared: Arc<Shared>, disk: Option<Disk>) -> Result<Self, OpenError> {
        let Some(disk) = disk else { return Ok(Self::Memory { shared, one_at_a_time: Mutex::default() }) };
        let (queue, inbox) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || run(&shared, disk, inbox))
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self::Durable { queue: Some(queue), thread: Some(thread) })
    }

    pub(super) fn runs(&self) -> bool {
        match self {
            Self::Memory { .. } => true,
            Self::Durable { queue, .. } => queue.as_ref().is_some_and(|queue| !queue.is_closed()),
        }
    }

    pub(super) async fn write(&self, key: Key, change: Change) -> Result<Arc<Object>, WriteError> {
        match self {
            Self::Memory { shared, one_at_a_time } => {
                let _turn = one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
                let mut batch = Batch::new(shared);
                let object = batch.stage(key, change)?;
                batch.publish();
                Ok(object)
            }
            Self::Durable { queue, .. } => {
                let (reply, answer) = oneshot::channel();
                let queue = queue.as_ref().ok_or(WriteError::Closed)?;
                queue.send(Op { key, change, reply }).await.map_err(|_| WriteError::Closed)?;
                answer.await.map_err(|_| WriteError::Closed)?
            }
        }
    }
}

impl Drop for Writer {
    /// Waits for the writes under way, so that the file is closed when the store is gone.
    fn drop(&mut self) {
        if let Self::Durable { queue, thread } = self {
            queue.take();
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn run(shared: &Arc<Shared>, mut disk: Disk, mut inbox: mpsc::Receiver<Op>) {
    let mut ops = Vec::with_capacity(BATCH);
    while inbox.blocking_recv_many(&mut ops, BATCH) > 0 {
        turn(shared, &mut disk, ops.drain(..));
    }
}

/// One transaction: stages what can be done, makes it durable, publishes it, and answers, in this order. A refusal waits
/// as well, for it may be owed to a write of the same batch.
pub(super) fn turn(shared: &Shared, disk: &mut Disk, ops: impl Iterator<Item = Op>) {
    let mut batch = Batch::new(shared);
    let mut replies = Vec::with_capacity(ops.size_hint().0);
    for op in ops {
        replies.push((op.reply, batch.stage(op.key, op.change)));
    }
    let durable = match batch.rows() {
        rows if rows.is_empty() => Ok(()),
        rows => {
            let outcome = disk.commit(batch.revision, &rows);
            shared.failing.store(outcome.is_err(), Ordering::Release);
            outcome
        }
    };
    match durable {
        Ok(()) => {
            batch.publish();
            for (reply, outcome) in replies {
                let _ = reply.send(outcome);
            }
        }
        Err(error) => {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::error!(%error, source, writes = replies.len(), "a transaction could not be made durable");
            for (reply, _) in replies {
                let _ = reply.send(Err(WriteError::Disk));
            }
        }
    }
}

/// Writes staged on top of what is published.
struct Batch<'a> {
    shared: &'a Shared,
    revision: u64,
    events: Vec<Arc<Event>>,
    /// Index into `events` of the last event of a key.
    latest: HashMap<Key, usize>,
}

impl<'a> Batch<'a> {
    fn new(shared: &'a Shared) -> Self {
        let revision = shared.revision.load(Ordering::Acquire);
        Self { shared, revision, events: Vec::new(), latest: HashMap::new() }
    }

    fn current(&self, key: &Key) -> Option<Arc<Object>> {
        match self.latest.get(key).map(|at| &self.events[*at]) {
            Some(event) if event.kind == EventKind::Deleted => None,
            Some(event) => Some(event.object.clone()),
            None => self.shared.bucket(&key.resource).get(&key.namespace, &key.name),
        }
    }

    fn stage(&mut self, key: Key, change: Change) -> Result<Arc<Object>, WriteError> {
        let previous = self.current(&key);
        let revision = self.revision + 1;
        let (kind, object) = match (change, &previous) {
            (Change::Create(_), Some(_)) => return Err(WriteError::Exists),
            (Change::Create(body), None) => (EventKind::Added, body.finish(key.clone(), revision, EventKind::Added)),
            (Change::Update(..) | Change::Delete(_), None) => return Err(WriteError::Missing),
            (Change::Update(_, seen) | Change::Delete(seen), Some(now)) if seen != now.revision => {
                return Err(WriteError::Changed);
            }
            (Change::Update(body, _), Some(_)) => {
                (EventKind::Modified, body.finish(key.clone(), revision, EventKind::Modified))
            }
            (Change::Delete(_), Some(now)) => (EventKind::Deleted, now.deleted_at(revision)),
        };
        let object = Arc::new(object);
        self.revision = revision;
        self.latest.insert(key, self.events.len());
        self.events.push(Arc::new(Event::new(kind, object.clone(), previous)));
        Ok(object)
    }

    fn rows(&self) -> Vec<Row<'_>> {
        let row = |at: &usize| {
            let event = &self.events[*at];
            let object = (event.kind != EventKind::Deleted).then_some(&*event.object);
            Row { key: &event.object.key, object }
        };
        self.latest.values().map(row).collect()
    }

    fn publish(self) {
        let mut touched = HashMap::new();
        for event in self.events {
            let resource = event.object.key.resource.clone();
            let bucket = touched.entry(resource).or_insert_with_key(|resource| self.shared.bucket(resource));
            bucket.push(event);
        }
        self.shared.revision.store(self.revision, Ordering::Release);
        for bucket in touched.values() {
            bucket.wake();
        }
    }
}
