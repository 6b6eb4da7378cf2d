//! Clones claims and snapshots into claims that name a VolumeCloneSource: by the driver where it can, byte by byte where it cannot.

pub mod authorize;
pub mod choose;
pub mod copy;
pub mod plan;
pub mod restore;
pub mod source;
pub mod workspace;

use std::time::Duration;

use api::cdi::constants::{annotation, finalizer};
use choose::{Facts, Strategy};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::queue::Next;
use kit::store::Key;
use kube::ResourceExt;
use plan::{Source, State, Step};
use serde_json::json;
use source::{driver_of, in_use, mode, restore_size, unready};
use workspace::{finish, take_snapshot, unuse, use_claim};

use crate::Error;
use crate::controller::context::{Context, annotation_of, reference, uid_index};
use crate::controller::populator::{self, rebind};
use crate::controller::storage::{requested, size_of};
use crate::controller::write::{self, Changes};
use crate::controller::{progress, settings};

/// How often what nobody tells is looked at.
const AGAIN: Duration = Duration::from_secs(5);
const ASK: Duration = Duration::from_secs(2);

/// Brings the clone of one claim in line.
pub async fn sync(context: &Context, target: &PersistentVolumeClaim, from: &str) -> Result<Next, Error> {
    let here = target.namespace().unwrap_or_default();
    let there = annotation_of(target, annotation::DATA_SOURCE_NAMESPACE).unwrap_or(&here).to_owned();
    let began = target.finalizers().iter().any(|one| one == finalizer::POPULATOR);
    if target.metadata.deletion_timestamp.is_some() {
        return if began { finish(context, target, &there).await } else { Ok(Next::Wait) };
    }
    let taken = target.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).is_some_and(|name| !name.is_empty());
    let bound = target.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    if taken {
        return if began && bound { finish(context, target, &there).await } else { Ok(Next::Wait) };
    }
    let class = context.class_of(target);
    let waits = settings::waits_for_consumer(class.as_ref());
    if !populator::plan::ready(target, waits) {
        return Ok(Next::Wait);
    }
    let Some(wanted) = context.clones.get(&Key::new(there.as_str(), from)) else { return Ok(Next::Wait) };
    let named = wanted.spec.source;
    let key = Key::new(there.as_str(), named.name.as_str());
    if here != there {
        let source = origin::Source {
            snapshot: named.kind == "VolumeSnapshot",
            namespace: there.clone(),
            name: named.name.clone(),
        };
        if let Err(why) = authorize::check(context, target, &source).await {
            return waiting(context, target, "CloneValidationFailed", &why).await;
        }
    }
    let source = match named.kind.as_str() {
        "VolumeSnapshot" => context.snapshots.get(&key).map(|found| Source::Snapshot(Box::new(found))),
        _ => context.claims.get(&key).map(|found| Source::Claim(Box::new(found))),
    };
    let Some(source) = source else {
        let kind = if named.kind == "VolumeSnapshot" { "snapshot" } else { "pvc" };
        let told = format!("The source {kind} {} doesn't exist in namespace {there}: waiting for it", named.name);
        return waiting(context, target, "CloneWithoutSource", &told).await;
    };
    let strategy = match began.then(|| annotation_of(target, annotation::CLONE_TYPE)).flatten().and_then(strategy_of) {
        Some(strategy) => strategy,
        None => match begin(context, target, &source).await? {
            Ok(strategy) => strategy,
            Err(next) => return Ok(next),
        },
    };
    go_on(context, target, &source, strategy, waits).await
}

fn strategy_of(word: &str) -> Option<Strategy> {
    [Strategy::Csi, Strategy::Snapshot, Strategy::Copy].into_iter().find(|strategy| strategy.word() == word)
}

/// Says why nothing goes on, on the target and so in the conditions of its DataVolume.
async fn waiting(context: &Context, target: &PersistentVolumeClaim, reason: &str, why: &str) -> Result<Next, Error> {
    if annotation_of(target, annotation::CLONE_ERROR) != Some(why) {
        context.recorder.warning(&reference(target), reason, why);
        let said = SAID.into_iter().zip([why, "false", reason, why]);
        let changes = said.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).collect();
        write::annotate(context, target, changes, Changes::new()).await?;
    }
    Ok(Next::After(AGAIN))
}

const SAID: [&str; 4] =
    [annotation::CLONE_ERROR, annotation::RUNNING, annotation::RUNNING_REASON, annotation::RUNNING_MESSAGE];

/// Takes back what [`waiting`] has said, if it has.
fn relieved(target: &PersistentVolumeClaim) -> Changes {
    let waited = target.annotations().contains_key(annotation::CLONE_ERROR);
    SAID.into_iter().filter(|_| waited).map(|key| (key.to_owned(), None)).collect()
}

