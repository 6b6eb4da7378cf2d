//! What a machine is brought back to: its claims out of volume snapshots, and its specification on those. Pure.

use meta::quantity::Amount;
use meta::volume_snapshot::GROUP;
use std::collections::BTreeMap;

use api::kubevirt::constants::run_strategy;
use api::kubevirt::v1::{PersistentVolumeClaimVolumeSource, VirtualMachine, VirtualMachineSpec};
use api::snapshot::v1beta1::{
    VirtualMachineRestore, VirtualMachineSnapshotContent, VolumeBackup, VolumeRestore, VolumeRestoreOverride,
};
use json_patch::{AddOperation, PatchOperation};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, TypedLocalObjectReference};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::json;

use crate::facts::persistent_state;
use crate::snapshot::state_volume;

/// On a claim: the restore that made it.
pub const RESTORE: &str = "restore.kubevirt.io/name";
/// On a machine: the restore that it was brought back by last.
pub const LAST: &str = "restore.kubevirt.io/lastRestoreUID";
/// On a claim: the machine that its contents were taken of.
const SOURCE_NAME: &str = "restore.kubevirt.io/source-vm-name";
const SOURCE_NAMESPACE: &str = "restore.kubevirt.io/source-vm-namespace";

/// Values of `spec.volumeRestorePolicy`; new names are drawn where there is none.
mod policy {
    pub(super) const IN_PLACE: &str = "InPlace";
    pub(super) const PREFIX: &str = "PrefixTargetName";
}
/// What a claim carries of how its contents came to it, which is not true of a copy.
const OUTDATED: [&str; 7] = [
    "pv.kubernetes.io/",
    "cdi.kubevirt.io/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "snapshot.kubevirt.io/",
    "k8s.io/CloneRequest",
    "k8s.io/CloneOf",
];
/// The longest name of a claim that begins with its machine's.
const LONGEST: usize = 63;

/// Why a restore cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

fn overrides<'a>(restore: &'a VirtualMachineRestore, volume: &str) -> Option<&'a VolumeRestoreOverride> {
    restore.spec.volume_restore_overrides.iter().find(|one| one.volume_name.as_deref() == Some(volume))
}

/// True when the volumes that were snapshotted are replaced, and their claims keep their names.
pub fn in_place(restore: &VirtualMachineRestore) -> bool {
    restore.spec.volume_restore_policy.as_deref() == Some(policy::IN_PLACE)
}

/// True when the claims belong to the machine.
pub fn owns(restore: &VirtualMachineRestore) -> bool {
    restore.spec.volume_ownership_policy.as_deref() != Some("None")
}

/// The name of the claim for `backup`.
pub fn claim_name(restore: &VirtualMachineRestore, backup: &VolumeBackup) -> String {
    let volume = &backup.volume_name;
    let named = overrides(restore, volume).and_then(|one| one.restore_name.clone()).filter(|name| !name.is_empty());
    let before = || backup.persistent_volume_claim.metadata.as_ref()?.name.clone();
    named.unwrap_or_else(|| match restore.spec.volume_restore_policy.as_deref() {
        Some(policy::IN_PLACE) => before().unwrap_or_default(),
        Some(policy::PREFIX) => prefixed(&restore.spec.target.name, volume),
        _ => format!("restore-{}-{volume}", restore.uid().unwrap_or_default()),
    })
}

/// `volume` after the name of its machine, which is shortened where there is no room for it.
fn prefixed(machine: &str, volume: &str) -> String {
    let whole = format!("{machine}-{volume}");
    if whole.len() <= LONGEST {
        return whole;
    }
    // Of the hash and the hyphens around it.
    const HASH: usize = 10;
    let start = |name: &str, room: usize| name.chars().take(room).collect::<String>();
    match LONGEST.checked_sub(HASH + volume.len()) {
        Some(room) => format!("{}-{:08x}-{volume}", start(machine, room), hash(machine)),
        None => format!("{}-{:08x}", start(machine, LONGEST + 1 - HASH), hash(&whole)),
    }
}

/// FNV-1a, by which clients shorten names, too.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// True when the claim in `backup` went with the machine in `content`.
pub fn was_owned(content: &VirtualMachineSnapshotContent, backup: &VolumeBackup) -> bool {
    let machine = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.metadata.as_ref());
    let uid = machine.and_then(|machine| machine.uid.as_ref());
    let owners =
        backup.persistent_volume_claim.metadata.iter().flat_map(|claim| claim.owner_references.iter().flatten());
    owners.into_iter().any(|owner| owner.kind == "VirtualMachine" && Some(&owner.uid) == uid)
}

