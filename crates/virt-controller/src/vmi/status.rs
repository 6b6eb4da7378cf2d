//! The part of a VMI's status that this controller writes. Pure.

use api::kubevirt::constants::{condition, phase};
use api::kubevirt::size::guest_memory;
use api::kubevirt::v1::{
    CPUTopology, MemoryStatus, VirtualMachineInstance, VirtualMachineInstanceCondition,
    VirtualMachineInstancePhaseTransitionTimestamp, VirtualMachineInstanceStatus,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions::{remove, set};

use super::plan::Plan;
use crate::facts::{active, launcher, nodes};
use crate::resources;
use crate::settings::Settings;

const IMAGE_TROUBLE: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// The reason of Synchronized, and of an event, while a claim does not exist.
pub const NO_CLAIM: &str = "FailedPvcNotFound";
/// There is no storage for what the guest keeps beside its disks.
pub const NO_STATE_STORAGE: &str = "FailedBackendStorageCreate";
/// The reason of Synchronized, and of an event, while a claim's disk has yet to come back from where a guest took it.
pub const DISK_AWAY: &str = "DiskNotPutBack";

/// The status `vmi` should have.
pub fn status(
    vmi: &VirtualMachineInstance,
    pod: Option<&Pod>,
    plan: &Plan,
    settings: &Settings,
    emulation: bool,
    now: Timestamp,
) -> VirtualMachineInstanceStatus {
    let mut status = vmi.status.as_deref().cloned().unwrap_or_default();
    let before = status.phase.clone().unwrap_or_default();
    if let Some(wanted) = plan.phase {
        enter(&mut status, wanted, now);
        status.reason.clone_from(&plan.reason);
    }
    let current = status.phase.clone().unwrap_or_default();
    if before.is_empty() || before == phase::PENDING {
        first(&mut status, vmi, settings, emulation);
    }
    if current == phase::SCHEDULED && before != phase::SCHEDULED {
        hand_over(&mut status, pod);
    }
    if matches!(current.as_str(), "" | phase::PENDING | phase::SCHEDULING | phase::SCHEDULED) {
        synchronized(&mut status, vmi, pod, now);
    }
    if let Some(pod) = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        scheduled(&mut status, pod, now);
        launcher(&mut status, pod);
        if let Some(class) = pod.status.as_ref().and_then(|s| s.qos_class.clone()) {
            status.qos_class = Some(class);
        }
    }
    let (value, reason, message) = ready(&current, status.reason.as_deref(), pod);
    set(&mut status.conditions, condition::READY, value, reason.as_deref(), message.as_deref(), &Time(now));
    status
}

fn enter(status: &mut VirtualMachineInstanceStatus, wanted: &str, now: Timestamp) {
    let mut transition = |phase: &str| {
        if status.phase_transition_timestamps.iter().all(|t| t.phase.as_deref() != Some(phase)) {
            status.phase_transition_timestamps.push(VirtualMachineInstancePhaseTransitionTimestamp {
                phase: Some(phase.to_owned()),
                phase_transition_timestamp: Some(Time(now)),
            });
        }
    };
    // Phases passed through between two looks were real, if short.
    if wanted == phase::SCHEDULING || wanted == phase::SCHEDULED {
        transition(phase::PENDING);
        transition(phase::SCHEDULING);
    }
    transition(wanted);
    status.phase = Some(wanted.to_owned());
}

fn first(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    settings: &Settings,
    emulation: bool,
) {
    status.runtime_user = Some(launcher::USER);
    status.launcher_container_image_version = Some(settings.launcher_image.clone());
    let guest = guest_memory(&vmi.spec.domain).to_binary();
    status.memory = Some(MemoryStatus {
        guest_at_boot: Some(guest.clone()),
        guest_current: Some(guest.clone()),
        guest_requested: Some(guest),
        memory_overhead: Some(resources::overhead(&vmi.spec, settings, emulation).to_binary()),
    });
    let cpu = vmi.spec.domain.cpu.clone().unwrap_or_default();
    let at_least_one = |value: Option<i64>| Some(value.unwrap_or(1).max(1));
    status.current_cpu_topology = Some(CPUTopology {
        cores: at_least_one(cpu.cores),
        sockets: at_least_one(cpu.sockets),
        threads: at_least_one(cpu.threads),
    });
}

/// The build of the launcher that runs the guest, which is another one after a migration.
fn launcher(status: &mut VirtualMachineInstanceStatus, pod: &Pod) {
    let spec = pod.spec.as_ref();
    let runs = status.phase.as_deref() == Some(phase::RUNNING);
    let here = spec.and_then(|spec| spec.node_name.as_ref()) == status.node_name.as_ref();
    let image = spec.and_then(|spec| spec.containers.iter().find(|c| c.name == "compute")?.image.clone());
    if let Some(image) = image.filter(|_| runs && here) {
        status.launcher_container_image_version = Some(image);
    }
}

fn hand_over(status: &mut VirtualMachineInstanceStatus, pod: Option<&Pod>) {
    let Some(pod) = pod else { return };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    status.node_name = Some(node.clone());
    status.active_pods = [(uid, node)].into();
}

/// While the guest lives: the pods it is in or may come to be in. There are two while it is moved.
pub fn pods(status: &mut VirtualMachineInstanceStatus, vmi: &VirtualMachineInstance, pods: &[Pod]) {
    let lives = matches!(status.phase.as_deref(), Some(phase::SCHEDULED | phase::RUNNING));
    let settled = vmi.metadata.deletion_timestamp.is_none() && status.node_name == node_of(vmi);
    if !lives || !settled {
        return;
    }
    let found = active::mapping(vmi, pods);
    if !found.is_empty() {
        status.active_pods = found;
    }
}

