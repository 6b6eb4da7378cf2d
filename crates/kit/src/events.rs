//! Kubernetes events, few of them: the same sentence about the same object is one event with a count.
//!
//! Recording never waits: one task writes, several events at a time and each event in its order. A repeated event is
//! counted in memory and written at most once a minute.

mod ledger;

use std::future::Future;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client, Resource};
use meta::text::brief;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::ledger::{Identity, Ledger, Step};
use crate::{Chain, clock};

const FLUSH: Duration = Duration::from_secs(60);
const PENDING: usize = 1024;
/// How many are being written at a time: each waits for the API server's disk, and a burst of pods brings an event for each.
const WRITES: usize = 32;
/// Bytes of a reason and of a message at most, as events.k8s.io has it.
const LONGEST: (usize, usize) = (128, 1024);

/// `Normal` or `Warning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

#[derive(Clone, Debug)]
struct Record {
    component: &'static str,
    object: ObjectReference,
    severity: Severity,
    reason: String,
    message: String,
    at: Timestamp,
}

/// Records events about objects; cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    component: &'static str,
    send: mpsc::Sender<Record>,
}

impl Recorder {
    /// A recorder that writes as `component` (and `instance`: a node's name, or empty).
    pub fn new(client: Client, component: &'static str, instance: &str) -> Self {
        let (recorder, writer) = Self::with_writer(client, component, instance);
        crate::spawn("events", writer).detach();
        recorder
    }

    /// The same, and what writes its events until the last clone of it is dropped, for the caller to run.
    pub fn with_writer(
        client: Client,
        component: &'static str,
        instance: &str,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (send, receive) = mpsc::channel(PENDING);
        (Recorder { component, send }, write(client, instance.to_owned(), receive))
    }

    /// A recorder that writes nothing; for tests of other things.
    pub fn discard() -> Self {
        Recorder { component: "", send: mpsc::channel(1).0 }
    }

    /// Something happened as it should.
    pub fn normal(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record_about(self.component, object.clone(), Severity::Normal, reason, message);
    }

    /// Something happened that a user should look at.
    pub fn warning(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record_about(self.component, object.clone(), Severity::Warning, reason, message);
    }

    /// Records an event about a typed object: one of several components of this process says it.
    pub fn record<K: Resource<DynamicType = ()>>(
        &self,
        component: &'static str,
        about: &K,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
    ) {
        let object =
            ObjectReference { resource_version: about.meta().resource_version.clone(), ..about.object_ref(&()) };
        self.record_about(component, object, severity, reason, message);
    }

    /// Records an event about a reference: one of several components of this process says it.
    pub fn record_about(
        &self,
        component: &'static str,
        object: ObjectReference,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
    ) {
        // What a guest, an image or a tenant says is often part of it, and events are read on terminals.
        let reason = brief(reason, LONGEST.0).into_owned();
        let message = brief(&message.into(), LONGEST.1).into_owned();
        let record = Record { component, object, severity, reason, message, at: clock::now() };
        // A full channel means the API server is away; an event lost is better than a reconcile blocked.
        if self.send.try_send(record).is_err() {
            tracing::debug!("event dropped");
        }
    }
}

/// Writes what is recorded until nobody can record any more, and what is under way then.
async fn write(client: Client, instance: String, mut records: mpsc::Receiver<Record>) {
    let writer = Writer { client, instance };
    let mut ledger = Ledger::default();
    let mut writes = FuturesUnordered::new();
    let mut tick = interval(FLUSH);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some((identity, name)) = writes.next(), if !writes.is_empty() => ledger.wrote(&identity, name),
            record = records.recv(), if writes.len() < WRITES => {
                let Some(record) = record else { break };
                let (identity, object) = (Identity::of(&record), record.object.name.clone());
                if let Some(step) = ledger.note(&identity, record, || new_name(object.as_deref()), Instant::now()) {
                    writes.push(writer.perform(identity, step));
                }
            }
            _ = tick.tick() => {
                writes.extend(ledger.due(Instant::now()).into_iter().map(|(identity, step)| writer.perform(identity, step)));
            }
        }
    }
    while writes.next().await.is_some() {}
}

struct Writer {
    client: Client,
    instance: String,
}

impl Writer {
    /// Yields the name under which the event is there now.
    async fn perform(&self, identity: Identity, step: Step) -> (Identity, Option<String>) {
        let namespace = step.record.object.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        let namespace = namespace.unwrap_or("default").to_owned();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let mut name = step.name.clone();
        if step.count > 1 {
            let change = serde_json::json!({ "count": step.count, "lastTimestamp": Time(clock::seconds(step.last)) });
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await {
                Ok(_) => return (identity, Some(name)),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "event count not written");
                    return (identity, Some(name));
                }
            }
            // It has lived for as long as events do.
            name = new_name(step.record.object.name.as_deref());
        }
        match api.create(&PostParams::default(), &self.event(step, &namespace, &name)).await {
            Ok(_) => (identity, Some(name)),
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "event not written");
                (identity, None)
            }
        }
    }

    fn event(&self, step: Step, namespace: &str, name: &str) -> Event {
        let Step { record, count, last, .. } = step;
        let component = Some(record.component.to_owned());
        Event {
            metadata: ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..Default::default() },
            involved_object: record.object,
            reason: Some(record.reason),
            message: Some(record.message),
            type_: Some(match record.severity {
                Severity::Normal => "Normal".into(),
                Severity::Warning => "Warning".into(),
            }),
            count: Some(count),
            first_timestamp: Some(Time(clock::seconds(record.at))),
            last_timestamp: Some(Time(clock::seconds(last))),
            source: Some(EventSource {
                component: component.clone(),
                host: Some(self.instance.clone()).filter(|host| !host.is_empty()),
            }),
            reporting_component: component,
            reporting_instance: Some(self.instance.clone()),
            ..Default::default()
        }
    }
}

fn new_name(object: Option<&str>) -> String {
    format!("{}.{:016x}", object.unwrap_or("unnamed"), fastrand::u64(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_messages_are_escaped_and_bounded() {
        let (send, mut receive) = mpsc::channel(1);
        let recorder = Recorder { component: "test", send };
        recorder.warning(&ObjectReference::default(), "SyncFailed", "QEMU says: \x1b[2J\u{202e}ok");
        assert_eq!(receive.try_recv().unwrap().message, "QEMU says: \\u001b[2J\\u202eok");
        // Events that tenants wrote are passed on with their reasons.
        recorder.warning(&ObjectReference::default(), "\x1b]0;title\x07", "x".repeat(1 << 20));
        let record = receive.try_recv().unwrap();
        assert_eq!((record.reason.as_str(), record.message.len()), ("\\u001b]0;title\\u0007", 1024));
    }
}
