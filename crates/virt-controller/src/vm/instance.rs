//! The instance of a virtual machine: its template, made concrete. Pure.

use api::kubevirt::constants::{annotation, finalizer, tracking};
use api::kubevirt::v1::{
    ChangedBlockTrackingStatus, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceStatus,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::core::ObjectMeta;
use serde_json::json;
use uuid::Uuid;

/// Firmware UUIDs of machines that do not name one are derived from their name in this namespace, as clients expect.
const FIRMWARE: Uuid = Uuid::from_u128(0x6a1a_24a1_4061_4607_8bf4_a396_3d0c_5895);

/// The firmware UUID of a machine called `name`.
pub fn firmware_uuid(name: &str) -> String {
    Uuid::new_v5(&FIRMWARE, name.as_bytes()).to_string()
}

/// The reference by which what is made for `vm` goes with it.
pub(crate) fn owner(vm: &VirtualMachine) -> OwnerReference {
    OwnerReference {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        name: vm.metadata.name.clone().unwrap_or_default(),
        uid: vm.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The name of the revision that records what the machine was started with.
pub fn revision_name(vm: &VirtualMachine) -> String {
    let uid = vm.metadata.uid.as_deref().unwrap_or_default();
    format!("revision-start-vm-{uid}-{}", vm.metadata.generation.unwrap_or(0))
}

/// That revision.
pub fn revision(vm: &VirtualMachine) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(revision_name(vm)),
            namespace: vm.metadata.namespace.clone(),
            owner_references: Some(vec![owner(vm)]),
            ..Default::default()
        },
        data: Some(RawExtension(json!({ "spec": vm.spec }))),
        revision: vm.metadata.generation.unwrap_or(0),
    }
}

/// The instance of `vm`; the changes of its disks are to be `tracked` or not.
pub fn instance(vm: &VirtualMachine, paused: bool, tracked: bool) -> VirtualMachineInstance {
    let template = &vm.spec.template;
    let given = template.metadata.clone().unwrap_or_default();
    let mut annotations = given.annotations.unwrap_or_default();
    annotations.retain(|key, _| !key.starts_with("kubectl.kubernetes.io/"));
    annotations.insert(annotation::VM_GENERATION.into(), vm.metadata.generation.unwrap_or(0).to_string());
    let mut spec = template.spec.as_deref().cloned().unwrap_or_default();
    // The instance has the claim only while its memory is written to it.
    spec.volumes.retain(|volume| volume.memory_dump.is_none());
    let name = vm.metadata.name.clone().unwrap_or_default();
    let firmware = spec.domain.firmware.get_or_insert_default();
    firmware.uuid.get_or_insert_with(|| firmware_uuid(&name));
    if paused {
        spec.start_strategy = Some("Paused".to_owned());
    }
    VirtualMachineInstance {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: vm.metadata.namespace.clone(),
            labels: given.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner(vm)]),
            finalizers: Some(vec![finalizer::VM.into(), finalizer::VMI.into()]),
            ..Default::default()
        },
        spec,
        status: Some(Box::new(VirtualMachineInstanceStatus {
            virtual_machine_revision_name: Some(revision_name(vm)),
            changed_block_tracking: tracked
                .then(|| ChangedBlockTrackingStatus { state: tracking::INITIALIZING.to_owned(), backup_status: None }),
            ..Default::default()
        })),
    }
}
