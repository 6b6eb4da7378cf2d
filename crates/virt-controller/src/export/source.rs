//! What an export shows, and why it cannot be shown yet. Pure.

use api::kubevirt::v1::{VirtualMachine, Volume as MachineVolume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::Value;

/// On a claim: what CDI has put into it.
pub const CONTENT: &str = "cdi.kubevirt.io/storage.contentType";
/// The content type of disks.
pub const DISK: &str = "kubevirt";

/// Values of a condition's reason.
pub mod reason {
    pub const INITIALIZING: &str = "Initializing";
    pub const IN_USE: &str = "InUse";
    pub const UNKNOWN: &str = "Unknown";
    pub const POD_READY: &str = "PodReady";
    pub const POD_PENDING: &str = "PodPending";
    pub const POD_COMPLETED: &str = "PodCompleted";
    pub const CLAIM_NOT_FOUND: &str = "PVCNotFound";
    pub const CLAIM_BOUND: &str = "PVCBound";
    pub const CLAIM_PENDING: &str = "PVCPending";
    pub const MACHINE_NOT_FOUND: &str = "VMNotFound";
    pub const NO_VOLUMES: &str = "VMNoVolumes";
    pub const TEMPLATE_NOT_FOUND: &str = "VMTemplateNotFound";
    pub const TEMPLATE_NOT_READY: &str = "VMTemplateNotReady";
    pub const NOT_POPULATED: &str = "VolumesNotPopulated";
    pub const SNAPSHOT_NOT_FOUND: &str = "VMSnapshotNotFound";
    pub const NO_SNAPSHOTS: &str = "VMSnapshotNoVolumes";
    pub const NOT_ALL_CREATED: &str = "NotAllPVCsCreated";
    pub const ALL_READY: &str = "AllPVCsReady";
    pub const NOT_ALL_READY: &str = "NotAllPVCsReady";
    pub const BACKUP_READY: &str = "VirtualMachineBackupReady";
}

/// Types of conditions.
pub mod condition {
    pub const READY: &str = "Ready";
    pub const CLAIM: &str = "PVCReady";
    pub const VOLUMES: &str = "VolumesCreated";
    pub const BACKUP: &str = "VirtualMachineBackupReady";
}

/// A claim that is exported.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// How the links call it.
    pub name: String,
    /// The claim.
    pub claim: PersistentVolumeClaim,
    /// It holds a disk, and not files.
    pub disk: bool,
}

/// What is shown of a backup.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// Its name.
    pub backup: String,
    /// When it was asked for.
    pub started: Time,
    /// The machine's name, and its instance's.
    pub machine: String,
    /// Where the guest is.
    pub node: String,
    /// The backup's name among all of all instances.
    pub identity: String,
    /// QEMU's bitmap of what changed, when it is of what changed.
    pub bitmap: Option<String>,
    /// Names of its volumes.
    pub volumes: Vec<String>,
}

/// A condition as it is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewCondition {
    /// Of which condition.
    pub kind: &'static str,
    /// It holds.
    pub holds: bool,
    /// In one word.
    pub reason: &'static str,
    /// In a sentence.
    pub message: String,
}

/// What is known of an export's source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// What is to be shown.
    pub volumes: Vec<Volume>,
    /// The backup whose volumes are to be shown.
    pub backup: Option<Pulled>,
    /// It is there, filled, and used by nobody.
    pub free: bool,
    /// Why there is no server, in one word.
    pub reason: &'static str,
    /// And in a sentence.
    pub message: String,
    /// What else is said.
    pub condition: Option<NewCondition>,
    /// The machine as it is to be made elsewhere.
    pub machine: Option<VirtualMachine>,
    /// The template of machines.
    pub template: Option<Value>,
    /// The machine's name.
    pub machine_name: Option<String>,
    /// There is nothing to show, and that is all there is to say.
    pub skipped: bool,
    /// Nobody tells when that changes.
    pub look_again: bool,
}

impl Source {
    /// Whether there is to be a server.
    pub fn is_served(&self) -> bool {
        self.free && (!self.volumes.is_empty() || self.backup.is_some())
    }

    /// Whether there is something to apply elsewhere.
    pub fn has_manifests(&self) -> bool {
        self.machine.is_some() || self.template.is_some()
    }
}

/// What is known of one claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The claim.
    pub claim: PersistentVolumeClaim,
    /// What it is to hold is in it.
    pub filled: bool,
    /// It holds a disk.
    pub disk: bool,
}

impl From<Seen> for Volume {
    fn from(seen: Seen) -> Self {
        Volume { name: seen.claim.name_any(), claim: seen.claim, disk: seen.disk }
    }
}