/// What `restore` brings back out of `content`. A dump of the guest's memory is of its time, and stays where it is.
pub fn backups<'a>(
    content: &'a VirtualMachineSnapshotContent,
) -> impl Iterator<Item = (&'a VolumeBackup, &'a String)> + 'a {
    let machine = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.spec.as_deref());
    let spec = machine.and_then(|machine| machine.template.spec.as_deref());
    let is_dump = move |name: &str| {
        let mut volumes = spec.into_iter().flat_map(|spec| &spec.volumes);
        volumes.any(|volume| volume.name == name && volume.memory_dump.is_some())
    };
    let taken = content.spec.volume_backups.iter();
    taken
        .filter(move |backup| !is_dump(&backup.volume_name))
        .filter_map(|backup| Some((backup, backup.volume_snapshot_name.as_ref()?)))
}

/// The name of the machine that was snapshotted.
pub fn source_name(content: &VirtualMachineSnapshotContent) -> Option<&str> {
    content.spec.source.virtual_machine.as_ref()?.metadata.as_ref()?.name.as_deref()
}

/// The volume of `content` that holds what the machine kept beside its disks, if it kept anything.
fn volume_of_state(content: &VirtualMachineSnapshotContent) -> Option<String> {
    source_name(content).map(state_volume)
}

/// True when the machine kept something beside its disks.
pub fn has_state(content: &VirtualMachineSnapshotContent) -> bool {
    let state = volume_of_state(content);
    backups(content).any(|(backup, _)| Some(&backup.volume_name) == state.as_ref())
}

/// True when `volume` holds that.
pub fn is_state(content: &VirtualMachineSnapshotContent, volume: &str) -> bool {
    volume_of_state(content).as_deref() == Some(volume)
}

/// True when the machine makes a data volume for `volume` by itself.
pub fn has_template(content: &VirtualMachineSnapshotContent, volume: &str) -> bool {
    let machine = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.spec.as_deref());
    let Some(machine) = machine else { return false };
    let mut volumes = machine.template.spec.iter().flat_map(|spec| &spec.volumes);
    let named = volumes.find(|known| known.name == volume).and_then(|known| known.data_volume.as_ref());
    let templates = machine.data_volume_templates.iter().filter_map(|template| template.metadata.as_ref());
    named.is_some_and(|data| templates.into_iter().any(|metadata| metadata.name.as_ref() == Some(&data.name)))
}

/// The volumes that `restore` brings back out of `content`.
pub fn volumes(restore: &VirtualMachineRestore, content: &VirtualMachineSnapshotContent) -> Vec<VolumeRestore> {
    backups(content)
        .map(|(backup, snapshot)| VolumeRestore {
            volume_name: backup.volume_name.clone(),
            persistent_volume_claim: claim_name(restore, backup),
            volume_snapshot_name: snapshot.clone(),
            data_volume_name: has_template(content, &backup.volume_name).then(|| claim_name(restore, backup)),
        })
        .collect()
}

/// What says that a claim or a machine is as `restore` made it.
pub fn mark(restore: &VirtualMachineRestore) -> String {
    format!("{}-{}", restore.name_any(), restore.uid().unwrap_or_default())
}

/// The claim for `backup`, whose machine is described by `from`, and whose volume snapshot needs room for `size`.
pub fn claim(
    restore: &VirtualMachineRestore,
    backup: &VolumeBackup,
    from: Option<&ObjectMeta>,
    size: Option<&Quantity>,
) -> PersistentVolumeClaim {
    let mut claim = of_snapshot(backup, size);
    claim.metadata.name = Some(claim_name(restore, backup));
    claim.metadata.namespace.clone_from(&restore.metadata.namespace);
    let mut annotations = claim.metadata.annotations.take().unwrap_or_default();
    annotations.insert(RESTORE.to_owned(), restore.name_any());
    annotations.insert(LAST.to_owned(), mark(restore));
    let mut labels = claim.metadata.labels.take().unwrap_or_default();
    // Whose state it holds is said once the machine has been brought back.
    labels.retain(|key, _| key != persistent_state::LABEL && key != persistent_state::MIGRATION);
    if let Some(from) = from {
        labels.insert(SOURCE_NAME.to_owned(), from.name.clone().unwrap_or_default());
        labels.insert(SOURCE_NAMESPACE.to_owned(), from.namespace.clone().unwrap_or_default());
    }
    if let Some(own) = overrides(restore, &backup.volume_name) {
        labels.extend(own.labels.clone());
        annotations.extend(own.annotations.clone());
    }
    claim.metadata.annotations = Some(annotations);
    claim.metadata.labels = Some(labels).filter(|all| !all.is_empty());
    claim
}

