//! addvolume, removevolume: of a machine, in its template, from where its controller brings it to the running guest; of an
//! instance, in the running guest alone. What to write is pure.

use api::kubevirt::constants::phase;
use api::kubevirt::hotplug::{self, EPHEMERAL, MOST_DISKS, is_hotplug};
use api::kubevirt::v1::{
    AddVolumeOptions, Disk, RemoveVolumeOptions, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume,
};
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::{Context, Object, options};
use crate::cluster;
use crate::status::{self, Refusal, done};
use crate::validate::is_volume_name;

/// How often a decision is taken again when the object changes meanwhile. While many volumes come, each step of each changes
/// the guest's status.
const ATTEMPTS: u32 = 30;

/// What is asked for.
#[derive(Debug)]
enum Asked {
    Add(Box<Volume>, Box<Disk>),
    Remove(String),
}

/// Reads and judges the request alone.
fn added(body: &[u8]) -> Result<(Asked, bool), Refusal> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Refusal::bad_request("Request with no body, a new name is expected as the request body"));
    }
    let bad = |message: &str| Err(Refusal::bad_request(message));
    // A disk that was left out is not one that says nothing.
    let given: Value = options::read(body)?;
    let options: AddVolumeOptions = options::read(body)?;
    let dry_run = options::is_dry_run(&options.dry_run)?;
    let has = |field: &str| given.get(field).is_some_and(|value| !value.is_null());
    if options.name.is_empty() {
        return bad("AddVolumeOptions requires name to be set");
    }
    if !has("disk") {
        return bad("AddVolumeOptions requires disk to not be nil");
    }
    if !has("volumeSource") {
        return bad("AddVolumeOptions requires VolumeSource to not be nil");
    }
    if !is_volume_name(&options.name) {
        let message =
            format!("name {:?} is not a name for a volume: use lower-case letters, digits and '-'", options.name);
        return bad(&message);
    }
    let mut disk = options.disk;
    if disk.name.is_empty() {
        disk.name.clone_from(&options.name);
    }
    if disk.name != options.name {
        return bad(&format!(
            "disk.name {:?} has to be the name of the volume, {:?}, or left out",
            disk.name, options.name
        ));
    }
    judge_disk(&disk)?;
    let mut volume = Volume { name: options.name, ..Default::default() };
    match (options.volume_source.data_volume, options.volume_source.persistent_volume_claim) {
        (Some(mut data), None) if !data.name.is_empty() => {
            data.hotpluggable = Some(true);
            volume.data_volume = Some(data);
        }
        (None, Some(mut claim)) if !claim.claim_name.is_empty() => {
            claim.hotpluggable = Some(true);
            volume.persistent_volume_claim = Some(claim);
        }
        _ => return bad("volumeSource has to name one claim: dataVolume.name or persistentVolumeClaim.claimName"),
    }
    Ok((Asked::Add(Box::new(volume), Box::new(disk)), dry_run))
}

fn judge_disk(disk: &Disk) -> Result<(), Refusal> {
    let name = &disk.name;
    let bus = match (&disk.disk, &disk.lun, &disk.cdrom) {
        (_, _, Some(_)) => {
            return Err(Refusal::bad_request(format!(
                "Hotplugged Disk {name} is a cdrom: add the drive to spec.template, and the volume of its name puts a medium in"
            )));
        }
        (Some(target), None, None) => target.bus.as_deref().unwrap_or_default(),
        (None, Some(target), None) => target.bus.as_deref().unwrap_or_default(),
        _ => {
            return Err(Refusal::bad_request(format!(
                "Hotplugged Disk {name} requires diskDevice of type 'disk' or 'lun'"
            )));
        }
    };
    match (bus, &disk.lun) {
        ("" | "scsi", _) | ("virtio", None) => {}
        ("virtio", Some(_)) => {
            return Err(Refusal::bad_request(format!("Hotplugged Disk {name} is a lun: its bus has to be scsi")));
        }
        (other, _) => {
            return Err(Refusal::bad_request(format!(
                "Hotplugged Disk {name} does not use a scsi or virtio bus: {other:?} cannot be plugged in while a guest runs"
            )));
        }
    }
    if disk.boot_order.is_some_and(|order| order < 1) {
        return Err(Refusal::bad_request(format!("disk {name}: bootOrder has to be greater than 0")));
    }
    Ok(())
}

fn removed(body: &[u8]) -> Result<(Asked, bool), Refusal> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Refusal::bad_request("Request with no body, a new name is expected as the request body"));
    }
    let options: RemoveVolumeOptions = options::read(body)?;
    let dry_run = options::is_dry_run(&options.dry_run)?;
    if options.name.is_empty() {
        return Err(Refusal::bad_request("RemoveVolumeOptions requires name to be set"));
    }
    Ok((Asked::Remove(options.name), dry_run))
}

