//! Migrations.

use api::kubevirt::constants::{condition, finalizer, label, migration_phase, migration_priority, phase};
use api::kubevirt::identity::instance_id;
use api::kubevirt::v1::{
    VirtualMachineInstance, VirtualMachineInstanceCondition, VirtualMachineInstanceMigration,
    VirtualMachineInstanceMigrationSpec,
};
use kit::admission::{Cause, Request, Verdict};
use serde_json::{Value, json};

use super::{invalid, required, strict, unsupported};

/// What the cluster says about the guest of a migration that is to be made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guest {
    /// The guest, if there is one.
    pub vmi: Option<VirtualMachineInstance>,
    /// Every migration of it.
    pub migrations: Vec<VirtualMachineInstanceMigration>,
}

/// `/migration-mutate-create`: the migration is held until it is cleared up, and found by its guest's name.
pub fn mutate(request: &Request) -> Verdict {
    let mut wanted = request.object.clone();
    let guest = wanted.pointer("/spec/vmiName").and_then(Value::as_str).unwrap_or_default();
    let guest = json!(instance_id(guest));
    if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
        let labels = metadata.entry("labels").or_insert(Value::Null);
        if labels.is_null() {
            *labels = json!({});
        }
        labels[label::MIGRATION_SELECTOR] = guest;
        let held = metadata.entry("finalizers").or_insert(Value::Null);
        let mut finalizers = held.as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|name| name == finalizer::MIGRATION) {
            finalizers.push(json!(finalizer::MIGRATION));
        }
        *held = Value::Array(finalizers);
    }
    Verdict::Patch(json!(json_patch::diff(&request.object, &wanted)))
}

/// The guest's namespace and name, as the request gives them; a cause when it does not.
///
/// # Errors
/// The verdict on a migration that can be judged without its guest.
pub fn target(request: &Request) -> Result<(String, String), Verdict> {
    let migration: VirtualMachineInstanceMigration = strict::decode(&request.object).map_err(Verdict::Invalid)?;
    let causes = spec(&migration.spec);
    if !causes.is_empty() {
        return Err(Verdict::Invalid(causes));
    }
    Ok((request.namespace.clone(), migration.spec.vmi_name.unwrap_or_default()))
}

fn spec(spec: &VirtualMachineInstanceMigrationSpec) -> Vec<Cause> {
    let mut causes = Vec::new();
    if spec.vmi_name.as_deref().unwrap_or_default().is_empty() {
        causes.push(required("spec.vmiName".to_owned(), "vmiName is missing".to_owned()));
    }
    let known = [
        migration_priority::SYSTEM_CRITICAL,
        migration_priority::USER_TRIGGERED,
        migration_priority::SYSTEM_MAINTENANCE,
    ];
    if let Some(word) = spec.priority.as_deref().filter(|word| !known.contains(word)) {
        let message = format!("spec.priority: Unsupported value: {word:?}: supported values: {}", known.join(", "));
        causes.push(unsupported("spec.priority".to_owned(), message));
    }
    for (field, said) in [("spec.sendTo", spec.send_to.is_some()), ("spec.receive", spec.receive.is_some())] {
        if said {
            let why = "guests are moved inside of a cluster: leave it out";
            causes.push(super::unserved(field.to_owned(), why));
        }
    }
    causes
}

