//! Carries out what a running guest gets of a changed template ([`super::live_update`]).

use api::kubevirt::constants::annotation;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use kit::merge_patch;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::chosen::References;
use super::live_update::{self, Update};
use super::started::{self, Difference};
use crate::context::Context;
use crate::error::Error;
use crate::facts::index::vmi_indexes;
use crate::facts::instance::is_final;

/// Why a machine has to be restarted whose change no running guest gets.
const NOT_LIVE: &str = "a non-live-updatable field was changed in the template spec";

/// What has to be said of the machine.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// It has to be restarted, and why.
    pub(super) restart: Option<String>,
    /// A change is not made now: a reason and a sentence.
    pub(super) failure: Option<(&'static str, String)>,
}

/// Brings to `vmi` what the template of `vm` says now, as far as that needs no restart.
pub(super) async fn follow(
    context: &Context,
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    references: &References,
) -> Result<Outcome, Error> {
    if vmi.metadata.deletion_timestamp.is_some() {
        return Ok(Outcome::default());
    }
    let wanted = match started::difference(context, vm, vmi, references).await {
        Difference::None => return Ok(Outcome::default()),
        Difference::Restart => return Ok(Outcome { restart: Some(NOT_LIVE.to_owned()), failure: None }),
        Difference::Live(wanted) => wanted,
    };
    let settings = context.settings();
    let Update { spec, failure, restart } = match settings.live_update && !is_final(vmi) {
        true => live_update::plan(&wanted, vmi, &settings),
        false => Update::default(),
    };
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let mut patch = json!({ "metadata": { "resourceVersion": vmi.metadata.resource_version } });
    if let Some(spec) = &spec {
        patch["spec"] = merge_patch::difference(&json!(vmi.spec), json!(spec)).unwrap_or_else(|| json!({}));
    }
    // Nothing is left to be done: what the machine says is what its guest is.
    let generation = vm.metadata.generation.unwrap_or(0).to_string();
    let settled = failure.is_none() && restart.is_none();
    if settled {
        patch["metadata"]["annotations"] = json!({ (annotation::VM_GENERATION): generation });
    }
    if spec.is_none() && !settled {
        return Ok(Outcome { restart, failure });
    }
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            let words = vmi_indexes(&written);
            context.stores.vmis.put(&written, words);
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(Error::api("update", "virtualmachineinstance", &namespace, &name)(error)),
    }
    Ok(Outcome { restart, failure })
}
