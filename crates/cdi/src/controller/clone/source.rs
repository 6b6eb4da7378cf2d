//! What is cloned: whether it can be, how large it is, and whose driver has it.

use api::cdi::constants::label;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kit::store::Key;
use kube::ResourceExt;
use kube::core::DynamicObject;

use crate::controller::clone::plan::Source;
use crate::controller::context::Context;
use crate::controller::settings::bytes;
use crate::controller::storage::FILESYSTEM;

/// The pod that uses `claim`, of those that are not ours and not over.
pub fn in_use(context: &Context, claim: &PersistentVolumeClaim) -> Option<String> {
    let users = context.users(&claim.namespace().unwrap_or_default(), &claim.name_any());
    let found = users.into_iter().find(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        let ours = pod.labels().get(label::APP).map(String::as_str) == Some(label::APP_VALUE);
        let cloner = pod.labels().get(label::COMPONENT).map(String::as_str) == Some(label::CLONER);
        let over = matches!(phase, "Succeeded" | "Failed");
        !(over || (ours && cloner) || reads_only(pod, &claim.name_any()))
    });
    found.map(|pod| pod.name_any())
}

fn reads_only(pod: &Pod, claim: &str) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).into_iter().flatten();
    let mut of_claim =
        volumes.filter(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|one| one.claim_name == claim));
    of_claim.all(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|one| one.read_only == Some(true)))
}

/// Why `claim` cannot be cloned yet.
pub fn unready(context: &Context, claim: &PersistentVolumeClaim) -> Option<String> {
    let key = Key::of(claim);
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return Some(format!("the source PVC {key} is not bound"));
    }
    let volume = context.volumes.get(&key)?;
    let phase = volume.status.and_then(|status| status.phase).unwrap_or_default();
    (phase != "Succeeded").then(|| format!("the source DataVolume {key} is not filled: its phase is {phase}"))
}

/// The volume mode of `claim`.
pub fn mode(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or(FILESYSTEM)
}

/// The size of a claim of `snapshot`.
pub fn restore_size(snapshot: &DynamicObject) -> Option<u64> {
    let size = snapshot.data["status"]["restoreSize"].as_str()?;
    Some(bytes(&Quantity(size.to_owned())))
}

/// Why `snapshot` is not ready, if its driver says.
pub fn failure(snapshot: &DynamicObject) -> Option<String> {
    let error = &snapshot.data["status"]["error"];
    let said =
        error["message"].as_str().filter(|text| !text.is_empty()).or(error.is_object().then_some("no reason"))?;
    let namespace = snapshot.namespace().unwrap_or_default();
    Some(format!("VolumeSnapshot {namespace}/{} is not ready: {said}", snapshot.name_any()))
}

/// The driver that has `source`.
pub fn driver_of(context: &Context, source: &Source) -> String {
    match source {
        Source::Claim(claim) => {
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
            let volume = context.persistent.get(&Key::new("", volume));
            let csi = volume.and_then(|volume| volume.spec?.csi).map(|csi| csi.driver);
            csi.or_else(|| context.class_of(claim).map(|class| class.provisioner)).unwrap_or_default()
        }
        Source::Snapshot(snapshot) => {
            let class = snapshot.data["spec"]["volumeSnapshotClassName"].as_str().unwrap_or_default();
            let class = context.snapshot_classes.get(&Key::new("", class));
            class.and_then(|class| class.data["driver"].as_str().map(ToOwned::to_owned)).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_snapshot_says_what_is_wrong_with_it() {
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(status: Value, expect: Option<&str>) {
            let metadata = json!({ "name": "s", "namespace": "ns" });
            let object =
                json!({ "apiVersion": "v1", "kind": "VolumeSnapshot", "metadata": metadata, "status": status });
            assert_eq!(failure(&serde_json::from_value(object).unwrap()).as_deref(), expect);
        }
        check(json!(null), None);
        check(json!({ "readyToUse": false }), None);
        let full = json!({ "readyToUse": false, "error": { "message": "the pool is full" } });
        check(full, Some("VolumeSnapshot ns/s is not ready: the pool is full"));
        check(json!({ "error": { "time": "now" } }), Some("VolumeSnapshot ns/s is not ready: no reason"));
    }
}
