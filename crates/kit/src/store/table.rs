//! What a store holds of one kind, whatever it keeps of each object: versions, index words, deletions, relists.
//!
//! Answers to writes, the watch and lists bring versions of objects in any order. Guarantees: an older version never
//! replaces a newer one, but for a list, which is the truth also where its versions are lower (the cluster may have been
//! restored); what was written while a list was under way is newer than the list; an object whose end was told does not
//! come back by an answer or an event that was overtaken by it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kube::Resource;

use super::Key;
use super::gone::Gone;

/// Where a version of an object comes from, which says what it may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The answer to a request, or an event of the watch: replaces what is older.
    News,
    /// A list that is under way.
    List,
    /// A decision that is being written: replaces whatever is held.
    Decision,
}

/// One object.
pub(super) struct Row<H> {
    version: u64,
    uid: Box<str>,
    pub(super) words: Box<[String]>,
    pub(super) held: H,
}

impl<H> Row<H> {
    /// Of `object`, of which `held` is kept.
    pub(super) fn of<K: Resource>(object: &K, words: Vec<String>, held: H) -> Self {
        Row {
            version: object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0),
            uid: object.meta().uid.as_deref().unwrap_or_default().into(),
            words: words.into_boxed_slice(),
            held,
        }
    }
}

/// A list that is under way.
#[derive(Default)]
struct Listing {
    /// What it has shown, and what was written meanwhile.
    seen: HashSet<Key>,
    /// What went meanwhile: the list may still show it.
    gone: HashSet<String>,
}

/// It is older than what is known, and was left out.
#[derive(Debug)]
pub(super) struct Stale;

/// Objects of one kind.
pub(super) struct Table<H> {
    rows: BTreeMap<Key, Row<H>>,
    index: HashMap<String, BTreeSet<Key>>,
    gone: Gone,
    listing: Option<Listing>,
    /// Whether a version may be taken in again: what is kept of it may have become less.
    again: bool,
}

impl<H> Table<H> {
    /// An empty one. `remembered` is how many deletions are: more than there are requests under way, whose late answers
    /// this is for.
    pub(super) fn new(remembered: usize, again: bool) -> Self {
        Table { rows: BTreeMap::new(), index: HashMap::new(), gone: Gone::of(remembered), listing: None, again }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Row<H>> {
        self.rows.get(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.rows.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Everything that is held, by key.
    pub(super) fn all(&self) -> impl Iterator<Item = &H> {
        self.rows.values().map(|row| &row.held)
    }

    /// What is held in one namespace.
    pub(super) fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a H> {
        let rows = self.rows.range(Key::new(namespace, "")..);
        rows.take_while(move |(key, _)| key.namespace == namespace).map(|(_, row)| &row.held)
    }

    /// The keys of what has the index word.
    pub(super) fn keys_by_word(&self, word: &str) -> impl Iterator<Item = &Key> {
        self.index.get(word).into_iter().flatten()
    }

    /// What has the index word.
    pub(super) fn by_word(&self, word: &str) -> impl Iterator<Item = &H> {
        self.keys_by_word(word).filter_map(|key| self.rows.get(key)).map(|row| &row.held)
    }

    /// Takes in a version of an object. Returns what was there before.
    pub(super) fn take(&mut self, key: &Key, row: Row<H>, source: Source) -> Result<Option<Row<H>>, Stale> {
        let listed = source == Source::List;
        // What was written since the list began was not in it, or is, at this version or an older one.
        let written = self.listing.as_mut().is_some_and(|listing| !listing.seen.insert(key.clone()));
        let truth = listed && !written;
        if self.gone.contains(&row.uid) {
            let just_now = self.listing.as_ref().is_some_and(|listing| listing.gone.contains(row.uid.as_ref()));
            if !truth || just_now {
                return Err(Stale);
            }
            self.gone.remove(&row.uid);
        }
        if let Some(held) = self.rows.get(key).filter(|_| source != Source::Decision) {
            let same = held.version == row.version && held.uid == row.uid;
            if (same && !self.again) || (held.version > row.version && !truth) {
                return Err(Stale);
            }
        }
        let was = self.unlink(key);
        for word in &row.words {
            self.index.entry(word.clone()).or_default().insert(key.clone());
        }
        self.rows.insert(key.clone(), row);
        Ok(was)
    }

    /// The object with this uid is gone, or whichever has the key. Another one that has its name by now stays.
    pub(super) fn remove(&mut self, key: &Key, uid: Option<&str>) -> Option<Row<H>> {
        if let Some(uid) = uid {
            self.gone.insert(uid);
            if let Some(listing) = &mut self.listing {
                listing.gone.insert(uid.to_owned());
            }
        }
        let is_it = |row: &Row<H>| uid.is_none_or(|uid| row.uid.is_empty() || row.uid.as_ref() == uid);
        self.rows.get(key).is_some_and(is_it).then(|| self.unlink(key)).flatten()
    }

    /// A list begins.
    pub(super) fn listing(&mut self) {
        self.listing = Some(Listing::default());
    }

    /// The list is complete. Returns what it has not shown and is therefore not there; each is still to be removed.
    pub(super) fn listed(&mut self) -> Vec<Key> {
        let seen = self.listing.take().unwrap_or_default().seen;
        self.rows.keys().filter(|key| !seen.contains(*key)).cloned().collect()
    }

    fn unlink(&mut self, key: &Key) -> Option<Row<H>> {
        let row = self.rows.remove(key)?;
        for word in &row.words {
            if let Some(keys) = self.index.get_mut(word) {
                keys.remove(key);
                if keys.is_empty() {
                    self.index.remove(word);
                }
            }
        }
        Some(row)
    }
}
