//! Volumes: one source each, unique names, sources that can be used.

use std::collections::BTreeSet;

use api::kubevirt::v1::{VirtualMachineInstanceSpec, Volume};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::LocalObjectReference;
use kit::admission::Cause;
use meta::quantity::Amount;
use serde_json::Value;

use super::{invalid, names, required};

/// What fits into the object itself; more belongs into a Secret.
const CLOUD_INIT: usize = 2048;

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let base = format!("{path}.volumes");
    let mut seen: Vec<&str> = Vec::new();
    let (mut served, mut dumps) = (0, 0);
    for (index, volume) in spec.volumes.iter().enumerate() {
        let field = format!("{base}[{index}]");
        let name = volume.name.as_str();
        if let Some(other) = seen.iter().position(|held| *held == name) {
            let message =
                format!("{field}.name and {base}[{other}].name must not have the same Name: {name:?} names one volume");
            causes.push(super::duplicate(format!("{field}.name"), message));
        }
        seen.push(name);
        if !names::is_label(name) {
            let message =
                format!("{field}.name {name:?} is not a name for a volume: use lower-case letters, digits and '-'");
            causes.push(invalid(format!("{field}.name"), message));
        }
        source(&field, volume, causes);
        if volume.service_account.is_some() {
            served += 1;
        }
        if volume.memory_dump.is_some() {
            dumps += 1;
        }
    }
    if served > 1 {
        causes.push(invalid(base.clone(), format!("{base} must have max one serviceAccount volume set")));
    }
    if dumps > 1 {
        causes.push(invalid(base.clone(), format!("{base} must have max one memory dump volume set")));
    }
    matched(path, spec, causes);
}

/// Every volume is used by a disk or a filesystem.
fn matched(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let devices = &spec.domain.devices;
    let disks = devices.disks.iter().map(|disk| disk.name.as_str());
    let used: BTreeSet<&str> = disks.chain(devices.filesystems.iter().map(|fs| fs.name.as_str())).collect();
    // Before its defaults are filled in, a template may leave the disks out: each volume then gets one.
    if path != "spec" {
        return;
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        if volume.memory_dump.is_none() && !used.contains(volume.name.as_str()) {
            let field = format!("{path}.domain.volumes[{index}].name");
            causes.push(required(field.clone(), format!("{field} '{}' not found.", volume.name)));
        }
    }
}

fn source(field: &str, volume: &Volume, causes: &mut Vec<Cause>) {
    let fields = serde_json::to_value(volume).unwrap_or_default();
    let sources = fields.as_object().into_iter().flatten();
    let set: Vec<_> = sources.filter(|(key, value)| *key != "name" && !value.is_null()).collect();
    if set.len() != 1 {
        causes.push(invalid(field.to_owned(), format!("{field} must have exactly one source type set")));
        return;
    }
    if let Some(disk) = &volume.container_disk {
        if disk.image.trim().is_empty() {
            let place = format!("{field}.containerDisk.image");
            causes.push(required(
                place.clone(),
                format!("{place} is a required field: name the image that holds the disk"),
            ));
        }
        if let Some(path) = disk.path.as_deref().filter(|path| !path.is_empty()) {
            let place = format!("{field}.containerDisk.path");
            absolute(&place, path, causes);
        }
    }
    let claim =
        volume.persistent_volume_claim.as_ref().map(|claim| ("persistentVolumeClaim.claimName", &claim.claim_name));
    let disk = volume.data_volume.as_ref().map(|disk| ("dataVolume.name", &disk.name));
    let none = String::new();
    let below = volume.ephemeral.as_ref().map(|ephemeral| {
        let claim = ephemeral.persistent_volume_claim.as_ref();
        ("ephemeral.persistentVolumeClaim.claimName", claim.map_or(&none, |claim| &claim.claim_name))
    });
    let dump = volume.memory_dump.as_ref().map(|dump| ("memoryDump.claimName", &dump.claim_name));
    if let Some((place, _)) = claim.or(disk).or(below).or(dump).filter(|(_, name)| name.is_empty()) {
        let place = format!("{field}.{place}");
        causes
            .push(required(place.clone(), format!("{place} is a required field: name the claim that holds the disk")));
    }
    if let Some(disk) = &volume.empty_disk {
        let place = format!("{field}.emptyDisk.capacity");
        match Amount::try_from(&disk.capacity) {
            Ok(amount) if amount.bytes() >= 512 => {}
            _ => causes.push(invalid(
                place.clone(),
                format!("{place} '{}' must be at least 512 bytes: for example 1Gi", disk.capacity.0),
            )),
        }
    }
    let clouds = [
        ("cloudInitNoCloud", volume.cloud_init_no_cloud.as_ref().map(|c| serde_json::to_value(c).unwrap_or_default())),
        (
            "cloudInitConfigDrive",
            volume.cloud_init_config_drive.as_ref().map(|c| serde_json::to_value(c).unwrap_or_default()),
        ),
    ];
    for (kind, value) in clouds {
        if let Some(value) = value {
            cloud_init(&format!("{field}.{kind}"), &value, causes);
        }
    }
}

/// A path inside of an image: absolute, without steps upwards.
pub(super) fn absolute(field: &str, path: &str, causes: &mut Vec<Cause>) {
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        causes.push(invalid(field.to_owned(), format!("{field} {path:?} must be an absolute path without \"..\"")));
    }
}

fn cloud_init(field: &str, source: &Value, causes: &mut Vec<Cause>) {
    for (what, many, plain, encoded, secret, must) in [
        ("userdata", "userdatasource", "userData", "userDataBase64", "secretRef", true),
        ("networkdata", "networkdata source", "networkData", "networkDataBase64", "networkDataSecretRef", false),
    ] {
        let text = |key: &str| source.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let reference = source.get(secret).cloned().and_then(|value| serde_json::from_value(value).ok());
        let reference = reference.filter(|reference: &LocalObjectReference| !reference.name.is_empty());
        let mut size = text(plain).map_or(0, str::len);
        if let Some(encoded_text) = text(encoded) {
            match BASE64_STANDARD.decode(encoded_text) {
                Ok(decoded) => size = decoded.len(),
                Err(_) => {
                    let place = format!("{field}.{encoded}");
                    causes.push(invalid(place.clone(), format!("{place} is not a valid base64 value.")));
                }
            }
        }
        let sources = usize::from(text(plain).is_some())
            + usize::from(text(encoded).is_some())
            + usize::from(reference.is_some());
        if sources > 1 {
            causes.push(invalid(field.to_owned(), format!("{field} must have only one {many} set.")));
        }
        let network = source.as_object().is_some_and(|all| all.keys().any(|key| key.starts_with("networkData")));
        if must && sources == 0 && !network {
            causes.push(invalid(
                field.to_owned(),
                format!("{field} must have at least one userdatasource or one networkdatasource set."),
            ));
        }
        if size > CLOUD_INIT {
            let place = format!("{field}.{}", if text(encoded).is_some() { encoded } else { plain });
            let way = if must { "UserDataSecretRef" } else { "NetworkDataSecretRef" };
            let message = format!("{field} {what} exceeds {CLOUD_INIT} byte limit. Should use {way} for larger data.");
            causes.push(invalid(place, message));
        }
    }
}
