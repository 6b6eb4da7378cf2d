//! Machines that name an instance type or a preference: what is completed when they are stored, and what is refused.
//!
//! An object that does not exist keeps no machine from being stored: it may come later, and virt-controller says on the machine what it
//! waits for.

mod infer;

use api::kubevirt::v1::VirtualMachine;
use instancetype::{Chosen, Family, Matcher, find};
use kit::Chain;
use kit::admission::{Cause, Request, Verdict};
use kube::Client;
use origin::leave;
use serde_json::{Value, json};

use crate::validate::deleting;

const POLICIES: [&str; 2] = ["Reject", "Ignore"];

/// `object`, the machine of `request`, with what its references say of it: an object that a volume names, and the hardware that is decided
/// once.
///
/// # Errors
/// The answer, when a reference is wrong or the cluster cannot be asked.
pub(crate) async fn complete(client: &Client, request: &Request, mut object: Value) -> Result<Value, Verdict> {
    if deleting(&object) || !names_something(&object) || !changes(request) {
        return Ok(object);
    }
    // What cannot be read is refused for that, by the validating webhook.
    let Ok(vm) = serde_json::from_value::<VirtualMachine>(object.clone()) else { return Ok(object) };
    let causes: Vec<Cause> = Family::ALL.into_iter().flat_map(|family| wrong(family, &vm, request)).collect();
    if !causes.is_empty() {
        return Err(Verdict::Invalid(causes));
    }
    for family in Family::ALL {
        let Some(matcher) = family.named_by(&vm.spec).filter(|matcher| !matcher.infer_from_volume.is_empty()) else {
            continue;
        };
        match infer::infer(client, request, &vm, family, &matcher).await? {
            Some(found) => {
                let mut matcher = json!({ "name": found.name });
                if !found.kind.is_empty() {
                    matcher["kind"] = json!(found.kind);
                }
                object["spec"][family.field()] = matcher;
            }
            None => drop(object["spec"].as_object_mut().and_then(|spec| spec.remove(family.field()))),
        }
        let ignored = matcher.infer_from_volume_failure_policy == "Ignore";
        let inferred = object["spec"].get(family.field()).is_some();
        // Clients leave a memory there for machines whose volume names no instance type.
        if ignored && inferred && family == Family::Instancetype {
            let domain = object.pointer_mut("/spec/template/spec/domain").and_then(Value::as_object_mut);
            domain.and_then(|domain| domain.remove("memory"));
        }
    }
    let Ok(vm) = serde_json::from_value::<VirtualMachine>(object.clone()) else { return Ok(object) };
    match find::named(client, &request.namespace, &vm, Family::Preference).await {
        Ok(Some(found)) => decide(&mut object, &instancetype::hardware(&found.object["spec"])),
        Ok(None) => {}
        Err(error) if error.is_absent() => {}
        Err(error) => return Err(unanswered(&error)),
    }
    Ok(object)
}

/// `request` as if the machine's own account made it: a component makes it for somebody else, who is to learn no more than they may.
pub(crate) fn by_own_account(request: &Request) -> Request {
    let vm: VirtualMachine = serde_json::from_value(request.object.clone()).unwrap_or_default();
    Request { user_info: leave::account_of(&vm, &request.namespace), ..request.clone() }
}

fn names_something(object: &Value) -> bool {
    Family::ALL.iter().any(|family| object["spec"].get(family.field()).is_some_and(|matcher| !matcher.is_null()))
}

/// Whether the machine is written anew: what is stored already is not judged again because a label changed.
fn changes(request: &Request) -> bool {
    request.operation == "CREATE" || request.object.get("spec") != request.old_object.get("spec")
}

