//! What a machine was started with: kept in a revision, and compared with what the machine says now.

use api::kubevirt::constants::annotation;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kit::Chain;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};

use super::chosen::{self, References};
use super::{hotplug, instance, live_update};
use crate::context::Context;
use crate::error::Error;

/// How the machine differs from what its instance was started with.
#[derive(Debug)]
pub(super) enum Difference {
    /// It is not known, or there is none.
    None,
    /// In what a running guest may get: the template with all that the machine chose.
    Live(Box<VirtualMachineInstanceSpec>),
    /// In what only a new guest has.
    Restart,
}

/// Writes what the machine is started with, and forgets what it was started with before.
pub(super) async fn record(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
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

/// How `vm` differs from what `vmi` was started with; what may be changed of a running guest counts only where the administrator
/// wants it to be changed.
pub(super) async fn difference(
    context: &Context,
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    references: &References,
) -> Difference {
    let generation = vm.metadata.generation.unwrap_or(0).to_string();
    if vmi.annotations().get(annotation::VM_GENERATION) == Some(&generation) {
        return Difference::None;
    }
    let Some(revision) = vmi.status.as_ref().and_then(|status| status.virtual_machine_revision_name.clone()) else {
        return Difference::None;
    };
    let namespace = vm.namespace().unwrap_or_default();
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    let Ok(Some(revision)) = api.get_opt(&revision).await else { return Difference::None };
    let Some(data) = revision.data.as_ref().and_then(|data| data.0.get("spec")) else { return Difference::None };
    let mut started = vm.clone();
    match serde_json::from_value(data.clone()) {
        Ok(spec) => started.spec = spec,
        Err(_) => return Difference::None,
    }
    let live = context.settings().live_update;
    // Both as they run: another instance type may come to no more than other numbers.
    let (before, now) = if live {
        let before = chosen::written_out(context, &started, &References::default()).await;
        let now = chosen::written_out(context, vm, references).await;
        let (Ok(before), Ok(now)) = (before, now) else {
            let differs = chosen::differs(data, vm, references);
            return if differs { Difference::Restart } else { Difference::None };
        };
        (before, now)
    } else if chosen::differs(data, vm, references) {
        return Difference::Restart;
    } else {
        (started, vm.clone())
    };
    let template = |vm: VirtualMachine| vm.spec.template.spec;
    let (Some(mut before), Some(now)) = (template(before), template(now)) else { return Difference::None };
    if live {
        live_update::carry(&mut before, &now);
    }
    if hotplug::needs_restart(&before, &now) { Difference::Restart } else { Difference::Live(now) }
}