/// `/migration-validate-create`, once `guest` is known.
pub fn create((namespace, name): (&str, &str), guest: &Guest) -> Verdict {
    let refuse = |message: String| Verdict::Deny { code: 400, reason: "BadRequest", message };
    let Some(vmi) = &guest.vmi else {
        return refuse(format!("the VMI \"{namespace}/{name}\" does not exist"));
    };
    let status = vmi.status.as_deref().cloned().unwrap_or_default();
    if matches!(status.phase.as_deref(), Some(phase::SUCCEEDED | phase::FAILED)) {
        return refuse("Cannot migrate VMI in finalized state.".to_owned());
    }
    let conditions = status.conditions.iter();
    // Disks that no other node has are no obstacle where they are to be copied into claims that somebody chose.
    let copied = status.conditions.iter().any(|c| c.type_ == condition::VOLUMES_CHANGE && c.status == "True");
    let stays = |reason: Option<&str>| !copied || reason != Some("DisksNotLiveMigratable");
    let stuck = |c: &&VirtualMachineInstanceCondition| {
        c.type_ == condition::LIVE_MIGRATABLE && c.status == "False" && stays(c.reason.as_deref())
    };
    if let Some(no) = conditions.into_iter().find(stuck) {
        let (reason, message) = (no.reason.as_deref().unwrap_or_default(), no.message.as_deref().unwrap_or_default());
        return refuse(format!("Cannot migrate VMI, Reason: {reason}, Message: {message}"));
    }
    let over = |migration: &&VirtualMachineInstanceMigration| {
        let phase = migration.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some(migration_phase::SUCCEEDED | migration_phase::FAILED))
    };
    if let Some(other) = guest.migrations.iter().find(|migration| !over(migration)) {
        let uid = other.metadata.uid.as_deref().unwrap_or_default();
        return refuse(format!(
            "in-flight migration detected. Active migration job ({uid}) is currently already in progress for VMI {name}."
        ));
    }
    Verdict::allow()
}

