//! DataVolumes: each has a claim of its name, filled from where it says.
//!
//! ```text
//!  DataVolume ─▶ claim + VolumeImportSource, VolumeUploadSource or VolumeCloneSource ─▶ populator ─▶ claim Bound ─▶ Succeeded
//! ```
//!
//! On storage without a CSI driver, which does not know to leave such claims alone, the claim itself carries the annotations that a
//! populator would give its prime.

pub mod fixed;
pub mod marks;
pub mod plan;
pub mod quota;
pub mod size;
pub mod status;

use std::convert::Infallible;
use std::time::Duration;

use api::cdi::constants::{annotation, clone_strategy, label};
use api::cdi::v1beta1::{DataVolume, VolumeCloneSource, VolumeImportSource, VolumeUploadSource};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuota};
use kit::queue::Next;
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use origin::follow;
use plan::{Claimed, Filling};
use serde_json::json;
use status::View;

use crate::Error;
use crate::controller::clone::authorize;
use crate::controller::context::{Context, annotation_of, owner_index, reference, source_index};
use crate::controller::storage::{self, Refusal, Storage};
use crate::controller::write::{self, Changes};
use crate::controller::{progress, settings, worker};

const ASK: Duration = Duration::from_secs(2);

/// Brings one DataVolume in line.
pub async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(mut stored) = context.volumes.get(key) else { return Ok(Next::Wait) };
    if stored.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Wait);
    }
    let mut volume = stored.clone();
    let settings = context.settings();
    let mut refused = match resolve(context, &mut volume).await {
        Ok(()) => None,
        Err(Refusal(message)) => Some(("ErrSourceNotFound".to_owned(), message)),
    };
    let filling = plan::filling(&volume.spec);
    let mut claim = context.claims.get(key);
    if let Some(found) = &claim
        && settle(context, &volume, found).await?
    {
        return Ok(Next::Wait);
    }
    stored = marks::write(context, stored, &mut volume, claim.as_ref(), filling).await?;
    if let Some(found) = &claim {
        match plan::claimed(&volume, found, &settings) {
            Claimed::Ours => {}
            Claimed::Adopt => adopt(context, &volume, found).await?,
            Claimed::Leaving => {
                let message = format!("Resource \"{}\" marked for deletion", key.name);
                refused = Some(("ErrResourceMarkedForDeletion".to_owned(), message));
                claim = None;
            }
            Claimed::Foreign => {
                let message = format!("Resource \"{}\" already exists and is not managed by DataVolume", key.name);
                refused = Some(("ErrResourceExists".to_owned(), message));
                claim = None;
            }
        }
    } else if refused.is_none() && annotation_of(&volume, annotation::PRE_POPULATED).is_none() {
        refused = make(context, &volume, filling, &settings).await?;
    }
    if filling == Filling::Import {
        next_checkpoints(context, &volume).await?;
    }
    claim = if refused.is_some() { claim } else { context.claims.get(key) };
    let class = claim.as_ref().and_then(|claim| context.class_of(claim));
    let mut asks = false;
    let mut progress = None;
    if let Some(claim) = &claim
        && annotation_of(claim, annotation::POD_PHASE) == Some("Running")
        && populator_of(claim).is_none()
    {
        asks = true;
        for pod in context.pods.by_index(&owner_index(&claim.uid().unwrap_or_default())) {
            progress = progress::of_pod(&*context.progress, &pod, &worker::owner(claim)).await.or(progress);
        }
    }
    let view = View {
        filling,
        waits: settings::waits_for_consumer(class.as_ref()),
        honored: settings.honor_first_consumer,
        refused: refused.as_ref().map(|(reason, message)| (reason.as_str(), message.as_str())),
        progress: progress.as_ref(),
    };
    let (status, said) = status::status(&volume, claim.as_ref(), &view, clock::now());
    if stored.status.as_ref() != Some(&status) {
        let api: Api<DataVolume> = Api::namespaced(context.client.clone(), &key.namespace);
        let patch = write::status_of(&stored, &status);
        let done = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let done = done.map_err(Error::api("write the status of", "DataVolume", &key.to_string()))?;
        write::remember(&context.volumes, done, crate::controller::context::volume_indexes);
        for one in said {
            let record = if one.warning { kit::events::Recorder::warning } else { kit::events::Recorder::normal };
            record(&context.recorder, &reference(&volume), &one.reason, one.message);
        }
    }
    if status.phase.as_deref() == Some("Succeeded") {
        clean(context, &volume, filling).await?;
    }
    Ok(match (&refused, asks) {
        // What was refused may be allowed later without any object of ours changing: a quota, a claim that goes.
        (Some(_), _) => Next::After(Duration::from_secs(10)),
        (None, true) => Next::After(ASK),
        (None, false) => Next::Wait,
    })
}

