//! The claims a machine's disks lie on: which they are, what is known of them, and what keeps the pod waiting. Pure.

use std::collections::BTreeMap;

use api::kubevirt::hotplug::{is_hotplug, volumes};
use api::kubevirt::v1::{PersistentVolumeClaimInfo, VirtualMachineInstance, Volume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

/// Block devices have no file system, and are given to the pod as devices.
const BLOCK: &str = "Block";
/// The part of a file system that is not offered to a disk: images are made by the capacity of their claim.
const NO_OVERHEAD: &str = "0";

/// The claims of a machine's namespace, by name.
pub type Claims = BTreeMap<String, PersistentVolumeClaim>;

/// A volume of a machine that lies on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use<'a> {
    /// The volume's name.
    pub volume: &'a str,
    /// The claim's name.
    pub claim: &'a str,
    /// Nothing is written to the claim: it is mounted so, or a layer above it takes the writes.
    pub read_only: bool,
}

/// The claim that `volume` lies on, if it lies on one.
pub fn of_volume(volume: &Volume) -> Option<Use<'_>> {
    let named = |claim, read_only| Some(Use { volume: &volume.name, claim, read_only });
    if let Some(claim) = volume.own_claim() {
        let mounted = volume.persistent_volume_claim.as_ref().and_then(|source| source.read_only);
        return named(claim, mounted.unwrap_or(false));
    }
    let below = volume.ephemeral.as_ref()?.persistent_volume_claim.as_ref()?;
    named(below.claim_name.as_str(), true)
}

/// Every volume of `vmi` on a claim.
pub fn of(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Use<'_>> {
    vmi.spec.volumes.iter().filter_map(of_volume)
}

/// Every volume of `vmi` on a claim, and those of its launcher that the guest does not see.
pub fn all(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Use<'_>> {
    of(vmi).chain(utilities(vmi))
}

/// The volumes that come to the launcher itself while the guest runs, such as a backup's.
fn utilities(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Use<'_>> {
    let own = api::kubevirt::hotplug::utilities(&vmi.spec);
    own.map(|volume| Use { volume: volume.name, claim: volume.claim, read_only: volume.read_only })
}

/// Every volume on a claim that comes and goes while the guest runs.
pub fn hotplugged(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Use<'_>> {
    volumes(&vmi.spec).filter_map(of_volume).chain(utilities(vmi))
}

/// Every volume on a claim that `vmi` is started with.
pub(crate) fn at_start(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Use<'_>> {
    vmi.spec.volumes.iter().filter(|volume| !is_hotplug(volume)).filter_map(of_volume)
}

/// The claim is a block device.
pub fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some(BLOCK)
}

/// The claim is attached to one node at a time.
pub fn is_for_one_node(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    !modes.is_empty() && modes.iter().all(|mode| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod"))
}

/// The first claim that is not there.
pub fn absent<'a>(vmi: &'a VirtualMachineInstance, claims: &Claims) -> Option<&'a str> {
    at_start(vmi).find(|used| !claims.contains_key(used.claim)).map(|used| used.claim)
}

/// Why the pod cannot be made yet: a sentence that names the claim that is not there.
pub fn missing(vmi: &VirtualMachineInstance, claims: &Claims) -> Option<String> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let claim = absent(vmi, claims)?;
    Some(format!("PVC {namespace}/{claim} does not exist, waiting for it to appear"))
}

/// Every claim is bound and its size known, which whoever makes a disk in it has to know.
pub fn bound(vmi: &VirtualMachineInstance, claims: &Claims) -> bool {
    let has_size = |claim: &PersistentVolumeClaim| {
        let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
        capacity.is_some_and(|capacity| capacity.contains_key("storage"))
    };
    at_start(vmi).all(|used| claims.get(used.claim).is_some_and(has_size))
}

