//! Guests that are to be moved although their launcher is the newest. Pure.

use api::kubevirt::constants::{condition, resize};
use api::kubevirt::v1::VirtualMachineInstance;

/// The guest is to have more than its pod can be given where it is.
pub fn outgrown(vmi: &VirtualMachineInstance) -> bool {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|told| {
        [condition::VCPU_CHANGE, condition::MEMORY_CHANGE].contains(&told.type_.as_str())
            && told.reason.as_deref().is_some_and(|reason| [resize::IMPOSSIBLE, resize::DEFERRED].contains(&reason))
    })
}
