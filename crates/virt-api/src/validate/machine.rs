//! What only a VirtualMachine has: its name, its run strategy, its template.

use api::kubevirt::{v1::VirtualMachine, words::run_strategy};
use kit::admission::Cause;

use super::{Rules, instance_spec, invalid, required, unsupported};

const STRATEGIES: [&str; 6] = [
    run_strategy::HALTED,
    run_strategy::MANUAL,
    run_strategy::ALWAYS,
    run_strategy::RERUN_ON_FAILURE,
    run_strategy::ONCE,
    run_strategy::WAIT_AS_RECEIVER,
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
        (Some(strategy), None) if !STRATEGIES.contains(&strategy) => causes.push(invalid(
            "spec.runStrategy".to_owned(),
            format!("Invalid RunStrategy ({strategy}): use one of {}", STRATEGIES.join(", ")),
        )),
        _ => {}
    }
    for field in ["instancetype", "preference"] {
        let named = if field == "instancetype" { vm.spec.instancetype.is_some() } else { vm.spec.preference.is_some() };
        if named {
            causes.push(unsupported(
                format!("spec.{field}"),
                format!("spec.{field} cannot be applied in this version: write its values into spec.template instead"),
            ));
        }
    }
    if !vm.spec.data_volume_templates.is_empty() {
        causes.push(unsupported(
            "spec.dataVolumeTemplates".to_owned(),
            "spec.dataVolumeTemplates cannot be used in this version: create the PersistentVolumeClaim, and name it in \
             spec.template.spec.volumes"
                .to_owned(),
        ));
    }
    if vm.spec.update_volumes_strategy.as_deref() == Some("Migration") {
        causes.push(unsupported(
            "spec.updateVolumesStrategy".to_owned(),
            "spec.updateVolumesStrategy Migration cannot be used in this version: use Replacement, and restart the VM"
                .to_owned(),
        ));
    }
    match &vm.spec.template.spec {
        Some(spec) => causes.extend(instance_spec("spec.template.spec", spec, rules)),
        None => causes.push(required(
            "spec.template".to_owned(),
            "missing virtual machine template: say what to run in spec.template.spec".to_owned(),
        )),
    }
    causes
}
