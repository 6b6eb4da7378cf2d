//! What containerd says about one pod, in our words.

use std::collections::HashMap;

use jiff::Timestamp;
use rpc::cri::{self, ContainerState, PodSandboxState};

use crate::error::Result;
use crate::runtime::{Runtime, label};

/// Everything the runtime holds of a pod, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) sandboxes: Vec<Sandbox>,
    pub(crate) containers: Vec<Instance>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) ready: bool,
    pub(crate) created: Timestamp,
    /// Empty on the host network.
    pub(crate) ips: Vec<String>,
}

/// One attempt at running a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) sandbox: String,
    pub(crate) image: String,
    pub(crate) image_ref: String,
    pub(crate) state: State,
    pub(crate) termination_log: Option<String>,
    pub(crate) log_path: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Created,
    Running { started: Timestamp },
    Exited(Exit),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) started: Timestamp,
    pub(crate) finished: Timestamp,
}

impl Observed {
    /// The newest sandbox, when it is ready.
    pub(crate) fn sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|sandbox| sandbox.ready)
    }

    /// The newest attempt at `name`.
    pub(crate) fn latest(&self, name: &str) -> Option<&Instance> {
        self.containers.iter().find(|instance| instance.name == name)
    }

    /// The attempt before the newest.
    pub(crate) fn previous(&self, name: &str) -> Option<&Instance> {
        self.containers.iter().filter(|instance| instance.name == name).nth(1)
    }

    /// Whether a container is there and not shown as ended. One that is shown as created counts: a short command ends before the
    /// call that starts it returns.
    pub(crate) fn is_open(&self, id: &str) -> bool {
        self.containers.iter().any(|instance| instance.id == id && instance.exit().is_none())
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Instance> {
        self.containers.iter().filter(|instance| instance.is_running())
    }
}

impl Instance {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    pub(crate) fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            _ => None,
        }
    }
}

/// Asks the runtime about the pod `uid`. What can no longer change is taken from `known` instead of being asked again.
pub(crate) async fn observe(runtime: &Runtime, uid: &str, known: &Observed) -> Result<Observed> {
    let (sandboxes, containers) = tokio::try_join!(runtime.sandboxes(Some(uid)), runtime.list_containers(Some(uid)))?;
    let mut observed = Observed::default();
    let known_sandboxes: HashMap<_, _> = known.sandboxes.iter().map(|s| (s.id.as_str(), s)).collect();
    for item in sandboxes {
        runtime.own(&item.id, uid);
        let ready = item.state == PodSandboxState::SandboxReady as i32;
        let ips = match known_sandboxes.get(item.id.as_str()) {
            Some(known) if known.ready => known.ips.clone(),
            _ if ready => sandbox_ips(&runtime.sandbox_status(&item.id, false).await?),
            _ => Vec::new(),
        };
        observed.sandboxes.push(Sandbox {
            attempt: item.metadata.map(|m| m.attempt).unwrap_or_default(),
            created: nanos(item.created_at),
            id: item.id,
            ready,
            ips,
        });
    }
    let known_containers: HashMap<_, _> = known.containers.iter().map(|c| (c.id.as_str(), c)).collect();
    for item in containers {
        runtime.own(&item.id, uid);
        match known_containers.get(item.id.as_str()) {
            Some(known) if known.exit().is_some() => observed.containers.push((*known).clone()),
            Some(known) if known.is_running() && item.state == ContainerState::ContainerRunning as i32 => {
                observed.containers.push((*known).clone());
            }
            _ => match runtime.container_status(&item.id).await {
                Ok(status) => observed.containers.push(instance(item.pod_sandbox_id, status)),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            },
        }
    }
    observed.sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created)));
    observed.containers.sort_by(|a, b| b.attempt.cmp(&a.attempt).then_with(|| a.name.cmp(&b.name)));
    Ok(observed)
}

fn sandbox_ips(reply: &cri::PodSandboxStatusResponse) -> Vec<String> {
    let Some(network) = reply.status.as_ref().and_then(|status| status.network.as_ref()) else { return Vec::new() };
    let all = std::iter::once(&network.ip).chain(network.additional_ips.iter().map(|ip| &ip.ip));
    all.filter(|ip| !ip.is_empty()).cloned().collect()
}

fn instance(sandbox: String, mut status: cri::ContainerStatus) -> Instance {
    let state = match status.state() {
        ContainerState::ContainerCreated => State::Created,
        ContainerState::ContainerRunning => State::Running { started: nanos(status.started_at) },
        ContainerState::ContainerExited | ContainerState::ContainerUnknown => State::Exited(Exit {
            code: status.exit_code,
            reason: status.reason,
            message: status.message,
            // One that could not be started has run for no time, and not since 1970.
            started: nanos(if status.started_at > 0 { status.started_at } else { status.finished_at }),
            finished: nanos(status.finished_at),
        }),
    };
    let metadata = status.metadata.unwrap_or_default();
    Instance {
        id: status.id,
        name: metadata.name,
        attempt: metadata.attempt,
        sandbox,
        image: status.image.map(|image| image.image).unwrap_or_default(),
        image_ref: status.image_ref,
        state,
        termination_log: status.annotations.remove(label::TERMINATION_LOG),
        log_path: status.log_path,
    }
}

pub(crate) fn nanos(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_never_started_has_no_run_time() {
        let exited = ContainerState::ContainerExited as i32;
        let check = |started_at, expect: i64| {
            let status =
                cri::ContainerStatus { state: exited, started_at, finished_at: 9_000_000_000, ..Default::default() };
            let exit = instance("s".into(), status).exit().cloned().unwrap();
            assert_eq!((exit.started.as_second(), exit.finished.as_second()), (expect, 9));
        };
        check(0, 9);
        check(2_000_000_000, 2);
    }
}
