//! Who holds how many of a server's connections, and for how long without using them.
//!
//! ```text
//! accept ──> stranger ──authenticated request──> known ──> counted against its user
//!               │ one too many: the oldest stranger is shown out
//! ```
//!
//! Guarantees: connections that say nothing never keep out one that does, because a client needs but an instant to be
//! known; a known peer holds a share of the connections, and what it opens beyond that stays a stranger.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

mod answer;
mod seat;

pub use answer::until_read;
pub use seat::{Seat, Seated};

/// How many connections there may be, and how long they may be idle.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// All connections together.
    pub total: usize,
    /// Connections that nobody is known on.
    pub strangers: usize,
    /// Connections of one peer.
    pub per_user: usize,
    /// How long a stranger may be without a request.
    pub patience: Duration,
    /// How long a known connection may be without a request.
    pub idle: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            total: 2048,
            strangers: 512,
            per_user: 512,
            patience: Duration::from_secs(20),
            idle: Duration::from_secs(90),
        }
    }
}

#[derive(Debug, Default)]
struct Book {
    strangers: VecDeque<Arc<Connected>>,
    known: HashMap<String, usize>,
}

/// All connections there are.
#[derive(Debug)]
pub struct Connections {
    bounds: Bounds,
    book: Mutex<Book>,
}

/// One connection, as the requests on it see it.
#[derive(Debug)]
pub struct Connected {
    connections: Arc<Connections>,
    user: Mutex<Option<String>>,
    asked: AtomicBool,
    /// Requests that are not answered to the end.
    pending: watch::Sender<usize>,
    out: CancellationToken,
    /// What an upgrade holds of its user's streams.
    streams: Mutex<Vec<OwnedSemaphorePermit>>,
}

/// The connection a request came over; put into its extensions.
#[derive(Clone, Debug)]
pub struct Introduction(pub Arc<Connected>);

impl Introduction {
    /// Whether somebody said whose connection it is.
    pub fn is_made(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Says who has authenticated.
    pub fn introduce(&self, user: &str) {
        self.0.introduce(user);
    }

    /// Holds a stream for as long as the connection lasts, beyond an upgrade too.
    pub fn keep(&self, stream: OwnedSemaphorePermit) {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }
}

impl Connections {
    /// None yet.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, book: Mutex::default() })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a new connection.
    pub fn enter(self: &Arc<Self>) -> Arc<Connected> {
        let connected = Arc::new(Connected {
            connections: self.clone(),
            user: Mutex::default(),
            asked: AtomicBool::new(false),
            pending: watch::Sender::new(0),
            out: CancellationToken::new(),
            streams: Mutex::default(),
        });
        let mut book = self.book();
        book.strangers.push_back(connected.clone());
        if book.strangers.len() > self.bounds.strangers
            && let Some(oldest) = book.strangers.pop_front()
        {
            oldest.out.cancel();
        }
        connected
    }
}

impl Connected {
    /// Says whose connection it is. The first word counts.
    pub fn introduce(self: &Arc<Self>, user: &str) {
        // The first request of a connection decides whose it is; later ones cost one load.
        if self.asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut book = self.connections.book();
        let held = book.known.entry(user.to_owned()).or_insert(0);
        if *held >= self.connections.bounds.per_user {
            return;
        }
        *held += 1;
        book.strangers.retain(|stranger| !Arc::ptr_eq(stranger, self));
        *self.user.lock().unwrap_or_else(PoisonError::into_inner) = Some(user.to_owned());
    }

    fn is_known(&self) -> bool {
        self.user.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Counts a request until the guard is dropped.
    pub fn request(self: &Arc<Self>) -> Pending {
        self.pending.send_modify(|pending| *pending += 1);
        Pending(self.clone())
    }

    /// Ends when the connection has been without a request for too long.
    pub async fn idle(&self) {
        let mut pending = self.pending.subscribe();
        loop {
            if pending.wait_for(|pending| *pending == 0).await.is_err() {
                return;
            }
            let bounds = &self.connections.bounds;
            let limit = if self.is_known() { bounds.idle } else { bounds.patience };
            tokio::select! {
                () = tokio::time::sleep(limit) => return,
                _ = pending.changed() => {}
            }
        }
    }

    /// Ends when the connection has to go at once.
    pub async fn shown_out(&self) {
        self.out.cancelled().await;
    }

    /// Forgets the connection.
    pub fn leave(self: &Arc<Self>) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut book = self.connections.book();
        match self.user.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(user) => {
                if let Some(held) = book.known.get_mut(&user) {
                    *held -= 1;
                    if *held == 0 {
                        book.known.remove(&user);
                    }
                }
            }
            None => book.strangers.retain(|stranger| !Arc::ptr_eq(stranger, self)),
        }
    }
}

/// See [`Connected::request`].
#[derive(Debug)]
pub struct Pending(Arc<Connected>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.send_modify(|pending| *pending -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Arc<Connections> {
        Connections::new(Bounds { strangers: 2, per_user: 1, ..Bounds::default() })
    }

    #[test]
    fn the_oldest_stranger_goes_first_and_friends_stay() {
        let connections = connections();
        let [friend, first, second] = [(); 3].map(|()| {
            let connected = connections.enter();
            if !connected.is_known() && connections.book().known.is_empty() {
                connected.introduce("alice");
            }
            connected
        });
        let third = connections.enter();
        let out = [&friend, &first, &second, &third].map(|connected| connected.out.is_cancelled());
        assert_eq!(out, [false, true, false, false]);
    }

    #[test]
    fn beyond_his_share_a_user_is_a_stranger() {
        let connections = connections();
        let (first, second) = (connections.enter(), connections.enter());
        first.introduce("alice");
        second.introduce("alice");
        assert!(first.is_known() && !second.is_known());
        first.leave();
        second.leave();
        let book = connections.book();
        assert!(book.known.is_empty() && book.strangers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_after_its_last_request() {
        let connected = connections().enter();
        let request = connected.request();
        let begun = tokio::time::Instant::now();
        let end = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            drop(request);
        };
        tokio::join!(connected.idle(), end);
        assert_eq!(begun.elapsed(), Duration::from_secs(120));
    }
}