/// A claim by itself; `used` says whether a pod has it.
pub fn of_claim((namespace, name): (&str, &str), seen: Option<Seen>, used: bool) -> Source {
    let Some(Seen { claim, filled, disk }) = seen else {
        let message = format!("PersistentVolumeClaim {namespace}/{name} not found");
        let condition = NewCondition { kind: condition::CLAIM, holds: false, reason: reason::CLAIM_NOT_FOUND, message };
        return Source { reason: reason::INITIALIZING, condition: Some(condition), ..Source::default() };
    };
    let (reason, message) = match (filled, used) {
        (false, _) => (reason::CLAIM_PENDING, format!("PersistentVolumeClaim {namespace}/{name} is not populated")),
        (true, true) => (reason::IN_USE, format!("PersistentVolumeClaim {namespace}/{name} is in use")),
        (true, false) => (reason::INITIALIZING, String::new()),
    };
    let (holds, bound) = match phase(&claim) {
        "Bound" => (true, reason::CLAIM_BOUND),
        "Pending" | "" => (false, reason::CLAIM_PENDING),
        _ => (false, reason::UNKNOWN),
    };
    let condition = NewCondition { kind: condition::CLAIM, holds, reason: bound, message: String::new() };
    let free = filled && !used;
    let volumes = vec![Volume { name: name.to_owned(), claim, disk }];
    Source { volumes, free, reason, message, condition: Some(condition), look_again: !free, ..Source::default() }
}

/// A machine's volumes: `seen` holds, for each claim of [`claims_of`], what is known of it. `running` says whether the machine does.
pub fn of_machine(
    (namespace, name): (&str, &str),
    machine: Option<&VirtualMachine>,
    seen: Vec<Option<Seen>>,
    running: bool,
) -> Source {
    let base = Source { machine_name: Some(name.to_owned()), reason: reason::INITIALIZING, ..Source::default() };
    let Some(machine) = machine else {
        let message = format!("Virtual Machine {namespace}/{name} not found");
        return Source { reason: reason::MACHINE_NOT_FOUND, message, skipped: true, ..base };
    };
    if seen.is_empty() {
        let message = format!("Virtual Machine {namespace}/{name} has no volumes");
        return Source { reason: reason::NO_VOLUMES, message, free: true, skipped: true, ..base };
    }
    let filled = seen.iter().all(|seen| seen.as_ref().is_some_and(|seen| seen.filled));
    let volumes: Vec<Volume> = seen.into_iter().flatten().map(Volume::from).collect();
    let base = Source { volumes, machine: Some(machine.clone()), look_again: true, ..base };
    if !filled {
        let message = format!("Not all volumes in the Virtual Machine {namespace}/{name} are populated");
        return Source { reason: reason::NOT_POPULATED, message, ..base };
    }
    if running {
        let message = format!("Virtual Machine {namespace}/{name} is running");
        return Source { reason: reason::IN_USE, message, ..base };
    }
    Source { free: true, look_again: false, ..base }
}

/// What is known of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum Kept {
    /// There is none.
    Nothing,
    /// It is not complete.
    Incomplete,
    /// The volumes made of it, out of so many that there are, and the machine as it was.
    Volumes(Vec<Volume>, usize, Option<Box<VirtualMachine>>),
}

/// A snapshot's volumes.
pub fn of_snapshot((namespace, name): (&str, &str), machine: Option<String>, kept: Kept) -> Source {
    let none = format!("VirtualMachineSnapshot {namespace}/{name} does not contain any volume snapshots");
    let said = |holds, reason, message| Some(NewCondition { kind: condition::VOLUMES, holds, reason, message });
    let base = Source { machine_name: machine, reason: reason::INITIALIZING, ..Source::default() };
    match kept {
        Kept::Nothing => Source {
            reason: reason::SNAPSHOT_NOT_FOUND,
            message: format!("VirtualMachineSnapshot {namespace}/{name} not found"),
            condition: said(false, reason::NO_SNAPSHOTS, none),
            skipped: true,
            ..base
        },
        Kept::Incomplete => Source {
            reason: reason::NOT_ALL_CREATED,
            message: none.clone(),
            condition: said(false, reason::NOT_ALL_CREATED, none),
            ..base
        },
        Kept::Volumes(_, 0, _) => Source { condition: said(false, reason::NO_SNAPSHOTS, none), skipped: true, ..base },
        Kept::Volumes(volumes, total, _) if volumes.len() < total => {
            let message = "Not all PVCs have been successfully restored".to_owned();
            Source { condition: said(false, reason::NOT_ALL_CREATED, message), look_again: true, ..base }
        }
        Kept::Volumes(volumes, _, machine) => {
            let ready = volumes.iter().all(|volume| phase(&volume.claim) == "Bound");
            let condition = match ready {
                true => said(true, reason::ALL_READY, String::new()),
                false => said(false, reason::NOT_ALL_READY, "Not all PVCs are ready".to_owned()),
            };
            Source { volumes, free: true, condition, machine: machine.map(|machine| *machine), ..base }
        }
    }
}

/// The claims of a machine's volumes.
pub fn claims_of(machine: &VirtualMachine) -> Vec<String> {
    let volumes = machine.spec.template.spec.iter().flat_map(|spec| &spec.volumes);
    volumes.filter_map(MachineVolume::kept_claim).map(str::to_owned).collect()
}

