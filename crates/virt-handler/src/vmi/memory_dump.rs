//! Has the launcher write the guest's memory, once the claim for it is there.

use api::kubevirt::hotplug::{status, utilities};
use api::kubevirt::memory_dump::{TYPE, phase};
use api::kubevirt::v1::VirtualMachineInstance;
use domain::MemoryDump;
use rpc::launcher::MemoryDumpRequest;

use crate::Error;
use crate::launcher::{CALL, Launcher, answer, timed};

/// A dump that the launcher was not told of yet: its volume and its file. Pure.
pub(super) fn wanted(vmi: &VirtualMachineInstance, told: &MemoryDump) -> Option<(String, String)> {
    utilities(&vmi.spec).filter(|volume| volume.kind == TYPE).find_map(|volume| {
        let entry = status(vmi, volume.name).filter(|entry| entry.phase.as_deref() == Some(phase::IN_PROGRESS))?;
        let file = entry.memory_dump_volume.as_ref()?.target_file_name.clone()?;
        let known = told.volume == volume.name && told.file == file;
        (!known && !file.is_empty()).then(|| (volume.name.to_owned(), file))
    })
}

/// Asks the launcher for the dump that is to be made now, if one is.
pub(super) async fn begin(vmi: &VirtualMachineInstance, launcher: Launcher, told: &MemoryDump) -> Result<(), Error> {
    let Some((volume, file)) = wanted(vmi, told) else { return Ok(()) };
    let mut client = launcher.client;
    answer(CALL, client.dump_memory(timed(MemoryDumpRequest { volume, file }, CALL))).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dump_is_asked_for_once() {
        let vmi = |phase: &str| -> VirtualMachineInstance {
            serde_json::from_value(json!({
                "spec": { "utilityVolumes": [{ "name": "dump", "claimName": "dump", "type": "MemoryDump" }] },
                "status": { "volumeStatus": [{
                    "name": "dump", "target": "", "phase": phase,
                    "memoryDumpVolume": { "claimName": "dump", "targetFileName": "vm-dump-1.memory.dump" },
                }] },
            }))
            .unwrap()
        };
        let told = |file: &str| MemoryDump { volume: "dump".into(), file: file.into(), ..MemoryDump::default() };
        let found = wanted(&vmi(phase::IN_PROGRESS), &told("vm-dump-0.memory.dump"));
        assert_eq!(found, Some(("dump".to_owned(), "vm-dump-1.memory.dump".to_owned())));
        assert_eq!(wanted(&vmi(phase::IN_PROGRESS), &told("vm-dump-1.memory.dump")), None);
        assert_eq!(wanted(&vmi("MountedToPod"), &MemoryDump::default()), None);
    }
}
