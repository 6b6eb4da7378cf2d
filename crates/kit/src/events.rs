//! Kubernetes events, few of them: the same sentence about the same object is one event with a count.
//!
//! Recording never waits: one task writes. A repeated event is counted in memory and written at most once a minute.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::ObjectMeta,
};
use meta::text::brief;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{Chain, clock};

const FLUSH: Duration = Duration::from_secs(60);
const FORGET: Duration = Duration::from_secs(600);
const PENDING: usize = 1024;
/// Bytes of a reason and of a message at most, as events.k8s.io has it.
const LONGEST: (usize, usize) = (128, 1024);

struct Record {
    object: ObjectReference,
    warning: bool,
    reason: String,
    message: String,
    at: Timestamp,
}

/// Records events about objects; cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    send: mpsc::Sender<Record>,
}

impl Recorder {
    /// A recorder that writes as `component` (and `instance`: a node's name, or empty).
    pub fn new(client: Client, component: &'static str, instance: &str) -> Self {
        let (send, receive) = mpsc::channel(PENDING);
        let source = Source { component, instance: instance.to_owned() };
        crate::spawn("events", write(client, source, receive)).detach();
        Recorder { send }
    }

    /// A recorder that writes nothing; for tests of other things.
    pub fn discard() -> Self {
        Recorder { send: mpsc::channel(1).0 }
    }

    /// Something happened as it should.
    pub fn normal(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(object, false, reason, &message.into());
    }

    /// Something happened that a user should look at.
    pub fn warning(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(object, true, reason, &message.into());
    }

    fn record(&self, object: &ObjectReference, warning: bool, reason: &str, message: &str) {
        // What a guest, an image or a tenant says is often part of it, and events are read on terminals.
        let (reason, message) = (brief(reason, LONGEST.0).into_owned(), brief(message, LONGEST.1).into_owned());
        let record = Record { object: object.clone(), warning, reason, message, at: clock::now() };
        // A full channel means the API server is away; an event lost is better than a reconcile blocked.
        if self.send.try_send(record).is_err() {
            tracing::debug!("event dropped");
        }
    }
}

struct Source {
    component: &'static str,
    instance: String,
}

struct Written {
    name: String,
    namespace: String,
    count: i32,
    unwritten: bool,
    last: Timestamp,
    touched: Instant,
}

async fn write(client: Client, source: Source, mut receive: mpsc::Receiver<Record>) {
    let mut known: HashMap<(String, String, String), Written> = HashMap::new();
    let mut tick = interval(FLUSH);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            record = receive.recv() => {
                let Some(record) = record else { return };
                let identity = record.object.uid.clone().or_else(|| record.object.name.clone()).unwrap_or_default();
                // The same sentence about another part of the object is another event.
                let identity = identity + record.object.field_path.as_deref().unwrap_or_default();
                let key = (identity, record.reason.clone(), record.message.clone());
                if let Some(written) = known.get_mut(&key) {
                    written.count = written.count.saturating_add(1);
                    written.last = record.at;
                    written.unwritten = true;
                    written.touched = Instant::now();
                } else if let Some(written) = create(&client, &source, record).await {
                    known.insert(key, written);
                }
            }
            _ = tick.tick() => {
                for written in known.values_mut().filter(|written| written.unwritten) {
                    update(&client, written).await;
                }
                known.retain(|_, written| written.touched.elapsed() < FORGET);
            }
        }
    }
}

async fn create(client: &Client, source: &Source, record: Record) -> Option<Written> {
    let namespace = record.object.namespace.clone().filter(|ns| !ns.is_empty()).unwrap_or_else(|| "default".into());
    let at = Time(clock::seconds(record.at));
    let nanos = record.at.as_nanosecond();
    let name = format!("{}.{nanos:x}", record.object.name.as_deref().unwrap_or_default());
    let event = Event {
        metadata: ObjectMeta { name: Some(name.clone()), namespace: Some(namespace.clone()), ..Default::default() },
        involved_object: record.object,
        reason: Some(record.reason),
        message: Some(record.message),
        type_: Some(if record.warning { "Warning" } else { "Normal" }.into()),
        count: Some(1),
        first_timestamp: Some(at.clone()),
        last_timestamp: Some(at),
        source: Some(EventSource {
            component: Some(source.component.into()),
            host: Some(source.instance.clone()).filter(|host| !host.is_empty()),
        }),
        reporting_component: Some(source.component.into()),
        reporting_instance: Some(source.instance.clone()),
        ..Default::default()
    };
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => {
            Some(Written { name, namespace, count: 1, unwritten: false, last: record.at, touched: Instant::now() })
        }
        Err(error) => {
            tracing::debug!(error = %Chain(&error), "event not written");
            None
        }
    }
}

async fn update(client: &Client, written: &mut Written) {
    let api: Api<Event> = Api::namespaced(client.clone(), &written.namespace);
    let patch = serde_json::json!({ "count": written.count, "lastTimestamp": Time(clock::seconds(written.last)) });
    if let Err(error) = api.patch(&written.name, &PatchParams::default(), &Patch::Merge(patch)).await {
        tracing::debug!(error = %Chain(&error), "event count not written");
    }
    written.unwritten = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_says_is_recorded_fit_for_a_terminal() {
        let (send, mut receive) = mpsc::channel(1);
        let recorder = Recorder { send };
        recorder.warning(&ObjectReference::default(), "SyncFailed", "QEMU says: \x1b[2J\u{202e}ok");
        assert_eq!(receive.try_recv().unwrap().message, "QEMU says: \\u001b[2J\\u202eok");
        // Events that tenants wrote are passed on with their reasons.
        recorder.warning(&ObjectReference::default(), "\x1b]0;title\x07", "x".repeat(1 << 20));
        let record = receive.try_recv().unwrap();
        assert_eq!((record.reason.as_str(), record.message.len()), ("\\u001b]0;title\\u0007", 1024));
    }
}
