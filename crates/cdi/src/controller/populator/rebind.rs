//! A volume changes hands: its `claimRef` is turned from one claim to another.

use api::cdi::constants::annotation;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kit::queue::Next;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::Error;
use crate::controller::context::Context;

/// Gives the volume `name` of `from` to `to`. A volume that is somebody else's is left alone; one that is `to`'s already is done.
pub async fn volume(
    context: &Context,
    name: &str,
    from: &PersistentVolumeClaim,
    to: &PersistentVolumeClaim,
) -> Result<Next, Error> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let Some(volume) = api.get_opt(name).await.map_err(Error::api("read", "PersistentVolume", name))? else {
        return Ok(Next::Retry);
    };
    let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.uid.clone());
    if holder == to.uid() {
        return Ok(Next::Wait);
    }
    if holder != from.uid() {
        tracing::warn!(volume = name, ?holder, "the volume is another claim's: it does not change hands");
        return Ok(Next::Wait);
    }
    let patch = json!({
        // Whoever bound it meanwhile wins.
        "metadata": {
            "resourceVersion": volume.resource_version(),
            "annotations": { annotation::POPULATED_FOR: to.name_any(), "pv.kubernetes.io/bound-by-controller": null },
        },
        "spec": { "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": to.namespace(), "name": to.name_any(),
            "uid": to.uid(), "resourceVersion": to.resource_version(), "fieldPath": null,
        } },
    });
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(Error::api(
        "rebind",
        "PersistentVolume",
        name,
    ))?;
    Ok(Next::Wait)
}
