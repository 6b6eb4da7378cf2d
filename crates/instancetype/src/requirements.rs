//! What a preference requires of the machine that has it.

use meta::quantity::Amount;
use serde_json::Value;

use crate::cpu::{Across, Preferred};
use crate::fields::{at, written};
use crate::{Chosen, Problem, size};

const TEMPLATE: &str = "spec.template.spec";

/// Requirements that `vm` does not meet.
pub(crate) fn unmet(vm: &Value, chosen: &Chosen) -> Vec<Problem> {
    let Some(preference) = &chosen.preference else { return Vec::new() };
    let spec = at(vm, TEMPLATE).unwrap_or(&Value::Null);
    let found = [cpu(spec, chosen, preference), memory(spec, chosen, preference), architecture(spec, preference)];
    found.into_iter().flatten().collect()
}

fn problem(field: &str, what: &str) -> Option<Problem> {
    let message = format!("failure checking preference requirements: {what}");
    Some(Problem { reason: "FieldValueNotFound", field: field.to_owned(), message })
}

fn cpu(spec: &Value, chosen: &Chosen, preference: &Value) -> Option<Problem> {
    let required = at(preference, "requirements.cpu.guest")?.as_i64()?;
    if let Some(instancetype) = &chosen.instancetype {
        let provided = size::vcpus(instancetype);
        let what = format!(
            "insufficient CPU resources of {provided} vCPU provided by instance type, preference requires {required} vCPU"
        );
        return (provided < required).then(|| problem("spec.instancetype", &what))?;
    }
    let field = format!("{TEMPLATE}.domain.cpu");
    let Some((provided, kind)) = provided(spec, Preferred::of(preference)) else {
        let what = format!("no CPU resources provided by VirtualMachine, preference requires {required} vCPU");
        return problem(&field, &what);
    };
    let what = format!(
        "insufficient CPU resources of {provided} vCPU provided by VirtualMachine, preference requires {required} vCPU \
         provided as {kind}"
    );
    (provided < required).then(|| problem(&field, &what))?
}

/// How many virtual CPUs the machine's own template has as `preferred`, and what they are counted in. None when it says nothing of
/// CPUs.
fn provided(spec: &Value, preferred: Preferred) -> Option<(i64, &'static str)> {
    let part = |name: &str| written(spec, &format!("domain.cpu.{name}")).and_then(Value::as_i64);
    let parts = ["sockets", "cores", "threads"].map(part);
    let Some(_) = parts.iter().flatten().next() else {
        // Without a topology, the guest gets a socket for each CPU it asks for.
        let asked = ["limits", "requests"].iter().find_map(|kind| {
            size::text(written(spec, &format!("domain.resources.{kind}.cpu"))?)?.parse::<Amount>().ok()
        })?;
        return Some((asked.value().max(1), "sockets"));
    };
    let [sockets, cores, threads] = parts.map(|part| part.unwrap_or(1));
    let all = sockets.saturating_mul(cores).saturating_mul(threads);
    Some(match preferred {
        Preferred::Sockets => (sockets, "sockets"),
        Preferred::Cores => (cores, "cores"),
        Preferred::Threads => (threads, "threads"),
        Preferred::Any => (all, "cores, sockets and threads"),
        Preferred::Spread { across: across @ Across::SocketsCores, .. } => {
            (sockets.saturating_mul(cores), across.name())
        }
        Preferred::Spread { across: across @ Across::CoresThreads, .. } => {
            (cores.saturating_mul(threads), across.name())
        }
        Preferred::Spread { across: across @ Across::SocketsCoresThreads, .. } => (all, across.name()),
    })
}

fn memory(spec: &Value, chosen: &Chosen, preference: &Value) -> Option<Problem> {
    let required = size::text(at(preference, "requirements.memory.guest")?)?;
    let (provided, by, field) = match &chosen.instancetype {
        Some(instancetype) => (at(instancetype, "memory.guest"), "instance type", "spec.instancetype".to_owned()),
        None => {
            let paths = ["domain.memory.guest", "domain.resources.requests.memory", "domain.resources.limits.memory"];
            let own = paths.iter().find_map(|path| written(spec, path));
            (own, "VirtualMachine", format!("{TEMPLATE}.domain.memory"))
        }
    };
    let provided = provided.and_then(size::text).unwrap_or_else(|| "0".to_owned());
    let enough = provided.parse::<Amount>().ok()? >= required.parse::<Amount>().ok()?;
    let what = format!("insufficient Memory resources of {provided} provided by {by}, preference requires {required}");
    (!enough).then(|| problem(&field, &what))?
}

fn architecture(spec: &Value, preference: &Value) -> Option<Problem> {
    let required = written(preference, "requirements.architecture")?.as_str()?;
    let asked = written(spec, "architecture")?.as_str()?;
    let what = format!("preference requires architecture {required} but {asked} is being requested");
    (required != asked).then(|| problem(&format!("{TEMPLATE}.architecture"), &what))?
}
