//! What a VMI says of its migration. Pure.

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState as State};

/// The last migration of `vmi`, running or not.
pub fn of(vmi: &VirtualMachineInstance) -> Option<&State> {
    vmi.status.as_ref()?.migration_state.as_deref()
}

/// What `vmi` says of the migration `uid`: it was handed over to the nodes, and no other was since.
pub fn ours<'a>(vmi: &'a VirtualMachineInstance, uid: &str) -> Option<&'a State> {
    of(vmi).filter(|state| state.migration_uid.as_deref() == Some(uid))
}

/// The source's node has begun.
pub fn started(state: &State) -> bool {
    state.start_timestamp.is_some()
}

/// It is over, one way or the other.
pub fn over(state: &State) -> bool {
    state.completed == Some(true) || failed(state)
}

/// It is over and the guest stays where it was.
pub fn failed(state: &State) -> bool {
    state.failed == Some(true)
}

/// The source has begun and not said how it ended, and the target has not said that the guest is there.
pub fn unanswered(state: &State) -> bool {
    started(state) && !over(state) && state.target_node_domain_ready_timestamp.is_none()
}

/// The guest is the target's.
pub fn moved(state: &State) -> bool {
    state.completed == Some(true) && !failed(state)
}

/// The guest is the target's, and the target's node says so.
pub fn taken_over(vmi: &VirtualMachineInstance, state: &State) -> bool {
    let node = vmi.status.as_ref().and_then(|status| status.node_name.as_deref());
    moved(state) && node.is_some() && node == state.target_node.as_deref()
}
