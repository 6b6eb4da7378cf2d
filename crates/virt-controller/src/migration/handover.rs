//! What the VMI says once a migration is handed over to the virt-handlers of both nodes. Pure.

use api::kubevirt::v1::{
    VMIMConfigurationOptions, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationSourceState as SourceState, VirtualMachineInstanceMigrationState as State,
    VirtualMachineInstanceMigrationTargetState as TargetState,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// The migration state of `vmi` when it is to be moved from `source` into `target`: nothing of the migration before.
pub(super) fn state(
    migration: &Migration,
    vmi: &VirtualMachineInstance,
    source: &Pod,
    target: &Pod,
    configuration: VMIMConfigurationOptions,
    policy: Option<String>,
) -> State {
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let (uid, name) = (migration.uid(), vmi.metadata.name.clone());
    State {
        migration_uid: uid.clone(),
        migration_policy_name: policy,
        migration_configuration: Some(Box::new(configuration)),
        source_node: node(source),
        source_pod: source.metadata.name.clone(),
        target_node: node(target),
        target_pod: target.metadata.name.clone(),
        source_state: Some(Box::new(SourceState {
            migration_uid: uid.clone(),
            node: node(source),
            pod: source.metadata.name.clone(),
            domain_name: name.clone(),
            domain_namespace: vmi.metadata.namespace.clone(),
            virtual_machine_instance_uid: vmi.metadata.uid.clone(),
            ..Default::default()
        })),
        target_state: Some(Box::new(TargetState {
            migration_uid: uid,
            node: node(target),
            pod: target.metadata.name.clone(),
            domain_name: name,
            domain_namespace: vmi.metadata.namespace.clone(),
            virtual_machine_instance_uid: vmi.metadata.uid.clone(),
            ..Default::default()
        })),
        ..Default::default()
    }
}