/// Decides how the clone is made, and writes that down: what has begun goes on as it has.
async fn begin(
    context: &Context,
    target: &PersistentVolumeClaim,
    source: &Source,
) -> Result<Result<Strategy, Next>, Error> {
    if let Source::Claim(claim) = source {
        if let Some(why) = unready(context, claim) {
            return waiting(context, target, "CloneSourceNotReady", &why).await.map(Err);
        }
        if let Some(user) = in_use(context, claim) {
            let told = format!("pod {}/{user} using PersistentVolumeClaim {}", source.namespace(), source.name());
            return waiting(context, target, "CloneSourceInUse", &told).await.map(Err);
        }
        let (have, want) =
            (size_of(claim).unwrap_or_default(), target.spec.as_ref().and_then(requested).unwrap_or_default());
        let asked = claim.spec.as_ref().and_then(requested).unwrap_or(have);
        let same = mode(claim) == mode(target);
        if same && want < asked && !target.annotations().contains_key(annotation::PERMISSIVE_CLONE) {
            let told = format!(
                "target resources requests storage size is smaller than the source: {want} where that has {asked}: ask for at least as much in spec.resources.requests.storage"
            );
            if annotation_of(target, annotation::CLONE_ERROR) != Some(told.as_str()) {
                let plain = "The clone doesn't meet the validation requirements";
                context.recorder.warning(&reference(target), "CloneValidationFailed", plain);
            }
            return waiting(context, target, "ErrIncompatiblePVC", &told).await.map(Err);
        }
    }
    let class = context.class_of(target);
    let profile = class.as_ref().and_then(|class| context.profiles.get(&Key::new("", class.name_any())));
    let overridden = context.clone_override();
    let said = profile.and_then(|profile| profile.status.and_then(|status| status.clone_strategy.clone()));
    let wanted = overridden.or(said);
    let source_driver = driver_of(context, source);
    let target_driver = class.as_ref().map(|class| class.provisioner.clone()).unwrap_or_default();
    let (have, source_mode) = match source {
        Source::Claim(claim) => (size_of(claim), mode(claim).to_owned()),
        Source::Snapshot(snapshot) => (
            restore_size(snapshot),
            annotation_of(&**snapshot, annotation::SOURCE_VOLUME_MODE).unwrap_or(mode(target)).to_owned(),
        ),
    };
    let want = target.spec.as_ref().and_then(requested).unwrap_or_default();
    let facts = Facts {
        wanted: wanted.as_deref(),
        of_snapshot: matches!(source, Source::Snapshot(_)),
        target_driver: &target_driver,
        source_driver: &source_driver,
        csi: context.drivers.contains(&Key::new("", target_driver.as_str())),
        snapshots: context.snapshot_class(&source_driver, None).is_some(),
        same_mode: source_mode == mode(target),
        larger: have.is_some_and(|have| want > have),
        expansion: class.as_ref().is_some_and(|class| class.allow_volume_expansion == Some(true)),
    };
    let (strategy, why) = choose::choose(&facts);
    if let Some((reason, message)) = why {
        context.recorder.warning(&reference(target), reason, message);
    }
    let mut changes = relieved(target);
    changes.insert(annotation::CLONE_TYPE.to_owned(), Some(strategy.word().to_owned()));
    changes.extend(why.map(|(reason, _)| (annotation::CLONE_FALLBACK_REASON.to_owned(), Some(reason.to_owned()))));
    let annotations = write::differing(target.annotations(), changes);
    let mut finalizers: Vec<&str> = target.finalizers().iter().map(String::as_str).collect();
    finalizers.push(finalizer::POPULATOR);
    let patch = json!({ "metadata": {
        "uid": target.uid(), "resourceVersion": target.resource_version(), "annotations": annotations, "finalizers": finalizers,
    } });
    let done = write::patch(context, target, &patch).await?;
    write::remember(&context.claims, done, crate::controller::context::claim_indexes);
    Ok(Ok(strategy))
}