/// A claim like the one that was kept in `backup`, filled out of its volume snapshot, which needs room for `size`.
pub(crate) fn of_snapshot(backup: &VolumeBackup, size: Option<&Quantity>) -> PersistentVolumeClaim {
    let copied = backup.persistent_volume_claim.metadata.clone().unwrap_or_default();
    let mut annotations = copied.annotations.unwrap_or_default();
    annotations.retain(|key, _| !OUTDATED.iter().any(|prefix| key.starts_with(prefix)));
    let mut spec = backup.persistent_volume_claim.spec.clone().unwrap_or_default();
    spec.volume_name = None;
    spec.data_source_ref = None;
    spec.data_source = Some(TypedLocalObjectReference {
        api_group: Some(GROUP.to_owned()),
        kind: "VolumeSnapshot".to_owned(),
        name: backup.volume_snapshot_name.clone().unwrap_or_default(),
    });
    if let Some(size) = size {
        let resources = spec.resources.get_or_insert_default();
        let requests = resources.requests.get_or_insert_default();
        let asked = requests.get("storage").and_then(|asked| Amount::try_from(asked).ok());
        if Amount::try_from(size).is_ok_and(|least| asked.is_none_or(|asked| asked < least)) {
            requests.insert("storage".to_owned(), size.clone());
        }
    }
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: copied.name,
            labels: copied.labels.filter(|all| !all.is_empty()),
            annotations: Some(annotations).filter(|all| !all.is_empty()),
            ..Default::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The machine as `content` has it, on the claims that `restore` makes, with its patches; `there` is the machine that is
/// brought back, if it is there.
///
/// # Errors
/// When the content has no machine, or a patch cannot be applied.
pub fn machine(
    restore: &VirtualMachineRestore,
    content: &VirtualMachineSnapshotContent,
    there: Option<&VirtualMachine>,
) -> Result<VirtualMachine, Refused> {
    let kept = content.spec.source.virtual_machine.as_deref();
    let (Some(kept), Some(spec)) = (kept, kept.and_then(|kept| kept.spec.as_deref())) else {
        return Err(Refused(format!("VirtualMachineSnapshotContent {} has no virtual machine", content.name_any())));
    };
    let mut spec = spec.clone();
    rename(&mut spec, restore, content);
    // Whether it runs is not part of what it was; a new one is started by whoever wants it to run.
    (spec.running, spec.run_strategy) = match there {
        Some(there) => (there.spec.running, there.spec.run_strategy.clone()),
        None if spec.running.is_some() => (Some(false), None),
        None => (None, Some(run_strategy::HALTED.to_owned())),
    };
    let held = kept.metadata.clone().unwrap_or_default();
    let mut annotations = match there {
        Some(there) => there.annotations().clone(),
        None => held.annotations.unwrap_or_default(),
    };
    annotations.insert(LAST.to_owned(), mark(restore));
    let labels = there.map_or(held.labels, |there| there.metadata.labels.clone());
    let vm = VirtualMachine {
        metadata: ObjectMeta {
            name: Some(restore.spec.target.name.clone()),
            namespace: restore.metadata.namespace.clone(),
            labels,
            annotations: Some(annotations),
            ..Default::default()
        },
        spec,
        ..Default::default()
    };
    // A machine that is brought back is what it was.
    if there.is_some() { Ok(vm) } else { patched(vm, &restore.spec.patches) }
}

/// Puts the restored claims in the place of those that were snapshotted.
fn rename(spec: &mut VirtualMachineSpec, restore: &VirtualMachineRestore, content: &VirtualMachineSnapshotContent) {
    let names: BTreeMap<&str, String> =
        backups(content).map(|(backup, _)| (backup.volume_name.as_str(), claim_name(restore, backup))).collect();
    let made: Vec<String> =
        spec.data_volume_templates.iter().filter_map(|template| template.metadata.as_ref()?.name.clone()).collect();
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    for machine in spec.template.spec.iter_mut() {
        machine.volumes.retain(|volume| volume.memory_dump.is_none());
        for volume in &mut machine.volumes {
            let Some(new) = names.get(volume.name.as_str()) else { continue };
            if let Some(claim) = &mut volume.persistent_volume_claim {
                claim.claim_name.clone_from(new);
            } else if let Some(data) = volume.data_volume.take_if(|data| !made.contains(&data.name)) {
                // Nobody makes a data volume of that name.
                volume.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource {
                    claim_name: new.clone(),
                    hotpluggable: data.hotpluggable,
                    ..Default::default()
                });
            } else if let Some(data) = &mut volume.data_volume {
                renamed.insert(std::mem::replace(&mut data.name, new.clone()), new.clone());
            }
        }
    }
    // A template whose claim is there makes nothing any more.
    for template in &mut spec.data_volume_templates {
        let Some(metadata) = &mut template.metadata else { continue };
        if let Some(new) = metadata.name.as_ref().and_then(|name| renamed.get(name)) {
            metadata.name = Some(new.clone());
        }
    }
}

