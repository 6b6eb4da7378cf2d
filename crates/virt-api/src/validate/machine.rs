//! What only a VirtualMachine has: its name, its run strategy, its template.

use api::kubevirt::constants::run_strategy;
use api::kubevirt::v1::VirtualMachine;
use kit::admission::Cause;

use super::{REQUIRED, Rules, eviction, instance_spec, invalid, required, templates, unserved};

const STRATEGIES: [&str; 5] = [
    run_strategy::HALTED,
    run_strategy::MANUAL,
    run_strategy::ALWAYS,
    run_strategy::RERUN_ON_FAILURE,
    run_strategy::ONCE,
];

pub(super) fn check(vm: &VirtualMachine, rules: &Rules) -> Vec<Cause> {
    let mut causes = Vec::new();
    let strategy = vm.spec.run_strategy.as_deref().filter(|strategy| !strategy.is_empty());
    match (strategy, vm.spec.running) {
        (Some(_), Some(_)) => causes.push(invalid(
            "spec.running".to_owned(),
            "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy \
             instead"
                .to_owned(),
        )),
        (None, None) => causes
            .push(invalid("spec.running".to_owned(), "One of Running or RunStrategy must be specified".to_owned())),
        (Some(strategy), None) if !STRATEGIES.contains(&strategy) && strategy != run_strategy::WAIT_AS_RECEIVER => {
            causes.push(invalid(
                "spec.runStrategy".to_owned(),
                format!("Invalid RunStrategy ({strategy}): use one of {}", STRATEGIES.join(", ")),
            ));
        }
        _ => {}
    }
    unserved::check_machine(vm, &mut causes);
    templates::check(vm, &mut causes);
    match &vm.spec.template.spec {
        Some(spec) => {
            // The memory may be the instance type's.
            let sized = |cause: &Cause| vm.spec.instancetype.is_some() && cause.field.ends_with(".domain.memory.guest");
            let found = instance_spec("spec.template.spec", spec, rules);
            causes.extend(found.into_iter().filter(|cause| cause.reason != REQUIRED || !sized(cause)));
        }
        None => causes.push(required(
            "spec.template".to_owned(),
            "missing virtual machine template: say what to run in spec.template.spec".to_owned(),
        )),
    }
    causes
}

/// What the user should know of a VM that is as good as it stands.
pub(super) fn remarks(vm: &VirtualMachine, rules: &Rules) -> Vec<String> {
    let mut remarks = unserved::machine_remarks(vm);
    if let Some(spec) = &vm.spec.template.spec {
        let metadata = vm.spec.template.metadata.as_ref();
        remarks.extend(eviction::remarks("spec.template.spec", metadata, spec, rules));
    }
    remarks
}
