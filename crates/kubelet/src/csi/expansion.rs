//! Growing a volume on its node: the cluster made it larger and says so at the claim, the driver grows what is on it, and
//! the claim's status says that it is done.
//!
//! It happens before the containers start, and while they run: one watch on each claim that is used here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use kit::backoff::Backoff;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use rpc::csi::{CapacityRange, NodeExpandVolumeRequest};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::{secrets, volume};
use crate::claim::Claim;
use crate::context::{Context, about};
use crate::drivers::driver;
use crate::drivers::places::Places;
use crate::drivers::request::{self, Volume};
use crate::error::{Error, Result};
use crate::inventory::ClaimName;
use crate::known::Known;
use crate::resources;

const RETRY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(120) };
/// What a claim's status says of a volume that its node is to grow.
const PENDING: [&str; 2] = ["NodeResizePending", "NodeResizeInProgress"];
const INFEASIBLE: &str = "NodeResizeInfeasible";
const WAITS_FOR_NODE: &str = "FileSystemResizePending";

/// Grows volumes of running pods until `shutdown`.
pub(crate) async fn run(context: Arc<Context>, pods: Known, shutdown: CancellationToken) -> Result<()> {
    let mut changes = context.volumes.changes();
    let mut watched: BTreeMap<ClaimName, kit::Task<()>> = BTreeMap::new();
    loop {
        let wanted: BTreeSet<ClaimName> = changes
            .borrow_and_update()
            .values()
            .flat_map(|pod| pod.values())
            .filter(|volume| volume.csi.is_some())
            .filter_map(|volume| volume.claim.clone())
            .collect();
        watched.retain(|claim, _| wanted.contains(claim));
        for claim in wanted {
            watched
                .entry(claim.clone())
                .or_insert_with(|| kit::spawn("claim", follow(context.clone(), pods.clone(), claim)));
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return Ok(()) },
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

/// Follows one claim.
async fn follow(context: Arc<Context>, pods: Known, (namespace, name): ClaimName) {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(api.clone(), config).default_backoff().applied_objects().boxed();
    while let Some(event) = events.next().await {
        let Ok(mut claim) = event else { continue };
        let mut failures = 0;
        while is_pending(&claim) {
            match grow_running(&context, &pods, &claim).await {
                Ok(()) => break,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(claim = name, error = %kit::Chain(&error), "a volume was not grown");
                }
            }
            tokio::time::sleep(RETRY.delay(failures)).await;
            match api.get(&name).await {
                Ok(newest) => claim = newest,
                Err(_) => break,
            }
        }
    }
}

fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    let Some(status) = &claim.status else { return false };
    let said = status.allocated_resource_statuses.as_ref().and_then(|all| all.get("storage"));
    let required = status.conditions.iter().flatten().any(|c| c.type_ == WAITS_FOR_NODE && c.status == "True");
    said.is_some_and(|said| PENDING.contains(&said.as_str()))
        || (required && said.map(String::as_str) != Some(INFEASIBLE))
}

/// The size to grow to, if the volume is larger than the claim says it is.
fn larger(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<i64> {
    let size = |capacity: Option<&BTreeMap<_, _>>| capacity.and_then(|c| c.get("storage")).and_then(resources::value);
    let has = size(claim.status.as_ref().and_then(|status| status.capacity.as_ref()))?;
    let is = size(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))?;
    (is > has).then_some(is)
}

async fn grow_running(context: &Context, pods: &Known, claim: &PersistentVolumeClaim) -> Result<()> {
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let found = api.get(&name).await.map_err(Error::api(format!("get persistentvolume {name:?}")))?;
    let (Some(size), Some(wanted)) = (larger(claim, &found), request::persistent(&found, false)) else { return Ok(()) };
    let places = Places::new(&context.config.root);
    let known = pods.borrow().clone();
    let user = known.iter().find(|(uid, _)| volume::already(places, uid, &wanted).is_some());
    match user.map(|(uid, pod)| (pod.clone(), volume::published_path(places, uid, &wanted))) {
        Some((pod, path)) => grow(context, &pod, claim, &wanted, path, size).await,
        // Between two pods: the next one's start grows it.
        None => Ok(()),
    }
}

/// Grows a volume that was made larger while no pod used it.
pub(crate) async fn on_mount(context: &Context, pod: &Pod, claim: &Claim, wanted: &Volume) -> Result<()> {
    let (true, Some(size)) = (is_pending(&claim.claim), larger(&claim.claim, &claim.volume)) else { return Ok(()) };
    let places = Places::new(&context.config.root);
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let path = volume::published_path(places, uid, wanted);
    grow(context, pod, &claim.claim, wanted, path, size).await
}

