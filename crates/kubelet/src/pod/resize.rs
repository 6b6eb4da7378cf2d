//! Pure: what is to be done so that a pod has what its node has set aside for it, and the words for it.
//!
//! ```text
//!   set aside --> containers that must restart are stopped --> the pod's group grows --> containers change
//!             --> the pod's group shrinks --> what was stopped starts again
//! ```

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use serde_json::json;

use crate::allocation::record::{Record, Sizes};
use crate::allocation::sized;
use crate::pod::observed::Observed;
use crate::resources::{self, is_sidecar};

/// A container, by its name and the id of its newest attempt.
pub(crate) type Named = (String, String);

/// What a pod lacks of its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The pod's own group has other limits.
    pub(crate) group: bool,
    /// Running containers to be changed.
    pub(crate) update: Vec<Named>,
    /// Running containers that want to be started again for it.
    pub(crate) restart: Vec<Named>,
    /// Containers, by the ids of their attempts, that ended for it and are not there again.
    pub(crate) again: BTreeSet<String>,
}

impl Needs {
    pub(crate) fn is_met(&self) -> bool {
        *self == Self::default()
    }

    /// Something can be changed now: what is to restart has ended.
    pub(crate) fn changes(&self) -> bool {
        self.restart.is_empty() && (self.group || !self.update.is_empty())
    }
}

fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// What the pod, whose spec says what is set aside, lacks.
pub(crate) fn needs(pod: &Pod, record: &Record, observed: &Observed) -> Needs {
    let mut needs = Needs::default();
    if record.under_way.is_none() {
        return needs;
    }
    // A sandbox that is made anew gets a group of the right size.
    needs.group = observed.sandbox().is_some() && record.grouped.as_ref() != Some(&record.allocated);
    for container in resizable(spec(pod)) {
        let Some(instance) = observed.latest(&container.name) else { continue };
        let named = (container.name.clone(), instance.id.clone());
        if record.restarts.contains(&instance.id) {
            match instance.is_running() {
                true => needs.restart.push(named),
                false => drop(needs.again.insert(named.1)),
            }
            continue;
        }
        let (Some(has), Some(wanted)) = (record.applied.get(&container.name), record.allocated.get(&container.name))
        else {
            continue;
        };
        match change(container, has, wanted) {
            _ if !instance.is_running() => {}
            Change::None => {}
            Change::InPlace => needs.update.push(named),
            Change::Restart => needs.restart.push(named),
        }
    }
    needs
}

fn resizable(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)).chain(&spec.containers)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    InPlace,
    Restart,
}

fn amount(size: &ResourceRequirements, limit: bool, name: &str) -> Option<i64> {
    let list = if limit { &size.limits } else { &size.requests };
    list.as_ref()?.get(name).and_then(resources::milli)
}

/// A request for memory is nothing that a running container has: it is set aside, and no more.
fn change(container: &Container, has: &ResourceRequirements, wanted: &ResourceRequirements) -> Change {
    let differs = |limit, name| amount(has, limit, name) != amount(wanted, limit, name);
    let turned = [("cpu", differs(false, "cpu") || differs(true, "cpu")), ("memory", differs(true, "memory"))];
    let restarts = |name: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|policy| policy.resource_name == name && policy.restart_policy == "RestartContainer")
    };
    if turned.iter().any(|(name, turned)| *turned && restarts(name)) {
        return Change::Restart;
    }
    if has == wanted { Change::None } else { Change::InPlace }
}

/// What the memory in use forbids: of each container that is to be changed, and of the pod, with what they use.
pub(crate) fn forbidden(pod: &Pod, record: &Record, usage: &[(String, i64)]) -> Option<String> {
    let mut said = Vec::new();
    let group = |sizes: &Sizes| resources::of_pod(spec(&sized(pod, sizes))).memory;
    let before = record.grouped.as_ref().and_then(group);
    let all = usage.iter().map(|(_, used)| *used).fold(0, i64::saturating_add);
    let lower = |before: Option<i64>, after: Option<i64>, used: i64| {
        after.filter(|after| before.is_none_or(|before| *after < before) && used >= *after)
    };
    if let Some(limit) = lower(before, group(&record.allocated), all) {
        said.push(format!("attempting to set pod memory limit ({limit}) below current usage ({all})"));
    }
    for (name, used) in usage {
        let limit = |sizes: &Sizes| {
            let limits = sizes.get(name)?.limits.as_ref()?;
            limits.get("memory").and_then(resources::value)
        };
        if let Some(limit) = lower(limit(&record.applied), limit(&record.allocated), *used) {
            let what = format!("container {name:?} memory limit ({limit})");
            said.push(format!("attempting to set {what} below current usage ({used})"));
        }
    }
    let list = said.join(", ");
    match said.len() {
        0 => None,
        1 => Some(format!("cannot decrease memory limits: {list}")),
        _ => Some(format!("cannot decrease memory limits: [{list}]")),
    }
}

/// The sentence of an event: what is said, and the sizes in the pod's spec.
pub(crate) fn told(what: &str, pod: &Pod, generation: i64, error: Option<&str>) -> String {
    let of = |containers: &mut dyn Iterator<Item = &Container>| -> Vec<_> {
        let shown = |c: &Container| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()});
        containers.map(shown).collect()
    };
    let spec = spec(pod);
    let inits = of(&mut spec.init_containers.iter().flatten());
    let containers = of(&mut spec.containers.iter());
    let mut parts = Vec::new();
    // In the order in which it is known elsewhere.
    if !inits.is_empty() {
        parts.push(format!("\"initContainers\":{}", json!(inits)));
    }
    parts.push(format!("\"containers\":{}", json!(containers)));
    parts.push(format!("\"generation\":{generation}"));
    if let Some(error) = error {
        parts.push(format!("\"error\":{}", json!(error)));
    }
    format!("Pod resize {what}: {{{}}}", parts.join(","))
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;
