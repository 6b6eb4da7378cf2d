//! What virt-api reads and writes of the cluster: one object at a time, no cache.

use std::time::Duration;

use api::kubevirt::constants::label;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::status::Refusal;

/// The machine called so.
///
/// # Errors
/// When there is none.
pub(crate) async fn vm(client: &Client, namespace: &str, name: &str) -> Result<VirtualMachine, Refusal> {
    let api: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    api.get_opt(name)
        .await?
        .ok_or_else(|| Refusal::not_found(format!("virtualmachine.kubevirt.io \"{name}\" not found")))
}

/// The instance called so, if there is one.
///
/// # Errors
/// When the API server does not answer.
pub(crate) async fn find_vmi(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<VirtualMachineInstance>, Refusal> {
    let api: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    Ok(api.get_opt(name).await?)
}

/// The instance called so.
///
/// # Errors
/// When there is none.
pub(crate) async fn vmi(client: &Client, namespace: &str, name: &str) -> Result<VirtualMachineInstance, Refusal> {
    find_vmi(client, namespace, name)
        .await?
        .ok_or_else(|| Refusal::not_found(format!("virtualmachineinstance.kubevirt.io \"{name}\" not found")))
}

/// Patches the machine's spec.
///
/// # Errors
/// When the API server refuses.
pub(crate) async fn patch_vm(client: &Client, vm: &VirtualMachine, patch: Value, dry_run: bool) -> Result<(), Refusal> {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams { dry_run, ..Default::default() };
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    api.patch(name, &params, &Patch::Merge(patch)).await?;
    Ok(())
}

/// Patches the machine's status, as it was read.
///
/// # Errors
/// When it has changed since, or the API server refuses.
pub(crate) async fn patch_vm_status(
    client: &Client,
    vm: &VirtualMachine,
    mut patch: Value,
    dry_run: bool,
) -> Result<(), Refusal> {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    patch["metadata"] = serde_json::json!({ "resourceVersion": vm.metadata.resource_version });
    let params = PatchParams { dry_run, ..Default::default() };
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    api.patch_status(name, &params, &Patch::Merge(patch)).await?;
    Ok(())
}

/// Patches the instance.
///
/// # Errors
/// When the API server refuses.
pub(crate) async fn patch_vmi(
    client: &Client,
    vmi: &VirtualMachineInstance,
    patch: Value,
    dry_run: bool,
) -> Result<(), Refusal> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams { dry_run, ..Default::default() };
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    api.patch(name, &params, &Patch::Merge(patch)).await?;
    Ok(())
}

/// The pods that were made for an instance on the node it runs on.
///
/// # Errors
/// When the API server does not answer.
pub(crate) async fn launchers(client: &Client, vmi: &VirtualMachineInstance) -> Result<Vec<Pod>, Refusal> {
    let api: Api<Pod> = Api::namespaced(client.clone(), vmi.metadata.namespace.as_deref().unwrap_or_default());
    let node = vmi.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default();
    let params = ListParams::default()
        .labels(&format!("{}={}", label::CREATED_BY, vmi.metadata.uid.as_deref().unwrap_or_default()))
        .fields(&format!("spec.nodeName={node}"));
    Ok(api.list(&params).await?.items)
}

/// While virt-handler is replaced, nobody answers on its node: whoever asks then waits for the next one instead of failing.
const REPLACED: Duration = Duration::from_secs(15);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(250);

/// Address of virt-handler on `node`, once one is ready there.
///
/// # Errors
/// When none runs there for a while.
pub(crate) async fn handler(client: &Client, namespace: &str, node: &str) -> Result<String, Refusal> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default()
        .labels(&format!("{}={}", label::APP, label::APP_VIRT_HANDLER))
        .fields(&format!("spec.nodeName={node}"));
    let deadline = Instant::now() + REPLACED;
    loop {
        let pods = api.list(&params).await?;
        let over = Instant::now() >= deadline;
        // One that does not become ready is asked in the end: why it does not answer says more than that it is not ready.
        if let Some(address) = pods.items.iter().filter(|pod| over || !is_unready(pod)).find_map(address) {
            return Ok(address);
        }
        if over {
            return Err(Refusal::unreachable(format!(
                "virt-handler does not run on node {node}: see `kubectl get pods -n {namespace} -o wide`"
            )));
        }
        sleep(LOOK).await;
    }
}

/// Where a pod that runs, and is to go on, can be reached.
fn address(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref().filter(|_| pod.metadata.deletion_timestamp.is_none())?;
    let ip = status.pod_ip.clone().filter(|ip| !ip.is_empty());
    ip.filter(|_| status.phase.as_deref() == Some("Running"))
}

fn is_unready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status != "True")
}
