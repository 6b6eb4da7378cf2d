//! Whether a guest can move to another node while it runs, and what has to be copied for that. Pure.
//!
//! The reason words and the order in which they win are KubeVirt's: clients match on them.

use api::kubevirt::constants::annotation;
use api::kubevirt::v1::{Disk, Interface, VirtualMachineInstance, Volume};

/// What the node adds to the question.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host<'a> {
    /// Name of the node the guest runs on.
    pub node: &'a str,
    /// Guests are translated here: a processor that no hardware has can be had everywhere.
    pub emulation: bool,
    /// The model libvirt gives a guest that asks for the host's; none when it could not tell.
    pub cpu_model: Option<&'a str>,
}

/// One thing that keeps a guest where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The reason word of the condition.
    pub reason: &'static str,
    /// The sentence.
    pub message: String,
}

impl Obstacle {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migratability {
    /// What keeps the guest where it is whatever becomes of its disks.
    pub obstacles: Vec<Obstacle>,
    /// The first disk that another node cannot have.
    pub stuck: Option<Obstacle>,
    /// Disks that only the launcher's pod has, each with what it is.
    copied: Vec<(String, &'static str)>,
}

impl Migratability {
    /// What to say in the condition `LiveMigratable`; none when the guest can move.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        self.obstacles.first().or(self.stuck.as_ref())
    }

    /// What to say in the condition `StorageLiveMigratable`, for which disks are no obstacle: all that is in the way.
    pub fn storage_obstacle(&self) -> Option<Obstacle> {
        let all: Vec<String> = self.obstacles.iter().map(|one| format!("{}: {}", one.reason, one.message)).collect();
        (!all.is_empty()).then(|| Obstacle::new("NotMigratable", all.join(", ")))
    }

    /// `status.migrationMethod`.
    pub fn method(&self) -> &'static str {
        if self.copied.is_empty() { "LiveMigration" } else { "BlockMigration" }
    }

    /// Why that method, in a sentence; none when there is no disk to wonder about.
    pub fn why(&self) -> Option<String> {
        let named: Vec<String> = self.copied.iter().map(|(disk, what)| format!("{disk} ({what})")).collect();
        let (disks, are, them) = if named.len() == 1 { ("disk", "is", "it") } else { ("disks", "are", "them") };
        (!named.is_empty()).then(|| format!("{disks} {} {are} copied: no other pod has {them}", named.join(", ")))
    }
}

/// Judges `vmi` as it runs on `host`.
pub fn migratability(vmi: &VirtualMachineInstance, host: Host<'_>) -> Migratability {
    let mut out = Migratability { obstacles: obstacles(vmi), ..Default::default() };
    let domain = &vmi.spec.domain;
    let model = domain.cpu.as_ref().and_then(|cpu| cpu.model.as_deref()).unwrap_or_default();
    if model == "host-model" && !host.emulation && host.cpu_model.is_none() {
        let message = format!("the node \"{}\" does not allow migration with host-model", host.node);
        // After the interfaces, before the devices.
        let at = out.obstacles.iter().take_while(|one| one.reason == INTERFACE).count();
        out.obstacles.insert(at, Obstacle::new("CPUModeLiveMigratable", message));
    }
    for disk in &domain.devices.disks {
        let Some(volume) = vmi.spec.volumes.iter().find(|volume| volume.name == disk.name) else { continue };
        match movement(vmi, disk, volume) {
            Movement::None => {}
            Movement::Copy(what) => out.copied.push((disk.name.clone(), what)),
            Movement::Impossible(message) if out.stuck.is_none() => {
                out.stuck = Some(Obstacle::new("DisksNotLiveMigratable", message));
            }
            Movement::Impossible(_) => {}
        }
    }
    out
}

const INTERFACE: &str = "InterfaceNotLiveMigratable";

