//! Whose turn it is to ask: a few crons of each namespace at once, and one that failed later and later.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kit::store::Key;

/// How many registries are asked at once for the crons of one namespace.
const AT_ONCE: usize = 2;
/// How soon a registry is asked again that did not say; the pause doubles each time.
const FIRST: Duration = Duration::from_secs(60);
/// How often it doubles.
const DOUBLED: u32 = 4;

/// Polls that go on, and those that failed, by their crons.
///
/// None of it outlives the controller: a pod that the next one finds is one that it does not know, and is asked for anew.
#[derive(Debug, Default)]
pub struct Polls(Mutex<BTreeMap<Key, Poll>>);

#[derive(Debug)]
struct Poll {
    /// UID of the cron.
    cron: String,
    /// What is asked, and how: another question is not answered by this one's failure.
    question: String,
    failures: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// By this pod, once it is made.
    Asks(Option<Asker>),
    /// Not before then, because of this.
    Rests(Timestamp, String),
}

/// A pod that asks. Its UID is what the API server said when it was made: labels, owners and names anybody can write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) pod: Key,
    pub(crate) uid: String,
    pub(crate) since: Timestamp,
}

/// What a poll is at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It may begin, and counts from now on.
    Begins,
    /// Others of the namespace go on.
    Queued,
    /// It failed lately, and why.
    Rests(String),
}

fn is_full(all: &BTreeMap<Key, Poll>, cron: &Key) -> bool {
    let others = all.iter().filter(|(key, _)| key.namespace == cron.namespace && *key != cron);
    others.filter(|(_, poll)| matches!(poll.stage, Stage::Asks(_))).count() >= AT_ONCE
}

impl Polls {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Poll>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod that asks for the cron with this UID.
    pub(crate) fn asker(&self, cron: &Key, uid: &str) -> Option<Asker> {
        let all = self.all();
        match &all.get(cron).filter(|poll| poll.cron == uid)?.stage {
            Stage::Asks(asker) => asker.clone(),
            Stage::Rests(..) => None,
        }
    }

    /// Whether others of its namespace leave it no room, whatever it asks.
    pub(crate) fn is_queued(&self, cron: &Key) -> bool {
        is_full(&self.all(), cron)
    }

    /// Whether `question` may be asked for it now.
    pub(crate) fn turn(&self, cron: &Key, uid: &str, question: &str, now: Timestamp) -> Turn {
        let mut all = self.all();
        let known = all.get(cron).filter(|poll| poll.cron == uid && poll.question == question);
        if let Some(Poll { stage: Stage::Rests(until, why), .. }) = known
            && now < *until
        {
            return Turn::Rests(why.clone());
        }
        let failures = known.map_or(0, |poll| poll.failures);
        if is_full(&all, cron) {
            return Turn::Queued;
        }
        let (uid, question) = (uid.to_owned(), question.to_owned());
        all.insert(cron.clone(), Poll { cron: uid, question, failures, stage: Stage::Asks(None) });
        Turn::Begins
    }

    /// It is asked by this pod.
    pub(crate) fn asked_by(&self, cron: &Key, asker: Asker) {
        if let Some(poll) = self.all().get_mut(cron) {
            poll.stage = Stage::Asks(Some(asker));
        }
    }

    /// It was asked in vain.
    pub(crate) fn failed(&self, cron: &Key, why: &str, now: Timestamp) {
        if let Some(poll) = self.all().get_mut(cron) {
            let pause = FIRST * (1 << poll.failures.min(DOUBLED));
            poll.failures = poll.failures.saturating_add(1);
            poll.stage = Stage::Rests(now + pause, why.to_owned());
        }
    }

    /// There is no room for a pod that asks: nothing was asked, and nobody tells when there is.
    pub(crate) fn refused(&self, cron: &Key, why: &str, now: Timestamp) {
        if let Some(poll) = self.all().get_mut(cron) {
            poll.stage = Stage::Rests(now + FIRST, why.to_owned());
        }
    }

    /// There is nothing left to ask.
    pub(crate) fn forget(&self, cron: &Key) {
        self.all().remove(cron);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str) -> Key {
        Key::new(namespace, name)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn the_registries_of_one_namespace_hold_up_that_namespace_only() {
        let polls = Polls::default();
        let turn = |namespace: &str, name: &str| polls.turn(&key(namespace, name), name, "q", at(0));
        assert_eq!(turn("ns", "a"), Turn::Begins);
        assert_eq!(turn("ns", "b"), Turn::Begins);
        assert_eq!(turn("ns", "c"), Turn::Queued);
        assert_eq!(["c", "a"].map(|name| polls.is_queued(&key("ns", name))), [true, false]);
        assert_eq!(turn("other", "d"), Turn::Begins);
        polls.failed(&key("ns", "a"), "closed", at(0));
        assert_eq!(turn("ns", "c"), Turn::Begins);
        assert_eq!(turn("ns", "a"), Turn::Rests("closed".to_owned()));
        polls.forget(&key("ns", "b"));
        assert_eq!(turn("ns", "b"), Turn::Begins);
    }

    #[test]
    fn failed_polls_back_off_and_new_ones_start_at_once() {
        let (polls, cron) = (Polls::default(), key("ns", "a"));
        let mut now = 0;
        for pause in [60, 120, 240, 480, 960, 960] {
            assert_eq!(polls.turn(&cron, "u", "q", at(now)), Turn::Begins);
            polls.failed(&cron, "closed", at(now));
            assert_eq!(polls.turn(&cron, "u", "q", at(now + pause - 1)), Turn::Rests("closed".to_owned()));
            now += pause;
        }
        assert_eq!(polls.turn(&cron, "u", "q", at(now)), Turn::Begins);
        polls.failed(&cron, "closed", at(now));
        assert_eq!(polls.turn(&cron, "u", "another", at(now)), Turn::Begins);
        polls.failed(&cron, "closed", at(now));
        assert_eq!(polls.turn(&cron, "made anew", "another", at(now)), Turn::Begins);
    }

    #[test]
    fn no_room_is_no_failure_of_the_registry() {
        let (polls, cron) = (Polls::default(), key("ns", "a"));
        for round in 0..4 {
            assert_eq!(polls.turn(&cron, "u", "q", at(round * 60)), Turn::Begins);
            polls.refused(&cron, "exceeded quota", at(round * 60));
        }
    }

    #[test]
    fn a_pod_asks_for_the_cron_that_it_was_made_for() {
        let (polls, cron) = (Polls::default(), key("ns", "a"));
        assert_eq!(polls.turn(&cron, "u", "q", at(0)), Turn::Begins);
        assert_eq!(polls.asker(&cron, "u"), None);
        let asker = Asker { pod: key("ns", "poll-a-x"), uid: "p".to_owned(), since: at(0) };
        polls.asked_by(&cron, asker.clone());
        assert_eq!(polls.asker(&cron, "u"), Some(asker));
        assert_eq!(polls.asker(&cron, "another of the name"), None);
    }
}
