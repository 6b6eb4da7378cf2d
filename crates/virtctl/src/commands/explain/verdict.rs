//! From what the cluster says to one paragraph. Pure; the first cause that fits is told, nearest to the user first.

use api::kubevirt::constants::{condition, kubevirt_condition, kubevirt_phase, phase, resize, run_strategy};

use super::cause::Verdict;
use super::picture::Picture;
use super::pod::{self, said};

/// The paragraph.
pub(super) fn explain(picture: &Picture) -> String {
    let name = picture.full_name();
    if picture.phase() == phase::RUNNING && !leaving(picture) {
        return running(picture).to_string();
    }
    let verdict = installation(picture)
        .or_else(|| going_away(picture))
        .or_else(|| refused(picture))
        .or_else(|| crashing(picture))
        .or_else(|| not_asked(picture))
        .or_else(|| instance(picture))
        .unwrap_or_else(|| silent(picture));
    format!("{name} is not running: {verdict}")
}

fn leaving(picture: &Picture) -> bool {
    picture.vmi.as_ref().is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_some())
}

fn running(picture: &Picture) -> Verdict {
    let name = picture.full_name();
    let status = picture.vmi.as_ref().and_then(|vmi| vmi.status.as_ref());
    let node = status.and_then(|status| status.node_name.as_deref()).unwrap_or("an unknown node");
    if picture.condition(condition::PAUSED).is_some_and(|paused| paused.status == "True") {
        let paused = picture.condition(condition::PAUSED);
        let reason = paused.and_then(|paused| paused.reason.as_deref()).unwrap_or_default();
        let full = paused.and_then(|paused| paused.message.as_deref()?.split_once(": not enough space"));
        let why = match full {
            Some((_, volumes)) => format!("because there is not enough space{volumes}, and goes on when there is"),
            None if reason == "PausedIOError" => "because one of its disks failed".to_owned(),
            None => "because it was asked to pause".to_owned(),
        };
        return Verdict::new(
            format!("{name} is on node {node} but paused, {why}"),
            format!("virtctl unpause vm {} {}", picture.name, picture.flag()),
        );
    }
    if let Some(ready) = picture.condition(condition::READY).filter(|ready| ready.status == "False") {
        if ready.reason.as_deref() == Some("NodeUnresponsive") {
            let message = said(ready.message.as_deref().unwrap_or_default());
            return Verdict::new(
                format!("{name} was running on node {node} when that was last heard of: {message}"),
                format!("kubectl describe node {node}"),
            );
        }
        let message = said(ready.message.as_deref().or(ready.reason.as_deref()).unwrap_or_default());
        return Verdict::new(
            format!("{name} runs on node {node} but is not ready: {message}"),
            format!("virtctl console {} {}", picture.name, picture.flag()),
        );
    }
    if let Some(verdict) = changing(picture, &format!("{name} runs on node {node}")) {
        return verdict;
    }
    let credentials = picture.condition(condition::ACCESS_CREDENTIALS_SYNCHRONIZED);
    if let Some(held) = credentials.filter(|held| held.status == "False") {
        let message = said(held.message.as_deref().unwrap_or_default());
        return Verdict::new(
            format!("{name} runs on node {node}, but its guest was not given all of its access credentials: {message}"),
            format!("virtctl guestosinfo {} {}", picture.name, picture.flag()),
        )
        .remark(
            "It is tried again; the guest needs the users, and an agent that offers guest-ssh-add-authorized-keys and \
             guest-set-user-password",
        );
    }
    Verdict::new(format!("{name} runs on node {node}"), format!("virtctl console {} {}", picture.name, picture.flag()))
}

