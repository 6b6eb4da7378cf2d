//! ObjectTransfers: a claim, or a DataVolume with its claim, goes to another namespace or name, and its data with it.
//!
//! ```text
//!  "" ─▶ Pending ─▶ Running: volume kept ─▶ source gone ─▶ volume promised to the target ─▶ target bound ─▶ Complete
//! ```
//!
//! What is needed to go on stands in `status.data` before anything is deleted.

pub mod arrival;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions;
use std::collections::BTreeMap;
use std::time::Duration;

use api::cdi::constants::finalizer;
use api::cdi::v1beta1::{DataVolume, ObjectTransfer, ObjectTransferStatus};
use k8s_openapi::api::core::v1::PersistentVolume;
use kit::clock;
use kit::queue::Next;
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Error;
use crate::controller::context::Context;
use crate::controller::write;

const PENDING: &str = "Pending";
const RUNNING: &str = "Running";
const COMPLETE: &str = "Complete";
const FAILED: &str = "Error";
/// What waits for somebody else is looked at this often.
const AGAIN: Duration = Duration::from_secs(2);
/// Keys of `status.data`.
const SOURCE: &str = "source";
const CLAIM: &str = "claim";
const VOLUME: &str = "pvName";
const RECLAIM: &str = "pvReclaim";

/// What comes of one pass.
struct Verdict {
    phase: &'static str,
    done: bool,
    reason: String,
    message: String,
    data: BTreeMap<String, String>,
}

/// Brings one transfer in line.
pub async fn sync(context: &Context, name: &str) -> Result<Next, Error> {
    let key = Key::new("", name);
    let Some(transfer) = context.transfers.get(&key) else { return Ok(Next::Wait) };
    let api: Api<ObjectTransfer> = Api::all(context.client.clone());
    let held = transfer.finalizers().iter().any(|one| one == finalizer::OBJECT_TRANSFER);
    let status = transfer.status.clone().unwrap_or_default();
    let phase = status.phase.clone().unwrap_or_default();
    // One that has begun is brought to its end.
    let over = matches!(phase.as_str(), "" | PENDING | COMPLETE | FAILED);
    if transfer.metadata.deletion_timestamp.is_some() && over {
        if held {
            let rest: Vec<&String> =
                transfer.finalizers().iter().filter(|one| *one != finalizer::OBJECT_TRANSFER).collect();
            let patch = json!({ "metadata": { "resourceVersion": transfer.resource_version(), "finalizers": rest } });
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(Error::api(
                "release",
                "ObjectTransfer",
                name,
            ))?;
        }
        return Ok(Next::Wait);
    }
    if matches!(phase.as_str(), COMPLETE | FAILED) {
        return Ok(Next::Wait);
    }
    if !held {
        let patch = json!({ "metadata": { "resourceVersion": transfer.resource_version(), "finalizers": [finalizer::OBJECT_TRANSFER] } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(Error::api(
            "hold",
            "ObjectTransfer",
            name,
        ))?;
        return Ok(Next::Wait);
    }
    let verdict = if phase == RUNNING {
        go_on(context, &transfer, status.data.clone()).await?
    } else {
        begin(context, &transfer)
    };
    let mut after = status.clone();
    after.phase = Some(verdict.phase.to_owned());
    after.data = verdict.data;
    let truth = if verdict.done { "True" } else { "False" };
    let (reason, message) = (Some(verdict.reason.as_str()), Some(verdict.message.as_str()));
    conditions::set(&mut after.conditions, "Complete", truth, reason, message, &Time(clock::now()));
    if after != status {
        write_status(&api, &transfer, &status, &after).await?;
    }
    Ok(if verdict.done || verdict.phase == FAILED { Next::Wait } else { Next::After(AGAIN) })
}

async fn write_status(
    api: &Api<ObjectTransfer>,
    transfer: &ObjectTransfer,
    before: &ObjectTransferStatus,
    after: &ObjectTransferStatus,
) -> Result<(), Error> {
    let mut body = json!(after);
    for key in before.data.keys().filter(|key| !after.data.contains_key(*key)) {
        body["data"][key] = Value::Null;
    }
    let patch = json!({ "metadata": { "resourceVersion": transfer.resource_version() }, "status": body });
    let name = transfer.name_any();
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop).map_err(Error::api(
        "write the status of",
        "ObjectTransfer",
        &name,
    ))
}

fn waiting(message: impl Into<String>) -> Verdict {
    Verdict { phase: PENDING, done: false, reason: String::new(), message: message.into(), data: BTreeMap::new() }
}

fn is_volume(transfer: &ObjectTransfer) -> bool {
    transfer.spec.source.kind.eq_ignore_ascii_case("datavolume")
}

/// Where it goes.
fn target(transfer: &ObjectTransfer) -> Key {
    let (source, target) = (&transfer.spec.source, &transfer.spec.target);
    let or = |told: &Option<String>, own: &str| {
        told.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| own.to_owned())
    };
    Key::new(or(&target.namespace, &source.namespace), or(&target.name, &source.name))
}

