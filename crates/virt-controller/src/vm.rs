//! VirtualMachine -> VirtualMachineInstance: starts, stops and restarts it as the run strategy and the requests say.

pub mod instance;
pub mod plan;
pub mod status;

use api::kubevirt::{
    v1::{VirtualMachine, VirtualMachineInstance},
    words::finalizer,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kit::{Chain, clock, queue::Next, store::Key};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use plan::Step;
use serde_json::json;
use status::Facts;

use crate::{
    context::{Context, reference, vmi_words},
    error::Error,
    patch,
};

/// Brings one VM a step further.
pub async fn reconcile(context: Context, key: Key) -> Next {
    match Box::pin(sync(&context, &key)).await {
        Ok(next) => next,
        Err(error) if error.is_conflict() => {
            tracing::debug!(vm = %key, error = %Chain(&error), "conflict, again with the newer object");
            Next::Retry
        }
        Err(error) => {
            tracing::warn!(vm = %key, error = %Chain(&error), "VM not reconciled");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(vm) = context.vms.get(key) else { return Ok(Next::Wait) };
    let uid = vm.uid().unwrap_or_default();
    let found = context.vmis.get(key);
    let mut vmi = found.clone().filter(|vmi| owned_by(vmi, &uid));
    let mut facts = Facts::default();
    let now = clock::now();
    let mut plan = plan::plan(&vm, vmi.as_ref(), now);
    let mut error = None;
    if found.is_some() && vmi.is_none() {
        let name = &key.name;
        facts.failure = Some((
            "FailedCreate",
            format!("VirtualMachineInstance {name} exists and belongs to something else: delete it, or rename this VM"),
        ));
        plan.steps.retain(|step| matches!(step, Step::Hold | Step::Release));
    }
    if let Some(why) = plan::unserved(&vm).filter(|_| plan.steps.iter().any(|s| matches!(s, Step::Start { .. }))) {
        context.recorder.warning(&reference(&vm), "FailedCreate", why.clone());
        facts.failure = Some(("FailedCreate", why));
        plan.steps.retain(|step| !matches!(step, Step::Start { .. }));
    }
    for step in plan.steps.clone() {
        match execute(context, &vm, vmi.as_ref(), &step).await {
            Ok(Outcome::Released) => return Ok(Next::Wait),
            Ok(Outcome::Started(created)) => {
                vmi = Some(*created);
                plan = plan::Plan { steps: vec![], ..plan::plan(&vm, vmi.as_ref(), now) };
            }
            Ok(Outcome::Done) => {}
            Err(failed) => {
                if let Some(reason) = reason_of(&step) {
                    facts.failure = Some((reason, Chain(&failed).to_string()));
                    context.recorder.warning(&reference(&vm), reason, Chain(&failed).to_string());
                }
                error = Some(failed);
                break;
            }
        }
    }
    facts.restart_required = restart_required(context, &vm, vmi.as_ref()).await;
    let wanted = status::status(&vm, vmi.as_ref(), &plan, &facts, clock::seconds(now));
    write_status(context, &vm, wanted).await?;
    match error {
        Some(error) => Err(error),
        None => Ok(plan.again.map_or(Next::Wait, Next::After)),
    }
}

fn owned_by(vmi: &VirtualMachineInstance, uid: &str) -> bool {
    vmi.owner_references().iter().any(|owner| owner.uid == uid && owner.controller == Some(true))
}

fn reason_of(step: &Step) -> Option<&'static str> {
    match step {
        Step::Start { .. } => Some("FailedCreate"),
        Step::Stop => Some("FailedDelete"),
        Step::Hold | Step::Release | Step::ReleaseInstance => None,
    }
}

enum Outcome {
    Done,
    Started(Box<VirtualMachineInstance>),
    Released,
}

async fn execute(
    context: &Context,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    step: &Step,
) -> Result<Outcome, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let vms: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let name = vm.name_any();
    match (step, vmi) {
        (Step::Hold, _) => {
            let mut finalizers = vm.finalizers().to_vec();
            finalizers.push(finalizer::VM.to_owned());
            finalizers_patch(&vms, vm, finalizers).await.map_err(Error::api(
                "hold",
                "virtualmachine",
                &namespace,
                &name,
            ))?;
        }
        (Step::Release, _) => {
            let kept = vm.finalizers().iter().filter(|held| *held != finalizer::VM).cloned().collect();
            finalizers_patch(&vms, vm, kept).await.map_err(Error::api(
                "release",
                "virtualmachine",
                &namespace,
                &name,
            ))?;
            return Ok(Outcome::Released);
        }
        (Step::ReleaseInstance, Some(vmi)) => {
            let kept = vmi.finalizers().iter().filter(|held| *held != finalizer::VM).cloned().collect();
            let release = Error::api("release", "virtualmachineinstance", &namespace, &name);
            finalizers_patch(&vmis, vmi, kept).await.map_err(release)?;
        }
        (Step::Start { paused, receiver }, _) => {
            return start(context, vm, &vmis, *paused, *receiver).await.map(|vmi| Outcome::Started(Box::new(vmi)));
        }
        (Step::Stop, Some(vmi)) if vmi.metadata.deletion_timestamp.is_none() => {
            let params = DeleteParams {
                preconditions: Some(Preconditions { uid: vmi.uid(), resource_version: None }),
                ..Default::default()
            };
            match vmis.delete(&name, &params).await {
                Ok(_) => {
                    let message = format!(
                        "Stopped the virtual machine by deleting the virtual machine instance {}",
                        vmi.uid().unwrap_or_default()
                    );
                    context.recorder.normal(&reference(vm), "SuccessfulDelete", message);
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(Error::api("delete", "virtualmachineinstance", &namespace, &name)(error)),
            }
        }
        (Step::Stop | Step::ReleaseInstance, _) => {}
    }
    Ok(Outcome::Done)
}

async fn finalizers_patch<K>(api: &Api<K>, object: &K, finalizers: Vec<String>) -> kube::Result<()>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let version = &object.meta().resource_version;
    let patch = json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } });
    match api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(|_| ()),
    }
}

