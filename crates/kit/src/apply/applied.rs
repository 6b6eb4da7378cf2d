//! What a field manager applied last, and what became of it since.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::core::ObjectMeta;

/// What a field manager applied last, by address; cheap to clone. An unchanged manifest is not sent again until the object
/// is [`Applied::touched`] by somebody else, [`Applied::missing`], or [`Applied::forget`] was called.
#[derive(Clone, Debug)]
pub struct Applied {
    pub(super) manager: &'static str,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    sent: HashMap<String, Sent>,
    /// What a watch has shown of objects while they were being written.
    writing: HashMap<String, Shown>,
}

#[derive(Debug)]
struct Sent {
    hash: u64,
    left: Left,
}

/// How an object was when it was written or shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    version: Option<String>,
    /// Of labels and annotations, and of who owns which fields but those of the status, which anybody may write. Generations do
    /// not tell: some kinds have none, and of some it never moves.
    owners: u64,
}

impl Left {
    fn of(metadata: &ObjectMeta) -> Self {
        let mut hasher = DefaultHasher::new();
        (&metadata.labels, &metadata.annotations).hash(&mut hasher);
        let entries = metadata.managed_fields.iter().flatten();
        for entry in entries.filter(|entry| entry.subresource.as_deref() != Some("status")) {
            serde_json::to_string(entry).unwrap_or_default().hash(&mut hasher);
        }
        Left { version: metadata.resource_version.clone(), owners: hasher.finish() }
    }

    fn is(&self, now: &Left) -> bool {
        self.version == now.version || self.owners == now.owners
    }
}

/// The last that a watch has shown of an object.
#[derive(Debug, Default)]
enum Shown {
    #[default]
    Nothing,
    Gone,
    There(Left),
}

impl Applied {
    /// Nothing yet, by `manager`.
    pub fn by(manager: &'static str) -> Self {
        Applied { manager, state: Arc::default() }
    }

    /// Sends everything again next time.
    pub fn forget(&self) {
        self.lock().sent.clear();
    }

    /// Takes in that the object at `address` is `now` so, or gone. True when that is not how it was left: it is sent again
    /// next time. While it is being written this is judged when the answer is there.
    pub fn touched(&self, address: &str, now: Option<&ObjectMeta>) -> bool {
        let mut state = self.lock();
        let now = now.map(Left::of);
        if let Some(shown) = state.writing.get_mut(address) {
            *shown = now.map_or(Shown::Gone, Shown::There);
            return false;
        }
        let Some(sent) = state.sent.get(address) else { return false };
        let same = now.is_some_and(|now| sent.left.is(&now));
        if !same {
            state.sent.remove(address);
        }
        !same
    }

    /// Takes in that of the addresses of which `concerned` is true there are only those in `listed`. True when one is missing
    /// that was applied: it is sent again next time.
    pub fn missing(&self, concerned: impl Fn(&str) -> bool, listed: &BTreeSet<String>) -> bool {
        let mut state = self.lock();
        for (address, shown) in &mut state.writing {
            if concerned(address) && !listed.contains(address) {
                *shown = Shown::Gone;
            }
        }
        let before = state.sent.len();
        state.sent.retain(|address, _| !concerned(address) || listed.contains(address));
        state.sent.len() < before
    }

    /// The addresses of what was applied, in order.
    pub fn addresses(&self) -> Vec<String> {
        let mut all: Vec<String> = self.lock().sent.keys().cloned().collect();
        all.sort_unstable();
        all
    }

    /// Whether what is at `address` was last sent with this `hash`.
    pub(super) fn is_sent(&self, address: &str, hash: u64) -> bool {
        self.lock().sent.get(address).is_some_and(|sent| sent.hash == hash)
    }