/// Looks whether the source can go, and writes down what it is.
fn begin(context: &Context, transfer: &ObjectTransfer) -> Verdict {
    let source = &transfer.spec.source;
    let key = Key::new(source.namespace.as_str(), source.name.as_str());
    if !is_volume(transfer) && !source.kind.eq_ignore_ascii_case("persistentvolumeclaim") {
        let message =
            format!("spec.source.kind is {:?}: DataVolume and PersistentVolumeClaim can be transferred", source.kind);
        return Verdict { phase: FAILED, reason: "InvalidKind".to_owned(), ..waiting(message) };
    }
    let volume = context.volumes.get(&key);
    if is_volume(transfer) {
        match volume
            .as_ref()
            .map(|volume| volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default())
        {
            None => return waiting("No source"),
            Some(phase) if phase != "Succeeded" => {
                return waiting(format!("DataVolume is not filled: its phase is {phase}"));
            }
            Some(_) => {}
        }
    }
    let Some(claim) = context.claims.get(&key) else { return waiting("No source") };
    let said =
        if is_volume(transfer) { volume.as_ref().map(ResourceExt::annotations) } else { Some(claim.annotations()) };
    let lacking =
        source.required_annotations.iter().find(|(name, value)| said.is_none_or(|said| said.get(*name) != Some(value)));
    if let Some((name, value)) = lacking {
        return waiting(format!("the source lacks the annotation {name}: {value}"));
    }
    let persistent = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    if persistent.is_empty() || claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return waiting("PVC not bound");
    }
    let cloned = [
        "provisioner.storage.kubernetes.io/cloning-protection",
        "snapshot.storage.kubernetes.io/pvc-as-source-protection",
    ];
    if let Some(held) = claim.finalizers().iter().find(|one| cloned.contains(&one.as_str())) {
        return waiting(format!("PVC has finalizer: {held}"));
    }
    let live = |phase: &str| !matches!(phase, "Succeeded" | "Failed");
    let users = context.users(&key.namespace, &key.name);
    if users.iter().any(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_none_or(live)) {
        return waiting("Pods using PVC");
    }
    if context.claims.contains(&target(transfer)) {
        return waiting(format!("{} exists already", target(transfer)));
    }
    let Some(kept) = context.persistent.get(&Key::new("", persistent.as_str())) else { return waiting("PV not found") };
    let reclaim = kept
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.clone())
        .unwrap_or_else(|| "Delete".to_owned());
    let mut data = BTreeMap::from([
        (CLAIM.to_owned(), json!(claim).to_string()),
        (VOLUME.to_owned(), persistent),
        (RECLAIM.to_owned(), reclaim),
    ]);
    data.extend(volume.filter(|_| is_volume(transfer)).map(|volume| (SOURCE.to_owned(), json!(volume).to_string())));
    Verdict { phase: RUNNING, data, ..waiting("Running") }
}

