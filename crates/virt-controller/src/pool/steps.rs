//! What a pool does, done.

use std::collections::BTreeMap;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::pool::v1beta1::{VirtualMachinePool, VirtualMachinePoolSpec};
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

/// What could not be done, with the reason that the pool's condition and event have for it.
pub(super) type Trouble = (&'static str, Error);

/// What came of a plan.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The first thing that could not be done; everything else was.
    pub(super) trouble: Option<Trouble>,
    /// A name was somebody's, and no watch may tell that pool of it.
    pub(super) name_taken: bool,
}

impl Outcome {
    fn note(&mut self, reason: &'static str, failure: Option<Error>) {
        let Some(error) = failure else { return };
        self.trouble = match self.trouble.take() {
            // That somebody else wrote first is no trouble, and does not hide any.
            Some((held, other)) if error.is_conflict() || !other.is_conflict() => Some((held, other)),
            _ => Some((reason, error)),
        };
    }
}

/// Lets those of `machines` go that wait for `pool`.
pub(super) async fn let_go(context: &Context, pool: &VirtualMachinePool, machines: &[VirtualMachine]) -> Option<Error> {
    replicas::each(plan::released(machines), |vm| give_up(context, pool, vm)).await.1
}

/// Carries out `plan`, where revisions were `old`. What cannot be done with one machine does not keep another from what is done with it.
pub(super) async fn carry_out(
    own: &Pools,
    pool: &VirtualMachinePool,
    plan: &Plan<'_>,
    revision: &str,
    old: &BTreeMap<String, VirtualMachinePoolSpec>,
) -> Outcome {
    let (context, uid, mut out) = (&own.context, pool.uid().unwrap_or_default(), Outcome::default());
    out.note("FailedScaleIn", delete(own, pool, &plan.heal, None).await);
    let (freed, failure) = replicas::each(plan.detach.clone(), |vm| {
        let owners = vm.owner_references().iter().filter(|owner| owner.uid != uid).cloned().collect();
        replicas::set_owners(&context.client, (MACHINE, vm), owners)
    })
    .await;
    freed.into_iter().for_each(|vm| keep(context, vm));
    out.note("FailedUpdate", failure);
    let (_, failure) = replicas::each(plan.hold.clone(), |vm| async move {
        let finalizers = [vm.finalizers(), &[FINALIZER.to_owned()]].concat();
        write::finalizers(&context.client, (MACHINE, vm), &finalizers).await
    })
    .await;
    out.note("FailedUpdate", failure);
    create(own, pool, &plan.create, revision, &mut out).await;
    out.note("FailedScaleIn", delete(own, pool, &plan.delete, None).await);
    let (_, failure) = replicas::each(plan.renew.clone(), |(vm, number)| async move {
        let wanted = machine::renewed(pool, old.get(plan::revision_of(vm.labels())), vm, number, revision);
        renew(context, pool, &wanted).await
    })
    .await;
    out.note("FailedUpdate", failure);
    // Its disks go with it.
    out.note("FailedUpdate", delete(own, pool, &plan.replace, Some(PropagationPolicy::Foreground)).await);
    let key = Key::of(pool);
    let (_, failure) = replicas::each(plan.restart.clone(), |vmi| {
        let key = &key;
        async move {
            replicas::delete(&context.client, (INSTANCE, vmi), None).await?;
            own.going.told(key, vmi.uid().unwrap_or_default());
            Ok(())
        }
    })
    .await;
    out.note("FailedUpdate", failure);
    let relabelled = replicas::each(plan.relabel.clone(), |vmi| relabel(context, vmi, revision)).await;
    out.note("FailedUpdate", relabelled.1);
    out
}

fn keep(context: &Context, written: Option<VirtualMachine>) {
    if let Some(mut vm) = written {
        vm.metadata.managed_fields = None;
        context.stores.vms.put(&vm, vm_indexes(&vm));
    }
}

async fn create(own: &Pools, pool: &VirtualMachinePool, numbers: &[u32], revision: &str, out: &mut Outcome) {
    let context = &own.context;
    let namespace = pool.namespace().unwrap_or_default();
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let (made, failure) = replicas::in_batches(numbers.to_vec(), |number| {
        let (api, namespace) = (&api, &namespace);
        async move {
            let wanted = machine::machine(pool, number, revision);
            match api.create(&PostParams::default(), &wanted).await {
                Ok(made) => Ok(Some(made)),
                // The name is somebody's since a moment ago: the next number is taken once the watch has told.
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(None),
                Err(error) => Err(Error::api("create", MACHINE, namespace, &wanted.name_any())(error)),
            }
        }
    })
    .await;
    out.name_taken = made.iter().any(Option::is_none);
    for vm in made.into_iter().flatten() {
        let message = format!("Created VM {namespace}/{}", vm.name_any());
        context.recorder.normal(&reference(pool), "SuccessfulCreate", message);
        if let Err(error) = disks::take_in_claims(context, &vm).await {
            out.note("FailedScaleOut", Some(error));
        }
        keep(context, Some(vm));
    }
    let Some(error) = failure else { return };
    let message = format!("Error creating VM: {}", Chain(&error));
    context.recorder.warning(&reference(pool), "FailedCreate", message);
    out.note("FailedScaleOut", Some(error));
}

async fn delete(
    own: &Pools,
    pool: &VirtualMachinePool,
    machines: &[&VirtualMachine],
    policy: Option<PropagationPolicy>,
) -> Option<Error> {
    let (context, key) = (&own.context, Key::of(pool));
    let (_, failure) = replicas::each(machines.to_vec(), |vm| {
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
    let error = failure?;
    context.recorder.warning(&reference(pool), "FailedDelete", format!("Error deleting VM: {}", Chain(&error)));
    Some(error)
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

/// Writes a machine of `pool` as it is `wanted`, which is as it was read: what others changed meanwhile is not undone.
async fn renew(context: &Context, pool: &VirtualMachinePool, wanted: &VirtualMachine) -> Result<(), Error> {
    let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    match api.replace(&name, &PostParams::default(), wanted).await {
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
