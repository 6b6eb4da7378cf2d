//! The claims that a restore makes, and whom they belong to.
//!
//! A claim of a data volume that its machine makes is the data volume's, which takes a claim that is filled already for its
//! own; any other is the machine's, unless nobody is to own it.

use api::cdi::constants::annotation;
use api::cdi::v1beta1::{DataVolume, DataVolumeBlankImage, DataVolumeSource};
use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshotContent};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kit::store::Key;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::plan;
use crate::context::Context;
use crate::error::Error;
use crate::facts::data_volumes;
use crate::vm::provision;
use crate::vmi::state;

/// How far the claims are.
pub(super) enum Made {
    /// Made, all of them, and bound. One that waits for its first consumer is as good as bound.
    All,
    /// One has to go first, or to be bound.
    Waits,
    /// One cannot be made.
    Refused(String),
}

/// Makes the claims.
pub(super) async fn claims(
    context: &Context,
    restore: &VirtualMachineRestore,
    target: Option<&VirtualMachine>,
    content: &VirtualMachineSnapshotContent,
) -> Result<Made, Error> {
    let namespace = restore.namespace().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    let from = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.metadata.as_ref());
    let mut bound = true;
    for (backup, cut) in plan::backups(content) {
        let cut = context.stores.volume_snapshots.get(&Key::new(namespace.as_str(), cut.as_str()));
        let size = cut.and_then(|cut| cut.status?.restore_size);
        let mut claim = plan::claim(restore, backup, from, size.as_ref());
        let name = claim.name_any();
        if plan::has_template(content, &backup.volume_name) || data_volume(context, &namespace, &name) {
            claim.annotations_mut().insert(annotation::POPULATED_FOR.to_owned(), name.clone());
        } else if let Some(vm) = target.filter(|_| plan::owns(restore)) {
            claim.metadata.owner_references = Some(vec![owner(vm)]);
        }
        let there = api.get_opt(&name).await;
        let there = there.map_err(Error::api("read", "persistentvolumeclaim", &namespace, &name))?;
        let Some(there) = there else {
            match api.create(&PostParams::default(), &claim).await {
                Ok(made) => {
                    bound &= settled(context, &made);
                    continue;
                }
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                    return Ok(Made::Waits);
                }
                Err(error) => return Err(Error::api("create", "persistentvolumeclaim", &namespace, &name)(error)),
            }
        };
        if there.annotations().get(plan::LAST) == Some(&plan::mark(restore)) {
            bound &= settled(context, &there);
            continue;
        }
        if !plan::in_place(restore) {
            return Ok(Made::Refused(format!(
                "PVC {namespace}/{name} exists and belongs to something else: delete it, or name another in \
                 spec.volumeRestoreOverrides"
            )));
        }
        make_room(context, restore, &there).await?;
        return Ok(Made::Waits);
    }
    Ok(if bound { Made::All } else { Made::Waits })
}

/// True when there is nothing to wait for: the claim has its volume, or gets one only once somebody uses it.
fn settled(context: &Context, claim: &PersistentVolumeClaim) -> bool {
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
    let class = context.stores.storage_classes.get(&Key::new("", class));
    let late = class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    late || claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn data_volume(context: &Context, namespace: &str, name: &str) -> bool {
    context.stores.data_volumes.contains(&Key::new(namespace, name))
}

/// Deletes a claim that another is to take the place of. Its data volume, if it has one, does not fill the next.
async fn make_room(
    context: &Context,
    restore: &VirtualMachineRestore,
    claim: &PersistentVolumeClaim,
) -> Result<(), Error> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let filled = claim.owner_references().iter().find(|owner| owner.kind == "DataVolume");
    if let Some(owner) = filled {
        let annotations = json!({ (plan::RESTORE): restore.name_any(), (annotation::PRE_POPULATED): owner.name });
        let patch = json!({ "metadata": { "annotations": annotations } });
        let api: Api<DataVolume> = Api::namespaced(context.client.clone(), &namespace);
        let marked = api.patch(&owner.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        marked.map_err(Error::api("mark", "datavolume", &namespace, &owner.name))?;
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: claim.uid(), resource_version: None }),
        ..Default::default()
    };
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    match api.delete(&name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", "persistentvolumeclaim", &namespace, &name)(error)),
        Ok(_) => Ok(()),
    }
}

