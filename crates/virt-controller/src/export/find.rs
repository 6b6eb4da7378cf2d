//! Looks the source of an export up: claims are read from the API server, because what is held of them here is not enough.

use std::collections::BTreeMap;

use api::cdi::constants::phase as data_phase;
use api::export::v1::VirtualMachineExport;
use api::kubevirt::constants::phase;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineSpec};
use api::snapshot::v1beta1::{VirtualMachineSnapshot, VirtualMachineSnapshotContent, VolumeBackup};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kit::store::Key;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::pulled::of_backup;
use super::source::{self, Kept, Seen, Source, Volume};
use super::{names, owner, template};
use crate::backup::plan::pull;
use crate::context::Context;
use crate::error::Error;
use crate::facts::claims::is_block;
use crate::facts::copies::{is_tracked, source as kind};
use crate::facts::stand_ins::MOVED_TO;
use crate::restore;

/// On the claim that keeps a machine's firmware and TPM: the machine's name.
const STATE_OF: &str = "persistent-state-for";

/// The source of `export`; none when it is of a kind that is not exported here.
pub(super) async fn source(context: &Context, export: &VirtualMachineExport) -> Result<Option<Source>, Error> {
    let (namespace, wanted) = (export.namespace().unwrap_or_default(), &export.spec.source);
    let place = (namespace.as_str(), wanted.name.as_str());
    Ok(match (wanted.api_group.as_deref().unwrap_or_default(), wanted.kind.as_str()) {
        ("", kind::CLAIM) => Some(claim(context, export, place).await?),
        ("kubevirt.io", kind::MACHINE) => Some(machine(context, place).await?),
        ("snapshot.kubevirt.io", kind::SNAPSHOT) => Some(snapshot(context, export, place).await?),
        ("template.kubevirt.io", kind::TEMPLATE) => Some(template(context, place).await?),
        (pull::GROUP, kind::BACKUP) => Some(backup(context, place)),
        _ => None,
    })
}

fn backup(context: &Context, (namespace, name): (&str, &str)) -> Source {
    let in_namespace = |name: &str| Key::new(namespace, name);
    let found = context.stores.backups.get(&in_namespace(name));
    let machine = found.as_ref().and_then(|found| {
        let source = found.spec.source.name.as_str();
        let tracked = is_tracked(found).then(|| context.stores.trackers.get(&in_namespace(source)));
        tracked.map_or(Some(source.to_owned()), |tracker| tracker.map(|tracker| tracker.spec.source.name))
    });
    let vmi = machine.and_then(|machine| context.stores.vmis.get(&in_namespace(&machine)));
    of_backup((namespace, name), found.as_ref(), vmi.as_ref())
}

/// Templates are looked up where they are: there are few, and fewer are exported.
async fn template(context: &Context, (namespace, name): (&str, &str)) -> Result<Source, Error> {
    let kind = GroupVersionKind::gvk("template.kubevirt.io", "v1beta1", kind::TEMPLATE);
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &ApiResource::from_gvk(&kind));
    let found = api.get_opt(name).await;
    let found = found.map_err(Error::api("read", "virtualmachinetemplate", namespace, name))?.map(|found| json!(found));
    let mut seen = Vec::new();
    for claim in found.iter().flat_map(|found| template::claims(found, namespace)) {
        seen.push(see(context, namespace, &claim).await?);
    }
    Ok(template::source((namespace, name), found, seen))
}

async fn claim(
    context: &Context,
    export: &VirtualMachineExport,
    (namespace, name): (&str, &str),
) -> Result<Source, Error> {
    let seen = see(context, namespace, name).await?;
    let used = seen.as_ref().is_some_and(|seen| seen.filled) && used(context, export, namespace, name).await?;
    Ok(source::of_claim((namespace, name), seen, used))
}

