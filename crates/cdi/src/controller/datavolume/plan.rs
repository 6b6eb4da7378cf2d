//! What a DataVolume asks for: the claim, and the object that says what it is filled with. Pure.

use std::collections::BTreeMap;

use api::cdi::constants::{self, annotation, label};
use api::cdi::v1beta1::{DataVolume, DataVolumeSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::controller::context::annotation_of;
use crate::controller::labels::labels;
use crate::controller::settings::Settings;
use crate::controller::storage::FILESYSTEM;
use crate::controller::{sources, worker};

/// How the volume comes to its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// By an importer.
    Import,
    /// By an upload server.
    Upload,
    /// From another claim.
    Clone,
    /// From a snapshot.
    Restore,
    /// By somebody else: the claim's own data source.
    External,
}

/// How a volume of this spec, its `sourceRef` resolved, comes to its data.
pub fn filling(spec: &DataVolumeSpec) -> Filling {
    let Some(source) = spec.source.as_deref() else { return Filling::External };
    if source.upload.is_some() {
        Filling::Upload
    } else if source.pvc.is_some() {
        Filling::Clone
    } else if source.snapshot.is_some() {
        Filling::Restore
    } else {
        Filling::Import
    }
}

/// What is to be done about the claim that has the DataVolume's name.
#[derive(Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is the DataVolume's.
    Ours,
    /// It becomes the DataVolume's, filled as it is.
    Adopt,
    /// It is on its way out.
    Leaving,
    /// It is somebody else's.
    Foreign,
}

/// Whose claim it is.
pub fn claimed(volume: &DataVolume, claim: &PersistentVolumeClaim, settings: &Settings) -> Claimed {
    let controller = claim.owner_references().iter().find(|owner| owner.controller == Some(true));
    if claim.metadata.deletion_timestamp.is_some() {
        return Claimed::Leaving;
    }
    let Some(controller) = controller else {
        let filled = annotation_of(claim, annotation::POPULATED_FOR) == Some(&volume.name_any());
        let asked = annotation_of(volume, annotation::ALLOW_CLAIM_ADOPTION)
            .or_else(|| annotation_of(claim, annotation::ALLOW_CLAIM_ADOPTION));
        let allowed = asked.map_or(settings.claim_adoption, |value| value == "true");
        return if filled || allowed { Claimed::Adopt } else { Claimed::Foreign };
    };
    if Some(&controller.uid) == volume.uid().as_ref() { Claimed::Ours } else { Claimed::Foreign }
}

/// True when the volume is filled by a populator: on CSI storage, unless the user says otherwise.
pub fn uses_populator(volume: &DataVolume, csi: bool) -> bool {
    annotation_of(volume, annotation::USE_POPULATOR).map_or(csi, |value| value == "true")
}

/// True when a populator fills another claim in the namespace of `volume` first: a driver clones beside the source, a copy goes where the
/// clone is.
pub fn fills_beside(volume: &DataVolume, filling: Filling, copies: impl Fn() -> bool) -> bool {
    match filling {
        Filling::Import | Filling::Upload => true,
        Filling::Clone => source_namespace(volume) == volume.namespace().unwrap_or_default() || copies(),
        // Without a populator, a snapshot is restored where it is only.
        Filling::Restore => source_namespace(volume) == volume.namespace().unwrap_or_default(),
        Filling::External => false,
    }
}

/// Name of the object that says what `volume` is filled with.
pub fn source_name(volume: &DataVolume, filling: Filling) -> String {
    let kind = match filling {
        Filling::Upload => "upload",
        Filling::Clone | Filling::Restore => "clone",
        Filling::Import | Filling::External => "import",
    };
    format!("volume-{kind}-source-{}", volume.uid().unwrap_or_default())
}

/// Kind of that object.
pub fn source_kind(filling: Filling) -> &'static str {
    match filling {
        Filling::Upload => "VolumeUploadSource",
        Filling::Clone | Filling::Restore => "VolumeCloneSource",
        Filling::Import | Filling::External => "VolumeImportSource",
    }
}

