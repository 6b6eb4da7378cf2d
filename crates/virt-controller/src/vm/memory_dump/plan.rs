//! What follows from the memory dump that is asked of a machine: for its template, its instance, the claim, and the request
//! itself. Pure.

use api::kubevirt::constants::phase;
use api::kubevirt::hotplug;
use api::kubevirt::memory_dump::{FAILED, TYPE, phase as volume_phase, request, volume};
use api::kubevirt::v1::{
    UtilityVolume, VirtualMachine, VirtualMachineInstance, VirtualMachineMemoryDumpRequest as Request, Volume,
};

use crate::facts::instance::{is_final, phase_of};

/// Why there is no dump of a guest that is gone.
const ENDED: &str = "the virtual machine instance ended before its memory was dumped";

/// What to do, each unless it is so already.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The volumes that the template is to have.
    pub template: Option<Vec<Volume>>,
    /// The utility volumes that the instance is to have.
    pub instance: Option<Vec<UtilityVolume>>,
    /// What the claim is to say of its dump.
    pub annotation: Option<String>,
    /// The request as it is then; none when it is to be forgotten.
    pub request: Option<Box<Request>>,
}

/// The plan for `vm`; none when no dump is asked of it.
pub fn plan(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> Option<Plan> {
    let asked = vm.status.as_ref()?.memory_dump_request.as_deref()?;
    let claim = asked.claim_name.as_str();
    let vmi = vmi.filter(|vmi| !is_final(vmi));
    let mut plan = Plan { request: Some(Box::new(asked.clone())), ..Plan::default() };
    let current = if asked.remove == Some(true) { request::DISSOCIATING } else { asked.phase.as_str() };
    match current {
        request::ASSOCIATING => associate(vm, vmi, claim, &mut plan),
        request::IN_PROGRESS => follow(vmi, claim, &mut plan),
        request::UNMOUNTING => {
            plan.annotation.clone_from(&asked.file_name);
            if is_free(vmi, claim, &mut plan) {
                enter(&mut plan, request::COMPLETED);
            }
        }
        request::FAILED => {
            plan.annotation = Some(FAILED.to_owned());
            is_free(vmi, claim, &mut plan);
        }
        request::DISSOCIATING => {
            enter(&mut plan, request::DISSOCIATING);
            let free = is_free(vmi, claim, &mut plan);
            let volumes = volumes(vm);
            let kept: Vec<Volume> = volumes.iter().filter(|one| !is_dump(one, claim)).cloned().collect();
            if kept.len() < volumes.len() {
                plan.template = Some(kept);
            } else if free {
                plan.request = None;
            }
        }
        _ => {}
    }
    Some(plan)
}

fn enter(plan: &mut Plan, phase: &str) {
    if let Some(request) = &mut plan.request {
        phase.clone_into(&mut request.phase);
    }
}

fn fail(plan: &mut Plan, why: String) {
    enter(plan, request::FAILED);
    if let Some(request) = &mut plan.request {
        request.message = Some(why);
    }
}

fn volumes(vm: &VirtualMachine) -> &[Volume] {
    vm.spec.template.spec.as_ref().map(|spec| spec.volumes.as_slice()).unwrap_or_default()
}

fn is_dump(volume: &Volume, claim: &str) -> bool {
    volume.memory_dump.as_ref().is_some_and(|source| source.claim_name == claim)
}

fn runs(vmi: &VirtualMachineInstance) -> bool {
    phase_of(vmi) == phase::RUNNING && vmi.metadata.deletion_timestamp.is_none()
}

/// Makes the claim one of the machine's, and brings it to the guest's node.
fn associate(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, claim: &str, plan: &mut Plan) {
    let Some(vmi) = vmi.filter(|vmi| runs(vmi)) else { return };
    let volumes = volumes(vm);
    if !volumes.iter().any(|one| is_dump(one, claim)) {
        if volumes.iter().any(|one| one.name == claim) {
            let why = format!("volume {claim} of the virtual machine is another one: dump its memory to another claim");
            return fail(plan, why);
        }
        plan.template = Some(volumes.iter().cloned().chain([volume(claim)]).collect());
    }
    if !hotplug::is_utility(&vmi.spec, claim) {
        // From an earlier dump it is still on its way back.
        if hotplug::status(vmi, claim).is_none() {
            let own = UtilityVolume {
                name: claim.to_owned(),
                claim_name: claim.to_owned(),
                read_only: None,
                type_: Some(TYPE.to_owned()),
            };
            plan.instance = Some(vmi.spec.utility_volumes.iter().cloned().chain([own]).collect());
        }
    } else if plan.template.is_none() {
        enter(plan, request::IN_PROGRESS);
    }
}

/// What the instance says becomes what the machine says.
fn follow(vmi: Option<&VirtualMachineInstance>, claim: &str, plan: &mut Plan) {
    let Some(vmi) = vmi.filter(|vmi| runs(vmi) && hotplug::is_utility(&vmi.spec, claim)) else {
        return fail(plan, ENDED.to_owned());
    };
    let Some(entry) = hotplug::status(vmi, claim) else { return };
    let (Some(told), Some(request)) = (&entry.memory_dump_volume, &mut plan.request) else { return };
    if told.start_timestamp.is_some() {
        request.start_timestamp.clone_from(&told.start_timestamp);
    }
    match entry.phase.as_deref() {
        Some(volume_phase::COMPLETED) => {
            request::UNMOUNTING.clone_into(&mut request.phase);
            request.end_timestamp.clone_from(&told.end_timestamp);
            request.file_name.clone_from(&told.target_file_name);
        }
        Some(volume_phase::FAILED) => {
            request::FAILED.clone_into(&mut request.phase);
            request.end_timestamp.clone_from(&told.end_timestamp);
            request.message.clone_from(&entry.message);
        }
        _ => {}
    }
}

/// Takes the claim from the instance. True when the instance has nothing to do with it any more.
fn is_free(vmi: Option<&VirtualMachineInstance>, claim: &str, plan: &mut Plan) -> bool {
    let Some(vmi) = vmi else { return true };
    let own = &vmi.spec.utility_volumes;
    let kept: Vec<UtilityVolume> = own.iter().filter(|one| one.name != claim).cloned().collect();
    if kept.len() < own.len() {
        plan.instance = Some(kept);
        return false;
    }
    hotplug::status(vmi, claim).is_none()
}

#[cfg(test)]
mod tests;
