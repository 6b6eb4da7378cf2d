//! One pass: from the HyperConverged object to the objects that follow, and from what they say to its status.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use api::hco::HyperConverged;
use kit::queue::Next;
use kit::store::Key;
use kit::{Chain, clock};
use kube::{Resource, ResourceExt};

use super::children::Done;
use super::context::Context;
use super::remove;
use crate::Error;
use crate::child::Child;
use crate::golden_images;
use crate::render::{self, Input, NAME, OWNED};
use crate::status::{self, Facts, Seen};

/// How often what nobody tells of is looked at.
const LOOK: Duration = Duration::from_secs(600);

/// Brings one object a step further.
pub(super) async fn reconcile(context: &Context, key: &Key) -> Next {
    match sync(context, key).await {
        Ok(next) => next,
        Err(error) if error.is_conflict() => {
            tracing::debug!(hyperconverged = %key, error = %Chain(&error), "somebody else wrote first");
            Next::Retry
        }
        Err(error) => {
            tracing::warn!(hyperconverged = %key, error = %Chain(&error), "HyperConverged not reconciled");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(hco) = context.hcos.get(key) else { return Ok(Next::Wait) };
    let now = clock::seconds(clock::now());
    if !context.counts(key) {
        if hco.metadata.deletion_timestamp.is_none() {
            let wanted = status::invalid(&hco, (&context.input.namespace, NAME), now);
            context.write(&hco, &wanted).await?;
        }
        return Ok(Next::Wait);
    }
    if hco.metadata.deletion_timestamp.is_some() {
        return remove::sync(context, &hco).await;
    }
    if hco.status.is_none() {
        context.write(&hco, &status::initial(&hco, now)).await?;
    }
    context.requests.hold(&hco).await.map_err(Error::api("patch", "HyperConverged", &key.name))?;
    let input = context.input(schedule(&hco));
    announce_upgrade(context, &hco, &input);
    let failure = bring_all(context, &hco, &input).await;
    let seen = seen(context);
    let text = failure.as_ref().map(|error| Chain(error).to_string());
    // Another pass may have written while the children were.
    let current = context.hcos.get(key).unwrap_or(hco);
    let injector = context.injectors.list().pop();
    let facts = Facts { seen: &seen, failure: text.as_deref(), input: &input, injector: injector.as_ref() };
    let wanted = status::status(&current, &facts, now);
    context.write(&current, &wanted).await?;
    match failure {
        Some(error) => Err(error),
        None => Ok(Next::After(LOOK)),
    }
}

/// What is there of each child.
pub(super) fn seen(context: &Context) -> Vec<Seen> {
    Child::ALL.into_iter().map(|child| context.children.seen(child, &context.input.namespace)).collect()
}

/// Brings every child whose kind is served to what the object says, in order; the first failure after trying all.
async fn bring_all(context: &Context, hco: &HyperConverged, input: &Input) -> Option<Error> {
    let mut failure = None;
    for child in Child::ALL {
        if !context.children.seen(child, &input.namespace).served {
            continue;
        }
        let done = match render::render(child, hco, input) {
            Ok(manifest) => context.children.bring(&context.client, child, &input.namespace, &manifest, OWNED).await,
            Err(refusal) => Err(refusal.into()),
        };
        match done {
            Ok(done) => tell(context, hco, child, done),
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
    }
    failure
}

fn tell(context: &Context, hco: &HyperConverged, child: Child, done: Done) {
    let (object, kind) = (hco.object_ref(&()), child.kind());
    let say = |reason: &str, message: String| context.events.normal(&object, reason, message);
    match done {
        Done::Nothing => {}
        Done::Created => say("Created", format!("Created {} {}", kind.kind, kind.name)),
        Done::Updated => say("Updated", format!("Updated {} {}", kind.kind, kind.name)),
        Done::Overwritten => {
            let message = format!("Overwritten {} {}: change the HyperConverged object instead", kind.kind, kind.name);
            context.events.warning(&object, "Overwritten", message);
        }
    }
}

fn announce_upgrade(context: &Context, hco: &HyperConverged, input: &Input) {
    let begun = hco.status.iter().flat_map(|status| &status.conditions);
    let told = begun.into_iter().any(|condition| condition.reason == "HCOUpgrading");
    if !told && status::is_upgrading(hco, &seen(context), &input.version) {
        let message = format!("Upgrading the HyperConverged to version {}", input.version);
        context.events.normal(&hco.object_ref(&()), "UpgradeHCO", message);
    }
}

/// When boot images are looked for: chosen once, and another moment on each cluster.
fn schedule(hco: &HyperConverged) -> String {
    let held = hco.status.as_ref().and_then(|status| status.data_import_schedule.clone());
    held.unwrap_or_else(|| {
        let mut hasher = DefaultHasher::new();
        hco.uid().hash(&mut hasher);
        let bytes = hasher.finish().to_le_bytes();
        golden_images::schedule([bytes[0], bytes[1]])
    })
}