async fn grow(
    context: &Context,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
    wanted: &Volume,
    path: PathBuf,
    size: i64,
) -> Result<()> {
    let lock = context.csi.lock(&wanted.driver, &wanted.handle);
    let _held = lock.lock().await;
    let driver = context.csi.drivers.get(&wanted.driver)?;
    if !driver.abilities.expands {
        return Ok(());
    }
    let places = Places::new(&context.config.root);
    let staging = driver.abilities.stages.then(|| volume::staging_path(places, wanted));
    let request = NodeExpandVolumeRequest {
        volume_id: wanted.handle.clone(),
        volume_path: path.display().to_string(),
        capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
        staging_target_path: staging.map(|path| path.display().to_string()).unwrap_or_default(),
        volume_capability: Some(wanted.capability(driver.abilities, volume::fs_group(pod))),
        secrets: secrets::read(context, wanted.expand_secret.as_ref()).await?,
    };
    let outcome = driver::ask(driver.node().node_expand_volume(request)).await;
    let node = &context.config.node_name;
    match outcome {
        Ok(_) => {
            write(context, claim, grown(claim, size)).await?;
            let message = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} {node}", wanted.name);
            context.events.normal(&about(pod), "FileSystemResizeSuccessful", message.clone());
            context.events.normal(&about_claim(claim), "FileSystemResizeSuccessful", message);
            Ok(())
        }
        Err(error) => {
            let message = format!(
                "NodeExpandVolume.NodeExpandVolume failed for volume {:?} : {}",
                wanted.name,
                kit::Chain(&error)
            );
            context.events.warning(&about(pod), "VolumeResizeFailed", message);
            if is_infeasible(&error) {
                write(context, claim, json!({"allocatedResourceStatuses": {"storage": INFEASIBLE}})).await?;
                return Ok(());
            }
            Err(Error::Mount {
                operation: "MountVolume.NodeExpandVolume",
                name: wanted.name.clone(),
                source: Box::new(error),
            })
        }
    }
}

/// Not to be tried again as it is.
fn is_infeasible(error: &Error) -> bool {
    let codes = [Code::InvalidArgument, Code::OutOfRange, Code::NotFound];
    matches!(error, Error::Driver(status) if codes.contains(&status.0.code()))
}

/// The claim's status when the volume has `size`.
fn grown(claim: &PersistentVolumeClaim, size: i64) -> Value {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let statuses = claim.status.iter().flat_map(|status| status.allocated_resource_statuses.iter().flatten());
    let others = statuses.filter(|(resource, _)| *resource != "storage").count();
    let left: Vec<_> = conditions.filter(|c| !matches!(c.type_.as_str(), WAITS_FOR_NODE | "Resizing")).collect();
    json!({
        "capacity": {"storage": text(claim, size)},
        "conditions": if left.is_empty() { Value::Null } else { json!(left) },
        "allocatedResourceStatuses": if others == 0 { Value::Null } else { json!({"storage": null}) },
    })
}

/// In the words in which it was asked for, when it is that much.
fn text(claim: &PersistentVolumeClaim, size: i64) -> Value {
    let asked = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    match asked.filter(|asked| resources::value(asked) == Some(size)) {
        Some(asked) => json!(asked),
        None => json!(size.to_string()),
    }
}

async fn write(context: &Context, claim: &PersistentVolumeClaim, status: Value) -> Result<()> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let written = api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await;
    written.map(drop).map_err(Error::api(format!("write the status of persistentvolumeclaim {name:?}")))
}

fn about_claim(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        uid: claim.metadata.uid.clone(),
        ..Default::default()
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "documents are written where they are used")]
mod tests {
    use super::*;

    fn claim(status: Value) -> PersistentVolumeClaim {
        let spec = json!({"resources": {"requests": {"storage": "2Gi"}}});
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn claims_pending_expansion_on_the_node_are_recognized() {
        let check = |status: Value, expect| assert_eq!(is_pending(&claim(status.clone())), expect, "{status}");
        let required = json!([{"type": "FileSystemResizePending", "status": "True"}]);
        check(json!({}), false);
        check(json!({"conditions": required}), true);
        check(json!({"allocatedResourceStatuses": {"storage": "NodeResizePending"}}), true);
        check(json!({"allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}), false);
        check(json!({"conditions": required, "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}), false);
    }

    #[test]
    fn sizes() {
        let volume = |size: &str| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {}, "spec": {"capacity": {"storage": size}}})).unwrap()
        };
        let small = claim(json!({"capacity": {"storage": "1Gi"}, "conditions": [
            {"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"}]}));
        assert_eq!(larger(&small, &volume("2Gi")), Some(2 << 30));
        assert_eq!(larger(&small, &volume("1Gi")), None);
        let status = grown(&small, 2 << 30);
        assert_eq!(status["capacity"]["storage"], "2Gi");
        assert_eq!(status["conditions"], json!([{"type": "Other", "status": "True"}]));
    }
}
