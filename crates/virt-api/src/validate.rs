//! What is refused at admission, with the field and what to do about it: the validating webhooks. Pure.

mod access;
pub mod backup;
mod busy;
pub mod chosen;
pub mod clone;
mod devices;
mod eviction;
pub mod export;
pub(crate) mod growth;
mod hardware;
mod machine;
pub mod migration;
mod names;
mod networks;
pub mod policy;
pub mod preset;
pub(crate) mod resources;
pub(crate) mod sets;
pub mod snapshot;
pub(crate) mod strict;
mod templates;
mod unserved;
mod volumes;

use api::kubevirt::constants;
use api::kubevirt::v1::{KubeVirtConfiguration, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use kit::admission::{Cause, Request, Verdict};
use serde_json::Value;

use crate::{hyperv, written};

/// What the administrator's configuration allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    machines: Vec<String>,
    bridge_on_pod_network: bool,
    /// Users that are our own components.
    components: Vec<String>,
    /// Of guests that name none.
    eviction_strategy: String,
    feature_gates: Vec<String>,
}

impl Rules {
    /// The rules under `configuration`, with the components living in `namespace`.
    pub fn of(configuration: &KubeVirtConfiguration, namespace: &str) -> Self {
        let amd64 = configuration.architecture_configuration.as_ref().and_then(|all| all.amd64.as_ref());
        let mut machines = amd64.map(|arch| arch.emulated_machines.clone()).unwrap_or_default();
        if machines.is_empty() {
            machines = configuration.emulated_machines.clone();
        }
        if machines.is_empty() {
            machines = ["q35*", "pc-q35*", "pc", "pc-i440fx*", "microvm"].map(str::to_owned).to_vec();
        }
        let network = configuration.network.as_ref();
        let developer = configuration.developer_configuration.as_ref();
        let account = |name: &str| format!("system:serviceaccount:{namespace}:{name}");
        Rules {
            machines,
            bridge_on_pod_network: network.and_then(|n| n.permit_bridge_interface_on_pod_network).unwrap_or(true),
            eviction_strategy: configuration.eviction_strategy.clone().unwrap_or_default(),
            feature_gates: developer.map(|developer| developer.feature_gates.clone()).unwrap_or_default(),
            components: ["kubevirt-apiserver", "kubevirt-controller", "kubevirt-handler"].map(account).to_vec(),
        }
    }

    /// Whether `user` is a component of ours.
    pub fn is_component(&self, user: &str) -> bool {
        self.components.iter().any(|component| component == user)
    }

    /// Whether a feature gate is switched on.
    fn is_on(&self, gate: &str) -> bool {
        self.feature_gates.iter().any(|named| named == gate)
    }
}

/// Whether a volume may be called so.
pub(crate) fn is_volume_name(name: &str) -> bool {
    names::is_label(name)
}

fn invalid(field: String, message: String) -> Cause {
    Cause { reason: "FieldValueInvalid", field, message }
}

const REQUIRED: &str = "FieldValueRequired";

fn required(field: String, message: String) -> Cause {
    Cause { reason: REQUIRED, field, message }
}

fn unsupported(field: String, message: String) -> Cause {
    Cause { reason: "FieldValueNotSupported", field, message }
}

/// The reason of a field that is well-formed and that nothing acts on.
const UNSERVED: &str = "FieldValueForbidden";

/// A machine that asks for this cannot run as it asks: an instance is refused, a VM is kept and says so.
fn unserved(field: String, why: &str) -> Cause {
    let message = format!("{field} cannot be used in this version: {why}");
    Cause { reason: UNSERVED, field, message }
}

fn duplicate(field: String, message: String) -> Cause {
    Cause { reason: "FieldValueDuplicate", field, message }
}

/// Everything wrong with an instance's spec that lies at `path`.
pub fn instance_spec(path: &str, spec: &VirtualMachineInstanceSpec, rules: &Rules) -> Vec<Cause> {
    let mut causes = Vec::new();
    resources::check(path, spec, &mut causes);
    growth::check(path, spec, &mut causes);
    names::check(path, spec, &mut causes);
    volumes::check(path, spec, &mut causes);
    devices::check(path, spec, rules, &mut causes);
    hardware::check(path, spec, &mut causes);
    networks::check(path, spec, rules, &mut causes);
    access::check(path, spec, &mut causes);
    causes.extend(hyperv::causes(path, spec));
    unserved::check(path, spec, &mut causes);
    causes
}

/// `/virtualmachines-validate`, of a machine that has `template` in place of its own once what it names is written out.
pub fn vm(request: &Request, template: Option<&Value>, rules: &Rules) -> Verdict {
    if deleting(&request.object) {
        return Verdict::allow();
    }
    let mut vm: VirtualMachine = match strict::decode(&request.object) {
        Ok(vm) => vm,
        Err(causes) => return Verdict::Invalid(causes),
    };
    let busy = busy::check(&vm, request);
    if let Some(template) = template {
        match serde_json::from_value(template.clone()) {
            Ok(template) => vm.spec.template = template,
            Err(error) => return Verdict::Invalid(vec![invalid("spec.instancetype".to_owned(), error.to_string())]),
        }
    }
    let (unserved, mut wrong): (Vec<_>, Vec<_>) =
        machine::check(&vm, rules).into_iter().partition(|cause| cause.reason == UNSERVED);
    wrong.extend(busy);
    if !wrong.is_empty() {
        return Verdict::Invalid(wrong);
    }
    let kept = |cause: Cause| format!("{} (the VM is kept as it is, and refused when it starts)", cause.message);
    Verdict::Allow { warnings: unserved.into_iter().map(kept).chain(machine::remarks(&vm, rules)).collect() }
}

