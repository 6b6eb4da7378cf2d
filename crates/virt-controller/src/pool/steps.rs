//! What a pool does, done.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::pool::v1beta1::VirtualMachinePool;
use kit::Chain;
use kit::store::Key;
use kube::api::{Patch, PatchParams, PostParams, PropagationPolicy};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::plan::{self, Plan};
use super::{FINALIZER, MACHINE, Pools, REVISION, disks, machine};
use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::index::{vm_indexes, vmi_indexes};
use crate::{replicas, write};

const INSTANCE: &str = "virtualmachineinstance";

/// Carries out `plan`.
///
/// # Errors
/// The first thing that could not be done, with the reason that the pool's condition and event have for it.
pub(super) async fn carry_out(
    own: &Pools,
    pool: &VirtualMachinePool,
    plan: &Plan<'_>,
    revision: &str,
) -> Result<(), (&'static str, Error)> {
    let (context, uid) = (&own.context, pool.uid().unwrap_or_default());
    for vm in &plan.release {
        give_up(context, pool, vm).await.map_err(|error| ("FailedScaleIn", error))?;
    }
    delete(own, pool, &plan.heal, None).await?;
    for vm in &plan.detach {
        let owners = vm.owner_references().iter().filter(|owner| owner.uid != uid).cloned().collect();
        let freed = replicas::set_owners(&context.client, (MACHINE, *vm), owners).await;
        keep(context, freed.map_err(|error| ("FailedUpdate", error))?);
    }
    for vm in &plan.hold {
        let mut finalizers = vm.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        let held = write::finalizers(&context.client, (MACHINE, *vm), &finalizers).await;
        held.map_err(|error| ("FailedUpdate", error))?;
    }
    create(own, pool, &plan.create, revision).await?;
    delete(own, pool, &plan.delete, None).await?;
    for (vm, number) in &plan.renew {
        renew(context, pool, vm, *number, revision).await.map_err(|error| ("FailedUpdate", error))?;
    }
    // Its disks go with it.
    delete(own, pool, &plan.replace, Some(PropagationPolicy::Foreground)).await?;
    let (_, failure) = replicas::in_batches(plan.restart.clone(), |vmi| async move {
        replicas::delete(&context.client, (INSTANCE, vmi), None).await
    })
    .await;
    failure.map_or(Ok(()), |error| Err(("FailedUpdate", error)))?;
    for vmi in &plan.relabel {
        relabel(context, vmi, revision).await.map_err(|error| ("FailedUpdate", error))?;
    }
    Ok(())
}

fn keep(context: &Context, written: Option<VirtualMachine>) {
    if let Some(mut vm) = written {
        vm.metadata.managed_fields = None;
        context.stores.vms.put(&vm, vm_indexes(&vm));
    }
}

async fn create(
    own: &Pools,
    pool: &VirtualMachinePool,
    numbers: &[u32],
    revision: &str,
) -> Result<(), (&'static str, Error)> {
    let context = &own.context;
    let namespace = pool.namespace().unwrap_or_default();
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let (made, failure) = replicas::in_batches(numbers.to_vec(), |number| {
        let (api, namespace) = (&api, &namespace);
        async move {
            let wanted = machine::machine(pool, number, revision);
            match api.create(&PostParams::default(), &wanted).await {
                Ok(made) => Ok(Some(made)),
                // The name is somebody's since a moment ago: the watch tells, and the next number is taken.
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(None),
                Err(error) => Err(Error::api("create", MACHINE, namespace, &wanted.name_any())(error)),
            }
        }
    })
    .await;
    for vm in made.into_iter().flatten() {
        let message = format!("Created VM {namespace}/{}", vm.name_any());
        context.recorder.normal(&reference(pool), "SuccessfulCreate", message);
        keep(context, Some(vm));
    }
    let Some(error) = failure else { return Ok(()) };
    let message = format!("Error creating VM: {}", Chain(&error));
    context.recorder.warning(&reference(pool), "FailedCreate", message);
    Err(("FailedScaleOut", error))
}

async fn delete(
    own: &Pools,
    pool: &VirtualMachinePool,
    machines: &[&VirtualMachine],
    policy: Option<PropagationPolicy>,
) -> Result<(), (&'static str, Error)> {
    let (context, key) = (&own.context, Key::of(pool));
    let (_, failure) = replicas::in_batches(machines.to_vec(), |vm| {
        let (key, policy) = (&key, policy.clone());
        async move {
            replicas::delete(&context.client, (MACHINE, vm), policy).await?;
            let uid = vm.uid().unwrap_or_default();
            own.going.told(key, uid.clone());
            let message = format!("Deleted VM {}/{} with uid {uid} from pool", key.namespace, vm.name_any());
            context.recorder.normal(&reference(pool), "SuccessfulDelete", message);
            Ok(())
        }
    })
    .await;
    let Some(error) = failure else { return Ok(()) };
    context.recorder.warning(&reference(pool), "FailedDelete", format!("Error deleting VM: {}", Chain(&error)));
    Err(("FailedScaleIn", error))
}

/// What is left to do for a machine that is being deleted: its disks stay, where they are to.
async fn give_up(context: &Context, pool: &VirtualMachinePool, vm: &VirtualMachine) -> Result<(), Error> {
    if plan::keeps_disks(pool, vm) {
        disks::keep(context, vm).await?;
    }
    release(context, vm).await
}

/// The pool has nothing more to do with `vm`.
pub(super) async fn release(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    let left: Vec<String> = vm.finalizers().iter().filter(|name| *name != FINALIZER).cloned().collect();
    write::finalizers(&context.client, (MACHINE, vm), &left).await
}

async fn renew(
    context: &Context,
    pool: &VirtualMachinePool,
    vm: &VirtualMachine,
    number: u32,
    revision: &str,
) -> Result<(), Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    // As it was read: what others changed meanwhile is not undone.
    let wanted = machine::renewed(pool, vm, number, revision);
    match api.replace(&name, &PostParams::default(), &wanted).await {
        Ok(written) => {
            let message = format!("Updated VM {namespace}/{name}");
            context.recorder.normal(&reference(pool), "SuccessfulUpdate", message);
            keep(context, Some(written));
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("update", MACHINE, &namespace, &name)(error)),
    }
}

async fn relabel(context: &Context, vmi: &VirtualMachineInstance, revision: &str) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({ "metadata": { "uid": vmi.uid(), "labels": { (REVISION): revision } } });
    let answer = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.vmis, vmi_indexes, (INSTANCE, vmi)).map(drop)
}
