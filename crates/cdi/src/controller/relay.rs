//! What is told of a pod that fills a claim, and of a claim that stands in for another, is told of what the user made, too.
//!
//! ```text
//!  events: pod ─▶ its claim;  prime ─▶ the claim it stands in for;  claim ─▶ its DataVolume
//! ```
//!
//! A warning about a claim that has no volume yet is also why it has none: its `storage.condition.bound` says so until it is bound.

use std::pin::pin;

use api::cdi::constants::annotation;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Event, ObjectReference, PersistentVolumeClaim};
use kit::store::Key;
use kit::{Chain, Task};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use meta::text::{STATUS, brief};

use crate::Error;
use crate::controller::context::{Context, annotation_of, reference, uid_index};
use crate::controller::import::AWAITING_VDDK;
use crate::controller::write::{self, Changes};

/// Starts to listen.
pub fn start(context: &Context) -> Vec<Task<()>> {
    // Of pods only what goes wrong: the rest is in their states.
    let of = ["involvedObject.kind=PersistentVolumeClaim", "involvedObject.kind=Pod,type=Warning"];
    of.into_iter().map(|selector| kit::spawn("events", listen(context.clone(), selector))).collect()
}

async fn listen(context: Context, selector: &'static str) {
    let api: Api<Event> = Api::all(context.client.clone());
    let mut events = pin!(watcher(api, watcher::Config::default().fields(selector)).default_backoff());
    // What was told before this controller began was told by the one before.
    let (mut heard, mut newest) = (None::<u64>, 0);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(watcher::Event::InitApply(event)) => {
                newest = newest.max(version(&event));
                if heard.is_none_or(|heard| version(&event) <= heard) {
                    continue;
                }
                event
            }
            Ok(watcher::Event::Apply(event)) => {
                newest = newest.max(version(&event));
                heard = heard.max(Some(newest));
                event
            }
            Ok(watcher::Event::InitDone) => {
                heard = Some(newest);
                continue;
            }
            Ok(watcher::Event::Init | watcher::Event::Delete(_)) => continue,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "watch of events interrupted, retrying");
                continue;
            }
        };
        if let Err(error) = relay(&context, &event).await {
            tracing::debug!(error = %Chain(&error), "an event was not passed on");
        }
    }
}

fn version(event: &Event) -> u64 {
    event.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

async fn relay(context: &Context, event: &Event) -> Result<(), Error> {
    let about = &event.involved_object;
    let key = Key::new(about.namespace.as_deref().unwrap_or_default(), about.name.as_deref().unwrap_or_default());
    let (mut receivers, mut waits) = (Vec::new(), None);
    if about.kind.as_deref() == Some("Pod") {
        let Some(pod) = context.pods.get(&key).filter(|pod| pod.uid() == about.uid) else { return Ok(()) };
        if annotation_of(&pod, annotation::CREATED_BY_CONTROLLER).is_none() {
            return Ok(());
        }
        receivers.extend(stands_for(context, &pod).iter().map(reference));
    } else {
        let Some(claim) = context.claims.get(&key).filter(|claim| claim.uid() == about.uid) else { return Ok(()) };
        let of_volumes = owners(&claim).flat_map(|uid| context.volumes.by_index(&uid_index(&uid)));
        receivers.extend(of_volumes.map(|volume| reference(&volume)));
        receivers.extend(stands_for(context, &claim).iter().map(reference));
        let ours = !receivers.is_empty() || claim.annotations().contains_key(annotation::POPULATOR_KIND);
        waits = Some(claim).filter(|claim| ours && !is_bound(claim) && event.type_.as_deref() == Some("Warning"));
    }
    let (reason, message) = (quoted(event.reason.as_deref()), quoted(event.message.as_deref()));
    for receiver in receivers {
        tell(context, &receiver, event, &reason, passed_on(&key.name, &message));
    }
    match waits {
        // What we said ourselves is there already.
        Some(claim) if component(event) != Some("cdi-controller") => unbound(context, &claim, &reason, &message).await,
        _ => Ok(()),
    }
}

/// Whoever lives in the namespace may have written it.
fn quoted(text: Option<&str>) -> String {
    brief(text.unwrap_or_default(), STATUS).into_owned()
}

fn component(event: &Event) -> Option<&str> {
    let told = event.source.as_ref().and_then(|source| source.component.as_deref());
    told.or(event.reporting_component.as_deref())
}

/// What was passed on once is passed on as it is.
fn passed_on(name: &str, message: &str) -> String {
    if message.starts_with('[') { message.to_owned() } else { format!("[{name}] : {message}") }
}

fn tell(context: &Context, receiver: &ObjectReference, event: &Event, reason: &str, message: String) {
    if event.type_.as_deref() == Some("Warning") {
        context.recorder.warning(receiver, reason, message);
    } else {
        context.recorder.normal(receiver, reason, message);
    }
}

fn owners<K: ResourceExt>(object: &K) -> impl Iterator<Item = String> + '_ {
    object.owner_references().iter().filter(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
}

/// The claims that `object` works for.
fn stands_for<K: ResourceExt>(context: &Context, object: &K) -> Vec<PersistentVolumeClaim> {
    let named = object.annotations().get(annotation::OWNER_UID).cloned();
    owners(object).chain(named).flat_map(|uid| context.claims.by_index(&uid_index(&uid))).collect()
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

const SAID: [&str; 3] = [annotation::BOUND, annotation::BOUND_REASON, annotation::BOUND_MESSAGE];

async fn unbound(context: &Context, claim: &PersistentVolumeClaim, reason: &str, message: &str) -> Result<(), Error> {
    let said = SAID.into_iter().zip(["false", reason, message]);
    let changes = said.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).collect();
    write::annotate(context, claim, changes, Changes::new()).await
}

/// A claim that has its volume has none of the reasons any more for which it had none.
pub async fn bound(context: &Context, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let said = annotation_of(claim, annotation::BOUND_REASON);
    let stale = said.is_some_and(|reason| reason != AWAITING_VDDK) && is_bound(claim);
    // One that another still stands in for says what that one says.
    let namespace = claim.namespace().unwrap_or_default();
    let prime = annotation_of(claim, annotation::PVC_PRIME).map(|prime| Key::new(namespace, prime));
    if !stale || prime.is_some_and(|prime| context.claims.contains(&prime)) {
        return Ok(());
    }
    let changes = SAID.into_iter().map(|key| (key.to_owned(), None)).collect();
    write::annotate(context, claim, changes, Changes::new()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_event_moves_no_cursor() {
        assert_eq!(quoted(Some("a\x1b]0;title\x07")), "a\\u001b]0;title\\u0007");
        assert_eq!(quoted(Some(&"x".repeat(1 << 20))).len(), STATUS);
    }

    #[test]
    fn a_message_names_whom_it_is_of_once() {
        assert_eq!(passed_on("prime-1", "no class"), "[prime-1] : no class");
        assert_eq!(passed_on("disk", "[prime-1] : no class"), "[prime-1] : no class");
    }
}
