//! Disks that are given other claims while their machine runs: the template of a VirtualMachine names a claim, or a data
//! volume, in place of the one that its instance has.
//!
//! ```text
//!   template --plan--> asked on the instance --workload_update--> migration --hand-over--> nodes copy
//!                           ^ taken back by the template                          | moved
//!                           `--------- failed: tried again                        v
//!                                                   the instance names the new claims, the old ones are whoever's they were
//! ```
//! The copying is what a migration does for disks that one node reaches ([`crate::stand_in`]), into claims that somebody
//! chose. Until the guest runs on the copies, its disks are on the old claims, and the instance says so.

pub mod plan;

use std::collections::BTreeMap;

use api::kubevirt::constants::condition;
use api::kubevirt::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineStatus, VolumeMigrationState, VolumeUpdateState,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock;
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use meta::conditions::{remove, set};
use plan::{Update, View};
use serde_json::{Value, json};

use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::claims::{self, Claims};
use crate::facts::data_volumes::DataVolumes;
use crate::facts::index::vmi_indexes;
use crate::facts::instance::is_final;
use crate::facts::volume_status;
use crate::facts::volumes_change::{self, COPIED_BY, Settlement};
use crate::patch;

/// The claims that `vm` and `vmi` name and that exist.
pub(crate) fn known(context: &Context, vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Claims {
    let mut known = context.claims_of(vmi);
    let namespace = vm.namespace().unwrap_or_default();
    let template = vm.spec.template.spec.iter().flat_map(|spec| &spec.volumes);
    for used in template.filter_map(claims::of_volume) {
        if let Some(claim) = context.stores.claims.get(&Key::new(namespace.as_str(), used.claim)) {
            known.insert(used.claim.to_owned(), claim);
        }
    }
    known
}

/// Asks the instance of `vm` for what the template wants, or takes it back; what there is to say of it.
pub(crate) async fn follow(
    context: &Context,
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    data: &DataVolumes,
) -> Result<Update, Error> {
    if vmi.metadata.deletion_timestamp.is_some() || is_final(vmi) {
        return Ok(Update::None);
    }
    let claims = known(context, vm, vmi);
    let update = plan::plan(&View { vm, vmi, claims: &claims, data });
    let now = clock::seconds(clock::now());
    let old = vmi.status.as_deref().cloned().unwrap_or_default();
    let mut new = old.clone();
    let mut annotations = json!({});
    match &update {
        Update::Copy(moved) => {
            volumes_change::ask(&mut new, moved.clone(), now);
            annotations = json!({ COPIED_BY: "" });
        }
        Update::TakeBack => volumes_change::take_back(&mut new, now),
        Update::None | Update::Restart(_) | Update::Refuse(_) => return Ok(update),
    }
    let changed = patch::changed(&old, &new).unwrap_or_else(|| json!({}));
    let mut patch = patch::status(vmi.metadata.resource_version.as_deref(), &changed);
    patch["metadata"]["annotations"] = annotations;
    write(context, vmi, patch).await?;
    let (reason, said) = match &update {
        Update::TakeBack => ("VolumesChangeCancelled", "The volumes are as they were: nothing is copied any more."),
        _ => ("VolumesChange", "The disks of changed volumes are copied by a migration."),
    };
    context.recorder.normal(&reference(vmi), reason, said);
    // Who moves guests looks at once.
    context.stores.copying.send(Key::of(vmi));
    Ok(update)
}

/// Does what is left to do about an instance for which disks were to be copied; whether that was something.
pub(crate) async fn settle(context: &Context, vmi: &VirtualMachineInstance) -> Result<bool, Error> {
    let Some(settlement) = volumes_change::settle(vmi) else { return Ok(false) };
    let old = vmi.status.as_deref().cloned().unwrap_or_default();
    let (mut new, mut annotation, mut spec) = (old.clone(), Value::Null, None);
    match settlement {
        Settlement::Release => annotation = json!(""),
        Settlement::Forget => new.migrated_volumes.clear(),
        Settlement::Switch => {
            let namespace = vmi.namespace().unwrap_or_default();
            let by_data_volume = |name: &str| context.stores.data_volumes.contains(&Key::new(namespace.as_str(), name));
            let mut there = vmi.clone();
            there.spec.volumes = volumes_change::switched(vmi, by_data_volume);
            volumes_change::done(&mut new);
            new.volume_status = volume_status::statuses(&there, &context.claims_of(&there), &old.volume_status);
            spec = Some(json!({ "volumes": there.spec.volumes }));
        }
    }
    let changed = patch::changed(&old, &new).unwrap_or_else(|| json!({}));
    let mut patch = patch::status(vmi.metadata.resource_version.as_deref(), &changed);
    patch["metadata"]["annotations"] = json!({ COPIED_BY: annotation });
    if let Some(spec) = spec {
        patch["spec"] = spec;
    }
    write(context, vmi, patch).await?;
    if settlement == Settlement::Switch {
        let said = "The disks were copied, and the guest runs on the copies.";
        context.recorder.normal(&reference(vmi), "VolumesChanged", said);
    }
    Ok(true)
}

async fn write(context: &Context, vmi: &VirtualMachineInstance, patch: Value) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            let words = vmi_indexes(&written);
            context.stores.vmis.put(&written, words);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("change the volumes of", "virtualmachineinstance", &namespace, &name)(error)),
    }
}

