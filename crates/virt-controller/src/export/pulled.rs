//! A backup that is pulled, as what an export shows. Pure.

use api::backup::v1alpha1::VirtualMachineBackup;
use api::export::lending;
use api::kubevirt::v1::VirtualMachineInstance;
use kube::ResourceExt;

use super::source::{NewCondition, Pulled, Source, condition, reason};
use crate::backup::plan::{self, INCREMENTAL, pull};

/// A backup of the guest `vmi`.
pub fn of_backup(
    (namespace, name): (&str, &str),
    backup: Option<&VirtualMachineBackup>,
    vmi: Option<&VirtualMachineInstance>,
) -> Source {
    let said = |holds, message: String| {
        let new =
            NewCondition { kind: condition::BACKUP, holds, reason: reason::BACKUP_READY, message: message.clone() };
        Source { reason: reason::INITIALIZING, message, condition: Some(new), ..Source::default() }
    };
    let Some(backup) = backup else {
        return said(false, format!("VirtualMachineBackup {namespace}/{name} does not exist"));
    };
    if !pull::is_pulled(backup) {
        let why = "is written to its claim (mode Push): only one of mode Pull is exported";
        return said(false, format!("VirtualMachineBackup {namespace}/{name} {why}"));
    }
    let Some(pulled) = shown(backup, vmi) else {
        return said(false, format!("VirtualMachineBackup {namespace}/{name} is not served: {}", progress(backup)));
    };
    let source = said(true, String::new());
    Source { machine_name: Some(pulled.machine.clone()), backup: Some(pulled), free: true, ..source }
}

/// How far the backup is, in its own words.
fn progress(backup: &VirtualMachineBackup) -> &str {
    let conditions = backup.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let known = conditions.iter().find(|known| known.type_ == "Progressing");
    known.map_or("it has not begun", |known| known.message.as_str())
}

/// What is shown of one that the guest's launcher serves.
fn shown(backup: &VirtualMachineBackup, vmi: Option<&VirtualMachineInstance>) -> Option<Pulled> {
    let status = backup.status.as_ref()?;
    let vmi = vmi?;
    let told = plan::told(backup, vmi).filter(|told| told.completed != Some(true))?;
    let over = plan::is_over(backup) || backup.metadata.deletion_timestamp.is_some();
    if over || status.included_volumes.is_empty() {
        return None;
    }
    let started = backup.creation_timestamp()?;
    let name = backup.name_any();
    Some(Pulled {
        identity: lending::identity(&vmi.uid()?, &name, &started.0.to_string()),
        backup: name,
        started,
        machine: vmi.name_any(),
        node: vmi.status.as_ref()?.node_name.clone()?,
        bitmap: told.checkpoint_name.clone().filter(|_| status.type_.as_deref() == Some(INCREMENTAL)),
        volumes: status.included_volumes.iter().map(|volume| volume.volume_name.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MADE: &str = "2026-01-31T13:59:59Z";

    fn backup(more: Value) -> VirtualMachineBackup {
        let mut value = json!({
            "metadata": { "name": "b", "namespace": "ns", "uid": "u", "creationTimestamp": MADE },
            "spec": { "source": { "kind": "VirtualMachine", "name": "vm" }, "mode": "Pull", "pvcName": "out" },
            "status": {
                "type": "Full", "includedVolumes": [{ "volumeName": "root" }],
                "conditions": [{
                    "type": "Progressing", "status": "True", "reason": "Initiated", "message": "Backup is in progress",
                    "lastTransitionTime": MADE,
                }],
            },
        });
        json_patch::merge(&mut value, &more);
        serde_json::from_value(value).unwrap()
    }

    fn vmi(told: Value) -> VirtualMachineInstance {
        let mut status = json!({ "backupName": "b", "startTimestamp": MADE, "checkpointName": "b-1" });
        json_patch::merge(&mut status, &told);
        serde_json::from_value(json!({
            "metadata": { "name": "vm", "namespace": "ns", "uid": "i" },
            "status": { "nodeName": "n", "changedBlockTracking": { "state": "Enabled", "backupStatus": status } },
        }))
        .unwrap()
    }

    #[test]
    fn a_backup_is_shown_while_qemu_serves_it() {
        let served = of_backup(("ns", "b"), Some(&backup(json!({}))), Some(&vmi(json!({}))));
        assert!(served.is_served() && served.condition.unwrap().holds);
        let pulled = served.backup.unwrap();
        assert_eq!(pulled.identity, format!("i/b/{MADE}"));
        assert_eq!((pulled.node.as_str(), pulled.bitmap), ("n", None));
        let since = backup(json!({ "status": { "type": "Incremental" } }));
        let since = of_backup(("ns", "b"), Some(&since), Some(&vmi(json!({})))).backup.unwrap();
        assert_eq!(since.bitmap.as_deref(), Some("b-1"));

        #[track_caller]
        fn check(found: Option<Value>, vmi: Option<VirtualMachineInstance>, expect: &str) {
            let backup = found.map(backup);
            let source = of_backup(("ns", "b"), backup.as_ref(), vmi.as_ref());
            assert!(!source.is_served());
            assert_eq!(source.message, format!("VirtualMachineBackup ns/b {expect}"));
        }
        check(None, None, "does not exist");
        let push = "is written to its claim (mode Push): only one of mode Pull is exported";
        check(Some(json!({ "spec": { "mode": "Push" } })), Some(vmi(json!({}))), push);
        check(Some(json!({})), None, "is not served: Backup is in progress");
        check(Some(json!({ "status": null })), Some(vmi(json!({}))), "is not served: it has not begun");
        check(Some(json!({})), Some(vmi(json!({ "completed": true }))), "is not served: Backup is in progress");
        check(Some(json!({})), Some(vmi(json!({ "backupName": "c" }))), "is not served: Backup is in progress");
        let deleted = json!({ "metadata": { "deletionTimestamp": MADE } });
        check(Some(deleted), Some(vmi(json!({}))), "is not served: Backup is in progress");
    }
}
