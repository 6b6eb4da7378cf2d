//! What is noted on a DataVolume itself: how it comes to its data, and the machine that its disk is made for.
//!
//! Users and their tools read a DataVolume, not the claim, the snapshot or the DataSource behind it.

use std::collections::BTreeMap;

use api::cdi::constants::{annotation, label};
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use kube::ResourceExt;
use serde_json::json;

use super::plan::{self, Filling};
use super::status;
use crate::Error;
use crate::controller::context::{Context, annotation_of, volume_indexes};
use crate::controller::write::{self, Changes};

/// What a claim says of its filling that its DataVolume says, too.
const MARKS: [&str; 4] =
    [annotation::USE_POPULATOR, annotation::CLONE_TYPE, annotation::VDDK_HOST, annotation::VDDK_VERSION];

/// True for a label that says which machine a disk is made for.
pub fn of_machine(name: &str) -> bool {
    name.starts_with(label::INSTANCETYPE_PREFIX) || name == label::DYNAMIC_CREDENTIALS
}

/// Brings the notes of `stored` in line, of which `volume` is the copy whose source is resolved. The DataVolume as it is then.
pub async fn write(
    context: &Context,
    stored: DataVolume,
    volume: &mut DataVolume,
    claim: Option<&PersistentVolumeClaim>,
    filling: Filling,
) -> Result<DataVolume, Error> {
    let own =
        claim.filter(|claim| claim.owner_references().iter().any(|owner| Some(&owner.uid) == volume.uid().as_ref()));
    let annotations = own.map(|claim| annotations(volume, claim, filling)).unwrap_or_default();
    let labels = if volume.labels().keys().any(|name| of_machine(name)) {
        Changes::new()
    } else {
        machine(&origin(context, volume, own))
    };
    if annotations.is_empty() && labels.is_empty() {
        return Ok(stored);
    }
    // The UID keeps the patch off a DataVolume that was made anew under the name.
    let change = json!({ "metadata": { "uid": stored.uid(), "annotations": annotations, "labels": labels } });
    let done = write::patch(context, &stored, &change).await?;
    volume.metadata = done.metadata.clone();
    write::remember(&context.volumes, done.clone(), volume_indexes);
    Ok(done)
}

/// The notes that `volume` lacks; what its user has noted stands where it is an order.
fn annotations(volume: &DataVolume, claim: &PersistentVolumeClaim, filling: Filling) -> Changes {
    let mut wanted = Changes::new();
    let ordered = |key: &str| key == annotation::USE_POPULATOR && annotation_of(volume, key).is_some();
    for key in MARKS {
        if let Some(value) = annotation_of(claim, key).filter(|_| filling != Filling::External && !ordered(key)) {
            wanted.insert(key.to_owned(), Some(value.to_owned()));
        }
    }
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    if bound && status::came_filled(volume, claim) {
        wanted.insert(annotation::PRE_POPULATED.to_owned(), Some(claim.name_any()));
    }
    write::differing(volume.annotations(), wanted)
}

fn machine(all: &BTreeMap<String, String>) -> Changes {
    all.iter().filter(|(name, _)| of_machine(name)).map(|(name, value)| (name.clone(), Some(value.clone()))).collect()
}

/// The labels of what the data come from: of the DataSource that is named, else of the claim or snapshot, else what the image itself has
/// said, which is on the claim.
fn origin(context: &Context, volume: &DataVolume, claim: Option<&PersistentVolumeClaim>) -> BTreeMap<String, String> {
    let here = volume.namespace().unwrap_or_default();
    if let Some(from) = &volume.spec.source_ref {
        let there = from.namespace.clone().filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| here.clone());
        let found = context.sources.get(&Key::new(there, from.name.as_str()));
        if let Some(labels) =
            found.map(|found| found.labels().clone()).filter(|all| all.keys().any(|name| of_machine(name)))
        {
            return labels;
        }
    }
    // Of another namespace nothing is told before a claim was made, which takes the leave to have what is there.
    if claim.is_none() && plan::elsewhere(volume).is_some() {
        return BTreeMap::new();
    }
    let there = plan::source_namespace(volume);
    let source = volume.spec.source.as_deref();
    if let Some(from) = source.and_then(|source| source.pvc.as_ref()) {
        let found = context.claims.get(&Key::new(there, from.name.as_str()));
        return found.map(|found| found.labels().clone()).unwrap_or_default();
    }
    if let Some(from) = source.and_then(|source| source.snapshot.as_ref()) {
        let found = context.snapshots.get(&Key::new(there, from.name.as_str()));
        return found.map(|found| found.labels().clone()).unwrap_or_default();
    }
    claim.map(|claim| claim.labels().clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(volume: Value, claim: Value, phase: &str, filling: Filling, expect: Value) {
        let volume = json!({ "metadata": { "name": "dv", "annotations": volume }, "spec": {} });
        let claim = json!({ "metadata": { "name": "dv", "annotations": claim }, "status": { "phase": phase } });
        let found =
            annotations(&serde_json::from_value(volume).unwrap(), &serde_json::from_value(claim).unwrap(), filling);
        assert_eq!(json!(found), expect);
    }

    #[test]
    fn a_volume_says_how_it_is_filled() {
        let used = json!({ annotation::USE_POPULATOR: "true", annotation::CLONE_TYPE: "csi-clone" });
        check(json!({}), used.clone(), "Pending", Filling::Clone, used.clone());
        check(used.clone(), used.clone(), "Bound", Filling::Clone, json!({}));
        let copied = json!({ annotation::CLONE_TYPE: "copy" });
        check(used.clone(), copied.clone(), "Bound", Filling::Clone, copied);
        check(
            json!({ annotation::USE_POPULATOR: "false" }),
            used.clone(),
            "Bound",
            Filling::Import,
            json!({ annotation::CLONE_TYPE: "csi-clone" }),
        );
        check(json!({}), used, "Bound", Filling::External, json!({}));
    }

    #[test]
    fn a_volume_that_came_filled_says_so_once_it_is_bound() {
        let filled = json!({ annotation::POPULATED_FOR: "dv" });
        check(json!({}), filled.clone(), "Pending", Filling::Import, json!({}));
        check(json!({}), filled, "Bound", Filling::Import, json!({ annotation::PRE_POPULATED: "dv" }));
        check(json!({}), json!({ annotation::POPULATED_FOR: "other" }), "Bound", Filling::Import, json!({}));
    }

    #[test]
    fn only_what_is_said_of_the_machine_is_taken_over() {
        let all = [
            ("instancetype.kubevirt.io/default-instancetype", "u1.small"),
            ("mine", "1"),
            (label::DYNAMIC_CREDENTIALS, "true"),
        ];
        let all = all.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let expect =
            json!({ "instancetype.kubevirt.io/default-instancetype": "u1.small", label::DYNAMIC_CREDENTIALS: "true" });
        assert_eq!(json!(machine(&all)), expect);
    }
}