/// What the specification alone says against moving.
fn obstacles(vmi: &VirtualMachineInstance) -> Vec<Obstacle> {
    let domain = &vmi.spec.domain;
    let mut out = Vec::new();
    let stays = |interface: &&Interface| is_on_pod_network(vmi, &interface.name) && !moves(vmi, interface);
    if domain.devices.interfaces.iter().any(|interface| stays(&interface)) {
        let message = format!(
            "cannot migrate VMI which does not use masquerade, bridge with {} VM annotation or a migratable plugin to \
             connect to the pod network",
            annotation::ALLOW_POD_BRIDGE_MIGRATION
        );
        out.push(Obstacle::new(INTERFACE, message));
    }
    if !domain.devices.host_devices.is_empty() || !domain.devices.gpus.is_empty() {
        out.push(Obstacle::new("HostDeviceNotLiveMigratable", "VMI uses a PCI host devices"));
    }
    if let Some(security) = &domain.launch_security {
        if security.sev.is_some() || security.snp.is_some() {
            out.push(Obstacle::new("SEVNotLiveMigratable", "VMI uses SEV"));
        } else if security.tdx.is_some() {
            out.push(Obstacle::new("TDXNotLiveMigratable", "VMI uses TDX"));
        } else if vmi.spec.architecture.as_deref() == Some("s390x") {
            out.push(Obstacle::new("SecureExecutionNotLiveMigratable", "VMI uses Secure Execution"));
        }
    }
    let reserved = |disk: &Disk| disk.lun.as_ref().and_then(|lun| lun.reservation) == Some(true);
    if domain.devices.disks.iter().any(reserved) {
        out.push(Obstacle::new("PersistentReservationNotLiveMigratable", "VMI uses SCSI persistent reservation"));
    }
    if !domain.devices.filesystems.is_empty() {
        out.push(Obstacle::new("VirtIOFSNotLiveMigratable", "VMI uses virtiofs"));
    }
    let passthrough = domain.features.as_ref().and_then(|features| features.hyperv_passthrough.as_ref());
    if passthrough.and_then(|passthrough| passthrough.enabled) == Some(true) {
        out.push(Obstacle::new("HypervPassthroughNotLiveMigratable", "VMI uses hyperv passthrough"));
    }
    out
}

fn is_on_pod_network(vmi: &VirtualMachineInstance, name: &str) -> bool {
    vmi.spec.networks.iter().any(|network| network.name == name && network.pod.is_some())
}

/// Behind masquerade the guest keeps its address when the pod's changes; a bridged guest's owner has to allow the change.
fn moves(vmi: &VirtualMachineInstance, interface: &Interface) -> bool {
    let annotations = vmi.metadata.annotations.as_ref();
    let allowed = || annotations.is_some_and(|all| all.contains_key(annotation::ALLOW_POD_BRIDGE_MIGRATION));
    interface.masquerade.is_some() || interface.passt_binding.is_some() || (interface.bridge.is_some() && allowed())
}

enum Movement {
    /// The target has the disk anyway: it is shared, or made there from the same object.
    None,
    Copy(&'static str),
    Impossible(String),
}

fn movement(vmi: &VirtualMachineInstance, disk: &Disk, volume: &Volume) -> Movement {
    let readonly = disk.cdrom.as_ref().is_some_and(|cdrom| cdrom.readonly.unwrap_or(true))
        || disk.disk.as_ref().is_some_and(|target| target.readonly == Some(true))
        || disk.lun.as_ref().is_some_and(|lun| lun.readonly == Some(true));
    if let Some(claim) = volume.own_claim() {
        let mounted = volume.persistent_volume_claim.as_ref().and_then(|source| source.read_only) == Some(true);
        let writer = match disk.shareable {
            _ if readonly || mounted => Writer::None,
            Some(true) => Writer::Others,
            _ => Writer::Alone,
        };
        return claimed(vmi, &volume.name, claim, writer);
    }
    if let Some(host) = &volume.host_disk {
        return match host.shared {
            Some(true) => Movement::None,
            _ => Movement::Impossible("cannot migrate VMI with non-shared HostDisk".to_owned()),
        };
    }
    if readonly {
        return Movement::None;
    }
    if volume.container_disk.is_some() {
        Movement::Copy("changes to a containerDisk")
    } else if let Some(source) = &volume.ephemeral {
        // The layer is copied; what it lies on has to be there already.
        let below = source.persistent_volume_claim.as_ref().map_or("", |claim| &claim.claim_name);
        match claimed(vmi, &volume.name, below, Writer::None) {
            Movement::None => Movement::Copy("changes to a claim that is only read"),
            stuck => stuck,
        }
    } else if volume.empty_disk.is_some() {
        Movement::Copy("an emptyDisk")
    } else {
        Movement::Copy("made for this pod")
    }
}

/// Who writes a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    None,
    Alone,
    /// Other guests, too, who would be left with the old one.
    Others,
}

const NEEDS: &str = "live migration requires that all PVCs must be shared (using ReadWriteMany access mode)";

