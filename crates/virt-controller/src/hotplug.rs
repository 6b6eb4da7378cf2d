//! Volumes that come to a running guest and leave it: attachment pods beside its launcher have them on its node, and
//! virt-handler lends them to the launcher from there.

pub mod plan;
pub mod pod;
pub mod status;

use std::collections::BTreeSet;

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kit::Chain;
use kit::store::Key;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use plan::{Holder, Wanted};

use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::claims::{self, Claims};
use crate::facts::index::{attachment_indexes, owner_index};
use crate::facts::{instance, trim};
use crate::limits;
use crate::settings::Settings;

/// Whether `vmi` has, or had, volumes that come and go.
pub(crate) fn concerns(context: &Context, vmi: &VirtualMachineInstance) -> bool {
    let known = vmi.status.as_ref().map(|status| status.volume_status.as_slice()).unwrap_or_default();
    claims::hotplugged(vmi).next().is_some()
        || known.iter().any(|entry| entry.hotplug_volume.is_some())
        || !context.stores.attachments.keys_by_index(&owner_index(&vmi.uid().unwrap_or_default())).is_empty()
}

/// The attachment pods beside `launcher`, the pod of `vmi`.
pub(crate) fn holders(context: &Context, vmi: &VirtualMachineInstance, launcher: &Pod) -> Vec<Holder> {
    let uid = launcher.uid().unwrap_or_default();
    let pods = context.stores.attachments.by_index(&owner_index(&vmi.uid().unwrap_or_default()));
    pods.iter().filter(|pod| pod::is_of(pod, &uid)).map(pod::holder).collect()
}

/// What is to be on the node of `vmi`: volumes whose claims can be mounted, or wait for a pod to be bound. Pure.
pub fn wanted(vmi: &VirtualMachineInstance, claims: &Claims) -> Vec<Wanted> {
    if instance::is_final(vmi) || vmi.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let known = claims::hotplugged(vmi).filter_map(|used| Some((used.clone(), claims.get(used.claim)?)));
    known
        .filter(|(_, claim)| claim.metadata.deletion_timestamp.is_none())
        .map(|(used, claim)| on((used.volume, used.claim, used.read_only), claim))
        .collect()
}

fn on((volume, name, read_only): (&str, &str, bool), claim: &PersistentVolumeClaim) -> Wanted {
    Wanted {
        volume: volume.to_owned(),
        claim: name.to_owned(),
        block: claims::is_block(claim),
        read_only,
        alone: is_for_one_pod(claim),
    }
}

/// What goes with the guest of `vmi` to another node: the volumes that came and that it has. One that it was asked to let go
/// of it may have still, and then it is asked again there. Pure.
///
/// # Errors
/// The name of one that it was asked to let go of and whose claim no pod may have any more.
pub fn carried(
    vmi: &VirtualMachineInstance,
    claim: impl Fn(&str) -> Option<PersistentVolumeClaim>,
) -> Result<Vec<Wanted>, String> {
    let usable = |name: &str| claim(name).filter(|claim| claim.metadata.deletion_timestamp.is_none());
    let mut out = Vec::new();
    for name in api::kubevirt::hotplug::carried(vmi) {
        if let Some(used) = claims::hotplugged(vmi).find(|used| used.volume == name) {
            out.extend(usable(used.claim).map(|claim| on((name, used.claim, used.read_only), &claim)));
            continue;
        }
        let entry = api::kubevirt::hotplug::status(vmi, name);
        let held = entry.and_then(|entry| entry.persistent_volume_claim_info.as_ref()?.claim_name.as_deref());
        let (held, claim) = held.and_then(|held| Some((held, usable(held)?))).ok_or_else(|| name.to_owned())?;
        out.push(on((name, held, false), &claim));
    }
    Ok(out)
}

fn is_for_one_pod(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    modes.iter().any(|mode| mode == "ReadWriteOncePod")
}

/// Makes and deletes attachment pods beside `launcher`, the pod of `vmi`; those that there are then.
pub(crate) async fn attach(
    context: &Context,
    vmi: &VirtualMachineInstance,
    launcher: &Pod,
    claims: &Claims,
    settings: &Settings,
) -> Result<Vec<Holder>, Error> {
    let mut holders = holders(context, vmi, launcher);
    let placed = launcher.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let wanted = if placed { wanted(vmi, claims) } else { Vec::new() };
    let used = if instance::is_final(vmi) { BTreeSet::new() } else { status::used(vmi) };
    let plan = plan::plan(&wanted, &used, &holders);
    for name in plan.delete {
        delete(context, vmi, &name).await?;
        for holder in holders.iter_mut().filter(|holder| holder.name == name) {
            holder.ending = true;
        }
    }
    for volumes in plan.create {
        let pod = pod::render(vmi, launcher, &volumes, settings).map_err(Error::Render)?;
        if let Some(created) = create(context, vmi, pod).await? {
            holders.push(pod::holder(&created));
        }
    }
    Ok(holders)
}