async fn go_on(context: &Context, transfer: &ObjectTransfer, data: BTreeMap<String, String>) -> Result<Verdict, Error> {
    let running = |message: &str, data: BTreeMap<String, String>| Verdict { phase: RUNNING, data, ..waiting(message) };
    let failed =
        |reason: &str, message: String| Verdict { phase: FAILED, reason: reason.to_owned(), ..waiting(message) };
    let (Some(name), Some(reclaim), Some(claim)) = (data.get(VOLUME), data.get(RECLAIM), data.get(CLAIM)) else {
        return Ok(failed("Incomplete", "status.data was changed: pvName, pvReclaim or claim is missing".to_owned()));
    };
    let (source, into) =
        (Key::new(transfer.spec.source.namespace.as_str(), transfer.spec.source.name.as_str()), target(transfer));
    let persistents: Api<PersistentVolume> = Api::all(context.client.clone());
    let Some(persistent) = persistents.get_opt(name).await.map_err(Error::api("read", "PersistentVolume", name))?
    else {
        return Ok(failed("VolumeLost", format!("PersistentVolume {name} is gone")));
    };
    let spec = persistent.spec.clone().unwrap_or_default();
    let old = context
        .claims
        .get(&source)
        .filter(|claim| claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()) == Some(name));
    if let Some(old) = old {
        if spec.persistent_volume_reclaim_policy.as_deref() != Some("Retain") {
            keep(&persistents, &persistent, json!({ "persistentVolumeReclaimPolicy": "Retain" })).await?;
        } else {
            if let Some(volume) = context.volumes.get(&source).filter(|_| is_volume(transfer)) {
                write::delete(context, &volume).await?;
            }
            write::delete(context, &old).await?;
        }
        return Ok(running("Running", data));
    }
    let holder = spec.claim_ref.clone().unwrap_or_default();
    let held_by = Key::new(holder.namespace.unwrap_or_default(), holder.name.unwrap_or_default());
    if held_by != into {
        if held_by != source && !held_by.name.is_empty() {
            return Ok(failed("BoundToAnother", format!("PV bound to wrong PVC {held_by}")));
        }
        let promised = json!({ "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": into.namespace, "name": into.name,
            "uid": null, "resourceVersion": null, "fieldPath": null,
        } });
        keep(&persistents, &persistent, promised).await?;
        return Ok(running("Running", data));
    }
    let Some(found) = context.claims.get(&into) else {
        let made =
            arrival::arrived(claim, &into, is_volume(transfer)).map_err(Error::setup("read status.data.claim"))?;
        write::create(context, &made).await?;
        return Ok(running("Running", data));
    };
    if found.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return Ok(running("Waiting for target to be bound", data));
    }
    if let Some(volume) = data.get(SOURCE).filter(|_| !context.volumes.contains(&into)) {
        let made: DataVolume = arrival::moved(volume, &into).map_err(Error::setup("read status.data.source"))?;
        write::create(context, &made).await?;
        return Ok(running("Running", data));
    }
    if spec.persistent_volume_reclaim_policy.as_ref() != Some(reclaim) {
        keep(&persistents, &persistent, json!({ "persistentVolumeReclaimPolicy": reclaim })).await?;
        return Ok(running("Running", data));
    }
    Ok(Verdict { phase: COMPLETE, done: true, data: BTreeMap::new(), ..waiting("Transfer complete") })
}

async fn keep(api: &Api<PersistentVolume>, volume: &PersistentVolume, spec: Value) -> Result<(), Error> {
    let patch = json!({ "metadata": { "resourceVersion": volume.resource_version() }, "spec": spec });
    let name = volume.name_any();
    api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop).map_err(Error::api(
        "change",
        "PersistentVolume",
        &name,
    ))
}
