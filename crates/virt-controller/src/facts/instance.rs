//! The phase of a virtual machine instance. Pure.

use api::kubevirt::constants::phase;
use api::kubevirt::v1::VirtualMachineInstance;

/// The VMI's phase; empty when unset.
pub fn phase_of(vmi: &VirtualMachineInstance) -> &str {
    vmi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// True for Succeeded and Failed.
pub fn is_final(vmi: &VirtualMachineInstance) -> bool {
    matches!(phase_of(vmi), phase::SUCCEEDED | phase::FAILED)
}

/// True until the VMI is handed to its node: then this controller writes all of its status.
pub fn is_ours(vmi: &VirtualMachineInstance) -> bool {
    matches!(phase_of(vmi), phase::UNSET | phase::PENDING | phase::SCHEDULING)
}
