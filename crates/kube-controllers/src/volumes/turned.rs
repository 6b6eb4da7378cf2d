//! Claims whose volumes were given to others.
//!
//! Who fills a volume under one claim and then turns it to another leaves the first without it for the moment until that is
//! deleted, which is nobody's loss. A claim that stays without its volume is told of.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kit::store::Key;
use tokio::time::Instant;

/// How long a claim may stay that has given its volume away.
const GRACE: Duration = Duration::from_secs(30);

/// Claims that are not told of yet, and when they will be.
#[derive(Debug, Default)]
pub(super) struct Turned(Mutex<HashMap<Key, Instant>>);

impl Turned {
    fn waiting(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim has lost its volume to another just now: it is to be looked at again after this time.
    pub(super) fn note(&self, claim: &Key, now: Instant) -> Duration {
        self.waiting().insert(claim.clone(), now + GRACE);
        GRACE
    }

    /// Of a claim that is still without its volume: zero when it is to be told of now, which is once, or how long that is
    /// still; none when nothing is to be said.
    pub(super) fn due(&self, claim: &Key, now: Instant) -> Option<Duration> {
        let mut waiting = self.waiting();
        let left = waiting.get(claim)?.saturating_duration_since(now);
        if left.is_zero() {
            waiting.remove(claim);
        }
        Some(left)
    }

    /// The claim is gone, or has a volume.
    pub(super) fn forget(&self, claim: &Key) {
        self.waiting().remove(claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_stays_is_told_of_once() {
        let (turned, key, now) = (Turned::default(), Key::new("ns", "prime"), Instant::now());
        assert_eq!(turned.due(&key, now), None);
        let grace = turned.note(&key, now);
        assert_eq!(turned.due(&key, now + Duration::from_secs(10)), Some(grace - Duration::from_secs(10)));
        assert_eq!(turned.due(&key, now + grace), Some(Duration::ZERO));
        assert_eq!(turned.due(&key, now + grace), None);
        turned.note(&key, now);
        turned.forget(&key);
        assert_eq!(turned.due(&key, now + grace), None, "it was deleted, as it should");
    }
}
