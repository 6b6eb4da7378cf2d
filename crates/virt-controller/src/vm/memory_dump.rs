//! Dumps of a machine's memory: what virt-api writes into the machine's status is carried out here, up to the instance, whose
//! node has the launcher write.

pub mod plan;

use api::kubevirt::memory_dump::ANNOTATION;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineMemoryDumpRequest};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::backup::set_volumes;
use crate::context::Context;
use crate::error::Error;
use crate::facts::index::vm_indexes;
use crate::write;

/// The reason of a machine whose dump does not go on.
pub(super) const TROUBLE: &str = "MemoryDumpError";

/// A request, or that there is none any more.
pub(super) type Settled = Option<Box<VirtualMachineMemoryDumpRequest>>;

/// Carries out the next step; the request as it is then, none when no dump is asked of `vm`.
pub(super) async fn carry_out(
    context: &Context,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
) -> Result<Option<Settled>, Error> {
    let Some(plan) = plan::plan(vm, vmi) else { return Ok(None) };
    let claim = plan.request.as_ref().map(|request| request.claim_name.clone()).unwrap_or_default();
    if let Some(text) = &plan.annotation {
        annotate(context, vm, &claim, text).await?;
    }
    if let Some(volumes) = &plan.template {
        let patch = json!({ "spec": { "template": { "spec": { "volumes": volumes } } } });
        template(context, vm, patch).await?;
    }
    if let (Some(volumes), Some(vmi)) = (&plan.instance, vmi) {
        set_volumes(context, vmi, volumes).await?;
    }
    Ok(Some(plan.request))
}

async fn template(context: &Context, vm: &VirtualMachine, mut patch: Value) -> Result<(), Error> {
    patch["metadata"] = json!({ "resourceVersion": vm.metadata.resource_version });
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &vm.namespace().unwrap_or_default());
    let answer = api.patch(&vm.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.vms, vm_indexes, ("virtualmachine", vm)).map(drop)
}

/// Has the claim say which of its files is the dump. A claim that is gone has none.
async fn annotate(context: &Context, vm: &VirtualMachine, claim: &str, text: &str) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let known = context.stores.claims.get(&Key::new(namespace.as_str(), claim));
    if known.is_none_or(|known| known.annotations().get(ANNOTATION).is_some_and(|said| said == text)) {
        return Ok(());
    }
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({ "metadata": { "annotations": { ANNOTATION: text } } });
    match api.patch(claim, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("annotate", "persistentvolumeclaim", &namespace, claim)(error)),
    }
}
