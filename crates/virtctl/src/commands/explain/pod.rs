//! What a machine's pod says of why it does not run: placement, images, containers.

use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};

use super::cause::Verdict;
use super::picture::Picture;

/// A volume's container is named after the volume.
const VOLUME: &str = "volume";

/// What is wrong with `pod`; none when it is on its way.
pub(super) fn trouble(picture: &Picture, pod: &Pod) -> Option<Verdict> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    unscheduled(picture, pod, &name)
        .or_else(|| {
            containers(pod).find_map(|(status, container)| waiting(picture, &name, status, container.as_deref()))
        })
        .or_else(|| containers(pod).find_map(|(status, _)| ended(picture, pod, &name, status)))
        .or_else(|| {
            let event = picture.warning("Pod")?;
            let what = format!("pod {name} is not ready: {}", said(event.message.as_deref().unwrap_or_default()));
            Some(Verdict::new(what, describe(picture, &name)))
        })
}

/// What a pod that is merely on its way is doing.
pub(super) fn progress(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let late: Vec<&str> =
        containers(pod).filter(|(status, _)| !status.ready).map(|(status, _)| status.name.as_str()).collect();
    match late.as_slice() {
        [] => format!("pod {name} is being started"),
        [one] => format!("pod {name} is being started, waiting for its container {one}"),
        late => format!("pod {name} is being started, waiting for its containers {}", late.join(", ")),
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = (&ContainerStatus, Option<String>)> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref()).into_iter().flatten();
    let main = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let image = |name: &str| {
        let spec = pod.spec.as_ref()?;
        let every = spec.init_containers.iter().flatten().chain(&spec.containers);
        every.into_iter().find(|container| container.name == name)?.image.clone()
    };
    init.chain(main).map(move |status| (status, image(&status.name).or_else(|| Some(status.image.clone()))))
}

fn describe(picture: &Picture, pod: &str) -> String {
    format!("kubectl describe pod {pod} {}", picture.flag())
}

/// How our components begin what this sentence says already.
const FAILED: &str = "The VirtualMachineInstance failed: ";

/// A message as the end of a sentence.
pub(super) fn said(text: &str) -> String {
    let text = text.trim().trim_start_matches(FAILED).trim_end_matches('.');
    if text.is_empty() {
        "no message was left".to_owned()
    } else {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn unscheduled(picture: &Picture, pod: &Pod, name: &str) -> Option<Verdict> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled =
        conditions.iter().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
    let message = said(scheduled.message.as_deref().unwrap_or_default());
    if scheduled.reason.as_deref() == Some("SchedulingGated") {
        let what = format!("pod {name} is held back by a scheduling gate: {message}");
        return Some(Verdict::new(
            what,
            format!("kubectl get pod {name} {} -o jsonpath={{.spec.schedulingGates}}", picture.flag()),
        ));
    }
    let mut what = format!("no node takes pod {name}: {message}");
    let mut next = describe(picture, name);
    if let Some(nodes) = &picture.nodes {
        let (why, command) = blame(nodes, &message);
        if let Some(why) = why {
            what = format!("{what}. {why}");
        }
        next = command.unwrap_or(next);
    }
    Some(Verdict::new(what, next))
}

/// Which nodes stand in the way, and how.
fn blame(nodes: &[Node], message: &str) -> (Option<String>, Option<String>) {
    let list = |nodes: Vec<&Node>| -> Option<String> {
        let names: Vec<&str> = nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let ready = |node: &&Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let schedulable = |node: &&Node| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get("kubevirt.io/schedulable")).is_some_and(|value| value == "true")
    };
    let cordoned = |node: &&Node| node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    if nodes.is_empty() {
        return (Some("The cluster has no node".to_owned()), Some("kubectl get nodes".to_owned()));
    }
    if let Some(names) = list(nodes.iter().filter(|node| !ready(node)).collect())
        && !nodes.iter().any(|node| ready(&node))
    {
        return (Some(format!("No node is ready ({names})")), Some(format!("kubectl describe node {}", first(&names))));
    }
    if let Some(names) = list(nodes.iter().filter(cordoned).collect())
        && nodes.iter().all(|node| cordoned(&node))
    {
        return (
            Some(format!("Every node is cordoned ({names})")),
            Some(format!("kubectl uncordon {}", first(&names))),
        );
    }
    if !nodes.iter().any(|node| schedulable(&node)) {
        let why = "No node carries the label kubevirt.io/schedulable=true, which virt-handler sets when it is healthy";
        return (Some(why.to_owned()), Some("kubectl get pods -A -l kubevirt.io=virt-handler".to_owned()));
    }
    if message.contains("devices.kubevirt.io/kvm") {
        let why = "No node offers /dev/kvm; without it guests run only when emulation is allowed";
        let next = "kubectl get nodes -o custom-columns=NAME:.metadata.name,KVM:.status.allocatable.devices\\.kubevirt\\.io/kvm";
        return (Some(why.to_owned()), Some(next.to_owned()));
    }
    if message.contains("Insufficient") {
        let why = "The guest asks for more than the nodes have left: make it smaller, or stop another";
        return (Some(why.to_owned()), Some("kubectl describe nodes".to_owned()));
    }
    (None, None)
}

