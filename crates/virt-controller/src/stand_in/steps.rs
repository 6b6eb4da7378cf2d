//! Doing what a plan says about a claim's disk.

use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use kit::queue::Next;
use kit::store::Key;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::Found;
use super::obstacle::uses;
use super::plan::Step;
use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::index::{self, vmi_indexes};
use crate::facts::put_back::{self, Record};
use crate::facts::stand_ins::{self, MOVED_TO};
use crate::facts::{claims, trim, volume_status};
use crate::patch;

/// Between two looks at pods of others that use a claim.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Does `step` about the disk of the claim under `key`. What it changes comes back by a watch, with the next step.
pub(super) async fn execute(context: &Context, key: &Key, found: &Found, step: &Step) -> Result<Next, Error> {
    tracing::debug!(claim = %key, ?step, "the disk of a claim");
    match step {
        Step::Wait => {}
        Step::Complain(why) => complain(context, key, found, why),
        Step::Point { stand_in } => point(context, key, found, stand_in).await?,
        Step::Rename { guest } => rename(context, key, guest).await?,
        Step::DropStandIn { name, uid } => delete(context, &key.namespace, name, uid).await?,
        Step::DropClaim { uid } => delete(context, &key.namespace, &key.name, uid).await?,
        Step::Keep { stand_in } => return keep(context, key, stand_in).await,
        Step::Reserve => change(context, found, Record::reserve).await?,
        Step::Create => create(context, key, found).await?,
        Step::Finish => {
            change(context, found, Record::end).await?;
            if let Some(claim) = &found.claim {
                let said = "The disk that moved with its guest is on this claim again.";
                context.recorder.normal(&reference(claim), "DiskPutBack", said);
            }
        }
    }
    Ok(Next::Wait)
}

fn claims_api(context: &Context, namespace: &str) -> Api<PersistentVolumeClaim> {
    Api::namespaced(context.client.clone(), namespace)
}

fn complain(context: &Context, key: &Key, found: &Found, why: &str) {
    let about = match &found.claim {
        Some(claim) => reference(claim),
        None => ObjectReference {
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            ..Default::default()
        },
    };
    context.recorder.warning(&about, "DiskNotPutBack", why);
}

async fn point(context: &Context, key: &Key, found: &Found, stand_in: &str) -> Result<(), Error> {
    let Some(claim) = &found.claim else { return Ok(()) };
    let metadata = json!({ "uid": claim.uid(), "annotations": { MOVED_TO: stand_in } });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let written = claims_api(context, &key.namespace).patch(&key.name, &PatchParams::default(), &patch).await;
    let Some(written) = there(written, "patch", "persistentvolumeclaim", key)? else { return Ok(()) };
    let said = format!("The disk moved with its guest and is on claim {stand_in}, until nobody uses it.");
    context.recorder.normal(&reference(&written), "DiskMoved", said);
    known(context, written);
    Ok(())
}

/// Knows of a claim what a write has answered; who is concerned hears of it by the watch.
pub(super) fn known(context: &Context, mut claim: PersistentVolumeClaim) {
    claim.metadata.managed_fields = None;
    let words = index::claim_indexes(&claim);
    trim::claim(&mut claim);
    context.stores.claims.put(&claim, words);
}

async fn rename(context: &Context, key: &Key, guest: &str) -> Result<(), Error> {
    let Some(vmi) = context.stores.vmis.get(&Key::new(key.namespace.as_str(), guest)) else { return Ok(()) };
    let arrived = |used: &claims::Use<'_>| {
        let found = stand_ins::arrived(&vmi).find(|(volume, _)| *volume == used.volume);
        found.map(|(_, stand_in)| stand_in.to_owned())
    };
    let renamed = stand_ins::on(&vmi, arrived);
    let old = vmi.status.as_deref().cloned().unwrap_or_default();
    let mut new = old.clone();
    new.volume_status = volume_status::statuses(&renamed, &context.claims_of(&renamed), &old.volume_status);
    let changed = patch::changed(&old, &new).unwrap_or_else(|| json!({}));
    let mut patch = patch::status(vmi.metadata.resource_version.as_deref(), &changed);
    patch["spec"] = json!({ "volumes": renamed.spec.volumes });
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &key.namespace);
    let written = api.patch(guest, &PatchParams::default(), &Patch::Merge(patch)).await;
    if let Some(mut written) = there(written, "patch", "virtualmachineinstance", key)? {
        written.metadata.managed_fields = None;
        let words = vmi_indexes(&written);
        context.stores.vmis.put(&written, words);
    }
    Ok(())
}