/// Whether a pod that is not this export's has the claim.
async fn used(context: &Context, export: &VirtualMachineExport, namespace: &str, claim: &str) -> Result<bool, Error> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let pods = api.list(&ListParams::default()).await.map_err(Error::api("list", "pods", namespace, ""))?;
    let own = export.uid();
    Ok(pods.items.iter().any(|pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let has = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref()).any(|on| on.claim_name == claim);
        let over = matches!(super::pod::phase(pod), "Succeeded" | "Failed");
        has && !over && controller(pod.owner_references()).map(|owner| &owner.uid) != own.as_ref()
    }))
}

fn controller(owners: &[OwnerReference]) -> Option<&OwnerReference> {
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// What is known of a claim.
async fn see(context: &Context, namespace: &str, name: &str) -> Result<Option<Seen>, Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get_opt(name).await;
    let found = found.map_err(Error::api("read", "persistentvolumeclaim", namespace, name))?;
    Ok(found.map(|claim| judged(context, claim)))
}

fn judged(context: &Context, claim: PersistentVolumeClaim) -> Seen {
    let namespace = claim.namespace().unwrap_or_default();
    let maker = controller(claim.owner_references()).filter(|owner| owner.kind == "DataVolume");
    let data = maker.map(|owner| context.stores.data_volumes.get(&Key::new(namespace.as_str(), owner.name.as_str())));
    let filled = data.as_ref().is_none_or(|data| {
        let phase = data.as_ref().and_then(|data| data.status.as_ref()?.phase.as_deref());
        phase == Some(data_phase::SUCCEEDED)
    });
    // A disk that followed its guest to another node is put back under its claim's name when the guest has ended.
    let away = claim.annotations().contains_key(MOVED_TO);
    let kind = |kind: Option<&str>| matches!(kind, Some("" | source::DISK));
    let made_as = data.flatten().map(|data| data.spec.content_type.unwrap_or_default());
    let disk = is_block(&claim)
        || kind(claim.annotations().get(source::CONTENT).map(String::as_str))
        || kind(made_as.as_deref());
    Seen { filled: filled && !away, disk, claim }
}

async fn machine(context: &Context, (namespace, name): (&str, &str)) -> Result<Source, Error> {
    let key = Key::new(namespace, name);
    let Some(found) = context.stores.vms.get(&key) else {
        return Ok(source::of_machine((namespace, name), None, Vec::new(), false));
    };
    let mut seen = Vec::new();
    for claim in source::claims_of(&found) {
        seen.push(see(context, namespace, &claim).await?);
    }
    seen.extend(state(context, namespace, name).await?.into_iter().map(Some));
    let running = context.stores.vmis.get(&key).is_some_and(|vmi| {
        let found = vmi.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(found, Some(phase::SUCCEEDED | phase::FAILED))
    });
    Ok(source::of_machine((namespace, name), Some(&found), seen, running))
}

/// The claims that keep the machine's firmware and TPM.
async fn state(context: &Context, namespace: &str, machine: &str) -> Result<Vec<Seen>, Error> {
    // A longer name cannot be the value of a label.
    if machine.len() > 63 {
        return Ok(Vec::new());
    }
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let list = api.list(&ListParams::default().labels(&format!("{STATE_OF}={machine}"))).await;
    let list = list.map_err(Error::api("list", "persistentvolumeclaims", namespace, ""))?;
    Ok(list.items.into_iter().map(|claim| judged(context, claim)).collect())
}

async fn snapshot(
    context: &Context,
    export: &VirtualMachineExport,
    (namespace, name): (&str, &str),
) -> Result<Source, Error> {
    let found = context.stores.snapshots.get(&Key::new(namespace, name));
    let machine = found.as_ref().map(|snapshot| snapshot.spec.source.name.clone());
    let kept = match found {
        None => Kept::Nothing,
        Some(snapshot) => kept(context, export, &snapshot).await?,
    };
    Ok(source::of_snapshot((namespace, name), machine, kept))
}