/// The claim's phase.
pub fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(phase: &str, filled: bool) -> Seen {
        let claim = json!({ "metadata": { "name": "data", "namespace": "ns" }, "status": { "phase": phase } });
        Seen { claim: serde_json::from_value(claim).unwrap(), filled, disk: true }
    }

    fn machine() -> VirtualMachine {
        serde_json::from_value(
            json!({ "metadata": { "name": "vm", "namespace": "ns" }, "spec": { "template": { "spec": {
            "domain": { "devices": {} },
            "volumes": [
                { "name": "a", "dataVolume": { "name": "root" } },
                { "name": "b", "persistentVolumeClaim": { "claimName": "data" } },
                { "name": "c", "memoryDump": { "claimName": "dump" } },
                { "name": "d", "containerDisk": { "image": "x" } },
                { "name": "e", "ephemeral": { "persistentVolumeClaim": { "claimName": "shared" } } },
            ],
        } } } }),
        )
        .unwrap()
    }

    #[test]
    fn a_claim_is_waited_for_until_it_is_filled_and_free() {
        #[track_caller]
        fn check(seen: Option<Seen>, used: bool, served: bool, ready: (&str, &str), claim: (bool, &str)) {
            let source = of_claim(("ns", "data"), seen, used);
            assert_eq!(source.is_served(), served);
            assert_eq!((source.reason, source.message.as_str()), ready);
            let said = source.condition.unwrap();
            assert_eq!((said.kind, (said.holds, said.reason)), ("PVCReady", claim));
        }
        check(None, false, false, ("Initializing", ""), (false, "PVCNotFound"));
        check(Some(seen("Bound", true)), false, true, ("Initializing", ""), (true, "PVCBound"));
        let used = ("InUse", "PersistentVolumeClaim ns/data is in use");
        check(Some(seen("Bound", true)), true, false, used, (true, "PVCBound"));
        let empty = ("PVCPending", "PersistentVolumeClaim ns/data is not populated");
        check(Some(seen("Pending", false)), false, false, empty, (false, "PVCPending"));
        // Its pod is the first consumer.
        check(Some(seen("Pending", true)), false, true, ("Initializing", ""), (false, "PVCPending"));
        check(Some(seen("Lost", true)), false, true, ("Initializing", ""), (false, "Unknown"));
    }

    #[test]
    fn a_machine_is_waited_for_until_it_stands() {
        let vm = machine();
        #[track_caller]
        fn check(
            vm: Option<&VirtualMachine>,
            all: Vec<Option<Seen>>,
            running: bool,
            served: bool,
            ready: (&str, &str),
        ) {
            let source = of_machine(("ns", "vm"), vm, all, running);
            assert_eq!(source.is_served(), served);
            assert_eq!((source.reason, source.message.as_str()), ready);
            assert_eq!(source.machine_name.as_deref(), Some("vm"));
        }
        check(None, vec![], false, false, ("VMNotFound", "Virtual Machine ns/vm not found"));
        check(Some(&vm), vec![], false, false, ("VMNoVolumes", "Virtual Machine ns/vm has no volumes"));
        let unfilled = ("VolumesNotPopulated", "Not all volumes in the Virtual Machine ns/vm are populated");
        check(Some(&vm), vec![Some(seen("Bound", true)), None], false, false, unfilled);
        check(Some(&vm), vec![Some(seen("Pending", false))], true, false, unfilled);
        let running = ("InUse", "Virtual Machine ns/vm is running");
        check(Some(&vm), vec![Some(seen("Bound", true))], true, false, running);
        check(Some(&vm), vec![Some(seen("Bound", true))], false, true, ("Initializing", ""));
        assert_eq!(claims_of(&vm), ["root", "data", "dump"]);
    }

    #[test]
    fn a_snapshot_is_waited_for_until_its_volumes_are_made() {
        #[track_caller]
        fn check(kept: Kept, served: bool, skipped: bool, volumes: (bool, &str)) {
            let source = of_snapshot(("ns", "s"), Some("vm".into()), kept);
            assert_eq!((source.is_served(), source.skipped), (served, skipped));
            let said = source.condition.unwrap();
            assert_eq!((said.kind, (said.holds, said.reason)), ("VolumesCreated", volumes));
        }
        let volume = |phase| Volume { name: "data".into(), claim: seen(phase, true).claim, disk: true };
        check(Kept::Nothing, false, true, (false, "VMSnapshotNoVolumes"));
        check(Kept::Incomplete, false, false, (false, "NotAllPVCsCreated"));
        check(Kept::Volumes(vec![], 0, None), false, true, (false, "VMSnapshotNoVolumes"));
        check(Kept::Volumes(vec![volume("Bound")], 2, None), false, false, (false, "NotAllPVCsCreated"));
        check(Kept::Volumes(vec![volume("Pending")], 1, None), true, false, (false, "NotAllPVCsReady"));
        check(Kept::Volumes(vec![volume("Bound")], 1, None), true, false, (true, "AllPVCsReady"));
    }
}