async fn delete(context: &Context, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
    let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
    let params = DeleteParams { preconditions, ..Default::default() };
    match claims_api(context, namespace).delete(name, &params).await {
        Ok(_) => Ok(()),
        // Another one has the name by now, or none.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(Error::api("delete", "persistentvolumeclaim", namespace, name)(error)),
    }
}

/// Asked of the API server and not of a copy: from here on there is no way back.
async fn keep(context: &Context, key: &Key, stand_in: &str) -> Result<Next, Error> {
    let api = claims_api(context, &key.namespace);
    let read = |name: &str| {
        let (api, name) = (api.clone(), name.to_owned());
        async move {
            let found = api.get_opt(&name).await;
            found.map_err(Error::api("read", "persistentvolumeclaim", &key.namespace, &name))
        }
    };
    let (Some(claim), Some(holder)) = (read(&key.name).await?, read(stand_in).await?) else { return Ok(Next::Wait) };
    let leaving = |claim: &PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_some();
    if stand_ins::moved_to(&claim) != Some(stand_in) || leaving(&claim) || leaving(&holder) {
        return Ok(Next::Wait);
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    let list = pods.list(&ListParams::default()).await.map_err(Error::api("list", "pods", &key.namespace, ""))?;
    // Also one that has ended: its node may have the volume mounted.
    if let Some(pod) = list.items.iter().find(|pod| uses(pod, &key.name) || uses(pod, stand_in)) {
        let said = format!("Pod {} still uses the claim: its disk is put back once it is gone.", pod.name_any());
        context.recorder.normal(&reference(&claim), "DiskInUse", said);
        return Ok(Next::After(LOOK_AGAIN));
    }
    let name = holder.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let volume = volumes.get_opt(&name).await.map_err(Error::api("read", "persistentvolume", "", &name))?;
    let Some(volume) = volume.filter(|volume| claim_uid(volume) == holder.uid()) else {
        let why = format!("claim {stand_in}, which has the disk, is not bound to a volume");
        context.recorder.warning(&reference(&claim), "DiskNotPutBack", why);
        return Ok(Next::After(LOOK_AGAIN));
    };
    let record = Record::new(&claim, &holder, &volume);
    patch_volume(context, &volume, record.begin(&volume)).await?;
    Ok(Next::After(Duration::ZERO))
}

fn claim_uid(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone()
}

async fn change(
    context: &Context,
    found: &Found,
    change: fn(&Record, &PersistentVolume) -> Value,
) -> Result<(), Error> {
    let Some(volume) = &found.volume else { return Ok(()) };
    let Some(record) = Record::of(volume) else { return Ok(()) };
    patch_volume(context, volume, change(&record, volume)).await
}

async fn patch_volume(context: &Context, volume: &PersistentVolume, patch: Value) -> Result<(), Error> {
    let name = volume.name_any();
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let written = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    let written = there(written, "patch", "persistentvolume", &Key::new("", name.as_str()))?;
    if let Some(mut written) = written.filter(|volume| Record::of(volume).is_some()) {
        written.metadata.managed_fields = None;
        let words = put_back::indexes(&written);
        context.stores.put_backs.put(&written, words);
    }
    Ok(())
}

async fn create(context: &Context, key: &Key, found: &Found) -> Result<(), Error> {
    let Some(record) = found.volume.as_ref().and_then(Record::of) else { return Ok(()) };
    match claims_api(context, &key.namespace).create(&PostParams::default(), &record.claim).await {
        Ok(created) => {
            known(context, created);
            Ok(())
        }
        // Somebody was faster: the volume waits for whoever has the name.
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(Error::api("create", "persistentvolumeclaim", &key.namespace, &key.name)(error)),
    }
}

/// What was written; none when it is gone.
fn there<K>(written: kube::Result<K>, verb: &'static str, kind: &'static str, key: &Key) -> Result<Option<K>, Error> {
    match written {
        Ok(written) => Ok(Some(written)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(Error::api(verb, kind, &key.namespace, &key.name)(error)),
    }
}