fn populator_of(claim: &PersistentVolumeClaim) -> Option<(&str, &str)> {
    crate::controller::populator::plan::source(claim)
}

/// Puts the source that a `sourceRef` leads to in its place.
async fn resolve(context: &Context, volume: &mut DataVolume) -> Result<(), Refusal> {
    if volume.spec.source.is_some() || volume.spec.source_ref.is_none() {
        return Ok(());
    }
    let find = |namespace: String, name: String| {
        std::future::ready(Ok::<_, Infallible>(context.sources.get(&Key::new(namespace, name))))
    };
    let namespace = volume.namespace().unwrap_or_default();
    let Ok(found) = follow::follow(&volume.spec, &namespace, find).await;
    let end = found.transpose().map_err(|dead| Refusal(format!("{dead}: waiting for it")))?;
    volume.spec.source = end.map(|end| Box::new(end.source.spelled()));
    Ok(())
}

/// Makes the claim, and what says what it is filled with. Says why it cannot.
async fn make(
    context: &Context,
    volume: &DataVolume,
    filling: Filling,
    settings: &settings::Settings,
) -> Result<Option<(String, String)>, Error> {
    // What comes with its content copies nothing.
    let volumes: Vec<_> = context.persistent.list();
    let kept = fixed::volumes(volume, &volumes);
    if let Some(source) = plan::elsewhere(volume).filter(|_| kept.is_empty())
        && let Err(why) = authorize::check_volume(context, volume, &source).await
    {
        return Ok(Some(("CloneValidationFailed".to_owned(), why)));
    }
    let classes = context.classes.list();
    let profiles = context.profiles.list();
    let storage = Storage { classes: &classes, profiles: &profiles, volumes: &volumes, settings };
    let source = size::of_source(context, volume, filling);
    let rendered = match storage::claim(volume, &storage, source) {
        Ok(rendered) => rendered,
        Err(Refusal(message)) => {
            // A source that is not there yet is waited for; what else is wrong needs somebody to look. Of a claim that a webhook
            // completes, clients know only that it is not there.
            let by_webhook = settings.webhook_rendering
                && volume.labels().get(label::APPLY_STORAGE_PROFILE).map(String::as_str) == Some("true");
            return Ok(Some(match by_webhook {
                true => (status::NOT_FOUND.to_owned(), format!("No PVC found: {message}")),
                false => ("ErrClaimNotValid".to_owned(), message),
            }));
        }
    };
    let class = settings::class(&classes, rendered.storage_class_name.as_deref(), false);
    if !kept.is_empty() {
        let filling = Filling::External;
        let mut claim =
            plan::claim(volume, &rendered, filling, false, settings).map_err(Error::setup("render a claim"))?;
        claim.annotations_mut().remove(annotation::EXTERNAL_POPULATION);
        claim.annotations_mut().insert(annotation::PERSISTENT_VOLUME_LIST.to_owned(), json!(kept).to_string());
        return create_claim(context, volume, &claim).await;
    }
    let csi = class.is_some_and(|class| context.drivers.contains(&Key::new("", class.provisioner.as_str())));
    let mut populator = plan::uses_populator(volume, csi) && filling != Filling::External;
    let copies = || {
        let profile = class.and_then(|class| context.profiles.get(&Key::new("", class.name_any())));
        let said = context.clone_override().or_else(|| profile?.status?.clone_strategy.clone());
        said.as_deref() == Some(clone_strategy::COPY)
    };
    if populator
        && plan::fills_beside(volume, filling, copies)
        && annotation_of(volume, annotation::USE_POPULATOR).is_none()
    {
        let namespace = volume.namespace().unwrap_or_default();
        let quotas: Api<ResourceQuota> = Api::namespaced(context.client.clone(), &namespace);
        let quotas =
            quotas.list(&ListParams::default()).await.map_err(Error::api("list", "ResourceQuota", &namespace))?;
        populator = quota::has_room_twice(&quotas.items, &rendered);
    }
    if populator {
        let source = plan::source(volume, filling, settings);
        let render = Error::setup("render the source of a claim");
        match filling {
            Filling::Import | Filling::External => {
                write::create::<VolumeImportSource>(context, &serde_json::from_value(source).map_err(render)?).await?;
            }
            Filling::Upload => {
                write::create::<VolumeUploadSource>(context, &serde_json::from_value(source).map_err(render)?).await?;
            }
            Filling::Clone | Filling::Restore => {
                write::create::<VolumeCloneSource>(context, &serde_json::from_value(source).map_err(render)?).await?;
            }
        }
    }
    let mut claim =
        plan::claim(volume, &rendered, filling, populator, settings).map_err(Error::setup("render a claim"))?;
    if let Some(short) = annotation_of(volume, annotation::CLONE_TOKEN)
        && let Some(long) = authorize::exchange(context, short).await
    {
        claim.annotations_mut().insert(annotation::EXTENDED_CLONE_TOKEN.to_owned(), long);
    }
    create_claim(context, volume, &claim).await
}

