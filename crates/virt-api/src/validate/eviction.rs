//! An eviction strategy that the guest cannot follow: kept, because an administrator may drain around it, and said.

use api::kubevirt::constants::eviction_strategy;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceSpec};
use domain::{Host, migratability};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Rules;

/// What the user should know who wants a guest moved that stays where it is whatever node it gets.
pub(super) fn remarks(
    path: &str,
    metadata: Option<&ObjectMeta>,
    spec: &VirtualMachineInstanceSpec,
    rules: &Rules,
) -> Vec<String> {
    let strategy = spec.eviction_strategy.as_deref().unwrap_or(&rules.eviction_strategy);
    if strategy != eviction_strategy::LIVE_MIGRATE {
        return Vec::new();
    }
    let vmi = VirtualMachineInstance {
        metadata: metadata.cloned().unwrap_or_default(),
        spec: spec.clone(),
        ..Default::default()
    };
    // What the node's processor and the claims allow is known when there are some.
    let found = migratability(&vmi, Host { emulation: true, ..Host::default() });
    let said = found.obstacles.iter().map(|obstacle| {
        format!(
            "{path}.evictionStrategy LiveMigrate keeps the pod from being evicted, but the guest cannot be moved \
             ({}: {}): a drain of its node will wait until the VM is stopped",
            obstacle.reason, obstacle.message
        )
    });
    said.collect()
}