/// What its machine says now and the running guest has not.
fn changing(picture: &Picture, runs: &str) -> Option<Verdict> {
    let held = |kind: &str| picture.condition(kind).filter(|told| told.status == "True");
    let sizes = [(condition::VCPU_CHANGE, "CPUs"), (condition::MEMORY_CHANGE, "memory")];
    if let Some((told, what)) = sizes.into_iter().find_map(|(kind, what)| Some((held(kind)?, what))) {
        let message = said(told.message.as_deref().unwrap_or_default());
        let stuck = [resize::IMPOSSIBLE, resize::DEFERRED].contains(&told.reason.as_deref().unwrap_or_default());
        let (name, flag) = (&picture.name, picture.flag());
        let next =
            if stuck { format!("virtctl migrate {name} {flag}") } else { format!("kubectl get vmi {name} {flag} -w") };
        return Some(Verdict::new(
            format!("{runs}, and has not yet the {what} that its machine asks for: {message}"),
            next,
        ));
    }
    let vm = picture.vm.as_ref()?.status.as_ref()?;
    let told = vm.conditions.iter().find(|told| told.type_ == condition::RESTART_REQUIRED && told.status == "True")?;
    let message = said(told.message.as_deref().unwrap_or_default());
    let next = format!("virtctl restart {} {}", picture.name, picture.flag());
    Some(Verdict::new(format!("{runs}, and is as its machine says after a restart: {message}"), next))
}

/// The components that would run it are missing or unwell.
fn installation(picture: &Picture) -> Option<Verdict> {
    let Some(kubevirt) = &picture.kubevirt else {
        // Nothing of the machine was read either: the kinds are not there.
        return (picture.vm.is_none() && picture.vmi.is_none()).then(|| {
            Verdict::new("this cluster has no KubeVirt object, so nothing runs virtual machines", "ferrovirt install")
        });
    };
    let meta = &kubevirt.metadata;
    let (name, namespace) = (meta.name.as_deref().unwrap_or_default(), meta.namespace.as_deref().unwrap_or_default());
    let status = kubevirt.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Unknown");
    if phase == kubevirt_phase::DEPLOYED {
        return None;
    }
    let held = |kind: &str| status.conditions.iter().find(|condition| condition.type_ == kind);
    let told = held(kubevirt_condition::DEGRADED)
        .filter(|degraded| degraded.status == "True")
        .or_else(|| held(kubevirt_condition::AVAILABLE).filter(|available| available.status == "False"))
        .and_then(|condition| condition.message.as_deref())
        .map(|message| format!(": {}", said(message)))
        .unwrap_or_default();
    let next = if status.phase.is_none() {
        "kubectl get pods -A -l kubevirt.io=virt-operator".to_owned()
    } else {
        format!("kubectl get pods -n {namespace}")
    };
    Some(Verdict::new(
        format!("the components that run virtual machines are not ready, KubeVirt {namespace}/{name} is {phase}{told}"),
        next,
    ))
}

fn going_away(picture: &Picture) -> Option<Verdict> {
    let patience = || {
        let spec = picture.vmi.as_ref().map(|vmi| &vmi.spec);
        spec.and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30)
    };
    if let Some(vm) = picture.vm.as_ref().filter(|vm| vm.metadata.deletion_timestamp.is_some()) {
        if picture.vmi.is_some() {
            return Some(
                Verdict::new(
                    format!("it is being deleted, and its guest has up to {} seconds to shut down", patience()),
                    format!("kubectl get vmi {} {} -w", picture.name, picture.flag()),
                )
                .remark(format!(
                    "`virtctl stop {} {} --force --grace-period=0` ends it at once",
                    picture.name,
                    picture.flag()
                )),
            );
        }
        let finalizers = vm.metadata.finalizers.clone().unwrap_or_default().join(", ");
        return Some(Verdict::new(
            format!("it is being deleted and waits for who holds its finalizers ({finalizers})"),
            format!("kubectl get vm {} {} -o yaml", picture.name, picture.flag()),
        ));
    }
    let final_phase = [phase::SUCCEEDED, phase::FAILED].contains(&picture.phase());
    (leaving(picture) && !final_phase).then(|| {
        Verdict::new(
            format!("its guest is shutting down, for which it has up to {} seconds", patience()),
            format!("kubectl get vmi {} {} -w", picture.name, picture.flag()),
        )
    })
}

