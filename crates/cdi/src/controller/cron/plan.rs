//! What a cron makes of what its source is now. Pure.

use std::collections::BTreeMap;

use api::cdi::constants::{annotation, condition, label, phase};
use api::cdi::v1beta1::{DataImportCron, DataImportCronStatus, DataVolume, DataVolumeSourcePVC, ImportStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use meta::conditions;
use serde_json::{Value, json};

use crate::controller::context::annotation_of;
use crate::controller::cron::answer::{NOT_AUTHORIZED, Unknown};
use crate::controller::{labels, worker};

/// How many imports stay, unless the cron says otherwise.
pub const KEPT: usize = 3;

/// What has become of the latest import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Import {
    /// There is none.
    None,
    /// It is on its way.
    Running,
    /// Its data cannot be had.
    Failed,
    /// It is there.
    Done,
    /// It is there, and its snapshot is being made.
    Snapping,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing new.
    Rest,
    /// Import what the source is now.
    Import,
    /// The latest import is of no use: it goes first.
    Discard,
    /// The latest import is what the DataSource names from now on.
    Publish,
}

/// What follows for `cron`, whose latest import stands so.
pub fn step(cron: &DataImportCron, import: Import) -> Step {
    let desired = annotation_of(cron, annotation::DESIRED_DIGEST).unwrap_or_default();
    let current = current(cron).map(|one| one.digest.as_str());
    let outdated = !desired.is_empty() && current != Some(desired);
    match import {
        Import::None if !desired.is_empty() => Step::Import,
        Import::Failed if outdated => Step::Discard,
        Import::Done if outdated => Step::Import,
        Import::Done => Step::Publish,
        _ => Step::Rest,
    }
}

/// The latest import.
pub fn current(cron: &DataImportCron) -> Option<&ImportStatus> {
    cron.status.as_ref()?.current_imports.first()
}

/// What has become of it, by its DataVolume or, once that is gone, by its claim.
pub fn import(cron: &DataImportCron, volume: Option<&DataVolume>, claim: bool) -> Import {
    if current(cron).is_none() {
        return Import::None;
    }
    match volume.map(|volume| volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()) {
        Some(phase::SUCCEEDED) => Import::Done,
        Some(phase::FAILED) => Import::Failed,
        Some(_) => {
            let all = volume.and_then(|volume| volume.status.as_ref()).map_or(&[][..], |status| &status.conditions);
            let error = conditions::get(all, condition::RUNNING)
                .is_some_and(|one| matches!(one.reason.as_deref(), Some("Error" | "ImagePullFailed")));
            if error { Import::Failed } else { Import::Running }
        }
        None if claim => Import::Done,
        None => Import::None,
    }
}

/// Name of the import of `digest`.
pub fn name(source: &str, digest: &str) -> String {
    let hash = digest.split_once(':').map_or(digest, |(_, hash)| hash);
    let short: String = hash.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    format!("{source}-{}", short.to_lowercase())
}

/// The storage class that imports are to be of, if the cron names one.
pub fn class(cron: &DataImportCron) -> Option<String> {
    let spec = &cron.spec.template.spec;
    let named = spec.storage.as_ref().and_then(|storage| storage.storage_class_name.clone());
    let named = named.or_else(|| spec.pvc.as_ref().and_then(|pvc| pvc.storage_class_name.clone()));
    named.filter(|name| !name.is_empty())
}