async fn kept(
    context: &Context,
    export: &VirtualMachineExport,
    snapshot: &VirtualMachineSnapshot,
) -> Result<Kept, Error> {
    if snapshot.status.as_ref().and_then(|status| status.ready_to_use) != Some(true) {
        return Ok(Kept::Incomplete);
    }
    let Some(content) = crate::snapshot::find_content(context, snapshot).await? else { return Ok(Kept::Incomplete) };
    let mut volumes = Vec::new();
    let taken: Vec<&VolumeBackup> =
        content.spec.volume_backups.iter().filter(|backup| backup.volume_snapshot_name.is_some()).collect();
    for backup in &taken {
        let claim = restored(context, export, &content, backup).await?;
        let metadata = backup.persistent_volume_claim.metadata.as_ref();
        let name = metadata.and_then(|metadata| metadata.name.clone()).unwrap_or_default();
        let disk =
            is_block(&claim) || claim.annotations().get(source::CONTENT).is_some_and(|kind| kind == source::DISK);
        volumes.push(Volume { name, claim, disk });
    }
    Ok(Kept::Volumes(volumes, taken.len(), machine_of(&content).map(Box::new)))
}

/// The claim made of a volume snapshot.
async fn restored(
    context: &Context,
    export: &VirtualMachineExport,
    content: &VirtualMachineSnapshotContent,
    backup: &VolumeBackup,
) -> Result<PersistentVolumeClaim, Error> {
    let namespace = export.namespace().unwrap_or_default();
    let cut = backup.volume_snapshot_name.as_deref().unwrap_or_default();
    let cut = context.stores.volume_snapshots.get(&Key::new(namespace.as_str(), cut)).and_then(|cut| cut.status);
    let size = cut.and_then(|status| status.restore_size);
    let mut wanted = restore::plan::of_snapshot(backup, size.as_ref());
    let source = wanted.metadata.name.clone().unwrap_or_default();
    let name = names::claim(&export.name_any(), &source);
    wanted.metadata.name = Some(name.clone());
    wanted.metadata.namespace = Some(namespace.clone());
    wanted.metadata.owner_references = Some(vec![owner(export)]);
    if holds_disk(content, &backup.volume_name) {
        let annotations = wanted.metadata.annotations.get_or_insert_with(BTreeMap::new);
        annotations.insert(source::CONTENT.to_owned(), source::DISK.to_owned());
    }
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    let found = api.get_opt(&name).await;
    let found = found.map_err(Error::api("read", "persistentvolumeclaim", &namespace, &name))?;
    let ours = |claim: &PersistentVolumeClaim| {
        controller(claim.owner_references()).map(|owner| &owner.uid) == export.uid().as_ref()
    };
    match found {
        Some(claim) if ours(&claim) => Ok(claim),
        Some(_) => Err(Error::InUse(format!(
            "PVC {namespace}/{name} exists and belongs to something else: delete it, or give the export another name"
        ))),
        None => {
            let made = api.create(&PostParams::default(), &wanted).await;
            made.map_err(Error::api("create", "persistentvolumeclaim", &namespace, &name))
        }
    }
}

fn spec_of(content: &VirtualMachineSnapshotContent) -> Option<&VirtualMachineSpec> {
    content.spec.source.virtual_machine.as_deref()?.spec.as_deref()
}

/// Whether the volume was a disk of the machine.
fn holds_disk(content: &VirtualMachineSnapshotContent, volume: &str) -> bool {
    let spec = spec_of(content).and_then(|spec| spec.template.spec.as_deref());
    let mut volumes = spec.into_iter().flat_map(|spec| &spec.volumes);
    volumes.any(|one| one.name == volume && (one.data_volume.is_some() || one.persistent_volume_claim.is_some()))
}

/// The machine as it was.
fn machine_of(content: &VirtualMachineSnapshotContent) -> Option<VirtualMachine> {
    let kept = content.spec.source.virtual_machine.as_deref()?;
    let mut metadata = kept.metadata.clone().unwrap_or_default();
    metadata.namespace = metadata.namespace.or_else(|| content.namespace());
    Some(VirtualMachine { metadata, spec: kept.spec.as_deref()?.clone(), ..Default::default() })
}
