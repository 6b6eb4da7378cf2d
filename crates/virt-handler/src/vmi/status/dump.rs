//! What the VMI says of a volume that the guest's memory is dumped to. Pure.
//!
//! virt-controller says which claim it is; the file is named here, and what becomes of it is the launcher's word.

use api::kubevirt::hotplug::{self, Utility};
use api::kubevirt::memory_dump::{SUFFIX, TYPE, phase};
use api::kubevirt::v1::{DomainMemoryDumpInfo, VolumeStatus};
use domain::MemoryDump;
use jiff::Timestamp;

/// Phases in which what was known of the way to the launcher is of no interest any more.
fn is_of_dump(entry: &VolumeStatus) -> bool {
    matches!(entry.phase.as_deref(), Some(phase::IN_PROGRESS | phase::COMPLETED | phase::FAILED))
}

/// `MACHINE-VOLUME-20260131-135959.memory.dump`
fn file_name(machine: &str, volume: &str, now: Timestamp) -> String {
    format!("{machine}-{volume}-{}{SUFFIX}", now.strftime("%Y%m%d-%H%M%S"))
}

/// The entry of `volume`, a volume of the instance of `machine` that is for its launcher. `arrived` is what is said of it when
/// nothing is known but that the launcher has it, or not.
pub(super) fn entry(
    machine: &str,
    volume: Utility<'_>,
    held: VolumeStatus,
    arrived: impl FnOnce(VolumeStatus) -> VolumeStatus,
    told: &MemoryDump,
    now: Timestamp,
) -> VolumeStatus {
    if volume.kind != TYPE {
        return arrived(held);
    }
    let mut entry = if is_of_dump(&held) { held } else { arrived(held) };
    let name = entry.name.clone();
    let mut about = entry.memory_dump_volume.take().unwrap_or_else(|| DomainMemoryDumpInfo {
        claim_name: Some(volume.claim.to_owned()),
        ..DomainMemoryDumpInfo::default()
    });
    match entry.phase.as_deref() {
        Some(hotplug::phase::MOUNTED_TO_POD) => {
            about.target_file_name = Some(file_name(machine, &name, now));
            let message = format!("Memory dump Volume {name} is attached, getting memory dump");
            super::say(&mut entry, phase::IN_PROGRESS, hotplug::reason::MOUNTED, message);
        }
        Some(phase::IN_PROGRESS) if told.volume == name && Some(&told.file) == about.target_file_name.as_ref() => {
            about.start_timestamp.clone_from(&told.started);
            about.end_timestamp.clone_from(&told.ended);
            match (&told.ended, &told.failure) {
                (Some(_), None) => {
                    let message = format!("Memory dump to Volume {name} has completed successfully");
                    super::say(&mut entry, phase::COMPLETED, hotplug::reason::READY, message);
                }
                (Some(_), Some(why)) => {
                    let message = format!("Memory dump to pvc {name} failed: {why}");
                    super::say(&mut entry, phase::FAILED, hotplug::reason::MOUNTED, message);
                }
                (None, _) => {}
            }
        }
        _ => {}
    }
    entry.memory_dump_volume = Some(about);
    entry
}

/// What is told to people when the entry of a dump has changed: true for bad news, the reason, the message.
pub(crate) fn news<'a>(before: &[VolumeStatus], now: &'a [VolumeStatus]) -> Vec<(bool, &'a str, &'a str)> {
    let known = |name: &str| before.iter().find(|entry| entry.name == name).and_then(|entry| entry.phase.as_deref());
    let changed = now.iter().filter(|entry| is_of_dump(entry) && known(&entry.name) != entry.phase.as_deref());
    changed
        .filter_map(|entry| {
            let failed = entry.phase.as_deref() == Some(phase::FAILED);
            Some((failed, entry.reason.as_deref()?, entry.message.as_deref()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;

    const FILE: &str = "vm-dump-20260131-135959.memory.dump";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_769_867_999 + second).unwrap()
    }

    fn told(ended: bool, failure: Option<&str>) -> MemoryDump {
        MemoryDump {
            volume: "dump".into(),
            file: FILE.into(),
            started: Some(Time(at(1))),
            ended: ended.then(|| Time(at(2))),
            failure: failure.map(str::to_owned),
        }
    }

    /// The phase, the message and what is said of the dump, for an entry in the phase `before`.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(before: &str, about: Value, told: &MemoryDump, expect: (&str, &str, Value)) {
        let held = json!({ "name": "dump", "target": "", "phase": before, "message": "m", "memoryDumpVolume": about });
        let volume = Utility { name: "dump", claim: "claim", read_only: false, kind: TYPE };
        let found = entry("vm", volume, serde_json::from_value(held).unwrap(), |entry| entry, told, at(0));
        let said = (found.phase.unwrap(), found.message.unwrap(), json!(found.memory_dump_volume));
        assert_eq!(said, (expect.0.to_owned(), expect.1.to_owned(), expect.2));
    }

    #[test]
    fn a_dump_is_named_and_followed() {
        let nothing = MemoryDump::default();
        check("Bound", json!(null), &nothing, ("Bound", "m", json!({ "claimName": "claim" })));
        let named = json!({ "claimName": "claim", "targetFileName": FILE });
        let gets = "Memory dump Volume dump is attached, getting memory dump";
        check("MountedToPod", json!({ "claimName": "claim" }), &nothing, (phase::IN_PROGRESS, gets, named.clone()));
        check(phase::IN_PROGRESS, named.clone(), &nothing, (phase::IN_PROGRESS, "m", named.clone()));
        let old = json!({ "claimName": "claim", "targetFileName": "another" });
        check(phase::IN_PROGRESS, old.clone(), &told(true, None), (phase::IN_PROGRESS, "m", old));
        let mut runs = named.clone();
        runs["startTimestamp"] = json!("2026-01-31T14:00:00Z");
        check(phase::IN_PROGRESS, named.clone(), &told(false, None), (phase::IN_PROGRESS, "m", runs.clone()));
        runs["endTimestamp"] = json!("2026-01-31T14:00:01Z");
        let done = "Memory dump to Volume dump has completed successfully";
        check(phase::IN_PROGRESS, named.clone(), &told(true, None), (phase::COMPLETED, done, runs.clone()));
        let failed = "Memory dump to pvc dump failed: no room";
        check(phase::IN_PROGRESS, named, &told(true, Some("no room")), (phase::FAILED, failed, runs.clone()));
        check(phase::COMPLETED, runs.clone(), &nothing, (phase::COMPLETED, "m", runs));
    }
}
