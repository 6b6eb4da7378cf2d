//! Since when machines are in trouble. Conditions do not tell: a machine that is in trouble now was not ready long before, when it was stopped or
//! its disks were filled.
//!
//! Kept in memory: another leader is as patient as if the troubles had just begun.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use kit::store::Key;

/// When each trouble was first seen, by pool and by the machine's UID; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Troubles(Arc<Mutex<HashMap<Key, BTreeMap<String, Timestamp>>>>);

impl Troubles {
    /// Notes that of the machines of `of` these, and no others, are in trouble; since when each of them is.
    pub(crate) fn seen(&self, of: &Key, uids: BTreeSet<String>, now: Timestamp) -> BTreeMap<String, Timestamp> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.remove(of).unwrap_or_default();
        let since: BTreeMap<String, Timestamp> = uids
            .into_iter()
            .map(|uid| (known.get(&uid).copied().unwrap_or(now), uid))
            .map(|(at, uid)| (uid, at))
            .collect();
        if !since.is_empty() {
            all.insert(of.clone(), since.clone());
        }
        since
    }

    /// The pool is gone.
    pub(crate) fn forget(&self, of: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_that_is_over_begins_anew() {
        let (troubles, of) = (Troubles::default(), Key::new("ns", "pool"));
        let at = |seconds: i64| Timestamp::from_second(1_700_000_000 + seconds).unwrap();
        let check = |uids: &str, seconds: i64, expect: &[(&str, i64)]| {
            let found = troubles.seen(&of, uids.split_whitespace().map(str::to_owned).collect(), at(seconds));
            let expect = expect.iter().map(|(uid, since)| ((*uid).to_owned(), at(*since))).collect();
            assert_eq!(found, expect, "at {seconds}");
        };
        check("a", 0, &[("a", 0)]);
        check("a b", 10, &[("a", 0), ("b", 10)]);
        check("b", 20, &[("b", 10)]);
        check("a b", 30, &[("a", 30), ("b", 10)]);
        check("", 40, &[]);
        check("b", 50, &[("b", 50)]);
    }
}