/// The reason of the condition of a machine whose instance ended while its disks were copied.
const LOST: &str = "VMI was removed or was final during the volume migration";

/// What the status of `vm` says of changed volumes: what is copied, and whether somebody has to decide which claims hold.
///
/// An instance that ends while its disks are copied leaves them on the old claims, while the template names the new ones.
/// No instance is started on half a copy: the template has to name the old claims again, or not to ask for copies.
pub(crate) fn tell(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    update: &Update,
    status: &mut VirtualMachineStatus,
    now: Timestamp,
) {
    let known = status.volume_update_state.as_ref().is_some_and(|state| state.volume_migration_state.is_some());
    let asked = vmi.filter(|vmi| !known && volumes_change::is_wanted(vmi)).map(volumes_change::asked);
    let moved = if let Update::Copy(moved) = update { Some(moved.as_slice()) } else { asked };
    if let Some(moved) = moved {
        let state = VolumeMigrationState { migrated_volumes: moved.to_vec() };
        status.volume_update_state = Some(VolumeUpdateState { volume_migration_state: Some(state) });
    }
    let Some(state) = status.volume_update_state.as_ref().and_then(|state| state.volume_migration_state.clone()) else {
        return;
    };
    if is_decided(vm, &state) {
        status.volume_update_state = Some(VolumeUpdateState::default());
        remove(&mut status.conditions, condition::MANUAL_RECOVERY_REQUIRED);
    } else if is_lost(vm, vmi) {
        let (conditions, now) = (&mut status.conditions, Time(now));
        set(conditions, condition::MANUAL_RECOVERY_REQUIRED, "True", Some(LOST), None, &now);
    }
}

/// The template names the claims that the disks are on for certain, or does not ask for copies any more.
fn is_decided(vm: &VirtualMachine, state: &VolumeMigrationState) -> bool {
    let volumes = vm.spec.template.spec.iter().flat_map(|spec| &spec.volumes);
    let held: BTreeMap<&str, &str> =
        volumes.filter_map(claims::of_volume).map(|used| (used.volume, used.claim)).collect();
    let mut moved = state.migrated_volumes.iter();
    !plan::migrates(vm)
        || moved.all(|one| held.get(&*one.volume_name).is_none_or(|claim| *claim == volumes_change::source(one)))
}

/// The instance ended while its disks were copied.
fn is_lost(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> bool {
    let held = || vm.status.iter().flat_map(|status| &status.conditions).filter(|c| c.status == "True");
    match vmi {
        None => held().any(|c| c.type_ == condition::VOLUMES_CHANGE || c.type_ == condition::MANUAL_RECOVERY_REQUIRED),
        Some(vmi) => is_final(vmi) && volumes_change::is_wanted(vmi) && !volumes_change::has_arrived(vmi),
    }
}

/// Somebody has to decide which claims hold before an instance of `vm` is made.
pub(crate) fn keeps_from_starting(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> bool {
    let state =
        vm.status.as_ref().and_then(|status| status.volume_update_state.as_ref()?.volume_migration_state.as_ref());
    state.is_some_and(|state| is_lost(vm, vmi) && !is_decided(vm, state))
}
