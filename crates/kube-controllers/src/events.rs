//! The one writer of Events: equal events of an object become one object with a count, written at most every few seconds.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::clock;

/// `Normal` or `Warning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

#[derive(Debug)]
struct Note {
    about: ObjectReference,
    component: &'static str,
    severity: Severity,
    reason: &'static str,
    message: String,
}

/// Hands events to the writer; never blocks and never fails.
#[derive(Clone)]
pub(crate) struct Recorder(mpsc::Sender<Note>);

/// Repetitions within this time are only counted.
const QUIET: Duration = Duration::from_secs(5);
/// How many different events are remembered for counting.
const REMEMBERED: usize = 1024;
/// How many are being written at a time: each waits for the disk, and a burst of pods brings an event for each.
const WRITES: usize = 32;

impl Recorder {
    /// A recorder and the task that writes what it is given.
    pub(crate) fn new(client: Client) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, receiver) = mpsc::channel(1024);
        (Self(sender), write(client, receiver))
    }

    /// Records an event about a typed object.
    pub(crate) fn record<K: Resource<DynamicType = ()>>(
        &self,
        component: &'static str,
        about: &K,
        severity: Severity,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let reference = ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            name: about.meta().name.clone(),
            namespace: about.meta().namespace.clone(),
            uid: about.meta().uid.clone(),
            resource_version: about.meta().resource_version.clone(),
            field_path: None,
        };
        self.record_about(component, reference, severity, reason, message);
    }

    /// Records an event about a reference. When the writer cannot keep up, events are dropped.
    pub(crate) fn record_about(
        &self,
        component: &'static str,
        about: ObjectReference,
        severity: Severity,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let _ = self.0.try_send(Note { about, component, severity, reason, message: message.into() });
    }
}

type Identity = (String, &'static str, String);

/// An event that was written, or is being written.
#[derive(Debug)]
struct Known {
    name: String,
    count: i32,
    written: Instant,
    /// A write of it is under way: the next one has to wait, or the older count would come last.
    busy: bool,
}

/// What of an event is to be written.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It is new; this is its name.
    Create(String),
    /// It is there under this name and has happened so often.
    Count(String, i32),
}

/// The events of late, by which repetitions are known.
#[derive(Debug, Default)]
struct Ledger(HashMap<Identity, Known>);

impl Ledger {
    /// An event happened. None when it is counted and the count is written with a later one.
    fn note(&mut self, identity: &Identity, name: impl FnOnce() -> String, now: Instant) -> Option<Step> {
        if let Some(known) = self.0.get_mut(identity) {
            known.count += 1;
            if known.busy || now.duration_since(known.written) < QUIET {
                return None;
            }
            (known.written, known.busy) = (now, true);
            return Some(Step::Count(known.name.clone(), known.count));
        }
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, known| known.busy);
        }
        let name = name();
        self.0.insert(identity.clone(), Known { name: name.clone(), count: 1, written: now, busy: true });
        Some(Step::Create(name))
    }

    /// The write has ended: the event is there under this name, or it is not there.
    fn wrote(&mut self, identity: &Identity, name: Option<String>) {
        match (name, self.0.get_mut(identity)) {
            (Some(name), Some(known)) => (known.name, known.busy) = (name, false),
            _ => drop(self.0.remove(identity)),
        }
    }
}

/// Writes what is recorded, several events at a time and each event in its order.
async fn write(client: Client, mut notes: mpsc::Receiver<Note>) {
    let mut ledger = Ledger::default();
    let mut writes = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some((identity, name)) = writes.next(), if !writes.is_empty() => ledger.wrote(&identity, name),
            note = notes.recv(), if writes.len() < WRITES => {
                let Some(note) = note else { return };
                let identity = (note.about.uid.clone().unwrap_or_default(), note.reason, note.message.clone());
                if let Some(step) = ledger.note(&identity, || new_name(&note), Instant::now()) {
                    let written = perform(client.clone(), note, step);
                    writes.push(async move { (identity, written.await) });
                }
            }
        }
    }
}

/// Yields the name under which the event is there now.
async fn perform(client: Client, note: Note, step: Step) -> Option<String> {
    let namespace = note.about.namespace.clone().unwrap_or_else(|| "default".into());
    let api: Api<Event> = Api::namespaced(client, &namespace);
    let (name, count) = match step {
        Step::Create(name) => (name, 1),
        Step::Count(name, count) => {
            let change = serde_json::json!({"count": count, "lastTimestamp": clock::now()});
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(&change)).await {
                Ok(_) => return Some(name),
                Err(error) => tracing::debug!(%error, "event is gone, writing it anew"),
            }
            (new_name(&note), count)
        }
    };
    match api.create(&PostParams::default(), &new_event(&note, &namespace, &name, count)).await {
        Ok(_) => Some(name),
        Err(error) => {
            tracing::debug!(%error, reason = note.reason, "event not written");
            None
        }
    }
}

fn new_name(note: &Note) -> String {
    format!("{}.{:016x}", note.about.name.as_deref().unwrap_or("unnamed"), rand::random::<u64>())
}

fn new_event(note: &Note, namespace: &str, name: &str, count: i32) -> Event {
    let now = clock::now();
    Event {
        metadata: ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..ObjectMeta::default() },
        involved_object: note.about.clone(),
        reason: Some(note.reason.into()),
        message: Some(note.message.clone()),
        type_: Some(match note.severity {
            Severity::Normal => "Normal".into(),
            Severity::Warning => "Warning".into(),
        }),
        count: Some(count),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        source: Some(EventSource { component: Some(note.component.into()), host: None }),
        reporting_component: Some(note.component.into()),
        reporting_instance: Some(String::new()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a sequence of words leads to: a letter is an event that happens, `+a` and `-a` that its write succeeds and
    /// fails, a number so many seconds that pass.
    #[track_caller]
    fn check(words: &str, expect: &str) {
        let (mut ledger, mut now, mut said) = (Ledger::default(), Instant::now(), Vec::new());
        for word in words.split(' ') {
            let identity = |name: &str| (name.to_owned(), "Reason", String::new());
            if let Ok(seconds) = word.parse() {
                now += Duration::from_secs(seconds);
            } else if let Some(name) = word.strip_prefix('+') {
                ledger.wrote(&identity(name), Some(name.to_owned()));
            } else if let Some(name) = word.strip_prefix('-') {
                ledger.wrote(&identity(name), None);
            } else {
                said.push(match ledger.note(&identity(word), || word.to_owned(), now) {
                    Some(Step::Create(name)) => format!("create {name}"),
                    Some(Step::Count(name, count)) => format!("{name}={count}"),
                    None => "-".to_owned(),
                });
            }
        }
        assert_eq!(said.join(", "), expect);
    }

    #[test]
    fn repetitions_are_counted_and_written_in_order() {
        check("a b a", "create a, create b, -");
        check("a +a a 5 a +a", "create a, -, a=3");
        // While it is being written it is not written again, however long that takes.
        check("a 9 a +a a", "create a, -, a=3");
        check("a -a a", "create a, create a");
        check("a +a 5 a a -a a", "create a, a=2, -, create a");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        for n in 0..3 * REMEMBERED {
            let identity = (n.to_string(), "Reason", String::new());
            ledger.note(&identity, String::new, now);
            ledger.wrote(&identity, Some(String::new()));
            assert!(ledger.0.len() <= REMEMBERED);
        }
    }
}
