//! migrate: a migration is made for the machine's guest. evacuate/cancel: the guest stays where it is.

use api::kubevirt::constants::{migration_priority, phase};
use api::kubevirt::v1::{
    EvacuateCancelOptions, KubeVirtConfiguration, MigrateOptions, VirtualMachineInstance,
    VirtualMachineInstanceMigration,
};
use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Context, Object, options};
use crate::cluster;
use crate::status::{Refusal, conflict, done};

/// PUT virtualmachines/NAME/migrate. The answer names the migration.
pub(super) async fn migrate(context: &Context, object: &Object, body: &Bytes) -> Result<Response, Refusal> {
    let options: MigrateOptions = options::read(body)?;
    let dry_run = options::is_dry_run(&options.dry_run)?;
    let (namespace, name) = (&object.namespace, &object.name);
    cluster::vm(&context.client, namespace, name).await?;
    let vmi = cluster::vmi(&context.client, namespace, name).await?;
    if vmi.status.as_ref().and_then(|status| status.phase.as_deref()) != Some(phase::RUNNING) {
        return Err(conflict("virtualmachine", name, "VM is not running"));
    }
    let wanted: VirtualMachineInstanceMigration = serde_json::from_value(json!({
        "metadata": { "generateName": "kubevirt-migrate-vm-" },
        "spec": {
            "vmiName": name, "addedNodeSelector": options.added_node_selector,
            // Somebody waits for it.
            "priority": migration_priority::USER_TRIGGERED,
        },
    }))
    .map_err(|error| Refusal::internal(format!("the migration cannot be written: {error}")))?;
    let api: Api<VirtualMachineInstanceMigration> = Api::namespaced(context.client.clone(), namespace);
    let created = api.create(&PostParams { dry_run, ..Default::default() }, &wanted).await?;
    let answer = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 202,
        "details": {
            "group": "kubevirt.io", "kind": "virtualmachineinstancemigrations",
            "name": created.name_any(), "uid": created.uid(),
        },
    });
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

/// PUT virtualmachineinstances/NAME/evacuate/cancel, and the same of the VM.
pub(super) async fn evacuate_cancel(
    context: &Context,
    configuration: &KubeVirtConfiguration,
    object: &Object,
    body: &Bytes,
) -> Result<Response, Refusal> {
    let options: EvacuateCancelOptions = options::read(body)?;
    let dry_run = options::is_dry_run(&options.dry_run)?;
    let (namespace, name) = (&object.namespace, &object.name);
    if object.resource == "virtualmachines" {
        cluster::vm(&context.client, namespace, name).await?;
    }
    let vmi = cluster::vmi(&context.client, namespace, name).await?;
    let status = vmi.status.as_deref().cloned().unwrap_or_default();
    let Some(leaving) = status.evacuation_node_name.filter(|node| !node.is_empty()) else { return Ok(done()) };
    being_drained(context, configuration, &leaving).await?;
    let asked = options.evacuation_node_name;
    if !asked.is_empty() && asked != leaving {
        let why = format!("it is evacuated from node {leaving:?}, not from {asked:?}");
        return Err(conflict("virtualmachineinstance", name, &why));
    }
    // Progress is written all the time meanwhile, and is no reason to refuse.
    let patch = json!({ "metadata": { "uid": vmi.metadata.uid }, "status": { "evacuationNodeName": null } });
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), namespace);
    api.patch(name, &PatchParams { dry_run, ..Default::default() }, &Patch::Merge(patch)).await?;
    Ok(done())
}

/// A node that carries the taint of a drain would be evacuated again at once.
async fn being_drained(context: &Context, configuration: &KubeVirtConfiguration, node: &str) -> Result<(), Refusal> {
    let said = configuration.migrations.as_ref().and_then(|migrations| migrations.node_drain_taint_key.clone());
    let key = said.unwrap_or_else(|| "kubevirt.io/drain".to_owned());
    let api: Api<Node> = Api::all(context.client.clone());
    let taints = api.get_opt(node).await?.and_then(|node| node.spec).and_then(|spec| spec.taints);
    let drained = |taint: &k8s_openapi::api::core::v1::Taint| taint.key == key && taint.effect == "NoSchedule";
    if taints.into_iter().flatten().any(|taint| drained(&taint)) {
        return Err(Refusal::bad_request(format!("Node {node:?} has NodeDrainTaintKey \"{key}:NoSchedule\"")));
    }
    Ok(())
}