async fn go_on(
    context: &Context,
    target: &PersistentVolumeClaim,
    source: &Source,
    strategy: Strategy,
    waits: bool,
) -> Result<Next, Error> {
    let restored;
    let source = match source {
        // Only a claim can be read.
        Source::Snapshot(snapshot) if strategy == Strategy::Copy => {
            match restore::claim(context, target, snapshot).await? {
                Ok(claim) => {
                    restored = Source::Claim(Box::new(claim));
                    &restored
                }
                Err(why) => return waiting(context, target, "CloneWithoutSource", &why).await,
            }
        }
        source => source,
    };
    let at = if strategy == Strategy::Copy { target.namespace().unwrap_or_default() } else { source.namespace() };
    let claim = context.claims.get(&Key::new(at, plan::claim_name(target)));
    let of_snapshot = matches!(source, Source::Snapshot(_));
    let snapshot = match source {
        Source::Snapshot(snapshot) => Some((**snapshot).clone()),
        Source::Claim(_) => context.snapshots.get(&Key::new(source.namespace(), plan::snapshot_name(target))),
    };
    let state = State { target, claim: claim.as_ref(), snapshot: snapshot.as_ref(), waits };
    let step = plan::step(strategy, of_snapshot, &state);
    let failure = snapshot.as_ref().filter(|_| step == Step::AwaitSnapshot).and_then(source::failure);
    tell(context, target, claim.as_ref(), strategy, &step, failure.is_none()).await?;
    if let Some(why) = failure {
        return waiting(context, target, "CloneSnapshotFailed", &why).await;
    }
    match (step, claim) {
        (Step::TakeSnapshot, _) => take_snapshot(context, target, source).await,
        (Step::MakeClaim, _) => {
            let size = match source {
                Source::Claim(claim) => size_of(claim),
                Source::Snapshot(snapshot) => restore_size(snapshot),
            };
            let size = size.or_else(|| target.spec.as_ref().and_then(requested)).unwrap_or_default();
            let made = plan::claim(target, source, strategy, size);
            let made: PersistentVolumeClaim = serde_json::from_value(made).map_err(Error::setup("render a claim"))?;
            match write::create_claim(context, &made).await {
                Ok(()) => Ok(Next::Wait),
                Err(error) => {
                    let told = write::quota_or(&error, "ErrorCreatingClone");
                    let why = kit::Chain(&error).to_string();
                    waiting(context, target, told, &why).await
                }
            }
        }
        (Step::AwaitSnapshot, _) | (Step::AwaitClaim, None) => Ok(Next::After(AGAIN)),
        (Step::AwaitClaim, Some(claim)) => {
            let running = annotation_of(&claim, annotation::POD_PHASE) == Some("Running");
            Ok(Next::After(if running { ASK } else { AGAIN }))
        }
        (Step::Enlarge(size), Some(claim)) => {
            let patch = json!({ "spec": { "resources": { "requests": { "storage": size.to_string() } } } });
            let done = write::patch(context, &claim, &patch).await?;
            write::remember(&context.claims, done, crate::controller::context::claim_indexes);
            Ok(Next::After(AGAIN))
        }
        (Step::Use, Some(claim)) => use_claim(context, target, &claim).await,
        (Step::Rebind(volume), Some(claim)) => {
            unuse(context, target, &claim.namespace().unwrap_or_default()).await?;
            rebind::volume(context, &volume, &claim, target).await
        }
        _ => Ok(Next::Wait),
    }
}

/// Says on the target how far its clone is, and what is wrong with the claim that becomes it.
async fn tell(
    context: &Context,
    target: &PersistentVolumeClaim,
    claim: Option<&PersistentVolumeClaim>,
    strategy: Strategy,
    step: &Step,
    goes_on: bool,
) -> Result<(), Error> {
    let mut changes = if goes_on { relieved(target) } else { Changes::new() };
    if let Some(claim) = claim.filter(|_| strategy == Strategy::Copy) {
        let mut percent = None;
        for pod in context.pods.by_index(&uid_index(&claim.uid().unwrap_or_default())) {
            percent = progress::of_pod(&*context.progress, &pod, &target.uid().unwrap_or_default()).await.or(percent);
        }
        changes.extend(populator::plan::told(target, claim, percent.as_ref()));
        changes.remove(annotation::POD_PHASE);
        changes.remove(annotation::PVC_PRIME);
    }
    if let Some(claim) = claim.filter(|_| strategy != Strategy::Copy) {
        changes.extend(populator::plan::unbound(target, claim));
    }
    changes.insert(annotation::CLONE_PHASE.to_owned(), Some(plan::phase(strategy, step).to_owned()));
    // A driver has no pod that would say that it works.
    if goes_on && strategy != Strategy::Copy {
        for (key, value) in [
            (annotation::RUNNING, "true"),
            (annotation::RUNNING_REASON, "Populator is running"),
            (annotation::RUNNING_MESSAGE, ""),
        ] {
            changes.insert(key.to_owned(), Some(value.to_owned()));
        }
    }
    if matches!(step, Step::Rebind(_)) {
        for (key, value) in [
            (annotation::POD_PHASE, "Succeeded"),
            (annotation::CLONE_OF, "true"),
            (annotation::POPULATOR_PROGRESS, "100.0%"),
            (annotation::RUNNING, "false"),
            (annotation::RUNNING_REASON, "Completed"),
            (annotation::RUNNING_MESSAGE, "Clone Complete"),
        ] {
            changes.insert(key.to_owned(), Some(value.to_owned()));
        }
    }
    write::annotate(context, target, changes, Changes::new()).await
}