/// `/virtualmachineinstances-validate-create`.
pub fn vmi_create(request: &Request, rules: &Rules) -> Verdict {
    let vmi: VirtualMachineInstance = match strict::decode(&request.object) {
        Ok(vmi) => vmi,
        Err(causes) => return Verdict::Invalid(causes),
    };
    let mut causes = instance_spec("spec", &vmi.spec, rules);
    unserved::check_metadata(&vmi, &mut causes);
    causes.extend(reserved(&request.object, &Value::Null, request, rules));
    if !causes.is_empty() {
        return Verdict::Invalid(causes);
    }
    let mut warnings = unserved::instance_remarks(&vmi);
    warnings.extend(eviction::remarks("spec", Some(&vmi.metadata), &vmi.spec, rules));
    Verdict::Allow { warnings }
}

/// `/virtualmachineinstances-validate-update`: only our components change a running guest's spec.
pub fn vmi_update(request: &Request, rules: &Rules) -> Verdict {
    if rules.is_component(&request.user_info.username) {
        return Verdict::allow();
    }
    let spec = |object: &Value| {
        let typed: VirtualMachineInstance = serde_json::from_value(object.clone()).ok()?;
        serde_json::to_value(typed.spec).ok().map(written::comparable)
    };
    if spec(&request.object) != spec(&request.old_object) {
        return Verdict::Invalid(vec![unsupported("spec".to_owned(), "update of VMI object is restricted".to_owned())]);
    }
    Verdict::of_causes(reserved(&request.object, &request.old_object, request, rules))
}

/// `/status-validate`: what the controller relies on.
pub fn status(request: &Request) -> Verdict {
    let requests = request.object.pointer("/status/stateChangeRequests").and_then(Value::as_array);
    let mut causes = Vec::new();
    for (index, asked) in requests.into_iter().flatten().enumerate() {
        let action = asked.get("action").and_then(Value::as_str).unwrap_or_default();
        let field = format!("status.stateChangeRequests[{index}]");
        match action {
            "Start" => {}
            "Stop" if asked.get("uid").is_some_and(|uid| !uid.is_null()) => {}
            "Stop" => causes.push(required(format!("{field}.uid"), "UID required to stop VMI".to_owned())),
            other => causes.push(invalid(format!("{field}.action"), format!("unsupported action: {other:?}"))),
        }
    }
    Verdict::of_causes(causes)
}

pub(crate) fn deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null())
}

/// What clients in Go send for a field that nobody set.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_zero),
    }
}

/// The status is what our components go by: whoever may change a guest may not tell them what to believe. The mutating
/// webhook has dropped what a user sent; what is different here came later, from another webhook.
fn trusted(new: &Value, old: &Value) -> Option<Cause> {
    let status = |object: &Value| {
        let mut parts = object.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
        parts.retain(|_, part| !is_zero(part));
        parts
    };
    // What the mutating webhook gives every new guest.
    let given = |key: &str| old.is_null() && ["phase", "phaseTransitionTimestamps"].contains(&key);
    let (new, before) = (status(new), status(old));
    let key = new.keys().chain(before.keys()).find(|key| !given(key) && new.get(*key) != before.get(*key))?;
    let field = format!("status.{key}");
    let message =
        format!("{field}: update of VMI object is restricted: only KubeVirt's components write it, leave it as it is");
    Some(unsupported(field, message))
}

/// Labels by which our components find each other are theirs, and so is what they tell each other.
fn reserved(new: &Value, old: &Value, request: &Request, rules: &Rules) -> Vec<Cause> {
    if rules.is_component(&request.user_info.username) {
        return Vec::new();
    }
    if let Some(cause) = trusted(new, old) {
        return vec![cause];
    }
    const OURS: [&str; 6] = [
        constants::label::CREATED_BY,
        constants::label::MIGRATION_JOB,
        constants::label::NODE_NAME,
        constants::label::MIGRATION_TARGET_NODE,
        constants::label::SCHEDULABLE,
        constants::label::INSTALL_STRATEGY,
    ];
    let label = |object: &Value, key: &str| {
        let found = object.get("metadata").and_then(|metadata| metadata.get("labels")).and_then(|all| all.get(key));
        found.and_then(Value::as_str).map(str::to_owned)
    };
    let changed: Vec<&str> = OURS.into_iter().filter(|key| label(new, key) != label(old, key)).collect();
    if changed.is_empty() {
        return Vec::new();
    }
    let what = if old.is_null() { "creation" } else { "modification" };
    let message = format!(
        "{what} of the following reserved kubevirt.io/ labels on a VMI object is prohibited: {}",
        changed.join(", ")
    );
    vec![unsupported("metadata.labels".to_owned(), message)]
}

#[cfg(test)]
mod tests;
