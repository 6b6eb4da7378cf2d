//! Who has been heard of: the renewals of the nodes' leases, by the clock of whoever listens. Pure.
//!
//! The times in the leases are never compared with this machine's: clocks differ. A node counts as silent only while others
//! are heard: when nobody is, it is the API server that was gone, or this process that was cut off.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// A kubelet renews its lease every ten seconds. Three renewals missed, and half of one for the way.
pub const SILENCE: Duration = Duration::from_secs(35);
/// Nobody was heard for so long, although each renews every ten seconds: the silence says nothing about the nodes.
pub const GAP: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
struct Heard {
    renewal: String,
    at: Instant,
    /// When a renewal was seen to replace another; the first one seen may be old.
    renewed: Option<Instant>,
}

/// What was heard, and when.
#[derive(Clone, Debug, Default)]
pub struct Renewals {
    nodes: BTreeMap<String, Heard>,
    last: Option<Instant>,
}

/// What is known of a node by its lease alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sound {
    /// It was heard; it would be silent after this long.
    Heard(Duration),
    /// Others were heard, and it was not.
    Silent,
    /// Nothing can be said: it has no lease, or nobody is heard. Look again after this long.
    Unknown(Duration),
}

impl Renewals {
    /// A lease was seen with this renewal. True when that is news.
    pub fn hear(&mut self, node: &str, renewal: &str, now: Instant) -> bool {
        if self.nodes.get(node).is_some_and(|heard| heard.renewal == renewal) {
            return false;
        }
        if self.last.is_some_and(|last| now.duration_since(last) > GAP) {
            for heard in self.nodes.values_mut() {
                heard.at = now;
            }
        }
        let renewed = self.nodes.contains_key(node).then_some(now);
        self.nodes.insert(node.to_owned(), Heard { renewal: renewal.to_owned(), at: now, renewed });
        self.last = Some(now);
        true
    }

    /// The node's lease is gone.
    pub fn forget(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// A renewal of `node` was seen a moment ago: whoever says that it is silent has not heard of it yet.
    pub fn renews(&self, node: &str, now: Instant) -> bool {
        let renewed = self.nodes.get(node).and_then(|heard| heard.renewed);
        renewed.is_some_and(|at| now.duration_since(at) <= GAP)
    }

    /// What is known of `node`.
    pub fn sound(&self, node: &str, now: Instant) -> Sound {
        let deaf = self.last.is_none_or(|last| now.duration_since(last) > GAP);
        match self.nodes.get(node) {
            Some(heard) if now.duration_since(heard.at) < SILENCE => {
                Sound::Heard(SILENCE.saturating_sub(now.duration_since(heard.at)))
            }
            Some(_) if !deaf => Sound::Silent,
            _ => Sound::Unknown(GAP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renewals as (second, node), in order; then the sound of `a` at a second.
    #[track_caller]
    fn check(beats: &[(u64, &str)], at: u64, expect: Sound) {
        let start = Instant::now();
        let mut renewals = Renewals::default();
        for (second, node) in beats {
            renewals.hear(node, &second.to_string(), start + Duration::from_secs(*second));
        }
        assert_eq!(renewals.sound("a", start + Duration::from_secs(at)), expect);
    }

    #[test]
    fn a_node_is_silent_while_others_are_heard() {
        let seconds = Duration::from_secs;
        check(&[(0, "a"), (0, "b")], 5, Sound::Heard(seconds(30)));
        check(&[(0, "a"), (5, "b"), (15, "b"), (25, "b")], 34, Sound::Heard(seconds(1)));
        check(&[(0, "a"), (5, "b"), (15, "b"), (25, "b"), (35, "b")], 36, Sound::Silent);
        check(&[(0, "a"), (5, "b"), (15, "b"), (25, "b"), (35, "b"), (40, "a")], 41, Sound::Heard(seconds(34)));
        check(&[(0, "b")], 5, Sound::Unknown(GAP));
    }

    #[test]
    fn when_nobody_is_heard_nobody_is_silent() {
        check(&[(0, "a"), (0, "b")], 60, Sound::Unknown(GAP));
        // The API server was gone; whoever renews first does not make the others silent.
        check(&[(0, "a"), (0, "b"), (60, "b")], 61, Sound::Heard(Duration::from_secs(34)));
        check(&[(0, "a"), (0, "b"), (60, "b"), (70, "b"), (80, "b"), (90, "b")], 96, Sound::Silent);
    }

    #[test]
    fn a_lease_that_is_read_again_is_no_renewal() {
        let (mut renewals, now) = (Renewals::default(), Instant::now());
        assert!(renewals.hear("a", "1", now));
        assert!(!renewals.hear("a", "1", now + Duration::from_secs(30)));
        assert!(!renewals.renews("a", now));
        let mut renewed = renewals.clone();
        assert!(renewed.hear("a", "2", now) && renewed.renews("a", now));
        assert_eq!(renewals.sound("a", now + Duration::from_secs(5)), Sound::Heard(Duration::from_secs(30)));
    }
}
