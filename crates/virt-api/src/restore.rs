//! The webhook of restores: of one target there is one at a time, so it looks at the others; and what a machine keeps beside
//! its disks is not brought to another, so it looks at what was kept.

use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot, VirtualMachineSnapshotContent};
use kit::Chain;
use kit::admission::{Request, Verdict};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::validate;

/// `/virtualmachinerestores-validate`.
pub(crate) async fn review(client: Client, request: Request) -> Verdict {
    if request.operation == "UPDATE" {
        return validate::snapshot::restore(&request, &[], None);
    }
    match look(client, &request).await {
        Ok((others, elsewhere)) => validate::snapshot::restore(&request, &others, elsewhere.as_ref()),
        Err(error) => Verdict::Deny {
            code: 500,
            reason: "InternalError",
            message: format!("cannot look at the restores of namespace {}: {}", request.namespace, Chain(&error)),
        },
    }
}

/// The restores that are there, and what is kept of another machine than the one that is to be brought back.
async fn look(
    client: Client,
    request: &Request,
) -> kube::Result<(Vec<VirtualMachineRestore>, Option<VirtualMachineSnapshotContent>)> {
    let namespace = &request.namespace;
    let restores: Api<VirtualMachineRestore> = Api::namespaced(client.clone(), namespace);
    let others = restores.list(&ListParams::default()).await?.items;
    let named = |path: &str| request.object.pointer(path).and_then(Value::as_str).filter(|name| !name.is_empty());
    let (Some(target), Some(name)) = (named("/spec/target/name"), named("/spec/virtualMachineSnapshotName")) else {
        return Ok((others, None));
    };
    let snapshots: Api<VirtualMachineSnapshot> = Api::namespaced(client.clone(), namespace);
    let status = snapshots.get_opt(name).await?.and_then(|snapshot| snapshot.status);
    let Some((Some(source), Some(content))) =
        status.map(|status| (status.source_uid, status.virtual_machine_snapshot_content_name))
    else {
        return Ok((others, None));
    };
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    if vms.get_opt(target).await?.is_some_and(|vm| vm.uid().as_ref() == Some(&source)) {
        return Ok((others, None));
    }
    let contents: Api<VirtualMachineSnapshotContent> = Api::namespaced(client, namespace);
    Ok((others, contents.get_opt(&content).await?))
}