/// Changes `spec`; the error says why it cannot be done.
fn change(spec: &mut VirtualMachineInstanceSpec, asked: &Asked) -> Result<(), String> {
    match asked {
        Asked::Add(volume, disk) => {
            let name = &volume.name;
            if spec.volumes.iter().any(|known| known.name == *name) {
                return Err(format!("Unable to add volume [{name}] because volume with that name already exists"));
            }
            if spec.domain.devices.disks.iter().any(|known| known.name == *name) {
                return Err(format!("Unable to add volume [{name}] because disk with that name already exists"));
            }
            if let Some(other) = spec.volumes.iter().find(|known| known.own_claim() == volume.own_claim()) {
                let claim = volume.own_claim().unwrap_or_default();
                let other = &other.name;
                return Err(format!(
                    "Unable to add volume source [{claim}] because it already exists: it is that of volume {other}"
                ));
            }
            if spec.domain.devices.disable_hotplug == Some(true) {
                return Err(format!("Unable to add volume [{name}] because spec.domain.devices.disableHotplug is set"));
            }
            if spec.domain.devices.disks.len() >= MOST_DISKS {
                return Err(format!("Unable to add volume [{name}] because there are {MOST_DISKS} disks already"));
            }
            spec.volumes.push((**volume).clone());
            spec.domain.devices.disks.push((**disk).clone());
        }
        Asked::Remove(name) => {
            let Some(volume) = spec.volumes.iter().find(|known| known.name == *name) else {
                return Err(format!("Unable to remove volume [{name}] because it does not exist"));
            };
            if !is_hotplug(volume) {
                return Err(format!("Unable to remove volume [{name}] because it is not hotpluggable"));
            }
            spec.volumes.retain(|known| known.name != *name);
            // A drive stays when its medium goes.
            spec.domain.devices.disks.retain(|known| known.name != *name || known.cdrom.is_some());
        }
    }
    Ok(())
}

/// Why the running guest is not ready for the change.
fn busy(vmi: &VirtualMachineInstance, asked: &Asked) -> Result<(), String> {
    let status = vmi.status.as_ref();
    if status.and_then(|status| status.phase.as_deref()) != Some(phase::RUNNING) {
        return Err("VMI is not running".to_owned());
    }
    if let Asked::Add(volume, _) = asked
        && let Some(left) = hotplug::status(vmi, &volume.name).filter(|entry| entry.hotplug_volume.is_some())
        && !vmi.spec.volumes.iter().any(|known| known.name == volume.name)
    {
        let at = left.phase.as_deref().unwrap_or_default();
        return Err(format!(
            "Unable to add volume [{}] because one of that name is still on its way out ({at})",
            volume.name
        ));
    }
    Ok(())
}

/// The names of volumes that only the instance has, after the change.
fn ephemeral(vmi: &VirtualMachineInstance, asked: &Asked) -> Option<String> {
    let mut names: Vec<&str> = hotplug::ephemeral(vmi).collect();
    match asked {
        Asked::Add(volume, _) => names.push(&volume.name),
        Asked::Remove(gone) => names.retain(|name| name != gone),
    }
    (!names.is_empty()).then(|| names.join(","))
}

fn patch_of(version: Option<&String>, path: &[&str], spec: &VirtualMachineInstanceSpec) -> Value {
    let mut inner = json!({
        "volumes": spec.volumes, "domain": { "devices": { "disks": spec.domain.devices.disks } },
    });
    for key in path.iter().rev() {
        inner = json!({ (*key): inner });
    }
    inner["metadata"] = json!({ "resourceVersion": version });
    inner
}

pub(super) async fn serve(context: &Context, object: &Object, add: bool, body: &Bytes) -> Result<Response, Refusal> {
    let (asked, dry_run) = if add { added(body)? } else { removed(body)? };
    let mut attempt = 0;
    loop {
        attempt += 1;
        let written = match object.resource {
            "virtualmachines" => of_machine(context, object, &asked, dry_run).await,
            _ => of_instance(context, object, &asked, dry_run).await,
        };
        match written {
            Ok(()) => break,
            // Somebody wrote in between: the decision is taken again on what they wrote.
            Err((refusal, true)) if refusal.code == StatusCode::CONFLICT && attempt < ATTEMPTS => {}
            Err((refusal, _)) => return Err(refusal),
        }
    }
    let mut response = done();
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// A refusal, and whether it is of a write that may be tried again.
type Failed = (Refusal, bool);

fn read(refusal: Refusal) -> Failed {
    (refusal, false)
}

async fn of_machine(context: &Context, object: &Object, asked: &Asked, dry_run: bool) -> Result<(), Failed> {
    let (client, name) = (&context.client, &object.name);
    let vm = cluster::vm(client, &object.namespace, name).await.map_err(read)?;
    let conflict = |why: String| read(status::conflict("virtualmachine", name, &why));
    let mut spec = vm.spec.template.spec.as_deref().cloned().unwrap_or_default();
    change(&mut spec, asked).map_err(conflict)?;
    // What the guest cannot take now would not become true later either.
    if let Some(vmi) = cluster::find_vmi(client, &object.namespace, name).await.map_err(read)?
        && vmi.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase::RUNNING)
    {
        busy(&vmi, asked).map_err(conflict)?;
    }
    let patch = patch_of(vm.metadata.resource_version.as_ref(), &["spec", "template", "spec"], &spec);
    cluster::patch_vm(client, &vm, patch, dry_run).await.map_err(|refusal| (refusal, true))
}

