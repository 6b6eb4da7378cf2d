//! Who may upload now, and what came of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use disk::Progress;
use tokio::sync::{mpsc, watch};

use super::body::{Piece, channel};
use super::clients::Clients;
use super::store::{Content, Destination, Refused};

/// Why the server ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The upload is on the volume.
    Stored { cloned: bool, preallocated: bool },
    /// It was answered, and then was not.
    Failed(String),
    /// Nobody came.
    Late,
}

/// How one upload went.
pub(super) type Outcome = Option<Result<(), Refused>>;

/// One upload that is being stored.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// The name its client gave it, by which it can be continued.
    pub(super) name: Option<String>,
    pub(super) content: Content,
    pub(super) pieces: mpsc::Sender<Piece>,
    /// Bytes that were handed over.
    pub(super) received: u64,
    pub(super) outcome: watch::Receiver<Outcome>,
}

#[derive(Debug)]
enum Phase {
    Waiting,
    Receiving,
    Suspended(Session),
    Done,
}

/// Why a request is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// Another upload runs, or may be continued.
    Concurrent,
    /// There was one.
    Done,
    /// It continues an upload at another place than where that stopped.
    Offset(u64),
    /// It continues an upload that is not there.
    Unknown,
}

/// The one upload of this server.
pub(super) struct Server {
    destination: Destination,
    pub(super) clients: Clients,
    progress: Arc<Progress>,
    phase: Mutex<Phase>,
    ended: watch::Sender<Option<Ended>>,
}

impl Server {
    pub(super) fn new(destination: Destination, clients: Clients, progress: Arc<Progress>) -> Self {
        let phase = Mutex::new(Phase::Waiting);
        Self { destination, clients, progress, phase, ended: watch::Sender::new(None) }
    }

    fn phase(&self) -> std::sync::MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when there is nothing left to serve.
    pub(super) async fn ended(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(ended) = ended.borrow_and_update().clone() {
                return ended;
            }
            // The sender lives as long as we do.
            if ended.changed().await.is_err() {
                return Ended::Late;
            }
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(*self.phase(), Phase::Receiving | Phase::Suspended(_))
    }

    /// Begins an upload, or continues the one of this name at `offset`.
    pub(super) fn begin(
        self: &Arc<Self>,
        content: Content,
        size: Option<u64>,
        name: Option<&str>,
        offset: u64,
    ) -> Result<Session, Busy> {
        let mut phase = self.phase();
        match std::mem::replace(&mut *phase, Phase::Receiving) {
            Phase::Waiting if offset == 0 => Ok(self.start(content, size, name)),
            Phase::Suspended(session) if session.name.as_deref() == name && session.received == offset => Ok(session),
            other => {
                let busy = match &other {
                    Phase::Waiting => Busy::Unknown,
                    Phase::Receiving => Busy::Concurrent,
                    Phase::Done => Busy::Done,
                    Phase::Suspended(session) if session.name.as_deref() == name => Busy::Offset(session.received),
                    Phase::Suspended(_) => Busy::Concurrent,
                };
                *phase = other;
                Err(busy)
            }
        }
    }

    /// Where the upload of this name can be continued.
    pub(super) fn offset(&self, name: &str) -> Option<u64> {
        match &*self.phase() {
            Phase::Suspended(session) if session.name.as_deref() == Some(name) => Some(session.received),
            _ => None,
        }
    }

    fn start(self: &Arc<Self>, content: Content, size: Option<u64>, name: Option<&str>) -> Session {
        self.progress.reset();
        let (pieces, sent) = channel(size);
        let (told, outcome) = watch::channel(None);
        let server = self.clone();
        kit::spawn("store", async move {
            let storing = server.clone();
            let stored =
                tokio::task::spawn_blocking(move || storing.destination.store(&sent, content, &storing.progress));
            let stored = match stored.await {
                Ok(stored) => stored,
                Err(error) => {
                    let status = http::StatusCode::INTERNAL_SERVER_ERROR;
                    Err(Refused { status, message: format!("the thread that stores ended: {error}") })
                }
            };
            let result = match stored {
                Ok(stored) => {
                    *server.phase() = Phase::Done;
                    let ended = Ended::Stored { cloned: content.is_clone(), preallocated: stored.preallocated };
                    server.ended.send_replace(Some(ended));
                    Ok(())
                }
                Err(refused) => {
                    tracing::warn!(reason = refused.message, "the upload was not stored");
                    *server.phase() = Phase::Waiting;
                    Err(refused)
                }
            };
            told.send_replace(Some(result));
        })
        .detach();
        Session { name: name.map(str::to_owned), content, pieces, received: 0, outcome }
    }

    /// Returns when what is uploaded was looked at: true when it is being stored, or is, as far as its beginning tells.
    pub(super) async fn accepted(&self, content: Content, outcome: &mut watch::Receiver<Outcome>) -> bool {
        const LOOK: Duration = Duration::from_millis(10);
        // Archives and other claims have nothing at their beginning that would say more than their end.
        while content == Content::Image && !self.progress.is_accepted() {
            match tokio::time::timeout(LOOK, outcome.wait_for(Option::is_some)).await {
                Ok(settled) => return settled.is_ok_and(|outcome| matches!(*outcome, Some(Ok(())))),
                Err(_) => continue,
            }
        }
        true
    }

    /// Keeps an upload whose connection broke, until [`Server::forget`].
    pub(super) fn suspend(&self, session: Session) {
        let mut phase = self.phase();
        // It may have failed in the meantime; then there is nothing to continue.
        if matches!(*phase, Phase::Receiving) && session.outcome.borrow().is_none() {
            *phase = Phase::Suspended(session);
        }
    }

    /// Gives up an upload that nobody continued beyond `received`.
    pub(super) fn forget(&self, received: u64) {
        let mut phase = self.phase();
        if matches!(&*phase, Phase::Suspended(session) if session.received == received) {
            // Dropping the session tells the storing thread, which makes room for the next upload.
            *phase = Phase::Receiving;
        }
    }

    /// Says that an upload that was answered was not stored.
    pub(super) fn fail(&self, message: String) {
        self.ended.send_replace(Some(Ended::Failed(message)));
    }
}
