//! How soon replicas that ended are made again. The first is replaced at once; when those in its place end too, it takes ever
//! longer, so that a template which cannot run makes no more than a few instances an hour.
//!
//! Kept in memory: another leader begins anew, with one wave at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kit::backoff::Backoff;
use kit::store::Key;

/// Between the second end and the replacement, and the most there is to it.
const PAUSE: Backoff = Backoff { base: Duration::from_secs(10), max: Duration::from_secs(300) };

/// So long after the last end, ends are counted anew.
const FORGOTTEN: SignedDuration = SignedDuration::from_secs(900);

/// The paces of all sets or pools; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paces(Arc<Mutex<HashMap<Key, Pace>>>);

#[derive(Debug, Default)]
struct Pace {
    /// The template that is being tried.
    template: u64,
    waves: u32,
    last: Option<Timestamp>,
    counted: BTreeSet<String>,
}

impl Paces {
    /// Notes that the replicas of `of` with these UIDs have ended, made as `template` says, and tells from when on others may be made; none when
    /// that is now.
    pub(crate) fn ended(&self, of: &Key, template: u64, uids: BTreeSet<String>, now: Timestamp) -> Option<Timestamp> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = all.entry(of.clone()).or_default();
        if pace.template != template {
            *pace = Pace { template, counted: std::mem::take(&mut pace.counted), ..Pace::default() };
        }
        let fresh = uids.iter().any(|uid| !pace.counted.contains(uid));
        pace.counted = uids;
        if pace.last.is_some_and(|last| now.duration_since(last) > FORGOTTEN) {
            (pace.waves, pace.last) = (0, None);
        }
        // Those that end while a pause lasts belong to the same wave.
        if fresh && pace.next().is_none_or(|next| next <= now) {
            (pace.waves, pace.last) = (pace.waves.saturating_add(1), Some(now));
        }
        pace.next().filter(|next| *next > now)
    }

    /// The set or pool is gone.
    pub(crate) fn forget(&self, of: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(of);
    }
}

impl Pace {
    fn next(&self) -> Option<Timestamp> {
        let pause = if self.waves < 2 { Duration::ZERO } else { PAUSE.delay(self.waves - 1) };
        self.last?.checked_add(SignedDuration::try_from(pause).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_ending_is_made_less_and_less_often() {
        let (paces, of) = (Paces::default(), Key::new("ns", "set"));
        let at = |seconds: i64| Timestamp::from_second(1_700_000_000 + seconds).unwrap();
        let check = |template: u64, uids: &str, seconds: i64, expect: Option<i64>| {
            let uids = uids.split_whitespace().map(str::to_owned).collect();
            assert_eq!(paces.ended(&of, template, uids, at(seconds)), expect.map(at), "at {seconds}");
        };
        check(1, "", 0, None);
        check(1, "a", 0, None);
        // The same end is counted once.
        check(1, "a", 1, None);
        check(1, "a b", 5, Some(15));
        // Another of that wave.
        check(1, "a b c", 7, Some(15));
        check(1, "b c", 15, None);
        check(1, "d", 20, Some(40));
        check(1, "e", 41, Some(81));
        // Another template is tried at once.
        check(2, "e", 42, None);
        check(2, "f", 43, None);
        check(2, "g", 44, Some(54));
        // What goes well for long enough is as new.
        check(2, "h", 2_000, None);
        paces.forget(&of);
        check(2, "i", 2_001, None);
    }
}