/// What is said of a claim in the status of the machines that use it.
pub fn info(claim: &PersistentVolumeClaim) -> PersistentVolumeClaimInfo {
    let spec = claim.spec.clone().unwrap_or_default();
    PersistentVolumeClaimInfo {
        access_modes: spec.access_modes.unwrap_or_default(),
        capacity: claim.status.as_ref().and_then(|status| status.capacity.clone()).unwrap_or_default(),
        claim_name: claim.metadata.name.clone(),
        filesystem_overhead: Some(NO_OVERHEAD.to_owned()),
        preallocated: None,
        requests: spec.resources.and_then(|resources| resources.requests).unwrap_or_default(),
        volume_mode: spec.volume_mode.or_else(|| Some("Filesystem".to_owned())),
    }
}

/// The names of the volumes that `vmi` may be writing on its claims, and that another guest must not write with it.
pub fn written(vmi: &VirtualMachineInstance) -> Vec<Use<'_>> {
    let disks = &vmi.spec.domain.devices.disks;
    let alone = |name: &str| disks.iter().any(|disk| disk.name == name && disk.shareable != Some(true));
    of(vmi).filter(|used| !used.read_only && alone(used.volume)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    pub(in crate::facts) fn vmi(volume: Value) -> VirtualMachineInstance {
        let vmi = json!({ "metadata": { "name": "vm", "namespace": "ns" }, "spec": { "volumes": [volume] } });
        serde_json::from_value(vmi).unwrap()
    }

    pub(in crate::facts) fn claims(capacity: Option<&str>) -> Claims {
        let claim = json!({
            "metadata": { "name": "data" },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
            "status": { "capacity": capacity.map(|size| json!({ "storage": size })) },
        });
        [("data".to_owned(), serde_json::from_value(claim).unwrap())].into()
    }

    #[track_caller]
    fn check(volume: Value, expect: Option<(&str, bool)>) {
        let vmi = vmi(volume);
        let found = of(&vmi).next().map(|used| (used.claim, used.read_only));
        assert_eq!(found, expect);
    }

    #[test]
    fn every_way_to_use_a_claim() {
        check(json!({ "name": "a", "persistentVolumeClaim": { "claimName": "data" } }), Some(("data", false)));
        let read_only = json!({ "claimName": "data", "readOnly": true });
        check(json!({ "name": "a", "persistentVolumeClaim": read_only }), Some(("data", true)));
        check(json!({ "name": "a", "dataVolume": { "name": "data" } }), Some(("data", false)));
        let below = json!({ "persistentVolumeClaim": { "claimName": "data" } });
        check(json!({ "name": "a", "ephemeral": below }), Some(("data", true)));
        check(json!({ "name": "a", "emptyDisk": { "capacity": "1Gi" } }), None);
    }

    #[test]
    fn a_claim_is_waited_for_by_name_and_then_for_its_size() {
        let vmi = vmi(json!({ "name": "root", "persistentVolumeClaim": { "claimName": "data" } }));
        let said = missing(&vmi, &Claims::new());
        assert_eq!(said.as_deref(), Some("PVC ns/data does not exist, waiting for it to appear"));
        assert!(missing(&vmi, &claims(None)).is_none() && !bound(&vmi, &claims(None)));
        assert!(bound(&vmi, &claims(Some("1Gi"))));
    }

    #[test]
    fn only_what_is_written_alone_matters() {
        let vmi = json!({ "spec": {
            "domain": { "devices": { "disks": [
                { "name": "root" }, { "name": "quorum", "shareable": true }, { "name": "iso" }, { "name": "layer" },
            ] } },
            "volumes": [
                { "name": "root", "persistentVolumeClaim": { "claimName": "a" } },
                { "name": "quorum", "persistentVolumeClaim": { "claimName": "b" } },
                { "name": "iso", "persistentVolumeClaim": { "claimName": "c", "readOnly": true } },
                { "name": "layer", "ephemeral": { "persistentVolumeClaim": { "claimName": "d" } } },
                { "name": "scratch", "emptyDisk": { "capacity": "1Gi" } },
            ],
        } });
        let vmi = serde_json::from_value(vmi).unwrap();
        let found: Vec<String> = written(&vmi).iter().map(|used| used.volume.to_owned()).collect();
        assert_eq!(found, ["root"]);
    }
}
