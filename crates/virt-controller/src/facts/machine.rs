//! When a virtual machine is to run. Pure.

use api::kubevirt::constants::run_strategy;
use api::kubevirt::v1::VirtualMachine;

/// The strategy of `vm`; the legacy `running` counts as Always or Halted.
pub fn strategy(vm: &VirtualMachine) -> &str {
    match (vm.spec.run_strategy.as_deref(), vm.spec.running) {
        (Some(strategy), _) if !strategy.is_empty() => strategy,
        (_, Some(true)) => run_strategy::ALWAYS,
        _ => run_strategy::HALTED,
    }
}