fn patched(vm: VirtualMachine, patches: &[String]) -> Result<VirtualMachine, Refused> {
    if patches.is_empty() {
        return Ok(vm);
    }
    let bad =
        |text: &str, why: &dyn std::fmt::Display| Refused(format!("spec.patches: {text:?} cannot be applied: {why}"));
    let mut object = json!(vm);
    for text in patches {
        let mut operation: PatchOperation = serde_json::from_str(text).map_err(|error| bad(text, &error))?;
        // KubeVirt's own clients replace what may not be there.
        if let PatchOperation::Replace(replace) = &operation
            && object.pointer(&replace.path.to_string()).is_none()
        {
            let (path, value) = (replace.path.clone(), replace.value.clone());
            operation = PatchOperation::Add(AddOperation { path, value });
        }
        json_patch::patch(&mut object, &[operation]).map_err(|error| bad(text, &error))?;
    }
    let mut patched: VirtualMachine = serde_json::from_value(object)
        .map_err(|error| Refused(format!("spec.patches: what they make is no VirtualMachine: {error}")))?;
    patched.metadata.name = vm.metadata.name;
    patched.metadata.namespace = vm.metadata.namespace;
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn restore(patches: &[&str]) -> VirtualMachineRestore {
        serde_json::from_value(json!({
            "metadata": { "name": "back", "namespace": "ns", "uid": "u" },
            "spec": {
                "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
                "virtualMachineSnapshotName": "snap", "patches": patches,
                "volumeRestoreOverrides": [{ "volumeName": "data", "restoreName": "mine", "labels": { "l": "x" } }],
            },
        }))
        .unwrap()
    }

    fn content() -> VirtualMachineSnapshotContent {
        let backup = |volume: &str, claim: &str| {
            json!({
                "volumeName": volume, "volumeSnapshotName": format!("s-{volume}"), "persistentVolumeClaim": {
                    "metadata": { "name": claim, "annotations": { "pv.kubernetes.io/bound": "yes", "keep": "me" } },
                    "spec": {
                        "volumeName": "pv", "storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
                        "resources": { "requests": { "storage": "1Gi" } },
                    },
                },
            })
        };
        serde_json::from_value(json!({ "metadata": { "name": "c" }, "spec": {
            "source": { "virtualMachine": {
                "metadata": { "name": "vm", "labels": { "a": "old" } },
                "spec": {
                    "runStrategy": "Always",
                    "dataVolumeTemplates": [{ "metadata": { "name": "root" }, "spec": {} }],
                    "template": { "spec": { "domain": { "devices": {} }, "volumes": [
                        { "name": "root", "dataVolume": { "name": "root" } },
                        { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                        { "name": "seed", "cloudInitNoCloud": { "userData": "x" } },
                    ] } },
                },
            } },
            "volumeBackups": [backup("root", "root"), backup("data", "data")],
        } }))
        .unwrap()
    }

    #[test]
    fn a_claim_is_made_of_a_snapshot() {
        let from = ObjectMeta { name: Some("vm".into()), namespace: Some("ns".into()), ..Default::default() };
        let backup = &content().spec.volume_backups[1];
        let made = claim(&restore(&[]), backup, Some(&from), None);
        let found = json!(made);
        assert_eq!(found["metadata"]["name"], "mine");
        let labels = json!({ "l": "x", (SOURCE_NAME): "vm", (SOURCE_NAMESPACE): "ns" });
        assert_eq!(found["metadata"]["labels"], labels);
        assert_eq!(found["metadata"]["annotations"], json!({ "keep": "me", (RESTORE): "back", (LAST): "back-u" }));
        let source = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s-data" });
        assert_eq!((&found["spec"]["dataSource"], &found["spec"]["volumeName"]), (&source, &Value::Null));
        let asked = |size: &str| {
            let made = of_snapshot(backup, Some(&Quantity(size.to_owned())));
            json!(made)["spec"]["resources"]["requests"]["storage"].clone()
        };
        assert_eq!((asked("2Gi"), asked("1528Mi"), asked("100Mi")), (json!("2Gi"), json!("1528Mi"), json!("1Gi")));
    }

    #[test]
    fn long_names_are_shortened_as_clients_do() {
        #[track_caller]
        fn check(machine: &str, volume: &str, expect: &str) {
            let found = prefixed(machine, volume);
            assert!(found.len() <= LONGEST, "{found}");
            assert_eq!(found, expect);
        }
        check("vm", "root", "vm-root");
        check(&"m".repeat(58), "root", &format!("{}-root", "m".repeat(58)));
        let (machine, volume) = ("m".repeat(60), "v".repeat(61));
        check(&machine, "root", &format!("{}-{:08x}-root", "m".repeat(49), hash(&machine)));
        check("vm", &volume, &format!("vm-{:08x}", hash(&format!("vm-{volume}"))));
        assert_eq!(hash("a"), 0xe40c_292c);
    }

    #[test]
    fn a_machine_is_what_it_was_on_other_claims() {
        let there: VirtualMachine = serde_json::from_value(json!({
            "metadata": { "name": "vm", "labels": { "a": "new" } },
            "spec": { "runStrategy": "Halted", "template": {} },
        }))
        .unwrap();
        let vm = json!(machine(&restore(&[]), &content(), Some(&there)).unwrap());
        let volumes = &vm["spec"]["template"]["spec"]["volumes"];
        assert_eq!(volumes[0]["dataVolume"]["name"], "restore-u-root");
        assert_eq!(volumes[1]["persistentVolumeClaim"]["claimName"], "mine");
        assert_eq!(vm["spec"]["dataVolumeTemplates"][0]["metadata"]["name"], "restore-u-root");
        assert_eq!((&vm["spec"]["runStrategy"], &vm["metadata"]["labels"]["a"]), (&json!("Halted"), &json!("new")));
        assert_eq!(vm["metadata"]["annotations"][LAST], "back-u");
        let new = json!(machine(&restore(&[]), &content(), None).unwrap());
        assert_eq!((&new["spec"]["runStrategy"], &new["metadata"]["labels"]["a"]), (&json!("Halted"), &json!("old")));
    }

    #[test]
    fn claims_are_named_as_the_policy_says() {
        #[track_caller]
        fn check(policy: &str, expect: [&str; 2]) {
            let mut restore = restore(&[]);
            restore.spec.volume_restore_policy = Some(policy.to_owned());
            let named = volumes(&restore, &content()).into_iter().map(|volume| volume.persistent_volume_claim);
            assert_eq!(named.collect::<Vec<_>>(), expect);
        }
        check("RandomizeNames", ["restore-u-root", "mine"]);
        check("PrefixTargetName", ["vm-root", "mine"]);
        check("InPlace", ["root", "mine"]);
    }

    #[test]
    fn data_volumes_that_nobody_makes_and_dumps_of_memory_are_left_behind() {
        let mut content = content();
        let spec = content.spec.source.virtual_machine.as_mut().and_then(|vm| vm.spec.as_mut()).unwrap();
        spec.data_volume_templates.clear();
        let dump = json!({ "name": "dump", "memoryDump": { "claimName": "dump" } });
        spec.template.spec.as_mut().unwrap().volumes.push(serde_json::from_value(dump).unwrap());
        let vm = json!(machine(&restore(&[]), &content, None).unwrap());
        let volumes = vm["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
        assert_eq!(volumes[0], json!({ "name": "root", "persistentVolumeClaim": { "claimName": "restore-u-root" } }));
        assert!(volumes.iter().all(|volume| volume["name"] != "dump"));
    }

    #[test]
    fn patches_are_applied_or_refused_by_name() {
        let halt = r#"{"op": "replace", "path": "/spec/runStrategy", "value": "Manual"}"#;
        let absent = r#"{"op": "replace", "path": "/spec/template/spec/hostname", "value": "h"}"#;
        let vm = machine(&restore(&[halt, absent]), &content(), None).unwrap();
        assert_eq!(vm.spec.run_strategy.as_deref(), Some("Manual"));
        assert_eq!(vm.spec.template.spec.unwrap().hostname.as_deref(), Some("h"));
        let refused = machine(&restore(&["nonsense"]), &content(), None).unwrap_err().to_string();
        assert!(refused.starts_with("spec.patches: \"nonsense\" cannot be applied: "), "{refused}");
    }
}
