//! Dumps of a guest's memory onto a claim: the words of their way, and how large the claim has to be. Pure.
//!
//! ```text
//! request (of the machine): Associating -> InProgress -> Unmounting -> Completed     Dissociating -> (none)
//!                                              |-> Failed
//! volume (of the instance): … MountedToPod -> MemoryDumpInProgress -> MemoryDumpCompleted | MemoryDumpFailed -> Detaching …
//! ```
//! The machine's template has a volume `memoryDump`, called as the claim, for as long as the two are associated. The instance
//! has the claim only while something is written to it, as one of its utility volumes.

use meta::quantity::Amount;
use serde_json::Value;

use super::v1::{VirtualMachineInstance, Volume};

/// Values of `status.memoryDumpRequest.phase` of a machine.
pub mod request {
    /// The claim is to become one of the machine's.
    pub const ASSOCIATING: &str = "Associating";
    /// The claim is on its way to the guest's node, or the memory is being written.
    pub const IN_PROGRESS: &str = "InProgress";
    /// The memory was written, and the claim is on its way back.
    pub const UNMOUNTING: &str = "Unmounting";
    /// The dump can be used.
    pub const COMPLETED: &str = "Completed";
    /// The claim is not to be the machine's any more.
    pub const DISSOCIATING: &str = "Dissociating";
    /// The memory was not written.
    pub const FAILED: &str = "Failed";
}

/// Values of `status.volumeStatus[].phase` of an instance, beside those of every volume that comes and goes.
pub mod phase {
    /// The launcher writes the memory, or is about to.
    pub const IN_PROGRESS: &str = "MemoryDumpInProgress";
    /// It was written.
    pub const COMPLETED: &str = "MemoryDumpCompleted";
    /// It was not.
    pub const FAILED: &str = "MemoryDumpFailed";
}

/// The type of the utility volume.
pub const TYPE: &str = "MemoryDump";
/// The annotation of a claim that says which file of it is a dump.
pub const ANNOTATION: &str = "kubevirt.io/memory-dump";
/// The value of [`ANNOTATION`] when there is none.
pub const FAILED: &str = "Memory dump failed";
/// The end of the name of every dump.
pub const SUFFIX: &str = ".memory.dump";

/// What a dump has beside the guest's memory, at most.
const BESIDE_MEMORY: u64 = 100 << 20;
/// The part of a file system that is not offered to files, where nothing is said of it.
pub const DEFAULT_OVERHEAD: &str = "0.055";
/// Sizes of claims are whole multiples of it.
const UNIT: f64 = (1 << 20) as f64;

/// The volume of a template that is associated with `claim`.
pub fn volume(claim: &str) -> Volume {
    let source =
        super::v1::MemoryDumpVolumeSource { claim_name: claim.to_owned(), hotpluggable: Some(true), read_only: None };
    Volume { name: claim.to_owned(), memory_dump: Some(source), ..Volume::default() }
}

/// The most that a dump of `vmi` takes.
pub fn expected_size(vmi: &VirtualMachineInstance) -> Amount {
    let domain = &vmi.spec.domain;
    let requests = domain.resources.as_ref().and_then(|resources| resources.requests.get("memory"));
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let largest = requests.into_iter().chain(guest).filter_map(|one| Amount::try_from(one).ok()).max();
    Amount::from_bytes(BESIDE_MEMORY).saturating_add(largest.unwrap_or_default())
}

/// The part of a file system of the storage class that the CDIConfig `config` says is not offered to files.
pub fn overhead<'a>(config: &'a Value, class: Option<&str>) -> Option<&'a str> {
    let said = config.pointer("/status/filesystemOverhead")?;
    let own = class.and_then(|class| said["storageClass"][class].as_str());
    own.or_else(|| said["global"].as_str())
}

/// How large a claim has to be that holds `size` beside the `overhead` of its file system, which is a part of one; none when
/// that is no number.
pub fn claim_size(size: Amount, overhead: &str) -> Option<Amount> {
    let overhead: f64 = overhead.trim().parse().ok().filter(|part: &f64| part.is_finite() && *part >= 0.0)?;
    // As clients compute it.
    let units = (((1.0 + overhead) * size.bytes() as f64) / UNIT).ceil().max(1.0) as u64;
    Some(Amount::from_bytes(units.saturating_mul(1 << 20)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_holds_the_memory_and_what_the_file_system_keeps() {
        let vmi = |domain: Value| -> VirtualMachineInstance {
            serde_json::from_value(json!({ "spec": { "domain": domain } })).unwrap()
        };
        let check = |domain: Value, overhead: &str, expect: Option<&str>| {
            let found = claim_size(expected_size(&vmi(domain)), overhead);
            assert_eq!(found.map(|size| size.to_binary().0).as_deref(), expect);
        };
        let guest = json!({ "memory": { "guest": "128Mi" } });
        check(guest.clone(), "0", Some("228Mi"));
        check(guest.clone(), DEFAULT_OVERHEAD, Some("241Mi"));
        check(guest.clone(), "much", None);
        check(guest, "-1", None);
        check(json!({ "resources": { "requests": { "memory": "1Gi" } } }), "0.06", Some("1192Mi"));
        let both = json!({ "memory": { "guest": "2Gi" }, "resources": { "requests": { "memory": "1Gi" } } });
        check(both, "0", Some("2148Mi"));
    }

    #[test]
    fn a_class_may_have_an_overhead_of_its_own() {
        let config =
            json!({ "status": { "filesystemOverhead": { "global": "0.06", "storageClass": { "fast": "0.1" } } } });
        assert_eq!(overhead(&config, Some("fast")), Some("0.1"));
        assert_eq!(overhead(&config, Some("slow")), Some("0.06"));
        assert_eq!(overhead(&config, None), Some("0.06"));
        assert_eq!(overhead(&json!({}), None), None);
    }
}