/// The DataVolume that imports what the source is now, for one writer where that is wanted and the template leaves it open.
pub fn volume(cron: &DataImportCron, digest: &str, one_writer: bool) -> Value {
    let template = &cron.spec.template;
    let metadata = template.metadata.clone().unwrap_or_default();
    let mut spec = json!(template.spec);
    let registry = &mut spec["source"]["registry"];
    if let Some(url) = registry["url"].as_str() {
        registry["url"] = json!(pinned(url, digest));
    } else if let Some(reference) = annotation_of(cron, annotation::IMAGE_STREAM_REFERENCE) {
        registry["url"] = json!(format!("docker://{reference}"));
        registry["imageStream"] = Value::Null;
    }
    let storage = &mut spec["storage"];
    if one_writer && storage.is_object() && storage["accessModes"].as_array().is_none_or(Vec::is_empty) {
        storage["accessModes"] = json!(["ReadWriteOnce"]);
    }
    let mut labels: BTreeMap<String, String> = metadata.labels.unwrap_or_default();
    labels.extend(marks(cron));
    let mut annotations: BTreeMap<String, String> = metadata.annotations.unwrap_or_default();
    annotations.entry(annotation::IMMEDIATE_BINDING.to_owned()).or_insert_with(|| "true".to_owned());
    annotations.insert(
        annotation::LAST_USE_TIME.to_owned(),
        annotation_of(cron, annotation::LAST_CRON_TIME).unwrap_or_default().to_owned(),
    );
    json!({
        "metadata": {
            "name": name(&cron.spec.managed_data_source, digest), "namespace": cron.namespace(), "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    })
}

/// Labels of what `cron` makes.
pub fn marks(cron: &DataImportCron) -> BTreeMap<String, String> {
    let keeps = cron.spec.retention_policy.as_deref() != Some("None");
    let mut labels: BTreeMap<String, String> = [(label::DATA_IMPORT_CRON.to_owned(), cron.name_any())].into();
    labels.insert(label::DATA_IMPORT_CRON_CLEANUP.to_owned(), (!keeps).to_string());
    labels.extend(labels::labels(""));
    for (key, value) in cron.labels() {
        if key.starts_with(label::INSTANCETYPE_PREFIX) || key == label::DYNAMIC_CREDENTIALS {
            labels.insert(key.clone(), value.clone());
        }
    }
    labels
}

/// The image of `url` as it is now, whatever its tag says later.
fn pinned(url: &str, digest: &str) -> String {
    let plain = url.split_once('@').map_or(url, |(plain, _)| plain);
    let name_at = plain.rfind('/').map_or(0, |at| at + 1);
    let untagged = plain.get(name_at..).and_then(|name| name.find(':')).map_or(plain, |at| &plain[..name_at + at]);
    format!("{untagged}@{digest}")
}

/// The DataSource of `cron`, which names its latest import.
pub fn source(cron: &DataImportCron, snapshot: bool) -> Value {
    let named = current(cron).map(|one| json!({ "name": one.data_volume_name, "namespace": cron.namespace() }));
    let spec =
        if snapshot { json!({ "snapshot": named, "pvc": null }) } else { json!({ "pvc": named, "snapshot": null }) };
    let owners = if cron.spec.retention_policy.as_deref() == Some("None") { worker::owned_by(cron) } else { json!([]) };
    json!({
        "metadata": {
            "name": cron.spec.managed_data_source, "namespace": cron.namespace(), "labels": marks(cron), "ownerReferences": owners,
        },
        "spec": { "source": spec },
    })
}

/// What is to be known beside the cron.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// What has become of the latest import.
    pub import: Import,
    /// The phase of its DataVolume.
    pub phase: &'a str,
    /// Why it is not known what the source is now.
    pub problem: Option<&'a Unknown>,
    /// What it is kept as: `pvc` or `snapshot`.
    pub format: &'a str,
}

/// What `cron` says.
pub fn status(cron: &DataImportCron, view: &View<'_>, now: Timestamp) -> DataImportCronStatus {
    let View { import, phase, problem, format } = *view;
    let mut status = cron.status.as_deref().cloned().unwrap_or_default();
    let desired = annotation_of(cron, annotation::DESIRED_DIGEST).unwrap_or_default();
    let outdated = !desired.is_empty() && current(cron).map(|one| one.digest.as_str()) != Some(desired);
    let (truth, reason, message) = match import {
        _ if problem.is_some_and(|problem| problem.reason == NOT_AUTHORIZED) => {
            ("False", NOT_AUTHORIZED, problem.map_or("", |problem| problem.message.as_str()))
        }
        _ if desired.is_empty() => {
            ("False", "NoDigest", problem.map_or("No source digest", |problem| problem.message.as_str()))
        }
        Import::None => ("False", "NoImport", "No current import"),
        _ if outdated => ("False", "Outdated", "Source digest updated since last import"),
        Import::Running => ("False", "ImportProgressing", "Import is progressing"),
        Import::Failed => ("False", "ImportFailed", "Import of the source failed: see its DataVolume"),
        Import::Snapping => ("False", "ImportProgressing", "Snapshot of imported data is progressing"),
        Import::Done => ("True", "UpToDate", "Latest import is up to date"),
    };
    conditions::set(&mut status.conditions, condition::UP_TO_DATE, truth, Some(reason), Some(message), &Time(now));
    let of_phase = format!("Import DataVolume phase {phase}");
    let (truth, reason, message) = match import {
        Import::Running if phase == phase::IMPORT_IN_PROGRESS => ("True", "ImportProgressing", "Import is progressing"),
        Import::Running if matches!(phase, "" | phase::IMPORT_SCHEDULED) => {
            ("False", "ImportScheduled", "Import is scheduled")
        }
        Import::Running => ("False", phase, of_phase.as_str()),
        Import::Snapping => ("True", "ImportProgressing", "Snapshot of imported data is progressing"),
        Import::None | Import::Done => ("False", "NoImport", "No current import"),
        Import::Failed => ("False", "ImportFailed", of_phase.as_str()),
    };
    conditions::set(&mut status.conditions, condition::PROGRESSING, truth, Some(reason), Some(message), &Time(now));
    if import == Import::Done && !outdated {
        let found = current(cron).map(|one| DataVolumeSourcePVC {
            name: one.data_volume_name.clone(),
            namespace: cron.namespace().unwrap_or_default(),
        });
        if status.last_imported_pvc != found {
            status.last_imported_pvc = found;
            status.last_import_timestamp = Some(Time(kit::clock::seconds(now)));
        }
        status.source_format = Some(format.to_owned());
    }
    let executed = annotation_of(cron, annotation::LAST_CRON_TIME).and_then(|text| text.parse().ok()).map(Time);
    status.last_execution_timestamp = executed.or(status.last_execution_timestamp);
    status
}

/// Of what a cron has made, named with the time of its last use: what goes, when `kept` stay and the current one always does.
pub fn surplus<'a>(made: &'a [(String, String)], current: &str, kept: usize) -> Vec<&'a str> {
    let mut by_use: Vec<_> = made.iter().filter(|(name, _)| name != current).collect();
    by_use.sort_by(|(a, used_a), (b, used_b)| used_b.cmp(used_a).then_with(|| a.cmp(b)));
    let others = kept.max(1) - usize::from(made.iter().any(|(name, _)| name == current)).min(kept.max(1));
    by_use.into_iter().skip(others).map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(desired: &str, current: Option<&str>) -> DataImportCron {
        let imports: Vec<_> =
            current.into_iter().map(|digest| json!({ "DataVolumeName": "gold-1", "Digest": digest })).collect();
        serde_json::from_value(json!({
            "metadata": { "name": "c", "namespace": "ns", "annotations": { annotation::DESIRED_DIGEST: desired } },
            "spec": {
                "managedDataSource": "gold", "schedule": "* * * * *",
                "template": { "spec": { "source": { "registry": { "url": "docker://r:5000/a/b:latest" } } } },
            },
            "status": { "currentImports": imports },
        }))
        .unwrap()
    }

    #[test]
    fn one_import_at_a_time_and_the_newest_wins() {
        let check = |desired: &str, current: Option<&str>, import: Import, expect: Step| {
            assert_eq!(step(&cron(desired, current), import), expect);
        };
        check("", None, Import::None, Step::Rest);
        check("a", None, Import::None, Step::Import);
        check("a", Some("a"), Import::Running, Step::Rest);
        check("b", Some("a"), Import::Running, Step::Rest);
        check("b", Some("a"), Import::Failed, Step::Discard);
        check("a", Some("a"), Import::Failed, Step::Rest);
        check("b", Some("a"), Import::Done, Step::Import);
        check("a", Some("a"), Import::Done, Step::Publish);
        check("a", Some("a"), Import::Snapping, Step::Rest);
    }

    #[test]
    fn an_import_is_of_the_image_as_it_was_seen() {
        let made = volume(&cron("sha256:0123456789abcdef", None), "sha256:0123456789abcdef", true);
        assert_eq!(made["spec"]["storage"], Value::Null);
        assert_eq!(made["metadata"]["name"], "gold-0123456789ab");
        assert_eq!(made["spec"]["source"]["registry"]["url"], "docker://r:5000/a/b@sha256:0123456789abcdef");
        assert_eq!(made["metadata"]["labels"][label::DATA_IMPORT_CRON], "c");
    }

    #[test]
    fn a_stream_is_imported_from_where_its_image_is() {
        let mut cron = cron("sha256:00", None);
        let template = json!({ "source": { "registry": { "imageStream": "s", "pullMethod": "node" } }, "storage": { "resources": {} } });
        cron.spec.template.spec = serde_json::from_value(template).unwrap();
        let said = (annotation::IMAGE_STREAM_REFERENCE.to_owned(), "r/i@sha256:00".to_owned());
        cron.annotations_mut().extend([said]);
        let spec = &volume(&cron, "sha256:00", true)["spec"];
        let registry = json!({ "url": "docker://r/i@sha256:00", "imageStream": null, "pullMethod": "node" });
        assert_eq!(
            (&spec["source"]["registry"], &spec["storage"]["accessModes"]),
            (&registry, &json!(["ReadWriteOnce"]))
        );
    }

    #[test]
    fn conditions_say_how_it_stands() {
        let check = |desired: &str, current: Option<&str>, import: Import, up_to_date: &str, progressing: &str| {
            let view = View { import, phase: "ImportInProgress", problem: None, format: "pvc" };
            let found = status(&cron(desired, current), &view, Timestamp::UNIX_EPOCH);
            let of = |kind: &str| {
                conditions::get(&found.conditions, kind)
                    .map(|one| format!("{} {}", one.status, one.reason.clone().unwrap_or_default()))
            };
            assert_eq!(
                (of("UpToDate").as_deref(), of("Progressing").as_deref()),
                (Some(up_to_date), Some(progressing))
            );
        };
        check("", None, Import::None, "False NoDigest", "False NoImport");
        check("a", Some("a"), Import::Running, "False ImportProgressing", "True ImportProgressing");
        check("a", Some("a"), Import::Done, "True UpToDate", "False NoImport");
        check("b", Some("a"), Import::Done, "False Outdated", "False NoImport");
        let lacking = Unknown { reason: NOT_AUTHORIZED, message: "no".into() };
        let view = View { import: Import::Running, phase: "Pending", problem: Some(&lacking), format: "pvc" };
        let found = status(&cron("a", Some("a")), &view, Timestamp::UNIX_EPOCH).conditions;
        let reasons: Vec<_> = found.iter().map(|one| one.reason.as_deref().unwrap_or_default()).collect();
        assert_eq!(reasons, [NOT_AUTHORIZED, "Pending"]);
    }

    #[test]
    fn the_most_recently_used_imports_are_kept() {
        let made =
            |names: &[(&str, &str)]| names.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>();
        let all = made(&[("old", "1"), ("now", "0"), ("new", "3"), ("mid", "2")]);
        assert_eq!(surplus(&all, "now", 3), ["old"]);
        assert_eq!(surplus(&all, "now", 1), ["new", "mid", "old"]);
        assert_eq!(surplus(&all, "now", 0), ["new", "mid", "old"]);
        assert_eq!(surplus(&all, "now", 9), Vec::<&str>::new());
    }
}
