//! The server's seats: each level has its own, lends what it does not need, and has queues of those who wait.
//!
//! ```text
//!            a seat of its own that it keeps, or one that nobody keeps
//! request ──────────────────────────────────────────────────────────> seat ──> given back: the next who waits has it
//!    └── none: refused, or [ shortest queue of the flow's hand ] ── queues take turns ──^
//! ```
//!
//! Guarantees: a level always gets the seats that it does not lend; a seat that it lends comes back when the borrower's
//! request ends, and goes first to levels that have less than their share; whoever may sit does not wait; exempt
//! requests never wait. Waiting costs memory only within the bounds of the queues.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::flow::level::{Full, Level};
use crate::flow::{CATCH_ALL, Flow};

/// Shared by all requests.
#[derive(Clone, Debug)]
pub(super) struct Hall(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    total: usize,
    /// Seats that are taken, those of exempt requests included.
    taken: usize,
    levels: HashMap<String, Row>,
    hasher: RandomState,
}

/// The seats of one level.
#[derive(Debug)]
struct Row {
    level: Level,
    taken: usize,
    /// The queues in which somebody waits.
    queues: BTreeMap<u64, VecDeque<oneshot::Sender<Seat>>>,
    /// The queue whose turn was last.
    last: u64,
    /// Its configuration is gone; it ends with its last request.
    leaving: bool,
}

/// The right to be served; given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    hall: Option<Hall>,
    level: String,
}

/// What a request gets.
#[derive(Debug)]
pub(super) enum Place {
    Seat(Seat),
    /// The seat comes here; nothing does when it will not.
    Queue(oneshot::Receiver<Seat>),
    Refused,
}