fn claimed(vmi: &VirtualMachineInstance, volume: &str, claim: &str, writer: Writer) -> Movement {
    let known = vmi.status.iter().flat_map(|status| &status.volume_status).find(|known| known.name == volume);
    let modes = known.and_then(|known| known.persistent_volume_claim_info.as_ref()).map(|info| &info.access_modes);
    // virt-controller, which knows the storage classes, has looked.
    let stays = known.and_then(|known| known.message.as_deref().filter(|_| known.phase.is_none()));
    let has = |modes: &[String], mode: &str| modes.iter().any(|one| one == mode);
    match modes {
        None => {
            Movement::Impossible(format!("cannot migrate VMI: Unable to determine if PVC {claim} is shared, {NEEDS}"))
        }
        Some(modes) if has(modes, "ReadWriteMany") => Movement::None,
        Some(modes) if writer == Writer::None && has(modes, "ReadOnlyMany") => Movement::None,
        Some(_) if stays.is_some() => {
            Movement::Impossible(format!("cannot migrate VMI: {}", stays.unwrap_or_default()))
        }
        Some(_) if writer == Writer::Alone => Movement::Copy("on a claim that is not shared"),
        Some(_) => Movement::Impossible(format!("cannot migrate VMI: PVC {claim} is not shared, {NEEDS}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const HOST: Host<'_> = Host { node: "node1", emulation: false, cpu_model: Some("Skylake-Client") };

    /// A guest with one disk of `volume` and what `change` sets, by JSON pointer.
    fn vmi(volume: &Value, change: &[(&str, Value)]) -> VirtualMachineInstance {
        let mut source = volume.clone();
        source["name"] = json!("root");
        let mut object = json!({
            "metadata": { "name": "vm", "annotations": {} },
            "spec": {
                "domain": {
                    "cpu": { "model": "host-model" }, "features": {},
                    "devices": {
                        "disks": [{ "name": "root", "disk": {} }],
                        "interfaces": [{ "name": "default", "masquerade": {} }],
                    },
                },
                "networks": [{ "name": "default", "pod": {} }],
                "volumes": [source],
            },
            "status": { "volumeStatus": [{ "name": "root", "target": "vda" }] },
        });
        for (pointer, value) in change {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match object.pointer_mut(parent).unwrap() {
                Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
                other => other[key] = value.clone(),
            }
        }
        serde_json::from_value(object).unwrap()
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(volume: Value, change: &[(&str, Value)], expect: Option<(&str, &str)>, method: &str) {
        let found = migratability(&vmi(&volume, change), HOST);
        let said = found.obstacle().map(|one| (one.reason, one.message.as_str()));
        assert_eq!((said, found.method()), (expect, method));
    }

    #[test]
    fn disks_that_only_the_pod_has_are_copied() {
        let container = json!({ "containerDisk": { "image": "i" } });
        check(container.clone(), &[], None, "BlockMigration");
        let why = migratability(&vmi(&container, &[]), HOST).why();
        let said = "disk root (changes to a containerDisk) is copied: no other pod has it";
        assert_eq!(why.as_deref(), Some(said));
        check(json!({ "emptyDisk": { "capacity": "1Gi" } }), &[], None, "BlockMigration");
        let cdrom = [("/spec/domain/devices/disks", json!([{ "name": "root", "cdrom": {} }]))];
        check(container, &cdrom, None, "LiveMigration");
        check(json!({ "hostDisk": { "path": "/x", "type": "Disk", "shared": true } }), &[], None, "LiveMigration");
    }

    #[test]
    fn claims_must_be_shared_or_are_copied() {
        let claim = json!({ "persistentVolumeClaim": { "claimName": "data" } });
        let needs = "live migration requires that all PVCs must be shared (using ReadWriteMany access mode)";
        let unknown = format!("cannot migrate VMI: Unable to determine if PVC data is shared, {needs}");
        check(claim.clone(), &[], Some(("DisksNotLiveMigratable", &unknown)), "LiveMigration");
        let with = |modes: Value| {
            [(
                "/status/volumeStatus/0",
                json!({ "name": "root", "target": "vda",
            "persistentVolumeClaimInfo": { "accessModes": modes } }),
            )]
        };
        let alone = format!("cannot migrate VMI: PVC data is not shared, {needs}");
        let once = with(json!(["ReadWriteOnce"]));
        check(claim.clone(), &once, None, "BlockMigration");
        let why = migratability(&vmi(&claim, &once), HOST).why();
        let said = "disk root (on a claim that is not shared) is copied: no other pod has it";
        assert_eq!(why.as_deref(), Some(said));
        let stuck = Some(("DisksNotLiveMigratable", alone.as_str()));
        for disk in [json!({ "name": "root", "cdrom": {} }), json!({ "name": "root", "disk": {}, "shareable": true })] {
            let disks = ("/spec/domain/devices/disks", json!([disk]));
            check(claim.clone(), &[once[0].clone(), disks], stuck, "LiveMigration");
        }
        let mut nowhere = once.clone();
        nowhere[0].1["message"] = json!("there is no volume to copy it into");
        let said = "cannot migrate VMI: there is no volume to copy it into";
        check(claim.clone(), &nowhere, Some(("DisksNotLiveMigratable", said)), "LiveMigration");
        let mounted = json!({ "persistentVolumeClaim": { "claimName": "data", "readOnly": true } });
        check(mounted, &once, stuck, "LiveMigration");
        check(claim, &with(json!(["ReadWriteOnce", "ReadWriteMany"])), None, "LiveMigration");
        let layer = json!({ "ephemeral": { "persistentVolumeClaim": { "claimName": "data" } } });
        check(layer.clone(), &once, stuck, "LiveMigration");
        check(layer, &with(json!(["ReadOnlyMany"])), None, "BlockMigration");
        let host = json!({ "hostDisk": { "path": "/x", "type": "Disk" } });
        let said = "cannot migrate VMI with non-shared HostDisk";
        check(host, &[], Some(("DisksNotLiveMigratable", said)), "LiveMigration");
    }

    #[test]
    fn devices_that_stay_keep_the_guest() {
        let volume = || json!({ "containerDisk": { "image": "i" } });
        let reason = |change: &[(&str, Value)], expect: &str| {
            let found = migratability(&vmi(&volume(), change), HOST);
            assert_eq!(found.obstacle().map(|one| one.reason), Some(expect), "{change:?}");
        };
        let devices = "/spec/domain/devices";
        let host = json!([{ "name": "d", "deviceName": "v/d" }]);
        reason(&[(&format!("{devices}/hostDevices"), host.clone())], "HostDeviceNotLiveMigratable");
        reason(&[(&format!("{devices}/gpus"), host)], "HostDeviceNotLiveMigratable");
        reason(&[("/spec/domain/launchSecurity", json!({ "sev": {} }))], "SEVNotLiveMigratable");
        reason(&[("/spec/domain/launchSecurity", json!({ "tdx": {} }))], "TDXNotLiveMigratable");
        reason(
            &[("/spec/domain/launchSecurity", json!({})), ("/spec/architecture", json!("s390x"))],
            "SecureExecutionNotLiveMigratable",
        );
        let passthrough = json!({ "hypervPassthrough": { "enabled": true } });
        reason(&[("/spec/domain/features", passthrough)], "HypervPassthroughNotLiveMigratable");
        let filesystem = json!([{ "name": "fs", "virtiofs": {} }]);
        reason(&[(&format!("{devices}/filesystems"), filesystem)], "VirtIOFSNotLiveMigratable");
        let lun = json!([{ "name": "root", "lun": { "reservation": true } }]);
        reason(&[(&format!("{devices}/disks"), lun)], "PersistentReservationNotLiveMigratable");
    }

    #[test]
    fn a_bridged_guest_moves_when_its_owner_allows_it() {
        let bridge = ("/spec/domain/devices/interfaces", json!([{ "name": "default", "bridge": {} }]));
        let volume = json!({ "containerDisk": { "image": "i" } });
        let found = migratability(&vmi(&volume, std::slice::from_ref(&bridge)), HOST);
        assert_eq!(found.obstacle().unwrap().reason, "InterfaceNotLiveMigratable");
        let allowed = json!({ (annotation::ALLOW_POD_BRIDGE_MIGRATION): "" });
        check(volume, &[bridge, ("/metadata/annotations", allowed)], None, "BlockMigration");
    }

    #[test]
    fn the_host_model_must_have_a_name_where_there_is_a_host_processor() {
        let vmi = vmi(&json!({ "containerDisk": { "image": "i" } }), &[]);
        let nameless = Host { cpu_model: None, ..HOST };
        let found = migratability(&vmi, nameless);
        let said = found.obstacle().unwrap();
        assert_eq!(said.reason, "CPUModeLiveMigratable");
        assert_eq!(said.message, "the node \"node1\" does not allow migration with host-model");
        assert_eq!(migratability(&vmi, Host { emulation: true, ..nameless }).obstacle(), None);
        let storage = found.storage_obstacle().unwrap();
        assert_eq!(storage.reason, "NotMigratable");
        assert_eq!(storage.message, format!("CPUModeLiveMigratable: {}", said.message));
    }
}