/// The controller could not create what the machine needs.
fn refused(picture: &Picture) -> Option<Verdict> {
    let status = picture.vm.as_ref()?.status.as_ref()?;
    let failure = status.conditions.iter().find(|held| held.type_ == condition::FAILURE && held.status == "True")?;
    let what = match failure.reason.as_deref() {
        Some("FailedDelete") => "its instance could not be deleted",
        _ => "its instance could not be created",
    };
    Some(Verdict::new(
        format!("{what}: {}", said(failure.message.as_deref().unwrap_or_default())),
        format!("kubectl describe vm {} {}", picture.name, picture.flag()),
    ))
}

/// It was started, ended at once, and waits before the next try.
fn crashing(picture: &Picture) -> Option<Verdict> {
    let failure = picture.vm.as_ref()?.status.as_ref()?.start_failure.as_ref()?;
    let count = failure.consecutive_fail_count.filter(|count| *count > 0)?;
    let alive = picture.vmi.is_some() && ![phase::SUCCEEDED, phase::FAILED].contains(&picture.phase());
    if alive || picture.strategy() == run_strategy::HALTED {
        return None;
    }
    let last = picture.warning("VirtualMachineInstance").and_then(|event| event.message.as_deref());
    let last = last.map(|message| format!(", the last time because {}", said(message))).unwrap_or_default();
    let times = if count == 1 { "once".to_owned() } else { format!("{count} times in a row") };
    let wait =
        failure.retry_after_timestamp.as_ref().map(|at| at.0.duration_since(picture.now).as_secs()).filter(|s| *s > 0);
    let wait = match wait {
        Some(seconds) => format!("; the next start is in {seconds} seconds"),
        None => "; the next start is due now".to_owned(),
    };
    Some(Verdict::new(
        format!("it failed to start {times}{last}{wait}"),
        format!("kubectl get events {} --field-selector involvedObject.name={}", picture.flag(), picture.name),
    ))
}

/// Nobody wants it to run.
fn not_asked(picture: &Picture) -> Option<Verdict> {
    let vm = picture.vm.as_ref()?;
    let requests = vm.status.as_ref().map(|status| status.state_change_requests.as_slice()).unwrap_or_default();
    let start = format!("virtctl start {} {}", picture.name, picture.flag());
    if requests.iter().any(|request| request.action == "Start") {
        return None;
    }
    let ended = match picture.phase() {
        phase::SUCCEEDED => Some("its guest shut down".to_owned()),
        phase::FAILED => Some(match picture.reason() {
            Some(reason) => format!("its guest failed: {}", said(reason)),
            None => "its guest failed".to_owned(),
        }),
        _ => None,
    };
    let alive = picture.vmi.is_some() && ended.is_none();
    if alive {
        return None;
    }
    match (picture.strategy(), ended) {
        (run_strategy::HALTED, _) => {
            Some(Verdict::new("it is stopped, and its run strategy Halted keeps it so", start))
        }
        (run_strategy::MANUAL, Some(ended)) => {
            Some(Verdict::new(format!("{ended}, and its run strategy Manual starts it only when asked"), start))
        }
        (run_strategy::MANUAL, None) => {
            Some(Verdict::new("its run strategy is Manual, and nobody has asked for it to start", start))
        }
        (run_strategy::RERUN_ON_FAILURE, Some(_)) if picture.phase() == phase::SUCCEEDED => Some(Verdict::new(
            "its guest shut down by itself, and its run strategy RerunOnFailure starts it again only after a failure",
            start,
        )),
        (run_strategy::ONCE, Some(ended)) => {
            let patch = format!(
                "kubectl patch vm {} {} --type=merge -p '{{\"spec\":{{\"runStrategy\":\"Always\"}}}}'",
                picture.name,
                picture.flag()
            );
            Some(Verdict::new(format!("{ended}, and its run strategy Once starts it a single time"), patch))
        }
        (run_strategy::WAIT_AS_RECEIVER, None) => Some(Verdict::new(
            "its run strategy WaitAsReceiver cannot be used in this version, which receives no machine from another cluster",
            format!(
                "kubectl patch vm {} {} --type=merge -p '{{\"spec\":{{\"runStrategy\":\"Halted\"}}}}'",
                picture.name,
                picture.flag()
            ),
        )),
        _ => None,
    }
}

