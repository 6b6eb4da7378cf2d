//! The claims a machine's disks lie on: which they are, what is known of them, and what keeps the pod waiting. Pure.

use std::collections::BTreeMap;

use api::kubevirt::hotplug::{is_hotplug, volumes};
use api::kubevirt::v1::{PersistentVolumeClaimInfo, VirtualMachineInstance, Volume, VolumeStatus};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::state;

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
    if let Some(source) = &volume.persistent_volume_claim {
        return named(source.claim_name.as_str(), source.read_only.unwrap_or(false));
    }
    if let Some(source) = &volume.data_volume {
        return named(source.name.as_str(), false);
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
fn at_start(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Use<'_>> {
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

/// `held` with what is known of the claims now; volumes without a claim are left as they are.
pub fn statuses(vmi: &VirtualMachineInstance, claims: &Claims, held: &[VolumeStatus]) -> Vec<VolumeStatus> {
    let mut out = held.to_vec();
    for used in at_start(vmi) {
        let Some(claim) = claims.get(used.claim) else { continue };
        let info = Some(Box::new(info(claim)));
        match out.iter_mut().find(|status| status.name == used.volume) {
            Some(status) => status.persistent_volume_claim_info = info,
            None => out.push(VolumeStatus {
                name: used.volume.to_owned(),
                persistent_volume_claim_info: info,
                ..Default::default()
            }),
        }
    }
    if let Some(claim) = state::of(vmi, claims)
        && let Some(name) = claim.metadata.name.clone()
    {
        out.retain(|status| status.name != name);
        let persistent_volume_claim_info = Some(Box::new(info(claim)));
        out.push(VolumeStatus { name, persistent_volume_claim_info, ..Default::default() });
    }
    out
}

/// Says of volumes whose claims have been told of what those claims are now: they may have grown.
pub fn refresh(vmi: &VirtualMachineInstance, claims: &Claims, statuses: &mut [VolumeStatus]) {
    for used in at_start(vmi) {
        let entry = statuses.iter_mut().find(|status| status.name == used.volume);
        let known = entry.and_then(|entry| entry.persistent_volume_claim_info.as_mut());
        let (Some(known), Some(claim)) = (known, claims.get(used.claim)) else { continue };
        let now = info(claim);
        if !now.capacity.is_empty() && known.claim_name == now.claim_name {
            (known.capacity, known.requests) = (now.capacity, now.requests);
        }
    }
    // What the guest keeps beside its disks is in another claim after a migration.
    let held = statuses.iter_mut().find(|status| {
        let claim = status.persistent_volume_claim_info.as_ref().and_then(|info| info.claim_name.as_ref());
        let listed = vmi.spec.volumes.iter().any(|volume| volume.name == status.name);
        claim == Some(&status.name) && status.hotplug_volume.is_none() && !listed
    });
    if let (Some(entry), Some(claim)) = (held, state::of(vmi, claims)) {
        entry.name = claim.metadata.name.clone().unwrap_or_default();
        entry.persistent_volume_claim_info = Some(Box::new(info(claim)));
    }
}

/// The reason of a volume that stays where it is.
const STAYS: &str = "CannotBeCopied";

/// Says of volumes why they cannot be copied to another node; virt-handler judges by that whether the guest can be moved.
pub fn stay(statuses: &mut [VolumeStatus], why: &BTreeMap<String, String>) {
    for status in statuses.iter_mut() {
        let message = why.get(&status.name).cloned();
        status.reason = message.is_some().then(|| STAYS.to_owned());
        status.message = message;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn vmi(volume: Value) -> VirtualMachineInstance {
        let vmi = json!({ "metadata": { "name": "vm", "namespace": "ns" }, "spec": { "volumes": [volume] } });
        serde_json::from_value(vmi).unwrap()
    }

    fn claims(capacity: Option<&str>) -> Claims {
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
    fn a_claim_that_grows_is_told_of() {
        let vmi = vmi(json!({ "name": "root", "dataVolume": { "name": "data" } }));
        let mut held = statuses(&vmi, &claims(Some("2Gi")), &[]);
        refresh(&vmi, &claims(Some("3Gi")), &mut held);
        assert_eq!(held[0].persistent_volume_claim_info.as_ref().unwrap().capacity["storage"].0, "3Gi");
        refresh(&vmi, &Claims::new(), &mut held);
        assert_eq!(held[0].persistent_volume_claim_info.as_ref().unwrap().capacity["storage"].0, "3Gi");
    }

    #[test]
    fn the_status_says_what_the_claim_is() {
        let vmi = vmi(json!({ "name": "root", "dataVolume": { "name": "data" } }));
        let held = vec![VolumeStatus { name: "root".into(), target: "vda".into(), ..Default::default() }];
        let found = serde_json::to_value(statuses(&vmi, &claims(Some("2Gi")), &held)).unwrap();
        let expect = json!([{ "name": "root", "target": "vda", "persistentVolumeClaimInfo": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "2Gi" }, "claimName": "data",
            "filesystemOverhead": "0", "requests": { "storage": "1Gi" }, "volumeMode": "Filesystem",
        } }]);
        assert_eq!(found, expect);
    }
}
