//! From a pod's volume to the claim behind it and the PersistentVolume the claim is bound to, with the checks that nobody
//! gets another's data.

mod affinity;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, Volume};
use kube::Api;

use crate::context::Context;
use crate::error::{Error, Result};

/// A claim and what it is bound to.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The pod may only read.
    pub(crate) read_only: bool,
    pub(crate) claim: PersistentVolumeClaim,
    pub(crate) volume: PersistentVolume,
}

impl Claim {
    pub(crate) fn is_block(&self) -> bool {
        self.volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
    }
}

/// The name of the claim behind the volume, if it is one of a claim.
pub(crate) fn name_of(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(source.claim_name.clone());
    }
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name))
}

/// The claim behind the volume; none for volumes of other kinds.
pub(crate) async fn resolve(context: &Context, pod: &Pod, volume: &Volume) -> Result<Option<Claim>> {
    let Some(name) = name_of(pod, volume) else { return Ok(None) };
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    let claim = claims.get(&name).await;
    let claim = claim
        .map_err(Error::api(format!("error processing PVC {namespace}/{name}: failed to fetch PVC from API server")))?;
    let bound = check(pod, volume, &claim).map_err(Error::Invalid)?;
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let found = volumes.get(&bound).await;
    let found = found.map_err(Error::api(format!("failed to fetch PV {bound} from API server")))?;
    check_back(&claim, &found).map_err(Error::Invalid)?;
    let read_only = volume.persistent_volume_claim.as_ref().and_then(|source| source.read_only) == Some(true);
    let resolved = Claim { namespace, name, read_only, claim, volume: found };
    check_use(pod, volume, resolved.is_block()).map_err(Error::Invalid)?;
    check_place(context, &resolved.volume).await?;
    Ok(Some(resolved))
}

/// The name of the volume that the claim is bound to, if the pod may use the claim.
fn check(pod: &Pod, volume: &Volume, claim: &PersistentVolumeClaim) -> Result<String, String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let name = format!("{}/{}", text(&claim.metadata.namespace), text(&claim.metadata.name));
    let owners = claim.metadata.owner_references.iter().flatten();
    let own = owners
        .filter(|owner| owner.controller == Some(true))
        .any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref());
    if volume.ephemeral.is_some() && !own {
        let pod = format!("{}/{}", text(&pod.metadata.namespace), text(&pod.metadata.name));
        return Err(format!("PVC {name} was not created for pod {pod} (pod is not owner)"));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("can't start pod because PVC is being deleted".into());
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    if phase != "Bound" || bound.is_empty() {
        return Err(format!("PVC {name} has non-bound phase ({phase:?}) or empty pvc.Spec.VolumeName ({bound:?})"));
    }
    Ok(bound)
}

/// The volume must think that it is bound to the same claim.
fn check_back(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(format!(
            "found PV object {name} with nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    if reference.uid != claim.metadata.uid {
        let (found, expected) = (reference.uid.clone().unwrap_or_default(), claim.metadata.uid.clone());
        return Err(format!(
            "found PV object {name} with an unexpected pv.Spec.ClaimRef.UID {found:?} that does not match expected UID {:?}",
            expected.unwrap_or_default()
        ));
    }
    Ok(())
}

/// A device is not a directory, and the other way round.
fn check_use(pod: &Pod, volume: &Volume, block: bool) -> Result<(), String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let name = &volume.name;
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mounted = containers().any(|c| c.volume_mounts.iter().flatten().any(|mount| mount.name == *name));
    let mapped = containers().any(|c| c.volume_devices.iter().flatten().any(|device| device.name == *name));
    match block {
        true if mounted => Err(format!("volume {name} has volumeMode Block, but is specified in volumeMounts")),
        false if mapped => Err(format!("volume {name} has volumeMode Filesystem, but is specified in volumeDevices")),
        _ => Ok(()),
    }
}

/// A volume of other nodes is refused even when somebody put the pod here by hand.
async fn check_place(context: &Context, volume: &PersistentVolume) -> Result<()> {
    let required = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let Some(required) = required else { return Ok(()) };
    let api: Api<Node> = Api::all(context.client.clone());
    let node = api.get(&context.config.node_name).await.map_err(Error::api("get node"))?;
    if affinity::matches(required, &node) {
        return Ok(());
    }
    Err(Error::Mount {
        operation: "MountVolume.NodeAffinity check",
        name: volume.metadata.name.clone().unwrap_or_default(),
        source: Box::new(Error::Invalid("no matching NodeSelectorTerms".into())),
    })
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "documents are written where they are used")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Pod {
        let spec = json!({"containers": [{"name": "c", "volumeMounts": [{"name": "m", "mountPath": "/m"}],
            "volumeDevices": [{"name": "d", "devicePath": "/dev/x"}]}]});
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid"}, "spec": spec}))
            .unwrap()
    }

    fn volume(source: Value) -> Volume {
        let mut volume = json!({"name": "v"});
        json_patch::merge(&mut volume, &source);
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn an_ephemeral_claim_is_mounted_only_by_its_own_pod() {
        let named = volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
        let own = volume(json!({"ephemeral": {}}));
        assert_eq!(name_of(&pod(), &own).as_deref(), Some("p-v"));
        let check = |volume: &Volume, metadata: Value, phase: &str, expect: Result<&str, &str>| {
            let mut object = json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"volumeName": "pv"}, "status": {"phase": phase}});
            json_patch::merge(&mut object["metadata"], &metadata);
            let got = check(&pod(), volume, &serde_json::from_value(object).unwrap());
            assert_eq!(got, expect.map(str::to_owned).map_err(str::to_owned));
        };
        let owner = |uid: &str| json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]});
        check(&named, json!({}), "Bound", Ok("pv"));
        check(&own, owner("pod-uid"), "Bound", Ok("pv"));
        check(&own, owner("other"), "Bound", Err("PVC ns/c was not created for pod ns/p (pod is not owner)"));
        let unbound = "PVC ns/c has non-bound phase (\"Pending\") or empty pvc.Spec.VolumeName (\"pv\")";
        check(&named, json!({}), "Pending", Err(unbound));
        let going = json!({"deletionTimestamp": "2026-11-22T00:00:00Z"});
        check(&named, going, "Bound", Err("can't start pod because PVC is being deleted"));
    }

    #[test]
    fn devices_are_no_directories() {
        let used = |name: &str, block| {
            let mut volume = volume(json!({"emptyDir": {}}));
            volume.name = name.into();
            check_use(&pod(), &volume, block)
        };
        assert_eq!(used("m", false), Ok(()));
        assert_eq!(used("d", true), Ok(()));
        assert_eq!(used("m", true), Err("volume m has volumeMode Block, but is specified in volumeMounts".into()));
        assert_eq!(
            used("d", false),
            Err("volume d has volumeMode Filesystem, but is specified in volumeDevices".into())
        );
    }
}