    /// Begins to write what lies at `address`.
    pub(super) fn write(&self, address: &str) -> Writing<'_> {
        self.lock().writing.insert(address.to_owned(), Shown::Nothing);
        Writing { applied: self, address: address.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write that is under way; dropped without an answer, nothing is known of the object.
pub(super) struct Writing<'a> {
    applied: &'a Applied,
    address: String,
}

impl Writing<'_> {
    /// Records the API server's answer. False when a watch has shown something else meanwhile: somebody may have written after
    /// us, so it is sent once more.
    pub(super) fn answered(self, hash: u64, answer: &ObjectMeta) -> bool {
        let mut state = self.applied.lock();
        let left = Left::of(answer);
        // Judging and ending are one step: what a watch shows after it is for `touched` to judge.
        let same = match state.writing.remove(&self.address) {
            Some(Shown::There(shown)) => left.is(&shown),
            Some(Shown::Gone) => false,
            Some(Shown::Nothing) | None => true,
        };
        match same {
            true => drop(state.sent.insert(self.address.clone(), Sent { hash, left })),
            false => drop(state.sent.remove(&self.address)),
        }
        same
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.applied.lock();
        // There still when nobody answered. What a watch showed meanwhile was not judged.
        if matches!(state.writing.remove(&self.address), Some(Shown::Gone | Shown::There(_))) {
            state.sent.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

    use super::*;

    /// Written by us, and by others in the subresources.
    fn meta(version: &str, others: &[&str]) -> ObjectMeta {
        let entry = |subresource: &str| ManagedFieldsEntry {
            manager: Some("m".to_owned()),
            subresource: (!subresource.is_empty()).then(|| subresource.to_owned()),
            ..ManagedFieldsEntry::default()
        };
        ObjectMeta {
            resource_version: Some(version.to_owned()),
            managed_fields: Some([""].iter().chain(others).map(|subresource| entry(subresource)).collect()),
            ..ObjectMeta::default()
        }
    }

    /// Written as version 5, then seen as `now`.
    #[track_caller]
    fn check(now: Option<ObjectMeta>, expect: bool) {
        let applied = Applied::by("m");
        assert!(applied.write("/a").answered(1, &meta("5", &[])));
        assert_eq!(applied.touched("/a", now.as_ref()), expect, "{now:?}");
        assert_eq!(applied.is_sent("/a", 1), !expect);
        assert!(!applied.touched("/other", None));
    }

    #[test]
    fn objects_changed_by_others_are_applied_again() {
        check(Some(meta("5", &[])), false);
        check(Some(meta("6", &["status"])), false);
        check(Some(meta("6", &["scale"])), true);
        check(Some(meta("6", &[""])), true);
        check(None, true);
        let labelled = ObjectMeta { labels: Some([("a".to_owned(), "b".to_owned())].into()), ..meta("6", &[]) };
        check(Some(labelled), true);
    }

    /// Shown as `seen` while it is written, and answered as version 5.
    #[track_caller]
    fn check_while_writing(seen: Option<ObjectMeta>, expect: bool) {
        let applied = Applied::by("m");
        assert!(applied.write("/a").answered(1, &meta("4", &[])));
        let writing = applied.write("/a");
        assert!(!applied.touched("/a", seen.as_ref()), "judged when the answer is there");
        assert_eq!(writing.answered(2, &meta("5", &[])), expect, "{seen:?}");
        assert_eq!(applied.is_sent("/a", 2), expect);
        // The next change is judged as ever.
        assert_eq!(applied.touched("/a", Some(&meta("7", &[""]))), expect);
    }

    #[test]
    fn objects_changed_during_the_write_are_applied_again() {
        check_while_writing(Some(meta("5", &[])), true);
        check_while_writing(Some(meta("6", &[""])), false);
        check_while_writing(None, false);
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_behind() {
        let applied = Applied::by("m");
        assert!(applied.write("/a").answered(1, &meta("5", &[])));
        drop(applied.write("/a"));
        assert!(applied.touched("/a", None));
    }

    #[test]
    fn what_a_watch_shows_during_a_write_that_fails_is_not_forgotten() {
        let applied = Applied::by("m");
        assert!(applied.write("/a").answered(1, &meta("5", &[])));
        let writing = applied.write("/a");
        assert!(!applied.touched("/a", None));
        drop(writing);
        assert!(!applied.is_sent("/a", 1));
    }

    /// A deletion that is shown at the very moment at which a write ends is judged by the write or by the watch.
    #[test]
    fn a_deletion_at_the_end_of_a_write_is_noticed() {
        let applied = Applied::by("m");
        for round in 0..5_000 {
            let (writing, start) = (applied.write("/a"), std::sync::Barrier::new(2));
            let (resent, woken) = std::thread::scope(|scope| {
                let watch = scope.spawn(|| {
                    start.wait();
                    applied.touched("/a", None)
                });
                start.wait();
                (!writing.answered(1, &meta("5", &[])), watch.join().unwrap())
            });
            assert!(resent != woken, "round {round}: resent {resent}, woken {woken}");
        }
    }

    #[test]
    fn objects_missing_from_a_list_during_the_write_are_applied_again() {
        let applied = Applied::by("m");
        let writing = applied.write("/a/1");
        assert!(!applied.missing(|_| true, &BTreeSet::new()));
        assert!(!writing.answered(1, &meta("5", &[])));
    }

    #[test]
    fn objects_missing_from_a_list_are_applied_again() {
        let applied = Applied::by("m");
        for address in ["/a/1", "/a/2", "/b/1"] {
            assert!(applied.write(address).answered(1, &meta("5", &[])));
        }
        let listed = BTreeSet::from(["/a/1".to_owned()]);
        assert!(applied.missing(|address| address.starts_with("/a/"), &listed));
        assert_eq!(applied.addresses(), ["/a/1", "/b/1"]);
        assert!(!applied.missing(|address| address.starts_with("/a/"), &listed));
    }
}
