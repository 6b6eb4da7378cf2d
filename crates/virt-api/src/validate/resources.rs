//! CPU topology and memory.

use api::kubevirt::size::asked_memory;
use api::kubevirt::v1::{CPU, VirtualMachineInstanceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kit::admission::Cause;
use meta::quantity::Amount;

use super::{invalid, required};

/// What KubeVirt takes: a guest without a system, that only stands for one, needs no more.
const MINIMUM: u64 = 1_000_000;
/// What q35 takes.
pub(crate) const MAXIMUM_CPUS: i64 = 255;

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    amounts(path, spec, causes);
    memory(path, spec, causes);
    if let Some(cpu) = &spec.domain.cpu {
        topology(&format!("{path}.domain.cpu"), cpu, causes);
    }
}

fn amount(quantity: Option<&Quantity>) -> Option<Amount> {
    quantity.and_then(|quantity| Amount::try_from(quantity).ok())
}

/// Every quantity is one and none is negative.
fn amounts(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(resources) = &spec.domain.resources else { return };
    let base = format!("{path}.domain.resources");
    for (kind, all) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, quantity) in all {
            let field = format!("{base}.{kind}.{name}");
            match Amount::try_from(quantity) {
                Ok(amount) if amount < Amount::ZERO => causes.push(invalid(
                    field.clone(),
                    format!("{field} '{}': must be greater than or equal to 0.", quantity.0),
                )),
                Ok(_) => {}
                Err(error) => causes.push(invalid(field.clone(), format!("{field} '{}': {error}", quantity.0))),
            }
        }
    }
    for name in ["cpu", "memory"] {
        let (request, limit) = (resources.requests.get(name), resources.limits.get(name));
        if let (Some(asked), Some(allowed)) = (amount(request), amount(limit))
            && asked > allowed
        {
            let field = format!("{base}.requests.{name}");
            let text = |quantity: Option<&Quantity>| quantity.map(|q| q.0.clone()).unwrap_or_default();
            let message = format!(
                "{field} '{}' is greater than {base}.limits.{name} '{}': lower the request or raise the limit",
                text(request),
                text(limit)
            );
            causes.push(invalid(field, message));
        }
    }
}

fn memory(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let domain = &spec.domain;
    let resources = domain.resources.clone().unwrap_or_default();
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let hugepages = domain.memory.as_ref().and_then(|memory| memory.hugepages.as_ref());
    let Some((name, quantity)) = asked_memory(domain) else {
        if hugepages.is_none() {
            let message = "no memory requested, at least one of memory guest size, memory requests or limits, or huge \
                           page size must be set: for example domain.memory.guest: 1Gi";
            causes.push(required(format!("{path}.domain.memory.guest"), message.to_owned()));
        }
        return;
    };
    let field = format!("{path}.domain.{name}");
    match Amount::try_from(quantity) {
        Ok(amount) if amount.bytes() < MINIMUM => {
            let message = format!("{field} '{}': must be greater than or equal to 1M.", quantity.0);
            causes.push(invalid(field, message));
        }
        Ok(_) => {}
        Err(error) => causes.push(invalid(field.clone(), format!("{field} '{}': {error}", quantity.0))),
    }
    if let (Some(guest), Some(limit)) = (amount(guest), amount(resources.limits.get("memory")))
        && guest > limit
    {
        let text = |quantity: Option<&Quantity>| quantity.map(|q| q.0.clone()).unwrap_or_default();
        let (limit, asked) =
            (text(resources.limits.get("memory")), text(domain.memory.as_ref().and_then(|m| m.guest.as_ref())));
        let field = format!("{path}.domain.memory.guest");
        let message = format!(
            "{field} '{asked}' must be equal to or less than the memory limit {path}.domain.resources.limits.memory '{limit}'"
        );
        causes.push(invalid(field, message));
    }
    if let Some(size) = hugepages.and_then(|h| h.page_size.as_ref()) {
        let field = format!("{path}.domain.memory.hugepages.pageSize");
        match (size.parse::<Amount>(), amount(Some(quantity))) {
            (Ok(page), Some(all)) if page.bytes() > 0 => {
                if page > all {
                    let message =
                        format!("{field} '{size}' must be equal to or less than requested memory '{}'", quantity.0);
                    causes.push(invalid(field, message));
                } else if all.bytes() % page.bytes() != 0 {
                    let message = format!(
                        "requested memory '{}' is not a multiple of the page size {field} '{size}'",
                        quantity.0
                    );
                    causes.push(invalid(field, message));
                }
            }
            _ => causes.push(invalid(field.clone(), format!("{field} '{size}' is not a page size: use 2Mi or 1Gi"))),
        }
    }
}

fn topology(field: &str, cpu: &CPU, causes: &mut Vec<Cause>) {
    let parts = [("sockets", cpu.sockets), ("cores", cpu.cores), ("threads", cpu.threads)];
    for (name, value) in parts {
        if value.is_some_and(|value| value < 0) {
            causes.push(invalid(format!("{field}.{name}"), format!("{field}.{name} must be greater than 0")));
            return;
        }
    }
    let count = |value: Option<i64>| value.filter(|value| *value > 0).unwrap_or(1);
    let total = parts.iter().fold(1_i64, |all, (_, value)| all.saturating_mul(count(*value)));
    if total > MAXIMUM_CPUS {
        let message = format!(
            "{field}: {} sockets x {} cores x {} threads are {total} virtual CPUs, more than the {MAXIMUM_CPUS} a \
             machine can have: lower one of them",
            count(cpu.sockets),
            count(cpu.cores),
            count(cpu.threads)
        );
        causes.push(invalid(field.to_owned(), message));
    }
    if let (Some(sockets), Some(most)) = (cpu.sockets, cpu.max_sockets)
        && most > 0
        && sockets > most
    {
        let message = "Number of sockets in CPU topology is greater than the maximum sockets allowed".to_owned();
        causes.push(invalid(format!("{field}.sockets"), message));
    }
    if let Some(model) = cpu.model.as_deref().filter(|model| !model.is_empty()) {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !model.chars().all(good) || model.len() > 63 {
            let place = format!("{field}.model");
            let message = format!(
                "{place} {model:?} is not a CPU model: use host-model, host-passthrough or a name such as Skylake-Client"
            );
            causes.push(invalid(place, message));
        }
    }
}