async fn of_instance(context: &Context, object: &Object, asked: &Asked, dry_run: bool) -> Result<(), Failed> {
    let (client, name) = (&context.client, &object.name);
    let vmi = cluster::vmi(client, &object.namespace, name).await.map_err(read)?;
    let conflict = |why: String| read(status::conflict("virtualmachineinstance", name, &why));
    busy(&vmi, asked).map_err(conflict)?;
    let mut spec = vmi.spec.clone();
    change(&mut spec, asked).map_err(conflict)?;
    let mut patch = patch_of(vmi.metadata.resource_version.as_ref(), &["spec"], &spec);
    patch["metadata"]["annotations"] = json!({ (EPHEMERAL): ephemeral(&vmi, asked) });
    cluster::patch_vmi(client, &vmi, patch, dry_run).await.map_err(|refusal| (refusal, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(body: Value, expect: &str) {
        let said = match added(body.to_string().as_bytes()) {
            Ok(_) => String::new(),
            Err(refusal) => refusal.message,
        };
        assert_eq!(said, expect);
    }

    fn claim(name: &str) -> Value {
        json!({ "persistentVolumeClaim": { "claimName": name } })
    }

    fn add(name: &str, on: &str) -> Asked {
        let body = json!({ "name": name, "disk": { "disk": { "bus": "scsi" } }, "volumeSource": claim(on) });
        added(body.to_string().as_bytes()).unwrap().0
    }

    fn spec(count: usize) -> VirtualMachineInstanceSpec {
        let disks: Vec<_> = (0..count).map(|index| json!({ "name": format!("d{index}") })).collect();
        serde_json::from_value(json!({
            "domain": { "devices": { "disks": disks } },
            "volumes": [
                { "name": "root", "persistentVolumeClaim": { "claimName": "root" } },
                { "name": "d0", "dataVolume": { "name": "dv", "hotpluggable": true } },
            ],
        }))
        .unwrap()
    }

    #[test]
    fn a_request_says_all_that_is_needed() {
        let disk = json!({ "disk": { "bus": "scsi" } });
        check(json!({}), "AddVolumeOptions requires name to be set");
        check(json!({ "name": "a" }), "AddVolumeOptions requires disk to not be nil");
        check(json!({ "name": "a", "disk": disk }), "AddVolumeOptions requires VolumeSource to not be nil");
        let one = "volumeSource has to name one claim: dataVolume.name or persistentVolumeClaim.claimName";
        check(json!({ "name": "a", "disk": disk, "volumeSource": {} }), one);
        check(json!({ "name": "a", "disk": disk, "volumeSource": claim("x") }), "");
        let odd = "name \"A/b\" is not a name for a volume: use lower-case letters, digits and '-'";
        check(json!({ "name": "A/b", "disk": disk, "volumeSource": claim("x") }), odd);
        let sata = json!({ "disk": { "bus": "sata" } });
        check(
            json!({ "name": "a", "disk": sata, "volumeSource": claim("x") }),
            "Hotplugged Disk a does not use a scsi or virtio bus: \"sata\" cannot be plugged in while a guest runs",
        );
        check(
            json!({ "name": "a", "disk": {}, "volumeSource": claim("x") }),
            "Hotplugged Disk a requires diskDevice of type 'disk' or 'lun'",
        );
    }

    #[test]
    fn volumes_are_added_and_removed() {
        let refused = |asked: Asked| change(&mut spec(1), &asked).err().unwrap_or_default();
        let mut changed = spec(1);
        change(&mut changed, &add("data", "data")).unwrap();
        assert!(is_hotplug(&changed.volumes[2]) && changed.domain.devices.disks[1].name == "data");
        change(&mut changed, &Asked::Remove("data".into())).unwrap();
        assert_eq!(changed, spec(1));
        assert_eq!(
            refused(add("root", "x")),
            "Unable to add volume [root] because volume with that name already exists"
        );
        assert_eq!(
            refused(add("data", "dv")),
            "Unable to add volume source [dv] because it already exists: it is that of volume d0"
        );
        let refused = |name: &str| change(&mut spec(1), &Asked::Remove(name.into())).err().unwrap_or_default();
        assert_eq!(refused("root"), "Unable to remove volume [root] because it is not hotpluggable");
        assert_eq!(refused("none"), "Unable to remove volume [none] because it does not exist");
        assert!(change(&mut spec(MOST_DISKS), &add("data", "data")).unwrap_err().contains("255 disks"));
    }

    #[test]
    fn volumes_of_the_vmi_alone_are_annotated() {
        let vmi = |names: Option<&str>| -> VirtualMachineInstance {
            serde_json::from_value(json!({ "metadata": { "annotations": { (EPHEMERAL): names } } })).unwrap_or_default()
        };
        assert_eq!(ephemeral(&vmi(Some("a")), &add("b", "b")).as_deref(), Some("a,b"));
        assert_eq!(ephemeral(&vmi(Some("a")), &Asked::Remove("a".into())), None);
    }
}
