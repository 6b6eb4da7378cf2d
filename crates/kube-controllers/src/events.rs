//! The one writer of Events: equal events of an object become one object with a count, written at most every few seconds.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
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

#[derive(Debug)]
struct Known {
    name: String,
    count: i32,
    written: Instant,
}

type Identity = (String, &'static str, String);

async fn write(client: Client, mut notes: mpsc::Receiver<Note>) {
    let mut known: HashMap<Identity, Known> = HashMap::new();
    while let Some(note) = notes.recv().await {
        let namespace = note.about.namespace.clone().unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let identity = (note.about.uid.clone().unwrap_or_default(), note.reason, note.message.clone());
        if let Some(entry) = known.get_mut(&identity) {
            entry.count += 1;
            if entry.written.elapsed() < QUIET {
                continue;
            }
            entry.written = Instant::now();
            let change = serde_json::json!({"count": entry.count, "lastTimestamp": clock::now()});
            match api.patch(&entry.name, &PatchParams::default(), &Patch::Merge(&change)).await {
                Ok(_) => continue,
                Err(error) => tracing::debug!(%error, "event is gone, writing it anew"),
            }
        }
        let event = new_event(&note, &namespace);
        let name = event.name_any();
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {
                if known.len() >= REMEMBERED {
                    known.clear();
                }
                known.insert(identity, Known { name, count: 1, written: Instant::now() });
            }
            Err(error) => tracing::debug!(%error, reason = note.reason, "event not written"),
        }
    }
}

fn new_event(note: &Note, namespace: &str) -> Event {
    let now = clock::now();
    let name = format!("{}.{:016x}", note.about.name.as_deref().unwrap_or("unnamed"), rand::random::<u64>());
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(namespace.into()), ..ObjectMeta::default() },
        involved_object: note.about.clone(),
        reason: Some(note.reason.into()),
        message: Some(note.message.clone()),
        type_: Some(match note.severity {
            Severity::Normal => "Normal".into(),
            Severity::Warning => "Warning".into(),
        }),
        count: Some(1),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        source: Some(EventSource { component: Some(note.component.into()), host: None }),
        reporting_component: Some(note.component.into()),
        reporting_instance: Some(String::new()),
        ..Event::default()
    }
}