fn node_of(vmi: &VirtualMachineInstance) -> Option<String> {
    vmi.status.as_ref().and_then(|status| status.node_name.clone())
}

/// Trouble with the pod's containers, as far as waiting or a person may cure it.
fn synchronized(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    pod: Option<&Pod>,
    now: Timestamp,
) {
    let pod_status = pod.and_then(|pod| pod.status.as_ref());
    let init = pod_status.and_then(|s| s.init_container_statuses.as_ref()).into_iter().flatten();
    let main = pod_status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
    let trouble = init.chain(main).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone()?;
        IMAGE_TROUBLE.contains(&reason.as_str()).then(|| {
            let message = waiting.message.clone().unwrap_or_default();
            (reason, told(vmi, &container.name, &message))
        })
    });
    match trouble {
        Some((reason, message)) => {
            set(&mut status.conditions, condition::SYNCHRONIZED, "False", Some(&reason), Some(&message), &Time(now));
        }
        None => clear_ours(status),
    }
}

/// Trouble with a container in the words of who wrote the VMI: the field that names its image, and what may cure it.
fn told(vmi: &VirtualMachineInstance, container: &str, message: &str) -> String {
    let volumes = vmi.spec.volumes.iter().enumerate();
    let volume = container.strip_prefix("volume").and_then(|name| volumes.clone().find(|(_, v)| v.name == name));
    let (field, image) = match volume {
        Some((index, volume)) => {
            let image = volume.container_disk.as_ref().map(|disk| disk.image.clone()).unwrap_or_default();
            (format!("spec.volumes[{index}].containerDisk.image"), image)
        }
        None if container == "kernel-boot-volume" => {
            let boot = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
            let image = boot.and_then(|boot| boot.container.as_ref()).map(|container| container.image.clone());
            ("spec.domain.firmware.kernelBoot.container.image".to_owned(), image.unwrap_or_default())
        }
        None => return format!("container {container}: {message}"),
    };
    format!("{field}: {image:?} cannot be used: correct it, or make the image available to the node: {message}")
}

/// Removes the Synchronized condition when it says what only this controller says.
fn clear_ours(status: &mut VirtualMachineInstanceStatus) {
    status.conditions.retain(|c| {
        let ours =
            |reason: &str| IMAGE_TROUBLE.contains(&reason) || ["FailedCreate", NO_CLAIM, DISK_AWAY].contains(&reason);
        let ours = c.reason.as_deref().is_some_and(ours);
        !(c.type_ == condition::SYNCHRONIZED && ours)
    });
}

/// Says that the node does not answer, and what that means.
pub fn cut_off(status: &mut VirtualMachineInstanceStatus, message: &str, now: Timestamp) {
    let reason = Some(nodes::NODE_UNRESPONSIVE);
    set(&mut status.conditions, condition::READY, "False", reason, Some(message), &Time(now));
}

/// Says which claim is waited for, and why; true when that is news.
pub fn waits_for_claim(status: &mut VirtualMachineInstanceStatus, reason: &str, message: &str, now: Timestamp) -> bool {
    let said =
        |c: &VirtualMachineInstanceCondition| c.type_ == condition::SYNCHRONIZED && c.reason.as_deref() == Some(reason);
    let news = !status.conditions.iter().any(said);
    set(&mut status.conditions, condition::SYNCHRONIZED, "False", Some(reason), Some(message), &Time(now));
    news
}

/// Says that there is no pod to be placed, for want of a claim, where clients look for a pod that cannot be.
pub fn unplaced(status: &mut VirtualMachineInstanceStatus, why: Option<&String>, now: Timestamp) {
    match why {
        Some(why) => {
            let (reason, message) = (Some("Unschedulable"), Some(why.as_str()));
            set(&mut status.conditions, condition::POD_SCHEDULED, "False", reason, message, &Time(now));
        }
        None => remove(&mut status.conditions, condition::POD_SCHEDULED),
    }
}

/// Says that the pod could not be created.
pub fn creation_failed(status: &mut VirtualMachineInstanceStatus, reason: &'static str, message: &str, now: Timestamp) {
    set(&mut status.conditions, condition::SYNCHRONIZED, "False", Some(reason), Some(message), &Time(now));
}

fn scheduled(status: &mut VirtualMachineInstanceStatus, pod: &Pod, now: Timestamp) {
    match pod_condition(pod, "PodScheduled") {
        Some(found) if found.status == "False" => {
            let (reason, message) = (found.reason.as_deref(), found.message.as_deref());
            set(&mut status.conditions, condition::POD_SCHEDULED, "False", reason, message, &Time(now));
        }
        _ => remove(&mut status.conditions, condition::POD_SCHEDULED),
    }
}

fn ready(current: &str, ended: Option<&str>, pod: Option<&Pod>) -> (&'static str, Option<String>, Option<String>) {
    let no = |reason: &str, message: &str| ("False", Some(reason.to_owned()), Some(message.to_owned()));
    match current {
        phase::RUNNING => {}
        phase::SUCCEEDED | phase::FAILED => return no("PodTerminating", ended.unwrap_or("the guest has ended")),
        _ => return no("GuestNotRunning", "Guest VM is not reported as running"),
    }
    let Some(pod) = pod else { return no("PodNotExists", "virt-launcher pod has not yet been scheduled") };
    if pod.metadata.deletion_timestamp.is_some() {
        return no("PodTerminating", "virt-launcher pod is terminating");
    }
    match pod_condition(pod, "Ready") {
        Some(found) if found.status == "True" => ("True", None, None),
        Some(found) => ("False", found.reason.clone(), found.message.clone()),
        None => no("PodConditionMissing", "virt-launcher pod is missing the Ready condition"),
    }
}

fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}
