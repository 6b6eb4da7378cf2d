//! What nothing acts on, by the tables of [`api::unserved`], so that no machine runs without what it asked for.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use api::unserved::{self, Answer, Found, INSTANCE, MACHINE};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::admission::Cause;
use serde::Serialize;
use serde_json::Value;

use super::{UNSERVED, unsupported};

/// Of an instance's spec that lies at `path`.
pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    causes.extend(refusals(unserved::found(INSTANCE, &value(spec), path)));
}

/// Of what a machine has beside its template's spec.
pub(super) fn check_machine(vm: &VirtualMachine, causes: &mut Vec<Cause>) {
    causes.extend(refusals(around(vm)));
}

/// Of what an instance has beside its spec.
pub(super) fn check_metadata(vmi: &VirtualMachineInstance, causes: &mut Vec<Cause>) {
    causes.extend(refusals(keys(&vmi.metadata, "metadata")));
}

/// What is left out of a machine without harm, in a sentence each.
pub(super) fn machine_remarks(vm: &VirtualMachine) -> Vec<String> {
    let spec = vm.spec.template.spec.as_deref();
    let mut remarks = spec.map(|spec| remarks("spec.template.spec", spec)).unwrap_or_default();
    remarks.extend(warnings(around(vm)));
    remarks
}

/// What is left out of an instance without harm, in a sentence each.
pub(super) fn instance_remarks(vmi: &VirtualMachineInstance) -> Vec<String> {
    let mut remarks = remarks("spec", &vmi.spec);
    remarks.extend(warnings(keys(&vmi.metadata, "metadata")));
    remarks
}

fn remarks(path: &str, spec: &VirtualMachineInstanceSpec) -> Vec<String> {
    warnings(unserved::found(INSTANCE, &value(spec), path))
}

fn around(vm: &VirtualMachine) -> Vec<Found> {
    let mut found = unserved::found(MACHINE, &value(vm), "");
    found.extend(keys(&vm.metadata, "metadata"));
    if let Some(metadata) = &vm.spec.template.metadata {
        found.extend(keys(metadata, "spec.template.metadata"));
    }
    found
}

fn keys(metadata: &ObjectMeta, path: &str) -> Vec<Found> {
    unserved::found_in_metadata(&value(metadata), path)
}

fn value(part: &impl Serialize) -> Value {
    serde_json::to_value(part).unwrap_or_default()
}

fn refusals(found: Vec<Found>) -> impl Iterator<Item = Cause> {
    found.into_iter().filter_map(|Found { field, message, answer }| match answer {
        Answer::Refused => Some(unsupported(field, message)),
        Answer::NotStarted => Some(Cause { reason: UNSERVED, field, message }),
        Answer::Warned => None,
    })
}

fn warnings(found: Vec<Found>) -> Vec<String> {
    found.into_iter().filter(|one| one.answer == Answer::Warned).map(|one| one.message).collect()
}