/// `/migration-validate-update`: a migration is what it was made as.
pub fn update(request: &Request) -> Verdict {
    let decode = |object: &Value| serde_json::from_value::<VirtualMachineInstanceMigration>(object.clone()).ok();
    let (Some(new), Some(old)) = (decode(&request.object), decode(&request.old_object)) else {
        return Verdict::Invalid(vec![invalid("spec".to_owned(), "the object cannot be decoded".to_owned())]);
    };
    let mut causes = Vec::new();
    if new.spec != old.spec {
        let message = "update of Migration object's spec is restricted".to_owned();
        causes.push(unsupported("spec".to_owned(), message));
    }
    let selector = |migration: &VirtualMachineInstanceMigration| {
        migration.metadata.labels.as_ref().and_then(|labels| labels.get(label::MIGRATION_SELECTOR).cloned())
    };
    let phase = new.status.as_ref().and_then(|status| status.phase.as_deref());
    let over = matches!(phase, Some(migration_phase::SUCCEEDED | migration_phase::FAILED));
    if let (false, Some(before), after) = (over, selector(&old), selector(&new))
        && after.as_ref() != Some(&before)
    {
        let change = if after.is_none() && new.metadata.labels.is_none() { "removed from" } else { "modified on" };
        let message = format!("selector label can't be {change} an in-flight migration");
        causes.push(unsupported(format!("metadata.labels[{}]", label::MIGRATION_SELECTOR), message));
    }
    Verdict::of_causes(causes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(old: Value, new: Value) -> Request {
        Request { namespace: "ns".into(), object: new, old_object: old, ..Default::default() }
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn migration(spec: Value) -> Value {
        json!({ "metadata": { "name": "move" }, "spec": spec })
    }

    /// The sentence of a refusal.
    fn said(verdict: Verdict) -> Option<String> {
        match verdict {
            Verdict::Allow { .. } | Verdict::Patch(_) => None,
            Verdict::Deny { message, .. } => Some(message),
            Verdict::Invalid(causes) => {
                Some(causes.into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect::<Vec<_>>().join(", "))
            }
        }
    }

    #[test]
    fn a_new_migration_is_held_and_found() {
        let Verdict::Patch(patch) = mutate(&request(Value::Null, migration(json!({ "vmiName": "vm" })))) else {
            panic!("nothing was added")
        };
        let mut object = migration(json!({ "vmiName": "vm" }));
        json_patch::patch(&mut object, &serde_json::from_value::<json_patch::Patch>(patch).unwrap()).unwrap();
        assert_eq!(object["metadata"]["labels"], json!({ "kubevirt.io/vmi-name": "vm" }));
        assert_eq!(object["metadata"]["finalizers"], json!(["kubevirt.io/migrationJobFinalize"]));
    }

    #[test]
    fn invalid_migrations_are_refused_by_field() {
        #[track_caller]
        fn check(spec: Value, expect: Result<&str, &str>) {
            let found = target(&request(Value::Null, migration(spec)));
            let found = found.map(|(_, name)| name).map_err(|verdict| said(verdict).unwrap_or_default());
            assert_eq!(found.as_deref().map_err(String::as_str), expect);
        }
        check(json!({ "vmiName": "vm" }), Ok("vm"));
        check(json!({ "vmiName": "vm", "priority": "user-triggered" }), Ok("vm"));
        check(json!({}), Err("spec.vmiName: vmiName is missing"));
        let words = "spec.priority: spec.priority: Unsupported value: \"high\": supported values: system-critical, \
                     user-triggered, system-maintenance";
        check(json!({ "vmiName": "vm", "priority": "high" }), Err(words));
        let elsewhere = "spec.receive: spec.receive cannot be used in this version: guests are moved inside of a cluster: \
                         leave it out";
        check(json!({ "vmiName": "vm", "receive": { "migrationID": "x" } }), Err(elsewhere));
    }

    #[test]
    fn whether_the_guest_can_be_moved() {
        #[track_caller]
        fn check(vmi: Value, others: &[&str], expect: Option<&str>) {
            let guest = Guest {
                vmi: serde_json::from_value(vmi).unwrap(),
                migrations: others
                    .iter()
                    .map(|phase| json!({ "metadata": { "uid": "job" }, "status": { "phase": phase } }))
                    .map(|migration| serde_json::from_value(migration).unwrap())
                    .collect(),
            };
            assert_eq!(said(create(("ns", "vm"), &guest)).as_deref(), expect);
        }
        let running = json!({ "status": { "phase": "Running" } });
        check(running.clone(), &[], None);
        check(running.clone(), &["Failed", "Succeeded"], None);
        check(Value::Null, &[], Some("the VMI \"ns/vm\" does not exist"));
        for phase in ["Failed", "Succeeded"] {
            let ended = json!({ "status": { "phase": phase } });
            check(ended, &[], Some("Cannot migrate VMI in finalized state."));
        }
        let fixed = json!({ "status": { "phase": "Running", "conditions": [{
            "type": "LiveMigratable", "status": "False", "reason": "HostDeviceNotLiveMigratable", "message": "gpu0",
        }] } });
        check(fixed, &[], Some("Cannot migrate VMI, Reason: HostDeviceNotLiveMigratable, Message: gpu0"));
        let busy =
            "in-flight migration detected. Active migration job (job) is currently already in progress for VMI vm.";
        check(running, &["Failed", "Running"], Some(busy));
    }

    #[test]
    fn a_migration_stays_what_it_is() {
        #[track_caller]
        fn check(new: Value, expect: Option<&str>) {
            let labels = json!({ "kubevirt.io/vmi-name": "vm" });
            let old = json!({ "metadata": { "name": "move", "labels": labels }, "spec": { "vmiName": "vm" } });
            assert_eq!(said(update(&request(old, new))).as_deref(), expect);
        }
        let labels = json!({ "kubevirt.io/vmi-name": "vm", "more": "x" });
        check(json!({ "metadata": { "labels": labels }, "spec": { "vmiName": "vm" } }), None);
        let spec = "spec: update of Migration object's spec is restricted";
        check(json!({ "metadata": { "labels": labels }, "spec": { "vmiName": "other" } }), Some(spec));
        let field = "metadata.labels[kubevirt.io/vmi-name]: selector label can't be";
        let removed = format!("{field} removed from an in-flight migration");
        check(json!({ "metadata": {}, "spec": { "vmiName": "vm" } }), Some(&removed));
        let modified = format!("{field} modified on an in-flight migration");
        let other = json!({ "kubevirt.io/vmi-name": "other" });
        check(json!({ "metadata": { "labels": other }, "spec": { "vmiName": "vm" } }), Some(&modified));
        let over = json!({ "metadata": {}, "spec": { "vmiName": "vm" }, "status": { "phase": "Failed" } });
        check(over, None);
    }
}