impl Hall {
    /// `total` seats of one level, at which everybody waits in one queue: the server before it is configured.
    pub(super) fn new(total: usize) -> Self {
        let full = Full::Queue { queues: 1, hand: 1, length: usize::MAX };
        let seats = crate::flow::level::Seats { nominal: total, kept: total, most: total, full };
        let hall =
            Self(Arc::new(Mutex::new(State { total, taken: 0, levels: HashMap::new(), hasher: RandomState::new() })));
        hall.configure(&[Level { name: CATCH_ALL.to_owned(), seats: Some(seats) }]);
        hall
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has these levels from now on. Requests that are served stay; those who wait stay where their level has queues.
    pub(super) fn configure(&self, levels: &[Level]) {
        let mut state = self.lock();
        state.levels.values_mut().for_each(|row| row.leaving = true);
        for level in levels {
            let row = state.levels.entry(level.name.clone()).or_insert_with(|| Row::new(level.clone()));
            row.leaving = false;
            row.reconfigure(level);
        }
        state.forget();
        self.seat_who_may(&mut state);
    }

    /// A place for a request of `flow`.
    pub(super) fn take(&self, flow: &Flow<'_>) -> Place {
        let mut state = self.lock();
        // The level may have gone since the request was classified.
        let name = if state.levels.contains_key(flow.level) { flow.level } else { CATCH_ALL };
        if state.may(name) {
            return match state.levels.get_mut(name) {
                Some(row) => {
                    row.taken += 1;
                    state.taken += 1;
                    Place::Seat(self.seat(name))
                }
                None => Place::Refused,
            };
        }
        let hash = state.hasher.hash_one((flow.schema, flow.distinguisher));
        let queued = state.levels.get_mut(name).and_then(|row| row.wait(hash));
        queued.map_or(Place::Refused, Place::Queue)
    }

    fn seat(&self, level: &str) -> Seat {
        Seat { hall: Some(self.clone()), level: level.to_owned() }
    }

    fn leave(&self, level: &str) {
        let mut state = self.lock();
        state.give_back(level);
        state.forget();
        self.seat_who_may(&mut state);
    }

    /// Gives free seats to those who wait, for as long as there are both.
    fn seat_who_may(&self, state: &mut State) {
        while let Some((name, waiter)) = state.next() {
            if let Some(row) = state.levels.get_mut(&name) {
                row.taken += 1;
                state.taken += 1;
            }
            if let Err(mut seat) = waiter.send(self.seat(&name)) {
                // Nobody waits any more. The lock is held: the seat must not give itself back.
                seat.hall = None;
                state.give_back(&name);
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(hall) = self.hall.take() {
            hall.leave(&self.level);
        }
    }
}

impl State {
    /// Whether a request of a level may sit down now.
    fn may(&self, name: &str) -> bool {
        let Some(row) = self.levels.get(name) else { return false };
        let Some(seats) = row.level.seats else { return true };
        if row.taken < seats.kept.min(seats.most) {
            return true;
        }
        let kept = self.levels.values().map(Row::keeps).sum::<usize>();
        row.taken < seats.most && self.taken + kept < self.total
    }

    /// Who waits and may sit down, the level first that has least of its share.
    fn next(&mut self) -> Option<(String, oneshot::Sender<Seat>)> {
        loop {
            let waiting = self.levels.iter().filter(|(name, row)| !row.queues.is_empty() && self.may(name));
            // Sharing is by integers: a/b < c/d is a*d < c*b.
            let name = waiting
                .min_by(|(_, one), (_, other)| (one.taken * other.nominal()).cmp(&(other.taken * one.nominal())))
                .map(|(name, _)| name.clone())?;
            let waiter = self.levels.get_mut(&name).and_then(Row::pop);
            if let Some(waiter) = waiter {
                return Some((name, waiter));
            }
        }
    }

    fn give_back(&mut self, level: &str) {
        if let Some(row) = self.levels.get_mut(level) {
            row.taken -= 1;
            self.taken -= 1;
        }
    }

    /// Rows that are gone and empty.
    fn forget(&mut self) {
        self.levels.retain(|_, row| !row.leaving || row.taken > 0 || !row.queues.is_empty());
    }
}

impl Row {
    fn new(level: Level) -> Self {
        Self { level, taken: 0, queues: BTreeMap::new(), last: 0, leaving: false }
    }

    fn nominal(&self) -> usize {
        self.level.seats.map_or(usize::from(u16::MAX), |seats| seats.nominal.max(1))
    }

    /// Empty seats that nobody else gets.
    fn keeps(&self) -> usize {
        let kept = self.level.seats.filter(|_| !self.leaving).map_or(0, |seats| seats.kept);
        kept.saturating_sub(self.taken)
    }

    /// Takes over a configuration. Who waits where no queue is now is refused, or dealt to those there are.
    fn reconfigure(&mut self, level: &Level) {
        self.level = level.clone();
        match level.seats.map(|seats| seats.full) {
            Some(Full::Reject) => self.queues.clear(),
            Some(Full::Queue { queues, .. }) => {
                for (queue, mut waiting) in self.queues.split_off(&queues) {
                    self.queues.entry(queue % queues).or_default().append(&mut waiting);
                }
            }
            // All of them sit down.
            None => {}
        }
    }

    /// A place in the shortest queue of a hand; None when all are full.
    fn wait(&mut self, hash: u64) -> Option<oneshot::Receiver<Seat>> {
        let Full::Queue { queues, hand, length } = self.level.seats?.full else { return None };
        let waiting = |queues: &BTreeMap<u64, VecDeque<_>>, queue| queues.get(&queue).map_or(0, VecDeque::len);
        let queue = deal(hash, queues, hand).into_iter().min_by_key(|queue| waiting(&self.queues, *queue))?;
        if waiting(&self.queues, queue) >= length {
            // Those who have gone are still counted.
            self.queues.get_mut(&queue)?.retain(|waiter| !waiter.is_closed());
            if waiting(&self.queues, queue) >= length {
                return None;
            }
        }
        let (sender, receiver) = oneshot::channel();
        self.queues.entry(queue).or_default().push_back(sender);
        Some(receiver)
    }

    /// The first of the queue whose turn it is; None when nobody is left in it.
    fn pop(&mut self) -> Option<oneshot::Sender<Seat>> {
        let after = self.queues.range(self.last + 1..).next();
        let queue = *after.or_else(|| self.queues.iter().next())?.0;
        self.last = queue;
        let waiting = self.queues.get_mut(&queue)?;
        let mut first = waiting.pop_front();
        while first.as_ref().is_some_and(oneshot::Sender::is_closed) {
            first = waiting.pop_front();
        }
        if waiting.is_empty() {
            self.queues.remove(&queue);
        }
        first
    }
}

/// The `hand` of `queues` that a hash stands for: as a dealer would draw cards, none twice.
fn deal(mut hash: u64, queues: u64, hand: u64) -> Vec<u64> {
    let mut dealt: Vec<u64> = Vec::new();
    for drawn in 0..hand.min(queues) {
        let left = queues - drawn;
        let mut card = hash % left;
        hash /= left;
        for before in &dealt {
            card += u64::from(card >= *before);
        }
        let at = dealt.partition_point(|before| *before < card);
        dealt.insert(at, card);
    }
    dealt
}

#[cfg(test)]
mod tests;