fn first(names: &str) -> &str {
    names.split(',').next().unwrap_or(names)
}

/// Whether the VM names the image of `container`; the others are the installation's.
fn of_the_vm(container: &str) -> bool {
    container.starts_with(VOLUME) || container == "kernel-boot-volume"
}

/// What a container is for, in the words of the VM.
fn role(container: &str, image: Option<&str>) -> String {
    let image = image.map(|image| format!(" {image}")).unwrap_or_default();
    match container.strip_prefix(VOLUME) {
        Some(volume) if !volume.is_empty() => format!("image{image} of volume {volume}"),
        _ if container == "kernel-boot-volume" => format!("kernel image{image}"),
        _ => format!("image{image} of container {container}"),
    }
}

fn waiting(picture: &Picture, pod: &str, status: &ContainerStatus, image: Option<&str>) -> Option<Verdict> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let message = said(waiting.message.as_deref().unwrap_or_default());
    let role = role(&status.name, image);
    match waiting.reason.as_deref()? {
        "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" => {
            let what = format!("the {role} cannot be pulled: {message}");
            Some(if of_the_vm(&status.name) {
                let remark = "Correct the image, or make it available; the pull is tried again by itself";
                Verdict::new(what, picture.edit()).remark(remark)
            } else {
                let remark = "It belongs to the installation and not to the VM: make it available to the node";
                Verdict::new(what, describe(picture, pod)).remark(remark)
            })
        }
        "ErrImageNeverPull" => {
            let what = format!("the {role} is not on the node and its pull policy is Never");
            Some(Verdict::new(what, describe(picture, pod)))
        }
        "InvalidImageName" => {
            let what = format!("the {role} has a name that cannot be one: {message}");
            Some(Verdict::new(what, picture.edit()))
        }
        "CrashLoopBackOff" => {
            let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let code = last.map(|last| format!(" (last exit code {})", last.exit_code)).unwrap_or_default();
            let what = format!("container {} of pod {pod} keeps ending{code}: {message}", status.name);
            let next = format!("kubectl logs {pod} -c {} --previous {}", status.name, picture.flag());
            Some(Verdict::new(what, next))
        }
        reason @ ("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError") => {
            let what = format!("container {} of pod {pod} cannot be created ({reason}): {message}", status.name);
            Some(Verdict::new(what, describe(picture, pod)))
        }
        _ => None,
    }
}

fn ended(picture: &Picture, pod: &Pod, name: &str, status: &ContainerStatus) -> Option<Verdict> {
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    let is_init = init.into_iter().any(|container| container.name == status.name);
    if ended.exit_code == 0 && is_init {
        return None;
    }
    if ended.reason.as_deref() == Some("OOMKilled") {
        let what =
            format!("container {} of pod {name} was killed because it used more memory than its limit", status.name);
        let next = format!("kubectl get pod {name} {} -o jsonpath={{.spec.containers[*].resources}}", picture.flag());
        return Some(Verdict::new(what, next));
    }
    if ended.exit_code == 0 {
        return None;
    }
    let message = ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or_default();
    let what =
        format!("container {} of pod {name} ended with exit code {}: {}", status.name, ended.exit_code, said(message));
    Some(Verdict::new(what, format!("kubectl logs {name} -c {} {}", status.name, picture.flag())))
}