/// It is to run and there is an instance: how far did that come?
fn instance(picture: &Picture) -> Option<Verdict> {
    let vmi = picture.vmi.as_ref()?;
    let describe = format!("kubectl describe vmi {} {}", picture.name, picture.flag());
    if picture.phase() == phase::FAILED {
        return Some(failed(picture));
    }
    for kind in [condition::PROVISIONING, condition::DATA_VOLUMES_READY, condition::SYNCHRONIZED] {
        let Some(held) = picture.condition(kind).filter(|held| held.status == "False") else { continue };
        // The pod tells it better, image and all.
        if let Some(verdict) = picture.pod().and_then(|pod| pod::trouble(picture, pod)) {
            return Some(verdict);
        }
        let message = said(held.message.as_deref().or(held.reason.as_deref()).unwrap_or_default());
        return Some(match held.reason.as_deref() {
            Some("FailedPvcNotFound") => Verdict::new(
                format!("a volume claim it uses does not exist: {message}"),
                format!("kubectl get pvc {}", picture.flag()),
            ),
            Some("FailedCreate") => Verdict::new(format!("its pod could not be created: {message}"), describe),
            _ => Verdict::new(message, describe),
        });
    }
    let Some(pod) = picture.pod() else {
        return Some(match picture.warning("VirtualMachineInstance") {
            Some(event) => Verdict::new(said(event.message.as_deref().unwrap_or_default()), describe),
            None => Verdict::new(
                "its instance was created, but virt-controller has not made a pod for it",
                "kubectl get pods -A -l kubevirt.io=virt-controller",
            ),
        });
    };
    if let Some(verdict) = pod::trouble(picture, pod) {
        return Some(verdict);
    }
    let node = vmi.status.as_ref().and_then(|status| status.node_name.as_deref());
    match (picture.phase(), node) {
        (phase::SCHEDULED, Some(node)) => Some(match picture.warning("VirtualMachineInstance") {
            Some(event) => Verdict::new(
                format!("node {node} cannot start its guest: {}", said(event.message.as_deref().unwrap_or_default())),
                describe,
            ),
            None => Verdict::new(
                format!("its pod is ready, and virt-handler on node {node} is about to start the guest"),
                format!("kubectl get pods -A -l kubevirt.io=virt-handler --field-selector spec.nodeName={node}"),
            )
            .remark("If this stays so, virt-handler there is not well"),
        }),
        _ => Some(Verdict::new(pod::progress(pod), format!("kubectl get vmi {} {} -w", picture.name, picture.flag()))),
    }
}

fn failed(picture: &Picture) -> Verdict {
    if let Some(verdict) = picture.pod().and_then(|pod| pod::trouble(picture, pod)) {
        return verdict;
    }
    let event = || picture.warning("VirtualMachineInstance").and_then(|event| event.message.as_deref());
    let why = match picture.reason().or_else(event) {
        Some(message) => format!("it failed: {}", said(message)),
        None => "its guest or its pod failed, and nothing says why".to_owned(),
    };
    Verdict::new(why, format!("kubectl describe vmi {} {}", picture.name, picture.flag()))
}

/// It is to run and nothing has happened.
fn silent(picture: &Picture) -> Verdict {
    if let Some(event) = picture.warning("VirtualMachine") {
        let why = said(event.message.as_deref().unwrap_or_default());
        return Verdict::new(why, format!("kubectl describe vm {} {}", picture.name, picture.flag()));
    }
    if picture.phase() == phase::SUCCEEDED {
        return Verdict::new(
            "its guest shut down, and it is about to be started again",
            format!("kubectl get vmi {} {} -w", picture.name, picture.flag()),
        );
    }
    Verdict::new(
        "it is to run, but virt-controller has not created an instance of it",
        "kubectl get pods -A -l kubevirt.io=virt-controller",
    )
}

#[cfg(test)]
mod tests;
