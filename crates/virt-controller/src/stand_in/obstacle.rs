//! Whether there can be a stand-in at all, asked before anything is made.

use std::collections::BTreeMap;

use api::kubevirt::constants::label;
use api::kubevirt::hotplug::GUEST;
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::store::Key;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::context::Context;
use crate::error::Error;
use crate::facts::{launcher, stand_ins, volumes_change};

/// The provisioner of classes that have none.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Why a disk of `guest` cannot be copied, if one cannot.
pub(crate) async fn find(context: &Context, guest: &VirtualMachineInstance) -> Result<Option<String>, Error> {
    if let Some(why) = in_use(context, guest).await? {
        return Ok(Some(why));
    }
    let (known, namespace) = (context.claims_of(guest), guest.namespace().unwrap_or_default());
    for used in stand_ins::copied(guest, &known) {
        let Some(source) = known.get(used.claim) else { continue };
        if let Some(chosen) = volumes_change::destination_of(guest, used.volume) {
            let target = context.stores.claims.get(&Key::new(namespace.as_str(), chosen));
            if target.is_none_or(|target| target.metadata.deletion_timestamp.is_some()) {
                return Ok(Some(format!("PVC {namespace}/{chosen}, which a disk is to be copied into, is gone")));
            }
            continue;
        }
        let root = context.stores.claims.get(&Key::new(namespace.as_str(), stand_ins::root(source)));
        if root.is_none_or(|root| root.metadata.deletion_timestamp.is_some()) {
            return Ok(Some(format!(
                "PVC {namespace}/{} is being deleted, and its disk with it",
                stand_ins::root(source)
            )));
        }
    }
    Ok(nowhere(context, guest).await?.into_values().next())
}

/// The volumes of `guest` that would have to be copied, and that there is no volume to copy into: by their names, each with
/// a sentence.
pub(crate) async fn nowhere(
    context: &Context,
    guest: &VirtualMachineInstance,
) -> Result<BTreeMap<String, String>, Error> {
    let (known, namespace) = (context.claims_of(guest), guest.namespace().unwrap_or_default());
    let (mut out, mut free) = (BTreeMap::new(), None);
    for used in stand_ins::copied(guest, &known) {
        let chosen = volumes_change::destination_of(guest, used.volume).is_some();
        let Some(source) = known.get(used.claim).filter(|_| !chosen) else { continue };
        let class = source.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
        if provisions(context, &class).await? {
            continue;
        }
        if free.is_none() {
            free = Some(available(context).await?);
        }
        if !free.iter().flatten().any(|volume| fits(volume, source, &class)) {
            let size = stand_ins::size(source).0;
            let why = format!(
                "the disk on PVC {namespace}/{} cannot be copied: StorageClass {class:?} has no provisioner, and no \
                 PersistentVolume of it with {size} is available",
                used.claim
            );
            out.insert(used.volume.to_owned(), why);
        }
    }
    Ok(out)
}

/// Who else uses a disk of `guest` that is to be copied, and would be left with an outdated one.
///
/// What is started once there is a stand-in waits for the end of the move. So whoever asks after the stand-ins were made
/// misses nobody.
pub(crate) async fn in_use(context: &Context, guest: &VirtualMachineInstance) -> Result<Option<String>, Error> {
    let (known, namespace) = (context.claims_of(guest), guest.namespace().unwrap_or_default());
    let copied = stand_ins::copied(guest, &known);
    if copied.is_empty() {
        return Ok(None);
    }
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let pods = api.list(&ListParams::default()).await.map_err(Error::api("list", "pods", &namespace, ""))?.items;
    let uid = guest.uid();
    // Its launchers, and the pods that have volumes for them.
    let own = |pod: &Pod| [label::CREATED_BY, GUEST].iter().any(|key| pod.labels().get(*key) == uid.as_ref());
    let others = pods.iter().filter(|pod| !own(pod) && !launcher::ended(pod));
    for pod in others {
        let mut into = copied.iter().filter_map(|used| volumes_change::destination_of(guest, used.volume));
        if let Some(taken) = into.find(|claim| uses(pod, claim)) {
            let name = pod.name_any();
            return Ok(Some(format!("no disk can be copied into PVC {namespace}/{taken}: pod {name} uses it")));
        }
        if let Some(used) = copied.iter().find(|used| uses(pod, used.claim)) {
            let name = pod.name_any();
            return Ok(Some(format!(
                "the disk on PVC {namespace}/{} cannot be copied: pod {name} uses it, too",
                used.claim
            )));
        }
    }
    Ok(None)
}

/// The pod mounts the claim, or will.
pub(super) fn uses(pod: &Pod, claim: &str) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mut named =
        volumes.into_iter().flatten().filter_map(|volume| Some(&volume.persistent_volume_claim.as_ref()?.claim_name));
    named.any(|name| name == claim)
}

async fn provisions(context: &Context, class: &str) -> Result<bool, Error> {
    if class.is_empty() {
        return Ok(false);
    }
    let api: Api<StorageClass> = Api::all(context.client.clone());
    let found = api.get_opt(class).await.map_err(Error::api("read", "storageclass", "", class))?;
    Ok(found.is_some_and(|class| class.provisioner != NO_PROVISIONER))
}

async fn available(context: &Context) -> Result<Vec<PersistentVolume>, Error> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    Ok(api.list(&ListParams::default()).await.map_err(Error::api("list", "persistentvolumes", "", ""))?.items)
}

fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim, class: &str) -> bool {
    let (Some(offer), Some(wanted)) = (&volume.spec, &claim.spec) else { return false };
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let large = offer.capacity.as_ref().and_then(|all| all.get("storage"));
    let offered = offer.access_modes.as_deref().unwrap_or_default();
    offer.claim_ref.is_none()
        && volume.metadata.deletion_timestamp.is_none()
        && offer.storage_class_name.as_deref().unwrap_or_default() == class
        && mode(&offer.volume_mode) == mode(&wanted.volume_mode)
        && wanted.access_modes.iter().flatten().all(|mode| offered.contains(mode))
        && large.is_some_and(|large| stand_ins::size_of(large) >= stand_ins::size_of(&stand_ins::size(claim)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(change: Value, expect: bool) {
        let claim = json!({ "metadata": { "name": "c" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        } });
        let mut volume = json!({ "metadata": { "name": "v" }, "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "storageClassName": "disks", "capacity": { "storage": "1Gi" },
        } });
        volume["spec"].as_object_mut().unwrap().extend(change.as_object().cloned().unwrap());
        let (volume, claim) = (serde_json::from_value(volume).unwrap(), serde_json::from_value(claim).unwrap());
        assert_eq!(fits(&volume, &claim, "disks"), expect);
    }

    #[test]
    fn a_free_volume_must_fit_the_claim() {
        check(json!({}), true);
        check(json!({ "capacity": { "storage": "1023Mi" } }), false);
        check(json!({ "volumeMode": "Block" }), false);
        check(json!({ "storageClassName": "other" }), false);
        check(json!({ "accessModes": ["ReadOnlyMany"] }), false);
        check(json!({ "claimRef": { "name": "taken" } }), false);
    }
}
