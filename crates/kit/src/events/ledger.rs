//! Which events are known, and what of them is to be written. Repetitions are counted, and counts written now and then.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Record;

/// An event that was not repeated for so long is forgotten: the next one like it is a new one.
const FORGET: Duration = Duration::from_secs(600);
/// How many different events are remembered for counting.
const REMEMBERED: usize = 1024;

/// What makes two events the same: who said it, of which object or part of one, and the words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    component: &'static str,
    object: String,
    reason: String,
    message: String,
}

impl Identity {
    pub(super) fn of(record: &Record) -> Self {
        let about = &record.object;
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        let named = || format!("{}/{}/{}", part(&about.kind), part(&about.namespace), part(&about.name));
        let object = about.uid.clone().unwrap_or_else(named);
        Self {
            component: record.component,
            // The same sentence about another part of the object is another event.
            object: object + record.object.field_path.as_deref().unwrap_or_default(),
            reason: record.reason.clone(),
            message: record.message.clone(),
        }
    }
}

/// An event that was written, or is being written.
#[derive(Debug)]
struct Known {
    name: String,
    count: i32,
    /// It has happened more often than its object says.
    unwritten: bool,
    /// When it happened last, and by which clock it is forgotten.
    last: Timestamp,
    touched: Instant,
    /// A write of it is under way: the next one has to wait, or the older count would come last.
    busy: bool,
    /// What it says, to be written anew if its object is gone.
    record: Record,
}

/// What of an event is to be written.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The name of its object; there is none yet when this is the first time.
    pub(super) name: String,
    pub(super) count: i32,
    pub(super) last: Timestamp,
    pub(super) record: Record,
}

/// The events of late, by which repetitions are known.
#[derive(Debug, Default)]
pub(super) struct Ledger(HashMap<Identity, Known>);

impl Ledger {
    /// An event happened. None when it is counted, and the count is written with [`Ledger::due`].
    pub(super) fn note(
        &mut self,
        identity: &Identity,
        record: Record,
        name: impl FnOnce() -> String,
        now: Instant,
    ) -> Option<Step> {
        if let Some(known) = self.0.get_mut(identity) {
            known.count = known.count.saturating_add(1);
            (known.last, known.unwritten, known.touched) = (record.at, true, now);
            return None;
        }
        if self.0.len() >= REMEMBERED {
            // Counts that are not written yet are the last to go.
            self.0.retain(|_, known| known.busy || known.unwritten);
        }
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, known| known.busy);
        }
        let step = Step { name: name(), count: 1, last: record.at, record: record.clone() };
        let last = record.at;
        let known =
            Known { name: step.name.clone(), count: 1, unwritten: false, last, touched: now, busy: true, record };
        self.0.insert(identity.clone(), known);
        Some(step)
    }

    /// The counts that are to be written now. What has not happened for long is forgotten.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Identity, Step)> {
        self.0.retain(|_, known| known.busy || known.unwritten || now.duration_since(known.touched) < FORGET);
        let due = self.0.iter_mut().filter(|(_, known)| known.unwritten && !known.busy);
        due.map(|(identity, known)| {
            (known.unwritten, known.busy) = (false, true);
            let (name, record) = (known.name.clone(), known.record.clone());
            (identity.clone(), Step { name, count: known.count, last: known.last, record })
        })
        .collect()
    }

    /// The write has ended: the event is there under this name, or it is not there.
    pub(super) fn wrote(&mut self, identity: &Identity, name: Option<String>) {
        match (name, self.0.get_mut(identity)) {
            (Some(name), Some(known)) => (known.name, known.busy) = (name, false),
            _ => drop(self.0.remove(identity)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(message: &str) -> Record {
        Record {
            component: "test",
            object: k8s_openapi::api::core::v1::ObjectReference::default(),
            severity: crate::events::Severity::Normal,
            reason: "Reason".to_owned(),
            message: message.to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    /// What a sequence of words leads to: a letter is an event that happens, `+a` and `-a` that its write succeeds and
    /// fails, a number so many seconds that pass, `write` the time to write counts.
    #[track_caller]
    fn check(words: &str, expect: &str) {
        let (mut ledger, mut now, mut said) = (Ledger::default(), Instant::now(), Vec::new());
        for word in words.split(' ') {
            let identity = |name: &str| Identity::of(&record(name));
            if let Ok(seconds) = word.parse() {
                now += Duration::from_secs(seconds);
            } else if let Some(name) = word.strip_prefix('+') {
                ledger.wrote(&identity(name), Some(name.to_owned()));
            } else if let Some(name) = word.strip_prefix('-') {
                ledger.wrote(&identity(name), None);
            } else if word == "write" {
                let due = ledger.due(now);
                said.extend(due.into_iter().map(|(_, step)| format!("{}={}", step.name, step.count)));
            } else if let Some(step) = ledger.note(&identity(word), record(word), || word.to_owned(), now) {
                said.push(format!("create {}", step.name));
            }
        }
        assert_eq!(said.join(", "), expect);
    }

    #[test]
    fn repetitions_are_counted_and_written_in_order() {
        check("a b a", "create a, create b");
        check("a +a a a write +a write", "create a, a=3");
        // While it is being written it is not written again, however long that takes.
        check("a 90 a write +a write", "create a, a=2");
        check("a +a a write a write +a write", "create a, a=2, a=3");
        check("a -a a", "create a, create a");
        check("a +a a write -a a", "create a, a=2, create a");
        check("a +a 590 write a 590 write a", "create a, a=2");
        check("a +a 600 write a", "create a, create a");
    }

    #[test]
    fn the_remembered_series_are_bounded() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        for n in 0..3 * REMEMBERED {
            let record = record(&n.to_string());
            let identity = Identity::of(&record);
            for _ in 0..2 {
                ledger.note(&identity, record.clone(), String::new, now);
            }
            ledger.wrote(&identity, Some(String::new()));
            assert!(ledger.0.len() <= REMEMBERED);
        }
    }
}