/// Makes the claim. Says why it cannot.
async fn create_claim(
    context: &Context,
    volume: &DataVolume,
    claim: &PersistentVolumeClaim,
) -> Result<Option<(String, String)>, Error> {
    match write::create_claim(context, claim).await {
        Ok(()) => used(context, volume).await.map(|()| None),
        Err(error @ kube::Error::Api(_)) if matches!(&error, kube::Error::Api(status) if (400..500).contains(&status.code)) =>
        {
            let message = match &error {
                kube::Error::Api(status) => status.message.clone(),
                other => Chain(other).to_string(),
            };
            Ok(Some((write::quota_or(&error, "ErrClaimNotValid").to_owned(), message)))
        }
        Err(error) => Err(Error::api("create", "PersistentVolumeClaim", &volume.name_any())(error)),
    }
}

/// A claim that was made for volumes that are there has got one of them, or goes. True when something was done.
async fn settle(context: &Context, volume: &DataVolume, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
    // Annotations are anybody's: only a claim that was made for this DataVolume is judged by them.
    if !claim.owner_references().iter().any(|owner| Some(&owner.uid) == volume.uid().as_ref()) {
        return Ok(false);
    }
    match fixed::verdict(claim) {
        fixed::Verdict::Nothing => return Ok(false),
        fixed::Verdict::Filled => {
            let filled = Changes::from([(annotation::POPULATED_FOR.to_owned(), Some(volume.name_any()))]);
            write::annotate(context, claim, filled, Changes::new()).await?;
        }
        fixed::Verdict::Wrong => {
            let told =
                format!("PVC {} was bound to another volume than those kept for it: it is made anew", claim.name_any());
            context.recorder.warning(&reference(volume), "StaticVolumeMissed", told);
            write::delete(context, claim).await?;
        }
    }
    Ok(true)
}

/// A multistage import gets its further checkpoints from the DataVolume, one after the other.
async fn next_checkpoints(context: &Context, volume: &DataVolume) -> Result<(), Error> {
    let key = Key::new(volume.namespace().unwrap_or_default(), plan::source_name(volume, Filling::Import));
    let Some(source) = context.imports.get(&key) else { return Ok(()) };
    let (now, then) = (&volume.spec, &source.spec);
    if now.checkpoints == then.checkpoints && now.final_checkpoint == then.final_checkpoint {
        return Ok(());
    }
    let patch = json!({ "spec": { "checkpoints": now.checkpoints, "finalCheckpoint": now.final_checkpoint } });
    write::patch(context, &source, &patch).await.map(drop)
}

/// A golden image that is cloned is in use: those that nobody uses are collected first.
async fn used(context: &Context, volume: &DataVolume) -> Result<(), Error> {
    let Some(from) = volume.spec.source.as_ref().and_then(|source| source.pvc.as_ref()) else { return Ok(()) };
    let Some(claim) = context.claims.get(&Key::new(from.namespace.as_str(), from.name.as_str())) else { return Ok(()) };
    if claim.labels().contains_key(label::DATA_IMPORT_CRON) {
        let now = clock::seconds(clock::now()).to_string();
        let changes = Changes::from([(annotation::LAST_USE_TIME.to_owned(), Some(now))]);
        write::annotate(context, &claim, changes, Changes::new()).await?;
    }
    Ok(())
}

/// A claim that is filled already becomes the DataVolume's.
async fn adopt(context: &Context, volume: &DataVolume, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let patch = json!({ "metadata": {
        "uid": claim.uid(), "resourceVersion": claim.resource_version(),
        "ownerReferences": worker::owned_by(volume),
        "annotations": { annotation::POPULATED_FOR: volume.name_any() },
    } });
    let done = write::patch(context, claim, &patch).await?;
    write::remember(&context.claims, done, crate::controller::context::claim_indexes);
    Ok(())
}

/// What said what the claim is filled with is of no further use.
async fn clean(context: &Context, volume: &DataVolume, filling: Filling) -> Result<(), Error> {
    let key = Key::new(plan::source_namespace(volume), plan::source_name(volume, filling));
    match filling {
        Filling::Import => {
            if let Some(source) = context.imports.get(&key) {
                write::delete(context, &source).await?;
            }
        }
        Filling::Upload => {
            if let Some(source) = context.uploads.get(&key) {
                write::delete(context, &source).await?;
            }
        }
        Filling::Clone | Filling::Restore => {
            if let Some(source) = context.clones.get(&key) {
                write::delete(context, &source).await?;
            }
        }
        Filling::External => return Ok(()),
    }
    Ok(())
}

/// The index value of DataVolumes that come from the DataSource under `key`.
pub fn from_source(key: &Key) -> String {
    source_index("DataSource", &key.namespace, &key.name)
}
