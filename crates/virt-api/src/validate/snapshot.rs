//! Snapshots of machines, and machines that are brought back to them.

use api::snapshot::v1beta1::{
    VirtualMachineRestore, VirtualMachineRestoreSpec, VirtualMachineSnapshot, VirtualMachineSnapshotContent,
};
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use kit::admission::{Cause, Request, Verdict};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{invalid, required, unsupported};

const IMMUTABLE: &str = "spec in immutable after creation";
const STATE: &str =
    "Restore to a different VM is not supported when snapshotted VM has backend storage (persistent TPM or EFI)";

/// `/virtualmachinesnapshots-validate`.
pub fn snapshot(request: &Request) -> Verdict {
    judge(request, |snapshot: VirtualMachineSnapshot| {
        let mut causes = Vec::new();
        machine("spec.source", &snapshot.spec.source, &mut causes);
        if let Some(text) = snapshot.spec.deletion_policy.as_deref().filter(|text| !["Delete", "Retain"].contains(text))
        {
            let message = format!("spec.deletionPolicy {text:?} is not known: use Delete or Retain");
            causes.push(unsupported("spec.deletionPolicy".to_owned(), message));
        }
        causes
    })
}

/// `/virtualmachinerestores-validate`, with the restores that are there already in its namespace, and what the snapshot holds
/// where it is not brought back to its own machine.
pub fn restore(
    request: &Request,
    others: &[VirtualMachineRestore],
    elsewhere: Option<&VirtualMachineSnapshotContent>,
) -> Verdict {
    judge(request, |restore: VirtualMachineRestore| {
        let spec = &restore.spec;
        let mut causes = Vec::new();
        machine("spec.target", &spec.target, &mut causes);
        if spec.virtual_machine_snapshot_name.is_empty() {
            let field = "spec.virtualMachineSnapshotName";
            causes.push(required(field.to_owned(), format!("{field} is a required field: name a snapshot")));
        }
        volumes(spec, &mut causes);
        patches(spec, &mut causes);
        if elsewhere.is_some_and(keeps_state) {
            causes.push(invalid("spec".to_owned(), STATE.to_owned()));
        }
        let going = |other: &&VirtualMachineRestore| {
            let status = other.status.clone().unwrap_or_default();
            let over = status.complete == Some(true) || status.conditions.iter().any(|c| c.type_ == "Failure");
            other.spec.target == spec.target && !over
        };
        if let Some(other) = others.iter().find(going) {
            let name = other.metadata.name.as_deref().unwrap_or_default();
            causes.push(invalid("spec.target".to_owned(), format!("VirtualMachineRestore {name:?} in progress")));
        }
        causes
    })
}

/// True when the machine kept something beside its disks.
fn keeps_state(content: &VirtualMachineSnapshotContent) -> bool {
    let machine = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.spec.as_deref());
    let Some(domain) = machine.and_then(|machine| Some(&machine.template.spec.as_deref()?.domain)) else {
        return false;
    };
    let bootloader = domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    let efi = bootloader.and_then(|bootloader| bootloader.efi.as_ref());
    let tpm = domain.devices.tpm.as_ref().filter(|tpm| tpm.enabled != Some(false));
    efi.is_some_and(|efi| efi.persistent == Some(true)) || tpm.is_some_and(|tpm| tpm.persistent == Some(true))
}

/// What is made is judged; what is there stays as it was made.
fn judge<T: DeserializeOwned>(request: &Request, check: impl FnOnce(T) -> Vec<Cause>) -> Verdict {
    if super::deleting(&request.object) {
        return Verdict::allow();
    }
    if request.operation == "UPDATE" {
        let spec = |object: &Value| object.get("spec").cloned().unwrap_or_default();
        let same = spec(&request.object) == spec(&request.old_object);
        let cause = (!same).then(|| invalid("spec".to_owned(), IMMUTABLE.to_owned()));
        return Verdict::of_causes(cause.into_iter().collect());
    }
    match serde_json::from_value(request.object.clone()) {
        Ok(object) => Verdict::of_causes(check(object)),
        Err(error) => {
            Verdict::Invalid(vec![invalid("spec".to_owned(), format!("the object cannot be decoded: {error}"))])
        }
    }
}

