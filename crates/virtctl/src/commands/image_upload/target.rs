//! What is uploaded into: its manifest, or whether what is there takes an upload. Pure.

use std::fmt;

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Map, Value, json};

use super::Args;

/// What holds the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// A DataVolume.
    #[value(alias = "datavolume")]
    Dv,
    /// A claim.
    #[value(alias = "persistentvolumeclaim")]
    Pvc,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dv => "DataVolume",
            Self::Pvc => "PVC",
        })
    }
}

fn metadata(args: &Args) -> Value {
    let mut labels = Map::new();
    for (key, value) in [
        ("default-instancetype", &args.default_instancetype),
        ("default-instancetype-kind", &args.default_instancetype_kind),
        ("default-preference", &args.default_preference),
        ("default-preference-kind", &args.default_preference_kind),
    ] {
        if let Some(value) = value {
            labels.insert(format!("instancetype.kubevirt.io/{key}"), json!(value));
        }
    }
    let mut annotations = Map::new();
    if args.force_bind {
        annotations.insert(annotation::IMMEDIATE_BINDING.to_owned(), json!(""));
    }
    json!({ "name": args.name, "labels": labels, "annotations": annotations })
}

fn claimed(args: &Args) -> Value {
    let mut spec = json!({ "resources": { "requests": { "storage": args.size.as_deref().unwrap_or_default() } } });
    if let Some(class) = &args.storage_class {
        spec["storageClassName"] = json!(class);
    }
    if let Some(mode) = &args.access_mode {
        spec["accessModes"] = json!([mode]);
    }
    match args.volume_mode.as_deref() {
        Some("block") => spec["volumeMode"] = json!("Block"),
        // Files do not fit onto a device.
        Some("filesystem") => spec["volumeMode"] = json!("Filesystem"),
        _ if args.archive_path.is_some() => spec["volumeMode"] = json!("Filesystem"),
        _ => {}
    }
    spec
}

/// A DataVolume that waits for an upload; what is not said is the storage class's best.
pub(super) fn volume(args: &Args) -> Value {
    let content = if args.archive_path.is_some() { "archive" } else { "kubevirt" };
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": metadata(args),
        "spec": { "contentType": content, "source": { "upload": {} }, "storage": claimed(args) },
    })
}

/// A claim that waits for an upload.
pub(super) fn claim(args: &Args) -> Value {
    let mut metadata = metadata(args);
    metadata["annotations"][annotation::UPLOAD] = json!("");
    if args.archive_path.is_some() {
        metadata["annotations"][annotation::CONTENT_TYPE] = json!("archive");
    }
    let mut spec = claimed(args);
    if args.access_mode.is_none() {
        spec["accessModes"] = json!(["ReadWriteOnce"]);
    }
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec })
}

/// The DataSource of the volume's name.
pub(super) fn data_source(args: &Args, namespace: &str) -> Value {
    let mut metadata = metadata(args);
    metadata["annotations"] = json!({});
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": metadata,
        "spec": { "source": { "pvc": { "namespace": namespace, "name": args.name } } },
    })
}

/// Whether what is there takes an upload.
///
/// # Errors
/// Why it does not.
pub(super) fn takes_uploads(claim: Option<&PersistentVolumeClaim>, volume: Option<&DataVolume>) -> Result<(), String> {
    let annotations = claim.and_then(|claim| claim.metadata.annotations.as_ref());
    let said = |key: &str| annotations.and_then(|annotations| annotations.get(key)).map(String::as_str);
    if let Some(volume) = volume {
        let upload = volume.spec.source.as_ref().is_some_and(|source| source.upload.is_some());
        if !upload {
            return Err("the DataVolume is filled from elsewhere, and not by an upload".to_owned());
        }
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Succeeded") {
            return Err(done());
        }
        return Ok(());
    }
    match said(annotation::POD_PHASE) {
        Some("Succeeded") => Err(done()),
        _ if said(annotation::UPLOAD).is_none() && said(annotation::POPULATOR_KIND) != Some("VolumeUploadSource") => {
            Err(format!("it does not wait for an upload: it lacks the annotation {}", annotation::UPLOAD))
        }
        _ => Ok(()),
    }
}

fn done() -> String {
    "it was filled already, and holds data: delete it first, or take another name".to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &str) -> Args {
        Line::try_parse_from(std::iter::once("x").chain(words.split_whitespace())).unwrap().args
    }

    #[test]
    fn flags_become_the_data_volume() {
        let made = volume(&args("dv d --size 1Gi --image-path i --storage-class c --volume-mode block --force-bind"));
        let storage = json!({
            "resources": { "requests": { "storage": "1Gi" } }, "storageClassName": "c", "volumeMode": "Block",
        });
        let spec = json!({ "contentType": "kubevirt", "source": { "upload": {} }, "storage": storage });
        assert_eq!(made["spec"], spec);
        assert_eq!(made["metadata"]["annotations"], json!({ "cdi.kubevirt.io/storage.bind.immediate.requested": "" }));
        let made = claim(&args("pvc d --size 1Gi --archive-path i --default-preference fedora"));
        let annotations = json!({
            "cdi.kubevirt.io/storage.upload.target": "", "cdi.kubevirt.io/storage.contentType": "archive",
        });
        assert_eq!(made["metadata"]["annotations"], annotations);
        assert_eq!(made["metadata"]["labels"], json!({ "instancetype.kubevirt.io/default-preference": "fedora" }));
        assert_eq!(made["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    }

    #[test]
    fn only_upload_targets_take_uploads() {
        let claim =
            |annotations: Value| serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap();
        let check = |annotations: Value, expect: bool| {
            assert_eq!(takes_uploads(Some(&claim(annotations)), None).is_ok(), expect);
        };
        check(json!({}), false);
        check(json!({ "cdi.kubevirt.io/storage.upload.target": "" }), true);
        let done = json!({
            "cdi.kubevirt.io/storage.upload.target": "", "cdi.kubevirt.io/storage.pod.phase": "Succeeded",
        });
        check(done, false);
    }
}
