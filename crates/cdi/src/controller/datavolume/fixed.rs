//! DataVolumes whose volume is there already, made by hand or brought back, and kept for their claim: `storage.checkStaticVolume`.
//!
//! The claim is made without a source. Bound to one of those volumes, it is filled; bound to another, it was made in vain and goes.

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::controller::context::annotation_of;

/// The volumes that are kept for the claim of `volume`; none when nobody asks for them.
pub fn volumes(volume: &DataVolume, all: &[PersistentVolume]) -> Vec<String> {
    if !volume.annotations().contains_key(annotation::CHECK_STATIC_VOLUME) {
        return Vec::new();
    }
    let kept = |persistent: &&PersistentVolume| {
        let holder = persistent.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let free = persistent.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Released");
        free && holder.is_some_and(|holder| {
            holder.name.as_deref() == Some(&volume.name_any()) && holder.namespace == volume.namespace()
        })
    };
    all.iter().filter(kept).map(ResourceExt::name_any).collect()
}

/// What is to be done about a claim that was made for such volumes.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was not made for one, or what follows is done.
    Nothing,
    /// It has one of them: it is filled.
    Filled,
    /// It has another volume, which is empty.
    Wrong,
}

/// Looks at `claim`.
pub fn verdict(claim: &PersistentVolumeClaim) -> Verdict {
    let Some(wanted) = annotation_of(claim, annotation::PERSISTENT_VOLUME_LIST) else { return Verdict::Nothing };
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    if !bound || annotation_of(claim, annotation::POPULATED_FOR).is_some() {
        return Verdict::Nothing;
    }
    let wanted: Vec<String> = serde_json::from_str(wanted).unwrap_or_default();
    let has = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    if wanted.contains(&has) { Verdict::Filled } else { Verdict::Wrong }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn volumes_are_kept_for_a_claim_by_its_name() {
        let check = |annotations: Value, holder: Value, phase: &str, expect: &[&str]| {
            let volume =
                json!({ "metadata": { "name": "disk", "namespace": "ns", "annotations": annotations }, "spec": {} });
            let persistent =
                json!({ "metadata": { "name": "pv" }, "spec": { "claimRef": holder }, "status": { "phase": phase } });
            let all = [serde_json::from_value(persistent).unwrap()];
            assert_eq!(volumes(&serde_json::from_value(volume).unwrap(), &all), expect);
        };
        let (asked, own) =
            (json!({ annotation::CHECK_STATIC_VOLUME: "" }), json!({ "namespace": "ns", "name": "disk" }));
        check(asked.clone(), own.clone(), "Available", &["pv"]);
        check(asked.clone(), own.clone(), "Released", &[]);
        check(json!({}), own, "Available", &[]);
        check(asked.clone(), json!({ "namespace": "other", "name": "disk" }), "Available", &[]);
        check(asked, json!(null), "Available", &[]);
    }

    #[test]
    fn a_claim_is_filled_when_it_got_what_it_was_made_for() {
        let check = |annotations: Value, has: &str, phase: &str, expect: Verdict| {
            let claim = json!({ "metadata": { "annotations": annotations }, "spec": { "volumeName": has }, "status": { "phase": phase } });
            assert_eq!(verdict(&serde_json::from_value(claim).unwrap()), expect);
        };
        let listed = || json!({ annotation::PERSISTENT_VOLUME_LIST: "[\"a\"]" });
        check(json!({}), "a", "Bound", Verdict::Nothing);
        check(listed(), "a", "Pending", Verdict::Nothing);
        check(listed(), "a", "Bound", Verdict::Filled);
        check(listed(), "b", "Bound", Verdict::Wrong);
    }
}