fn machine(field: &str, named: &TypedLocalObjectReference, causes: &mut Vec<Cause>) {
    match named.api_group.as_deref() {
        None => causes.push(Cause {
            reason: "FieldValueNotFound",
            field: format!("{field}.apiGroup"),
            message: "missing apiGroup".to_owned(),
        }),
        Some("kubevirt.io") if named.kind != "VirtualMachine" => {
            causes.push(invalid(format!("{field}.kind"), "invalid kind".to_owned()));
        }
        Some("kubevirt.io") => {}
        Some(_) => causes.push(invalid(format!("{field}.apiGroup"), "invalid apiGroup".to_owned())),
    }
}

fn volumes(spec: &VirtualMachineRestoreSpec, causes: &mut Vec<Cause>) {
    for (index, one) in spec.volume_restore_overrides.iter().enumerate() {
        let field = format!("spec.volumeRestoreOverrides[{index}]");
        if one.volume_name.as_deref().unwrap_or_default().is_empty() {
            causes.push(required(format!("{field}.volumeName"), "must provide a volume name".to_owned()));
        }
        let named = one.restore_name.as_deref().is_some_and(|name| !name.is_empty());
        if !named && one.annotations.is_empty() && one.labels.is_empty() {
            causes.push(required(field, "must provide at least one overriden field".to_owned()));
        }
    }
    let known = ["InPlace", "RandomizeNames", "PrefixTargetName"];
    if let Some(policy) = spec.volume_restore_policy.as_deref().filter(|policy| !known.contains(policy)) {
        let message = format!("volume restore policy \"{policy}\" doesn't exist");
        causes.push(invalid("spec.volumeRestorePolicy".to_owned(), message));
    }
    if let Some(policy) = spec.volume_ownership_policy.as_deref().filter(|policy| !["Vm", "None"].contains(policy)) {
        let message = format!("volume ownership policy \"{policy}\" doesn't exist");
        causes.push(invalid("spec.volumeOwnershipPolicy".to_owned(), message));
    }
}