/// The object that says what `volume` is filled with, as the populator of its kind wants it.
pub fn source(volume: &DataVolume, filling: Filling, settings: &Settings) -> Value {
    let spec = &volume.spec;
    let content = content_type(spec);
    let preallocation = spec.preallocation.unwrap_or(settings.preallocation);
    let from = spec.source.clone().unwrap_or_default();
    let body = match filling {
        Filling::Upload => json!({ "contentType": content, "preallocation": preallocation }),
        Filling::Clone => json!({
            "source": { "kind": "PersistentVolumeClaim", "name": from.pvc.as_ref().map(|pvc| &pvc.name) },
            "preallocation": preallocation, "priorityClassName": spec.priority_class_name,
        }),
        Filling::Restore => json!({
            "source": { "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": from.snapshot.as_ref().map(|one| &one.name) },
            "preallocation": preallocation, "priorityClassName": spec.priority_class_name,
        }),
        Filling::Import | Filling::External => json!({
            "source": sources::import(&from).unwrap_or_default(), "contentType": content, "preallocation": preallocation,
            "checkpoints": spec.checkpoints, "finalCheckpoint": spec.final_checkpoint, "targetClaim": volume.name_any(),
        }),
    };
    let namespace = source_namespace(volume);
    // An owner is of the same namespace.
    let owners = if namespace == volume.namespace().unwrap_or_default() { worker::owned_by(volume) } else { json!([]) };
    json!({
        "metadata": {
            "name": source_name(volume, filling), "namespace": namespace, "labels": labels(""), "ownerReferences": owners,
        },
        "spec": body,
    })
}

/// What `volume`, its `sourceRef` resolved, copies out of another namespace.
pub fn elsewhere(volume: &DataVolume) -> Option<origin::Source> {
    let filling = filling(&volume.spec);
    let source = volume.spec.source.as_deref()?;
    let name = match filling {
        Filling::Clone => source.pvc.as_ref()?.name.clone(),
        Filling::Restore => source.snapshot.as_ref()?.name.clone(),
        Filling::Import | Filling::Upload | Filling::External => return None,
    };
    let namespace = source_namespace(volume);
    let other = Some(&namespace) != volume.metadata.namespace.as_ref();
    other.then(|| origin::Source { snapshot: filling == Filling::Restore, namespace, name })
}

/// The namespace that the data of `volume` come from.
pub fn source_namespace(volume: &DataVolume) -> String {
    let source = volume.spec.source.as_deref();
    let elsewhere = source.and_then(|source| match (&source.pvc, &source.snapshot) {
        (Some(pvc), _) => Some(pvc.namespace.clone()),
        (_, Some(snapshot)) => Some(snapshot.namespace.clone()),
        _ => None,
    });
    elsewhere.filter(|namespace| !namespace.is_empty()).or_else(|| volume.namespace()).unwrap_or_default()
}

fn content_type(spec: &DataVolumeSpec) -> &str {
    spec.content_type.as_deref().filter(|content| !content.is_empty()).unwrap_or("kubevirt")
}

