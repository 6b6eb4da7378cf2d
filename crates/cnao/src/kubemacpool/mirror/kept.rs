//! What is kept of watched objects, and by which words they are found. Pure.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceStatus};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Resource, ResourceExt};

use super::super::detect::Running;
use super::super::mac::Mac;
use super::super::opting::is_asked_for;
use super::super::pod;
use super::super::reservation::{Kind, Object};

/// Of a virtual machine, its addresses are words, and that it is there is all that is kept.
pub(super) fn trim_machine(machine: &mut VirtualMachine) {
    *machine = named(machine);
}

pub(super) fn words(macs: &[Mac]) -> Vec<String> {
    macs.iter().map(ToString::to_string).collect()
}

pub(super) fn read(words: &[String]) -> Vec<Mac> {
    words.iter().filter_map(|word| word.parse().ok()).collect()
}

/// What identifies an object, and nothing else of it.
fn named<K: Resource + Default>(object: &K) -> K {
    let mut named = K::default();
    let (from, to) = (object.meta(), named.meta_mut());
    to.name.clone_from(&from.name);
    to.namespace.clone_from(&from.namespace);
    to.uid.clone_from(&from.uid);
    to.resource_version.clone_from(&from.resource_version);
    named
}

pub(super) fn trim_instance(vmi: &mut VirtualMachineInstance) {
    let status = vmi.status.take().map(|status| {
        let (phase, interfaces, migration_state) = (status.phase, status.interfaces, status.migration_state);
        Box::new(VirtualMachineInstanceStatus { phase, interfaces, migration_state, ..Default::default() })
    });
    *vmi = named(vmi);
    vmi.status = status;
}

pub(super) fn trim_pod(pod: &mut Pod) {
    let mut trimmed = named(pod);
    // Of a pod without addresses, that it is there is all there is to know.
    if !pod_addresses(pod).is_empty() {
        trimmed.metadata.owner_references = pod.metadata.owner_references.take();
        let status = trimmed.status.get_or_insert_default();
        status.phase = pod.status.take().and_then(|status| status.phase);
    }
    *pod = trimmed;
}

/// What a namespace says of the pool, as words.
pub(super) fn opting(namespace: &Namespace) -> Vec<String> {
    let labels = namespace.labels().iter().filter(|(key, _)| is_asked_for(key));
    labels.map(|(key, value)| format!("{key}={value}")).collect()
}

pub(super) fn trim_namespace(namespace: &mut Namespace) {
    let labels = namespace.metadata.labels.take();
    *namespace = named(namespace);
    namespace.metadata.labels = labels;
}

pub(super) fn pod_addresses(pod: &Pod) -> Vec<Mac> {
    pod.annotations().get(pod::NETWORKS).map(|networks| pod::addresses(networks)).unwrap_or_default()
}

pub(super) fn running_instance(vmi: &VirtualMachineInstance, mac: Mac) -> Option<Running> {
    let status = vmi.status.as_ref().filter(|status| status.phase.as_deref() == Some("Running"))?;
    let mut macs = status.interfaces.iter().filter_map(|one| one.mac.as_deref()?.parse::<Mac>().ok());
    if !macs.any(|one| one == mac) {
        return None;
    }
    let migration = status.migration_state.as_deref();
    let source = migration.and_then(|state| state.source_state.as_deref()?.migration_uid.clone());
    let target = migration.and_then(|state| state.target_state.as_deref()?.migration_uid.clone());
    let migrations = source.into_iter().chain(target).filter(|uid| !uid.is_empty()).collect();
    Some(Running { migrations, ..running(vmi, Kind::VirtualMachineInstance, "kubevirt.io/v1") })
}

pub(super) fn running_pod(pod: &Pod) -> Option<Running> {
    let phase = pod.status.as_ref()?.phase.as_deref()?;
    (phase == "Running").then(|| running(pod, Kind::Pod, "v1"))
}

fn running<K: Resource>(object: &K, kind: Kind, api_version: &'static str) -> Running {
    Running {
        object: Object { namespace: object.namespace().unwrap_or_default(), kind, name: object.name_any() },
        api_version,
        uid: object.uid().unwrap_or_default(),
        migrations: Vec::new(),
    }
}
