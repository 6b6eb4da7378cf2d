//! Replicas that were told to go while no watch has told of it yet. They count as gone: else another would be chosen in
//! their place, because it looks less ready than a moment ago.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use kit::store::Key;

/// UIDs, by the set or pool that they belong to; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Going(Arc<Mutex<HashMap<Key, BTreeSet<String>>>>);

impl Going {
    /// The replica with this UID, one of `of`, was told to go.
    pub(crate) fn told(&self, of: &Key, uid: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(of.clone()).or_default().insert(uid);
    }

    /// Those replicas of `of` that were told to go and are among `there`, who are known and not known to be going.
    pub(crate) fn among<'a>(&self, of: &Key, there: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(told) = all.remove(of) else { return BTreeSet::new() };
        let left: BTreeSet<String> = there.filter(|uid| told.contains(*uid)).map(str::to_owned).collect();
        if !left.is_empty() {
            all.insert(of.clone(), left.clone());
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_the_watch_has_told_of_is_forgotten() {
        let (going, of) = (Going::default(), Key::new("ns", "set"));
        going.told(&of, "a".into());
        going.told(&of, "b".into());
        assert_eq!(going.among(&of, ["a", "b", "c"].into_iter()).len(), 2);
        assert_eq!(going.among(&of, ["b"].into_iter()).into_iter().collect::<Vec<_>>(), ["b"]);
        assert!(going.among(&of, std::iter::empty()).is_empty());
        assert!(going.among(&of, ["b"].into_iter()).is_empty());
    }
}