/// The attachment pod beside `target`, which `vmi` is to be moved into, with what the guest has of volumes that come and go;
/// none when it has none.
///
/// # Errors
/// While that pod does not run.
pub(crate) async fn target_attachment(
    context: &Context,
    vmi: &VirtualMachineInstance,
    target: &Pod,
) -> Result<Option<String>, Error> {
    let volumes = carried(vmi, |claim| {
        let namespace = vmi.namespace().unwrap_or_default();
        context.stores.claims.get(&Key::new(namespace.as_str(), claim))
    });
    let volumes = volumes.map_err(Error::Detaching)?;
    if volumes.is_empty() {
        return Ok(None);
    }
    let holders = holders(context, vmi, target);
    let whole = |holder: &&Holder| holder.is_live() && volumes.iter().all(|w| holder.has(&w.volume, &w.claim));
    if let Some(holder) = holders.iter().filter(whole).find(|holder| holder.runs) {
        return Ok(Some(holder.uid.clone()));
    }
    // One with more than the guest has now may wait for what nobody can give it.
    if let Some(holder) = holders.iter().filter(whole).find(|holder| holder.volumes.len() == volumes.len()) {
        return Err(Error::Attaching(holder.name.clone()));
    }
    let pod = pod::render(vmi, target, &volumes, &context.settings()).map_err(Error::Render)?;
    let name = pod.name_any();
    create(context, vmi, pod).await?;
    Err(Error::Attaching(name))
}

async fn create(context: &Context, vmi: &VirtualMachineInstance, mut pod: Pod) -> Result<Option<Pod>, Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), pod.name_any());
    limits::meet(context, &mut pod, &namespace, 1).await?;
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    match api.create(&PostParams::default(), &pod).await {
        Ok(mut created) => {
            let message = format!("Created attachment pod {name}");
            context.recorder.normal(&reference(vmi), "SuccessfulCreate", message);
            created.metadata.managed_fields = None;
            trim::attachment(&mut created);
            context.stores.attachments.put(&created, attachment_indexes(&created));
            Ok(Some(created))
        }
        // Made by an earlier look whose result the watch has not brought yet, or still on its way out: the watch tells.
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(None),
        Err(error) => {
            let error = Error::api("create", "attachment pod", &namespace, &name)(error);
            let message = format!("Error creating attachment pod: {}", Chain(&error));
            context.recorder.warning(&reference(vmi), "FailedCreate", message);
            Err(error)
        }
    }
}

async fn delete(context: &Context, vmi: &VirtualMachineInstance, name: &str) -> Result<(), Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => {
            let message = format!("Deleted attachment pod {name}");
            context.recorder.normal(&reference(vmi), "SuccessfulDelete", message);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", "attachment pod", &namespace, name)(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_disk_on_its_way_out_goes_along() {
        let entry = |name: &str, phase: &str| {
            json!({ "name": name, "target": "sda", "phase": phase, "hotplugVolume": {},
                "persistentVolumeClaimInfo": { "claimName": format!("on-{name}") } })
        };
        let volume =
            json!({ "name": "data", "persistentVolumeClaim": { "claimName": "on-data", "hotpluggable": true } });
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "spec": { "domain": { "devices": { "disks": [{ "name": "data" }] } }, "volumes": [volume] },
            "status": { "volumeStatus": [entry("data", "Ready"), entry("leaving", "Detaching")] },
        }))
        .unwrap();
        let found = carried(&vmi, |_| Some(PersistentVolumeClaim::default())).unwrap();
        let names: Vec<_> = found.iter().map(|wanted| (wanted.volume.as_str(), wanted.claim.as_str())).collect();
        assert_eq!(names, [("data", "on-data"), ("leaving", "on-leaving")]);
        let gone = |name: &str| (name != "on-leaving").then(PersistentVolumeClaim::default);
        assert_eq!(carried(&vmi, gone), Err("leaving".to_owned()), "its claim is gone: it is waited for");
    }
}