async fn start(
    context: &Context,
    vm: &VirtualMachine,
    vmis: &Api<VirtualMachineInstance>,
    paused: bool,
    receiver: bool,
) -> Result<VirtualMachineInstance, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let name = vm.name_any();
    record_revision(context, vm).await?;
    let wanted = instance::instance(vm, paused, receiver);
    let mut created = match vmis.create(&PostParams::default(), &wanted).await {
        Ok(created) => {
            let message = format!("Started the virtual machine by creating the new virtual machine instance {name}");
            context.recorder.normal(&reference(vm), "SuccessfulCreate", message);
            created
        }
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            vmis.get(&name).await.map_err(Error::api("read", "virtualmachineinstance", &namespace, &name))?
        }
        Err(error) => return Err(Error::api("create", "virtualmachineinstance", &namespace, &name)(error)),
    };
    created.metadata.managed_fields = None;
    let words = vmi_words(&created);
    context.vmis.put(&created, words);
    Ok(created)
}

/// Writes what the machine is started with, and forgets what it was started with before.
async fn record_revision(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let name = instance::revision_name(vm);
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    match api.create(&PostParams::default(), &instance::revision(vm)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => return Ok(()),
        Err(error) => return Err(Error::api("create", "controllerrevision", &namespace, &name)(error)),
    }
    if vm.metadata.generation.unwrap_or(0) <= 1 {
        return Ok(());
    }
    let prefix = format!("revision-start-vm-{}-", vm.uid().unwrap_or_default());
    // Old revisions only take room; a start does not wait for their end.
    let all = match api.list_metadata(&ListParams::default()).await {
        Ok(all) => all.items,
        Err(error) => {
            tracing::debug!(error = %Chain(&error), "old revisions not listed");
            return Ok(());
        }
    };
    for old in all.iter().map(ResourceExt::name_any).filter(|old| old.starts_with(&prefix) && *old != name) {
        if let Err(error) = api.delete(&old, &DeleteParams::default()).await {
            tracing::debug!(revision = old, error = %Chain(&error), "old revision not deleted");
        }
    }
    Ok(())
}

/// True when the running instance was made from another template than the machine has now.
async fn restart_required(context: &Context, vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> bool {
    let Some(vmi) = vmi.filter(|vmi| vmi.metadata.deletion_timestamp.is_none()) else { return false };
    let generation = vm.metadata.generation.unwrap_or(0).to_string();
    if vmi.annotations().get(api::kubevirt::words::annotation::VM_GENERATION) == Some(&generation) {
        return false;
    }
    let Some(revision) = vmi.status.as_ref().and_then(|status| status.virtual_machine_revision_name.clone()) else {
        return false;
    };
    let namespace = vm.namespace().unwrap_or_default();
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    let Ok(Some(revision)) = api.get_opt(&revision).await else { return false };
    let started = revision.data.as_ref().and_then(|data| data.0.pointer("/spec/template/spec").cloned());
    let wanted = serde_json::to_value(&vm.spec.template.spec).ok();
    started.is_some() && started != wanted
}

async fn write_status(
    context: &Context,
    vm: &VirtualMachine,
    wanted: api::kubevirt::v1::VirtualMachineStatus,
) -> Result<(), Error> {
    let old = vm.status.as_deref().cloned().unwrap_or_default();
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    // What this pass changed of the metadata (a finalizer) moved the version; requests are what must not be lost.
    let locked = changed.get("stateChangeRequests").is_some();
    let version = vm.metadata.resource_version.as_deref().filter(|_| locked);
    let mut patch = patch::status(version, &changed);
    if !locked {
        patch["metadata"] = json!({});
    }
    let namespace = vm.namespace().unwrap_or_default();
    let name = vm.name_any();
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    match api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            context.vms.put(&written, Vec::new());
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", "virtualmachine", &namespace, &name)(error)),
    }
}
