//! A guest that is to have other CPUs or other memory than it has: its pod is resized in place, before the guest grows and after it has
//! shrunk. Where that cannot be, the guest gets what it asks for by a migration ([`crate::workload_update`]).

pub mod plan;

use std::time::Duration;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use kube::{Api, ResourceExt};
use plan::Room;
use serde_json::json;

use super::pod;
use crate::context::Context;
use crate::error::Error;
use crate::facts::claims::Claims;
use crate::facts::index::pod_indexes;
use crate::facts::trim;
use crate::limits;
use crate::settings::Settings;

/// Until what a namespace's quota or an older API server refused is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// Sees to the room that the running guest of `vmi` is to have in `pod`, and says in `wanted` how far that is. When to look again,
/// where nobody tells.
pub(super) async fn follow(
    context: &Context,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    (claims, settings, emulation): (&Claims, &Settings, bool),
    (wanted, now): (&mut VirtualMachineInstanceStatus, Timestamp),
) -> Result<Option<Duration>, Error> {
    let change = plan::change(vmi);
    if !change.is_any() && !plan::is_told(vmi) {
        return Ok(None);
    }
    let (room, again) = match ask(context, vmi, pod, claims, (settings, emulation)).await {
        Ok(pod) => (plan::room(&pod), None),
        Err(Refusal::Final(why)) => (Room::Never(why), Some(TRY_AGAIN)),
        Err(Refusal::Error(error)) => return Err(error),
    };
    plan::tell(wanted, change, &room, now);
    Ok(again.filter(|_| change.is_any()))
}

/// Why a pod is not asked to be larger.
enum Refusal {
    /// The API server says no.
    Final(String),
    /// It could not be asked.
    Error(Error),
}

/// Asks for the room that the guest needs at most, on its way from what it has to what it is to have. The pod as it is then.
async fn ask(
    context: &Context,
    vmi: &VirtualMachineInstance,
    held: &Pod,
    claims: &Claims,
    (settings, emulation): (&Settings, bool),
) -> Result<Pod, Refusal> {
    let namespace = vmi.namespace().unwrap_or_default();
    let largest = plan::largest(vmi);
    let mut rendered =
        pod::render(&largest, claims, settings, emulation).map_err(|error| Refusal::Error(Error::Render(error)))?;
    let limited = limits::meet(context, &mut rendered, &namespace, limits::vcpus(&largest)).await;
    limited.map_err(Refusal::Error)?;
    let wanted: ResourceRequirements = plan::compute(&rendered).cloned().unwrap_or_default();
    let Some(patch) = plan::patch(held, &wanted) else { return Ok(held.clone()) };
    let name = held.name_any();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let patch = Patch::Strategic(json!({ "spec": patch }));
    match api.patch_subresource("resize", &name, &PatchParams::default(), &patch).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            let words = pod_indexes(&written);
            trim::pod(&mut written);
            context.stores.pods.put(&written, words);
            Ok(written)
        }
        Err(kube::Error::Api(status)) if is_final(&status) => Err(Refusal::Final(said(&status))),
        Err(error) => Err(Refusal::Error(Error::api("resize", "pod", &namespace, &name)(error))),
    }
}

/// Whether the answer stays the same for this pod until something else changes: an API server older than the subresource, a quota,
/// what may not be resized. A conflict is none.
fn is_final(status: &Status) -> bool {
    matches!(status.code, 400 | 403 | 404 | 405 | 422)
}

fn said(status: &Status) -> String {
    match status.code {
        404 | 405 => "this cluster does not resize pods in place".to_owned(),
        _ => format!("the pod cannot be resized: {}", status.message),
    }
}
