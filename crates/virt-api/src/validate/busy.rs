//! What of a machine stays as it is while a snapshot is made of it, or while it is brought back to one.

use api::kubevirt::constants::run_strategy;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineSpec, Volume};
use kit::admission::{Cause, Request};

use super::unsupported;

/// What a change of `new`, as which `request` has it, would spoil.
pub(super) fn check(new: &VirtualMachine, request: &Request) -> Vec<Cause> {
    let status = new.status.as_deref();
    let (Some(status), "UPDATE") = (status, request.operation.as_str()) else { return Vec::new() };
    if status.restore_in_progress.is_none() && status.snapshot_in_progress.is_none() {
        return Vec::new();
    }
    let Ok(old) = serde_json::from_value::<VirtualMachine>(request.old_object.clone()) else { return Vec::new() };
    let refuse = |what: &str, why: &str, name: &str| {
        vec![unsupported("spec".to_owned(), format!("Cannot update {what} until {why} {name:?} completes"))]
    };
    if let Some(restore) = &status.restore_in_progress
        && strategy(&old.spec) != strategy(&new.spec)
    {
        return refuse("VM runStrategy", "restore", restore);
    }
    let Some(snapshot) = &status.snapshot_in_progress else { return Vec::new() };
    if volumes(&old.spec) != volumes(&new.spec) {
        return refuse("vm disks or volumes", "snapshot", snapshot);
    }
    if (old.spec.running, &old.spec.run_strategy) != (new.spec.running, &new.spec.run_strategy) {
        return refuse("vm running state", "snapshot", snapshot);
    }
    Vec::new()
}

fn volumes(spec: &VirtualMachineSpec) -> &[Volume] {
    spec.template.spec.as_deref().map(|spec| spec.volumes.as_slice()).unwrap_or_default()
}

fn strategy(spec: &VirtualMachineSpec) -> &str {
    let said = spec.running.map(|running| if running { run_strategy::ALWAYS } else { run_strategy::HALTED });
    said.or(spec.run_strategy.as_deref()).unwrap_or(run_strategy::HALTED)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_running_snapshot_or_restore_forbids_changes() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check_change(status: Value, change: Value, expect: &[&str]) {
            let old = json!({ "metadata": { "name": "vm" }, "status": status, "spec": {
                "runStrategy": "Halted",
                "template": { "spec": { "domain": { "devices": {} }, "volumes": [{ "name": "a" }] } },
            } });
            let mut object = old.clone();
            json_patch::merge(&mut object, &json!({ "spec": change }));
            let new = serde_json::from_value(object.clone()).unwrap();
            let request = Request { operation: "UPDATE".into(), object, old_object: old, ..Default::default() };
            let found = check(&new, &request).into_iter().map(|cause| format!("{}: {}", cause.field, cause.message));
            assert_eq!(found.collect::<Vec<_>>(), expect);
        }
        let start = || json!({ "runStrategy": "Always" });
        let plug = || json!({ "template": { "spec": { "volumes": [{ "name": "b" }] } } });
        let label = || json!({ "template": { "metadata": { "labels": { "a": "b" } } } });
        check_change(json!({}), start(), &[]);
        let restore = || json!({ "restoreInProgress": "r" });
        check_change(restore(), start(), &["spec: Cannot update VM runStrategy until restore \"r\" completes"]);
        check_change(restore(), json!({ "runStrategy": null, "running": false }), &[]);
        check_change(restore(), plug(), &[]);
        let snapshot = || json!({ "snapshotInProgress": "s" });
        check_change(snapshot(), start(), &["spec: Cannot update vm running state until snapshot \"s\" completes"]);
        check_change(snapshot(), plug(), &["spec: Cannot update vm disks or volumes until snapshot \"s\" completes"]);
        check_change(snapshot(), label(), &[]);
    }
}
