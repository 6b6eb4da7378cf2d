//! What a snapshot consists of: the machine as it is, and its volumes on claims whose drivers make snapshots.

use meta::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotSource, VolumeSnapshotSpec, class_of};
use std::collections::BTreeMap;

use api::cdi::v1beta1::StorageProfile;
use api::kubevirt::hotplug::ephemeral;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineSpec};
use api::snapshot::v1beta1::{
    PersistentVolumeClaim as ClaimCopy, SourceSpec, VirtualMachine as MachineCopy, VirtualMachineSnapshot,
    VirtualMachineSnapshotContent, VirtualMachineSnapshotContentSpec, VolumeBackup,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kit::store::Key;
use kube::api::{ListParams, TypeMeta};
use kube::{Api, ResourceExt};

use super::content;
use crate::context::Context;
use crate::error::Error;
use crate::facts::persistent_state;
use crate::revisions;

/// On a volume snapshot: the machine it was made of.
const SOURCE_NAME: &str = "snapshot.kubevirt.io/source-vm-name";
const SOURCE_NAMESPACE: &str = "snapshot.kubevirt.io/source-vm-namespace";
/// On a copy of a claim: the class by which its volume snapshot is made.
const CLASS: &str = "snapshot.kubevirt.io/volume-snapshot-class";

/// A volume of a machine that lies on a claim.
pub(super) struct Used {
    /// What the machine calls it.
    pub(super) volume: String,
    /// The claim's name.
    pub(super) name: String,
    /// The claim, if it is there.
    pub(super) claim: Option<PersistentVolumeClaim>,
}

/// The volumes of `vm` that lie on claims.
pub(super) async fn used(context: &Context, vm: &VirtualMachine) -> Result<Vec<Used>, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let vmi = context.stores.vmis.get(&Key::new(namespace.as_str(), vm.name_any()));
    let passing: Vec<String> = vmi.iter().flat_map(ephemeral).map(str::to_owned).collect();
    let spec = vm.spec.template.spec.as_deref();
    let mut wanted = Vec::new();
    for volume in spec.into_iter().flat_map(|spec| &spec.volumes) {
        let Some(claim) = volume.kept_claim() else { continue };
        if !passing.contains(&volume.name) {
            wanted.push((volume.name.clone(), claim.to_owned()));
        }
    }
    if spec.is_some_and(persistent_state::is_kept)
        && let Some(claim) = persistent_state::find(&context.stores.claims, &namespace, &vm.name_any())
    {
        wanted.push((state_volume(&vm.name_any()), claim.name_any()));
    }
    let mut used = Vec::new();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    for (volume, name) in wanted {
        // All of the claim is kept, and the store has only what is looked at.
        let found = api.get_opt(&name).await;
        let claim = found.map_err(Error::api("read", "persistentvolumeclaim", &namespace, &name))?;
        used.push(Used { volume, name, claim });
    }
    Ok(used)
}

/// The content of `snapshot`, whose source is `vm` with `used` volumes on claims.
pub(super) async fn content(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    vm: &VirtualMachine,
    used: Vec<Used>,
) -> Result<VirtualMachineSnapshotContent, Error> {
    let classes = classes(context).await?;
    let mut backups = Vec::new();
    for Used { volume, claim, .. } in used {
        let Some(found) = claim else { continue };
        let Some(class) = class_for(context, &found, &classes).await? else { continue };
        backups.push(backup(snapshot, &volume, found, &class));
    }
    let mut kept = copy(vm);
    if let Some(started) = started_with(context, vm).await? {
        kept.spec = Some(Box::new(running(started, vm)));
    }
    if let Some(spec) = kept.spec.as_deref_mut() {
        revisions::keep(context, snapshot, vm, spec).await?;
    }
    Ok(VirtualMachineSnapshotContent {
        metadata: ObjectMeta {
            name: Some(content::name(snapshot)),
            namespace: vm.metadata.namespace.clone(),
            finalizers: Some(vec![content::FINALIZER.to_owned()]),
            ..Default::default()
        },
        spec: VirtualMachineSnapshotContentSpec {
            virtual_machine_snapshot_name: snapshot.metadata.name.clone(),
            source: SourceSpec { virtual_machine: Some(Box::new(kept)) },
            volume_backups: backups,
        },
        ..Default::default()
    })
}

/// What the guest of `vm` was started with, if it runs: that is what the contents of its disks go with.
async fn started_with(context: &Context, vm: &VirtualMachine) -> Result<Option<VirtualMachineSpec>, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let vmi = context.stores.vmis.get(&Key::new(namespace.as_str(), vm.name_any()));
    let Some(name) = vmi.and_then(|vmi| vmi.status?.virtual_machine_revision_name) else { return Ok(None) };
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    let found = api.get_opt(&name).await.map_err(Error::api("read", "controllerrevision", &namespace, &name))?;
    let data = found.and_then(|revision| revision.data);
    Ok(data.and_then(|data| serde_json::from_value(data.0.get("spec")?.clone()).ok()))
}

/// What `vm` is, as far as its guest goes by it: what it was `started` with, and the disks that it has come to have since.
fn running(mut started: VirtualMachineSpec, vm: &VirtualMachine) -> VirtualMachineSpec {
    if let (Some(then), Some(now)) = (started.template.spec.as_deref_mut(), vm.spec.template.spec.as_deref()) {
        then.volumes.clone_from(&now.volumes);
        then.domain.devices.disks.clone_from(&now.domain.devices.disks);
    }
    started.data_volume_templates.clone_from(&vm.spec.data_volume_templates);
    started
}

/// The name under which a snapshot lists what the machine called so keeps beside its disks.
pub(crate) fn state_volume(vm: &str) -> String {
    format!("{}-{vm}", persistent_state::LABEL)
}