/// The claim of `volume`, whose spec is `rendered`.
pub fn claim(
    volume: &DataVolume,
    rendered: &PersistentVolumeClaimSpec,
    filling: Filling,
    populator: bool,
    settings: &Settings,
) -> Result<PersistentVolumeClaim, serde_json::Error> {
    let spec = &volume.spec;
    let mut annotations: BTreeMap<String, String> = volume.annotations().clone();
    let mut say = |key: &str, value: &str| annotations.insert(key.to_owned(), value.to_owned());
    say(annotation::POD_RESTARTS, "0");
    say(annotation::CONTENT_TYPE, content_type(spec));
    say(annotation::PREALLOCATION_REQUESTED, &spec.preallocation.unwrap_or(settings.preallocation).to_string());
    say(annotation::CREATED_FOR_DATA_VOLUME, &volume.uid().unwrap_or_default());
    say(annotation::USE_POPULATOR, if populator { "true" } else { "false" });
    for (key, value) in [
        (annotation::PRIORITY_CLASS, &spec.priority_class_name),
        (annotation::SERVICE_ACCOUNT, &spec.service_account_name),
    ] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            say(key, value);
        }
    }
    // Whoever does not wait for consumers has claims bound at once.
    if !settings.honor_first_consumer && filling != Filling::External {
        annotations.entry(annotation::IMMEDIATE_BINDING.to_owned()).or_default();
    }
    let mut rendered = serde_json::to_value(rendered)?;
    match filling {
        Filling::External => {
            annotations.insert(annotation::EXTERNAL_POPULATION.to_owned(), "true".to_owned());
        }
        filling if populator => {
            rendered["dataSourceRef"] = json!({ "apiGroup": constants::GROUP, "kind": source_kind(filling), "name": source_name(volume, filling) });
            let from = source_namespace(volume);
            if from != volume.namespace().unwrap_or_default() {
                annotations.insert(annotation::DATA_SOURCE_NAMESPACE.to_owned(), from);
            }
        }
        Filling::Import => {
            let from = spec.source.as_deref().and_then(sources::import).unwrap_or_default();
            annotations.extend(sources::annotations(&from));
        }
        Filling::Upload => {
            annotations.insert(annotation::UPLOAD.to_owned(), String::new());
        }
        Filling::Clone => {
            let from = spec.source.as_ref().and_then(|source| source.pvc.as_ref());
            let from = from.map(|pvc| format!("{}/{}", source_namespace(volume), pvc.name)).unwrap_or_default();
            annotations.insert(annotation::CLONE_REQUEST.to_owned(), from);
            annotations.insert(annotation::CLONE_TYPE.to_owned(), constants::clone_strategy::COPY.to_owned());
            annotations.insert(annotation::UPLOAD.to_owned(), String::new());
        }
        Filling::Restore => {
            let from = spec.source.as_ref().and_then(|source| source.snapshot.as_ref());
            rendered["dataSource"] = json!({
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": from.map(|snapshot| &snapshot.name),
            });
        }
    }
    let mut labels: BTreeMap<String, String> = labels("");
    let mode = rendered["volumeMode"].as_str().unwrap_or(FILESYSTEM);
    if mode == FILESYSTEM {
        labels.insert(label::NO_FILLING_UP_ALERT.to_owned(), "disabled".to_owned());
    }
    labels.extend(volume.labels().clone());
    serde_json::from_value(json!({
        "metadata": {
            "name": volume.name_any(), "namespace": volume.namespace(), "labels": labels, "annotations": annotations,
            "ownerReferences": worker::owned_by(volume),
        },
        "spec": rendered,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn volume(source: Value) -> DataVolume {
        serde_json::from_value(json!({
            "metadata": { "name": "dv", "namespace": "ns", "uid": "u", "labels": { "mine": "1" }, "annotations": { "note": "2" } },
            "spec": { "source": source, "priorityClassName": "high" },
        }))
        .unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn made(source: Value, populator: bool, config: Value) -> Value {
        let volume = volume(source);
        let settings = Settings::of(Some(&serde_json::from_value(json!({ "spec": config })).unwrap()));
        let claim = claim(&volume, &PersistentVolumeClaimSpec::default(), filling(&volume.spec), populator, &settings);
        serde_json::to_value(claim.unwrap()).unwrap()
    }

    #[test]
    fn a_claim_carries_what_its_volume_says() {
        let found = made(
            json!({ "http": { "url": "http://x" } }),
            true,
            json!({ "featureGates": ["HonorWaitForFirstConsumer"] }),
        );
        assert_eq!(
            found["spec"]["dataSourceRef"],
            json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "volume-import-source-u" })
        );
        let notes = &found["metadata"]["annotations"];
        assert_eq!(
            (&notes["note"], &notes[annotation::PRIORITY_CLASS], &notes[annotation::IMMEDIATE_BINDING]),
            (&json!("2"), &json!("high"), &Value::Null)
        );
        assert_eq!(found["metadata"]["labels"]["mine"], "1");
        assert_eq!(found["metadata"]["ownerReferences"][0]["kind"], "DataVolume");
        let found = made(json!({ "http": { "url": "http://x" } }), false, json!({}));
        let notes = &found["metadata"]["annotations"];
        assert_eq!(
            (&notes[annotation::ENDPOINT], &notes[annotation::IMMEDIATE_BINDING]),
            (&json!("http://x"), &json!(""))
        );
        assert_eq!(found["spec"]["dataSourceRef"], Value::Null);
    }

    #[test]
    fn a_clone_of_elsewhere_says_where() {
        let from = json!({ "pvc": { "name": "gold", "namespace": "images" } });
        let found = made(from.clone(), true, json!({}));
        assert_eq!(found["metadata"]["annotations"][annotation::DATA_SOURCE_NAMESPACE], "images");
        assert_eq!(made(from, false, json!({}))["metadata"]["annotations"][annotation::CLONE_REQUEST], "images/gold");
    }

    #[test]
    fn a_claim_of_the_name_is_taken_over_only_when_that_is_wanted() {
        let check = |metadata: Value, gates: Value, expect: Claimed| {
            let settings =
                Settings::of(Some(&serde_json::from_value(json!({ "spec": { "featureGates": gates } })).unwrap()));
            let claim = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            assert_eq!(claimed(&volume(json!({})), &claim, &settings), expect);
        };
        let owner = |uid: &str| json!({ "ownerReferences": [{ "apiVersion": "v", "kind": "k", "name": "n", "uid": uid, "controller": true }] });
        check(owner("u"), json!([]), Claimed::Ours);
        check(owner("other"), json!(["DataVolumeClaimAdoption"]), Claimed::Foreign);
        check(json!({}), json!([]), Claimed::Foreign);
        check(json!({}), json!(["DataVolumeClaimAdoption"]), Claimed::Adopt);
        check(json!({ "annotations": { annotation::ALLOW_CLAIM_ADOPTION: "true" } }), json!([]), Claimed::Adopt);
        check(
            json!({ "annotations": { annotation::ALLOW_CLAIM_ADOPTION: "false" } }),
            json!(["DataVolumeClaimAdoption"]),
            Claimed::Foreign,
        );
        check(json!({ "annotations": { annotation::POPULATED_FOR: "dv" } }), json!([]), Claimed::Adopt);
        check(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), json!([]), Claimed::Leaving);
    }
}