/// The claims' owner.
pub(super) fn owner(vm: &VirtualMachine) -> OwnerReference {
    OwnerReference {
        api_version: "kubevirt.io/v1".to_owned(),
        kind: "VirtualMachine".to_owned(),
        name: vm.name_any(),
        uid: vm.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Has the claims go with `vm`, which runs on them, if they went with the machine before, or with the data volumes it makes.
pub(super) async fn hand_over(
    context: &Context,
    vm: &VirtualMachine,
    restore: &VirtualMachineRestore,
    content: &VirtualMachineSnapshotContent,
) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    for (backup, _) in plan::backups(content) {
        let name = &plan::claim_name(restore, backup);
        let volume = &backup.volume_name;
        if plan::is_state(content, volume) {
            state::establish(context, &namespace, &vm.name_any(), name).await?;
        }
        if plan::has_template(content, volume) {
            make_data_volume(context, vm, restore, name).await?;
        } else if plan::owns(restore) && plan::was_owned(content, backup) && !data_volume(context, &namespace, name) {
            // A machine that was there has its claims already; a new one gets what went with its source.
            let patch = json!({ "metadata": { "ownerReferences": [owner(vm)] } });
            let owned = claims.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
            owned.map_err(Error::api("own", "persistentvolumeclaim", &namespace, name))?;
        }
    }
    Ok(())
}

/// Makes the data volume of the template called `name`: its claim is filled.
async fn make_data_volume(
    context: &Context,
    vm: &VirtualMachine,
    restore: &VirtualMachineRestore,
    name: &str,
) -> Result<(), Error> {
    let is_named = |metadata: Option<&str>| metadata == Some(name);
    let mut templates = vm.spec.data_volume_templates.iter();
    let template =
        templates.find(|template| is_named(template.metadata.as_ref().and_then(|metadata| metadata.name.as_deref())));
    let Some(template) = template else { return Ok(()) };
    let made = data_volumes::made(vm, template);
    let mut data = match provision::permitted(context, vm, made.clone()).await {
        Ok(data) => data,
        // It is filled already: what it was once copied from is not asked for.
        Err(Error::Forbidden(_) | Error::NoSource(_)) => without_source(made),
        Err(error) => return Err(error),
    };
    data.annotations_mut().insert(plan::RESTORE.to_owned(), restore.name_any());
    data.annotations_mut().insert(annotation::PRE_POPULATED.to_owned(), "true".to_owned());
    let namespace = vm.namespace().unwrap_or_default();
    let api: Api<DataVolume> = Api::namespaced(context.client.clone(), &namespace);
    match api.create(&PostParams::default(), &data).await {
        // The machine was faster.
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
        Err(error) => {
            let message = format!("Error creating restore DataVolume {name}: {}", kit::Chain(&error));
            context.recorder.warning(&crate::context::reference(vm), "RestoreDataVolumeCreateError", message);
            Err(Error::api("create", "datavolume", &namespace, name)(error))
        }
        Ok(_) => Ok(()),
    }
}

fn without_source(mut data: DataVolume) -> DataVolume {
    let blank = Some(DataVolumeBlankImage::default());
    data.spec.source = Some(Box::new(DataVolumeSource { blank, ..DataVolumeSource::default() }));
    data.spec.source_ref = None;
    data
}

/// Deletes a data volume that the machine has no use for any more.
pub(super) async fn delete_data_volume(context: &Context, namespace: &str, name: &str) -> Result<(), Error> {
    let api: Api<DataVolume> = Api::namespaced(context.client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", "datavolume", namespace, name)(error)),
        Ok(_) => Ok(()),
    }
}