/// What is wrong with a reference by itself.
fn wrong(family: Family, vm: &VirtualMachine, request: &Request) -> Vec<Cause> {
    let Some(matcher) = family.named_by(&vm.spec) else { return Vec::new() };
    let field = format!("spec.{}", family.field());
    let cause = |reason, field: String, message: String| Cause { reason, field, message };
    let mut causes = Vec::new();
    if matcher.name.is_empty() && matcher.infer_from_volume.is_empty() {
        let message = format!("Either Name or InferFromVolume should be provided within the {}", family.matcher());
        causes.push(cause("FieldValueNotFound", field.clone(), message));
    }
    if !matcher.infer_from_volume.is_empty() {
        for (word, held) in [("Name", &matcher.name), ("Kind", &matcher.kind)] {
            if !held.is_empty() {
                let message = format!("{word} already set, should be cleared before setting inferFromVolume");
                causes.push(cause("FieldValueNotSupported", format!("{field}.{}", word.to_lowercase()), message));
            }
        }
        let policy = matcher.infer_from_volume_failure_policy.as_str();
        if !policy.is_empty() && !POLICIES.contains(&policy) {
            let message = format!("Invalid value '{policy}' for InferFromVolumeFailurePolicy: use Reject or Ignore");
            causes.push(cause("FieldValueNotSupported", format!("{field}.inferFromVolumeFailurePolicy"), message));
        }
    } else if let Err(error) = matcher.of_cluster(family) {
        causes.push(cause("FieldValueNotSupported", format!("{field}.kind"), error.to_string()));
    }
    let old = serde_json::from_value::<VirtualMachine>(request.old_object.clone()).ok();
    let old = old.and_then(|old| family.named_by(&old.spec));
    let stale = |old: &Matcher| old.name != matcher.name && !old.name.is_empty() && old.revision == matcher.revision;
    if old.as_ref().is_some_and(stale) && !matcher.revision.is_empty() {
        let message = "the Matcher Name has been updated without updating the RevisionName".to_owned();
        causes.push(cause("FieldValueInvalid", format!("{field}.revisionName"), message));
    }
    causes
}

/// Writes into the machine what its preference decides when it is stored.
fn decide(object: &mut Value, wanted: &instancetype::PreferredHardware) {
    fn put(of: &mut Value, key: &str, value: Option<&String>) {
        let open = of.get(key).is_none_or(|held| held.is_null() || held.as_str() == Some(""));
        if let Some(value) = value.filter(|_| open) {
            of[key] = json!(value);
        }
    }
    if let Some(spec) = object.pointer_mut("/spec/template/spec").filter(|spec| spec.is_object()) {
        put(spec, "architecture", wanted.architecture.as_ref());
        if let Some(machine_type) = &wanted.machine_type {
            if !spec["domain"]["machine"].is_object() {
                spec["domain"]["machine"] = json!({});
            }
            put(&mut spec["domain"]["machine"], "type", Some(machine_type));
        }
    }
    let templates = object.pointer_mut("/spec/dataVolumeTemplates").and_then(Value::as_array_mut);
    for template in templates.into_iter().flatten() {
        for kind in ["pvc", "storage"] {
            let pointer = format!("/spec/{kind}");
            if let Some(volume) = template.pointer_mut(&pointer).filter(|volume| volume.is_object()) {
                put(volume, "storageClassName", wanted.storage_class.as_ref());
            }
        }
    }
}

/// The template of `request`'s machine as it would run, where that is judged and all that it names is there.
///
/// # Errors
/// The answer, when the machine cannot be what it chose, or the cluster cannot be asked.
pub(crate) async fn template(client: &Client, request: &Request, binding: &str) -> Result<Option<Value>, Verdict> {
    let object = &request.object;
    if deleting(object) || !names_something(object) || !changes(request) {
        return Ok(None);
    }
    let Ok(vm) = serde_json::from_value::<VirtualMachine>(object.clone()) else { return Ok(None) };
    let chosen = match find::all(client, &request.namespace, &vm).await {
        Ok(chosen) => chosen,
        Err((_, error)) if error.is_absent() => return Ok(None),
        Err((_, error)) => return Err(unanswered(&error)),
    };
    let causes = causes(object, &chosen);
    if !causes.is_empty() {
        return Err(Verdict::Invalid(causes));
    }
    let mut expanded = instancetype::expand(object.clone(), &chosen, binding);
    Ok(Some(expanded["spec"]["template"].take()))
}

/// What keeps `vm` from being what it chose.
pub(crate) fn causes(vm: &Value, chosen: &Chosen) -> Vec<Cause> {
    let cause = |problem: instancetype::Problem| Cause {
        reason: problem.reason,
        field: problem.field,
        message: problem.message,
    };
    instancetype::problems(vm, chosen).into_iter().map(cause).collect()
}

fn unanswered(error: &find::Error) -> Verdict {
    Verdict::Deny { code: 500, reason: "InternalError", message: Chain(error).to_string() }
}
