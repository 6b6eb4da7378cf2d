//! Fills claims whose `dataSourceRef` names an object of ours, on any CSI storage and with no help of its driver.
//!
//! ```text
//!  claim (Pending) ─▶ prime-UID is made and filled ─▶ its volume's claimRef is turned to the claim ─▶ claim Bound, prime deleted
//! ```
//!
//! Whoever uses the claim sees either nothing or the whole: a pod that wants it is not scheduled before.

pub mod checkpoint;
pub mod forklift;
pub mod plan;
pub mod rebind;

use std::collections::BTreeMap;
use std::time::Duration;

use api::cdi::constants::annotation;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::Chain;
use kit::queue::Next;
use kit::store::Key;
use kube::ResourceExt;
use plan::Step;

use crate::Error;
use crate::controller::context::{Context, annotation_of, owner_index, reference};
use crate::controller::labels::of_image;
use crate::controller::storage::FILESYSTEM;
use crate::controller::write::{self, Changes};
use crate::controller::{progress, settings, sources, worker};

/// How often a running worker is asked how far it is.
const ASK: Duration = Duration::from_secs(2);

/// Brings one claim with a data source of ours in line.
pub async fn sync(context: &Context, claim: &PersistentVolumeClaim, kind: &str, name: &str) -> Result<Next, Error> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Wait);
    }
    let namespace = claim.namespace().unwrap_or_default();
    let Some(prime) = context.claims.get(&Key::new(namespace.as_str(), plan::prime_name(claim))) else {
        return begin(context, claim, kind, name).await;
    };
    if checkpoint::advance(context, claim, &prime, name).await? {
        return Ok(Next::Wait);
    }
    follow(context, claim, &prime).await
}

async fn begin(context: &Context, claim: &PersistentVolumeClaim, kind: &str, name: &str) -> Result<Next, Error> {
    let spec = claim.spec.clone().unwrap_or_default();
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let taken = spec.volume_name.as_deref().is_some_and(|name| !name.is_empty());
    let waits = settings::waits_for_consumer(context.class_of(claim).as_ref());
    if taken || phase == Some("Lost") || !plan::ready(claim, waits) {
        return Ok(Next::Wait);
    }
    let (how, word) = if forklift::named(claim).is_some() {
        if let Err(why) = forklift::find(context, claim) {
            return forklift::tell(context, claim, &why).await;
        }
        (forklift::marks(), forklift::WORD)
    } else {
        let Some(how) = filling(context, claim, kind, name) else { return Ok(Next::Wait) };
        (how, kind)
    };
    let prime = serde_json::from_value(plan::prime(claim, word, how)).map_err(Error::setup("render a claim"))?;
    match write::create_claim(context, &prime).await {
        Ok(()) => {
            context.recorder.normal(&reference(claim), "CreatedPVCPrimeSuccessfully", "PVC Prime created successfully");
            Ok(Next::Wait)
        }
        Err(error) => {
            let told = write::quota_or(&error, "ErrCreatingPVCPrime");
            let mut why = Chain(&error).to_string();
            if write::is_over_quota(&error) {
                why.push_str(": a second claim is filled in the place of this one, and both count until its volume has changed hands");
            }
            context.recorder.warning(&reference(claim), told, why.as_str());
            let said =
                [(annotation::BOUND, "false"), (annotation::BOUND_REASON, told), (annotation::BOUND_MESSAGE, &why)];
            let changes = said.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).into();
            write::annotate(context, claim, changes, Changes::new()).await?;
            Err(Error::api("create", "PersistentVolumeClaim", &prime.name_any())(error))
        }
    }
}

/// What the prime is told to be filled with; none while the object that says it is not there.
fn filling(
    context: &Context,
    claim: &PersistentVolumeClaim,
    kind: &str,
    name: &str,
) -> Option<BTreeMap<String, String>> {
    let key = Key::new(claim.namespace().unwrap_or_default(), name);
    let settings = context.settings();
    let mut how;
    let (content, preallocation) = match kind {
        "VolumeImportSource" => {
            let from = context.imports.get(&key)?.spec;
            if from.target_claim.as_ref().is_some_and(|target| !target.is_empty() && *target != claim.name_any()) {
                return None;
            }
            how = sources::annotations(&from.source.unwrap_or_default());
            how.extend(checkpoint::first(&from.checkpoints, from.final_checkpoint == Some(true)));
            (from.content_type, from.preallocation)
        }
        "VolumeUploadSource" => {
            let from = context.uploads.get(&key)?.spec;
            how = BTreeMap::from([(annotation::UPLOAD.to_owned(), String::new())]);
            (from.content_type, from.preallocation)
        }
        _ => return None,
    };
    let preallocation = preallocation.unwrap_or(settings.preallocation);
    how.insert(
        annotation::CONTENT_TYPE.to_owned(),
        content.filter(|content| !content.is_empty()).unwrap_or_else(|| "kubevirt".to_owned()),
    );
    how.insert(annotation::PREALLOCATION_REQUESTED.to_owned(), preallocation.to_string());
    Some(how)
}

/// Tells on the claim how its prime fares, and takes the volume over when it is filled.
pub async fn follow(
    context: &Context,
    claim: &PersistentVolumeClaim,
    prime: &PersistentVolumeClaim,
) -> Result<Next, Error> {
    let uid = prime.uid().unwrap_or_default();
    let running = annotation_of(prime, annotation::POD_PHASE) == Some("Running");
    let mut progress = None;
    if running {
        for pod in context.pods.by_index(&owner_index(&uid)) {
            progress = progress::of_pod(&*context.progress, &pod, &worker::owner(prime)).await.or(progress);
        }
    }
    match plan::step(claim, prime) {
        Step::Follow => {
            write::annotate(context, claim, plan::told(claim, prime, progress.as_ref()), Changes::new()).await?;
            Ok(if running { Next::After(ASK) } else { Next::Wait })
        }
        Step::Rebind(volume) => {
            let labels = prime.labels().iter().filter(|(key, _)| of_image(key));
            let labels = labels.filter(|(key, _)| !claim.labels().contains_key(*key));
            let labels = labels.map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
            write::annotate(context, claim, plan::told(claim, prime, None), labels).await?;
            if annotation_of(prime, annotation::POD_RETAIN) == Some("true") {
                let told = "PVC Prime retained in Lost state for debugging purposes";
                context.recorder.warning(&reference(prime), "RetainedPVCPrime", told);
            }
            rebind::volume(context, &volume, prime, claim).await
        }
        Step::Clean => {
            write::annotate(context, claim, plan::told(claim, prime, None), Changes::new()).await?;
            write::delete(context, prime).await?;
            let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or(FILESYSTEM);
            tracing::info!(claim = %Key::of(claim), mode, "filled");
            Ok(Next::Wait)
        }
        Step::Done => Ok(Next::Wait),
    }
}