/// A restore changes what a machine is, and not whose it is.
fn patches(spec: &VirtualMachineRestoreSpec, causes: &mut Vec<Cause>) {
    for text in &spec.patches {
        let patch: Option<Value> = serde_json::from_str(text).ok();
        let path = patch.as_ref().and_then(|patch| patch.get("path")).and_then(Value::as_str);
        let Some(path) = path else {
            let message = format!("patch format is not valid: {text} is no operation of a JSON patch");
            causes.push(invalid("spec.patches".to_owned(), message));
            continue;
        };
        let allowed = ["/spec/", "/metadata/labels/", "/metadata/annotations/"];
        if !allowed.iter().any(|prefix| path.starts_with(prefix)) {
            let message = format!("patching is valid only for elements under /spec/ only: {path:?}");
            causes.push(invalid("spec.patches".to_owned(), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(verdict: Verdict) -> Vec<String> {
        match verdict {
            Verdict::Invalid(causes) => causes.into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect(),
            _ => Vec::new(),
        }
    }

    fn request(operation: &str, old: Value, object: Value) -> Request {
        Request { operation: operation.into(), object, old_object: old, ..Default::default() }
    }

    #[test]
    fn only_virtual_machines_can_be_snapshotted() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(spec: Value, expect: &[&str]) {
            assert_eq!(said(snapshot(&request("CREATE", Value::Null, json!({ "spec": spec })))), expect);
        }
        let vm = |group: Value, kind: &str| json!({ "source": { "apiGroup": group, "kind": kind, "name": "vm" } });
        check(vm(json!("kubevirt.io"), "VirtualMachine"), &[]);
        check(vm(Value::Null, "VirtualMachine"), &["spec.source.apiGroup: missing apiGroup"]);
        check(vm(json!("apps"), "VirtualMachine"), &["spec.source.apiGroup: invalid apiGroup"]);
        check(vm(json!("kubevirt.io"), "Pod"), &["spec.source.kind: invalid kind"]);
        let old = json!({ "spec": vm(json!("kubevirt.io"), "VirtualMachine") });
        let new = json!({ "spec": vm(json!("kubevirt.io"), "Pod") });
        assert_eq!(said(snapshot(&request("UPDATE", old, new))), ["spec: spec in immutable after creation"]);
    }

    #[test]
    fn invalid_restores_are_refused_by_field() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(more: Value, others: Value, expect: &[&str]) {
            let target = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" });
            let mut object = json!({ "spec": { "target": target, "virtualMachineSnapshotName": "s" } });
            json_patch::merge(&mut object, &json!({ "spec": more }));
            let others: Vec<VirtualMachineRestore> = serde_json::from_value(others).unwrap();
            assert_eq!(said(restore(&request("CREATE", Value::Null, object), &others, None)), expect);
        }
        let none = || json!([]);
        check(json!({ "volumeRestorePolicy": "InPlace", "volumeOwnershipPolicy": "None" }), none(), &[]);
        check(
            json!({ "volumeRestorePolicy": "Best", "volumeOwnershipPolicy": "Me" }),
            none(),
            &[
                "spec.volumeRestorePolicy: volume restore policy \"Best\" doesn't exist",
                "spec.volumeOwnershipPolicy: volume ownership policy \"Me\" doesn't exist",
            ],
        );
        check(
            json!({ "volumeRestoreOverrides": [{ "restoreName": "a" }, { "volumeName": "b" }] }),
            none(),
            &[
                "spec.volumeRestoreOverrides[0].volumeName: must provide a volume name",
                "spec.volumeRestoreOverrides[1]: must provide at least one overriden field",
            ],
        );
        let label = r#"{"op": "remove", "path": "/metadata/labels/a"}"#;
        let name = r#"{"op": "replace", "path": "/metadata/name", "value": "x"}"#;
        let wrong = "spec.patches: patching is valid only for elements under /spec/ only: \"/metadata/name\"";
        check(json!({ "patches": [label, name] }), none(), &[wrong]);
        let of = |kind: &str, status: Value| {
            let target = json!({ "apiGroup": "kubevirt.io", "kind": kind, "name": "vm" });
            json!({ "metadata": { "name": "r" }, "spec": { "target": target }, "status": status })
        };
        let busy = "spec.target: VirtualMachineRestore \"r\" in progress";
        check(json!({}), json!([of("VirtualMachine", json!({ "complete": false }))]), &[busy]);
        check(json!({}), json!([of("VirtualMachine", json!({ "complete": true }))]), &[]);
        let failed = json!({ "conditions": [{ "type": "Failure", "status": "True" }] });
        check(json!({}), json!([of("VirtualMachine", failed)]), &[]);
    }

    #[test]
    fn backend_storage_is_not_restored_to_another_vm() {
        let target = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "twin" });
        let object = json!({ "spec": { "target": target, "virtualMachineSnapshotName": "s" } });
        let judged = |domain: Value| {
            let vm = json!({ "spec": { "template": { "spec": { "domain": domain } } } });
            let content = json!({ "spec": { "source": { "virtualMachine": vm } } });
            let content: VirtualMachineSnapshotContent = serde_json::from_value(content).unwrap();
            said(restore(&request("CREATE", Value::Null, object.clone()), &[], Some(&content)))
        };
        let expect = [format!("spec: {STATE}")];
        assert_eq!(judged(json!({ "devices": { "tpm": { "persistent": true } } })), expect);
        let efi = json!({ "bootloader": { "efi": { "persistent": true } } });
        assert_eq!(judged(json!({ "devices": {}, "firmware": efi })), expect);
        assert!(judged(json!({ "devices": { "tpm": {} } })).is_empty());
    }
}