/// What of a machine is worth keeping.
fn copy(vm: &VirtualMachine) -> MachineCopy {
    let mut annotations = vm.annotations().clone();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    MachineCopy {
        metadata: Some(ObjectMeta {
            name: vm.metadata.name.clone(),
            namespace: vm.metadata.namespace.clone(),
            uid: vm.metadata.uid.clone(),
            labels: vm.metadata.labels.clone(),
            annotations: Some(annotations).filter(|all| !all.is_empty()),
            ..Default::default()
        }),
        spec: Some(Box::new(vm.spec.clone())),
        status: None,
    }
}

fn backup(
    snapshot: &VirtualMachineSnapshot,
    volume: &str,
    claim: PersistentVolumeClaim,
    class: &VolumeSnapshotClass,
) -> VolumeBackup {
    let uid = snapshot.uid().unwrap_or_default();
    let mut annotations = claim.metadata.annotations.unwrap_or_default();
    annotations.retain(|key, _| !key.starts_with("pv.kubernetes.io/") && !key.starts_with("kubectl.kubernetes.io/"));
    annotations.insert(CLASS.to_owned(), class.name_any());
    VolumeBackup {
        volume_name: volume.to_owned(),
        volume_snapshot_name: Some(format!("vmsnapshot-{uid}-volume-{volume}")),
        persistent_volume_claim: ClaimCopy {
            metadata: Some(ObjectMeta {
                name: claim.metadata.name,
                namespace: claim.metadata.namespace,
                labels: claim.metadata.labels,
                annotations: Some(annotations),
                owner_references: claim.metadata.owner_references,
                ..Default::default()
            }),
            spec: claim.spec,
        },
    }
}

/// The volume snapshots of `content`.
pub(super) fn wanted(content: &VirtualMachineSnapshotContent) -> Vec<VolumeSnapshot> {
    let owner = OwnerReference {
        api_version: "snapshot.kubevirt.io/v1beta1".to_owned(),
        kind: "VirtualMachineSnapshotContent".to_owned(),
        name: content.name_any(),
        uid: content.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let machine = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.metadata.clone());
    let machine = machine.unwrap_or_default();
    let labels: BTreeMap<String, String> = [(SOURCE_NAME, machine.name), (SOURCE_NAMESPACE, machine.namespace)]
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect();
    let of = |backup: &VolumeBackup| {
        let copied = backup.persistent_volume_claim.metadata.as_ref()?;
        Some(VolumeSnapshot {
            types: Some(TypeMeta::resource::<VolumeSnapshot>()),
            metadata: ObjectMeta {
                name: backup.volume_snapshot_name.clone(),
                namespace: content.metadata.namespace.clone(),
                labels: Some(labels.clone()),
                owner_references: Some(vec![owner.clone()]),
                ..Default::default()
            },
            spec: VolumeSnapshotSpec {
                source: VolumeSnapshotSource {
                    persistent_volume_claim_name: copied.name.clone(),
                    volume_snapshot_content_name: None,
                },
                volume_snapshot_class_name: copied.annotations.as_ref().and_then(|all| all.get(CLASS).cloned()),
            },
            status: None,
        })
    };
    content.spec.volume_backups.iter().filter(|backup| backup.volume_snapshot_name.is_some()).filter_map(of).collect()
}

/// The classes of snapshots; none where the cluster has no such kind.
async fn classes(context: &Context) -> Result<Vec<VolumeSnapshotClass>, Error> {
    let api: Api<VolumeSnapshotClass> = Api::all(context.client.clone());
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(Error::api("list", "volumesnapshotclasses", "", "")(error)),
    }
}

/// The class by which a snapshot of `claim` is made; none where its driver makes none.
async fn class_for(
    context: &Context,
    claim: &PersistentVolumeClaim,
    classes: &[VolumeSnapshotClass],
) -> Result<Option<VolumeSnapshotClass>, Error> {
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
    if class.is_empty() || classes.is_empty() {
        return Ok(None);
    }
    let profiles: Api<StorageProfile> = Api::all(context.client.clone());
    let profile = profiles.get_opt(class).await.map_err(Error::api("read", "storageprofile", "", class))?;
    // The administrator's choice for volumes of this class, where there is a data importer.
    if let Some(named) = profile.and_then(|profile| profile.status?.snapshot_class).filter(|named| !named.is_empty()) {
        return Ok(classes.iter().find(|class| class.name_any() == named).cloned());
    }
    let api: Api<StorageClass> = Api::all(context.client.clone());
    let found = api.get_opt(class).await.map_err(Error::api("read", "storageclass", "", class))?;
    Ok(found.and_then(|found| class_of(classes, &found.provisioner).cloned()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_running_machine_is_what_it_was_started_with_on_the_disks_it_has() {
        let spec = |memory: &str, volumes: Value| {
            let disks: Vec<Value> =
                volumes.as_array().unwrap().iter().map(|one| json!({ "name": one["name"] })).collect();
            json!({ "runStrategy": "Always", "template": { "spec": {
                "domain": { "memory": { "guest": memory }, "devices": { "disks": disks } }, "volumes": volumes,
            } } })
        };
        let started = serde_json::from_value(spec("1Gi", json!([{ "name": "a" }]))).unwrap();
        let now = spec("2Gi", json!([{ "name": "a" }, { "name": "b" }]));
        let vm = serde_json::from_value(json!({ "metadata": { "name": "vm" }, "spec": now })).unwrap();
        let found = serde_json::to_value(running(started, &vm)).unwrap();
        assert_eq!(found, spec("1Gi", json!([{ "name": "a" }, { "name": "b" }])));
    }
}
