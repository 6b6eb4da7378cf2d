//! What a DataVolume says: its phase, how far it is, and its conditions, all read off its claim. Pure.

mod stage;

pub use stage::{came_filled, is_filled};

use api::cdi::constants::{NO_PROGRESS, annotation, condition, phase};
use api::cdi::v1beta1::{CDICondition, DataVolume, DataVolumeStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use meta::conditions;

use crate::controller::context::annotation_of;
use crate::controller::datavolume::plan::Filling;
use crate::controller::progress::Far;

/// The reason of a claim that is not there, and of nothing else.
pub const NOT_FOUND: &str = "NotFound";

/// What is to be known beside the DataVolume and its claim.
pub struct View<'a> {
    /// How it is filled, its `sourceRef` resolved.
    pub filling: Filling,
    /// The claim's class waits for a consumer.
    pub waits: bool,
    /// And that is honored.
    pub honored: bool,
    /// Why there is no claim: reason and message.
    pub refused: Option<(&'a str, &'a str)>,
    /// How far the worker of a claim without populator is.
    pub progress: Option<&'a Far>,
}

/// An event about a DataVolume.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    /// It needs to be looked at.
    pub warning: bool,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// The status of `volume`, and what is to be said of its change.
pub fn status(
    volume: &DataVolume,
    claim: Option<&PersistentVolumeClaim>,
    view: &View<'_>,
    now: Timestamp,
) -> (DataVolumeStatus, Vec<Said>) {
    let before = volume.status.clone().unwrap_or_default();
    let mut after = before.clone();
    let old_phase = before.phase.clone().unwrap_or_default();
    let mut said = Vec::new();
    let (phase, told) = match claim {
        Some(claim) => stage::of_claim(volume, claim, &old_phase, view),
        // One that comes filled, such as one that is brought back from a backup, waits for the claim that holds it.
        None if annotation_of(volume, annotation::PRE_POPULATED).is_some() => (phase::PENDING.to_owned(), None),
        None if old_phase.is_empty() || view.refused.is_some() => (phase::PENDING.to_owned(), None),
        None => (old_phase.clone(), None),
    };
    if phase != old_phase {
        said.extend(told);
    }
    let came = claim.is_some_and(|claim| came_filled(volume, claim));
    // Nobody of ours has filled it, and so nobody has measured how far that is.
    after.progress = Some(if came { NO_PROGRESS.to_owned() } else { progress(claim, &phase, &before, view) });
    if let Some(claim) = claim {
        after.claim_name = Some(claim.name_any());
        let restarts = annotation_of(claim, annotation::POD_RESTARTS).and_then(|text| text.parse().ok());
        after.restart_count = restarts.or(after.restart_count);
    }
    after.phase = Some(phase.clone());
    describe(&mut after.conditions, claim, &phase, view, now);
    said.extend(changes(&before.conditions, &after.conditions, &phase));
    (after, said)
}

fn progress(claim: Option<&PersistentVolumeClaim>, phase: &str, before: &DataVolumeStatus, view: &View<'_>) -> String {
    if phase == phase::SUCCEEDED && view.filling != Filling::External {
        return "100.0%".to_owned();
    }
    let told = claim.and_then(|claim| annotation_of(claim, annotation::POPULATOR_PROGRESS)).map(ToOwned::to_owned);
    let own = view.progress.filter(|far| far.percent < 100.0).map(|far| format!("{:.2}%", far.percent));
    told.or(own).or_else(|| before.progress.clone()).unwrap_or_else(|| NO_PROGRESS.to_owned())
}

fn describe(
    all: &mut Vec<CDICondition>,
    claim: Option<&PersistentVolumeClaim>,
    phase: &str,
    view: &View<'_>,
    now: Timestamp,
) {
    let refused = view.refused;
    let unready = refused.filter(|(reason, _)| *reason != NOT_FOUND).unwrap_or_default();
    let far = view.progress.map(|far| far.message.as_str()).filter(|message| !message.is_empty());
    let get = |key: &str| claim.and_then(|claim| annotation_of(claim, key));
    let (bound, reason, message) = match claim {
        None => match refused {
            Some((reason, message)) => ("False", reason.to_owned(), message.to_owned()),
            None => ("False", NOT_FOUND.to_owned(), "No PVC found".to_owned()),
        },
        Some(claim) => bound(claim),
    };
    conditions::set(all, condition::BOUND, bound, Some(&reason), Some(&message), &Time(now));
    let (running, running_reason, running_message) = match get(annotation::RUNNING).map(str::to_lowercase).as_deref() {
        _ if get(annotation::POD_SCHEDULABLE) == Some("false") => {
            let pod = match view.filling {
                Filling::Upload => "Upload server pod",
                Filling::Clone | Filling::Restore => "Clone pod",
                Filling::Import | Filling::External => "Importer pod",
            };
            let why = get(annotation::RUNNING_MESSAGE).filter(|why| !why.is_empty());
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            ("False", "Unschedulable", format!("{pod} cannot be scheduled{why}"))
        }
        Some("true") => match get(annotation::SOURCE_RUNNING).map(str::to_lowercase).as_deref() {
            Some("false") => (
                "False",
                get(annotation::SOURCE_RUNNING_REASON).unwrap_or_default(),
                get(annotation::SOURCE_RUNNING_MESSAGE).unwrap_or_default().to_owned(),
            ),
            _ => {
                let message = far.or(get(annotation::RUNNING_MESSAGE)).unwrap_or_default().to_owned();
                ("True", get(annotation::RUNNING_REASON).unwrap_or_default(), message)
            }
        },
        _ => (
            "False",
            get(annotation::RUNNING_REASON).unwrap_or_default(),
            get(annotation::RUNNING_MESSAGE).unwrap_or_default().to_owned(),
        ),
    };
    conditions::set(all, condition::RUNNING, running, Some(running_reason), Some(&running_message), &Time(now));
    let (ready, ready_reason, ready_message) = match (phase, running) {
        (phase::SUCCEEDED, _) => ("True", "", ""),
        (phase::UNKNOWN, _) => ("Unknown", "", ""),
        (phase::FAILED, _) => ("False", running_reason, running_message.as_str()),
        (_, "True") => ("False", "TransferRunning", ""),
        _ => ("False", unready.0, unready.1),
    };
    conditions::set(all, condition::READY, ready, Some(ready_reason), Some(ready_message), &Time(now));
}

fn bound(claim: &PersistentVolumeClaim) -> (&'static str, String, String) {
    let name = claim.name_any();
    let told = annotation_of(claim, annotation::BOUND).filter(|value| !value.eq_ignore_ascii_case("true")).map(|_| {
        let get = |key: &str| annotation_of(claim, key).unwrap_or_default().to_owned();
        (get(annotation::BOUND_REASON), get(annotation::BOUND_MESSAGE))
    });
    match (claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending"), told) {
        ("Bound", None) => ("True", "Bound".to_owned(), format!("PVC {name} Bound")),
        ("Bound", Some((reason, message))) => ("False", reason, message),
        ("Pending", Some((reason, message))) => ("False", reason, format!("target PVC {name} Pending and {message}")),
        ("Pending", None) => {
            let prime = annotation_of(claim, annotation::PVC_PRIME)
                .map(|prime| format!(" [Prime PVC {prime}]"))
                .unwrap_or_default();
            ("False", "Pending".to_owned(), format!("PVC {name}{prime} Pending"))
        }
        ("Lost", _) => ("False", "ClaimLost".to_owned(), "Claim Lost".to_owned()),
        _ => ("False", String::new(), String::new()),
    }
}

/// Events about conditions that changed.
fn changes(before: &[CDICondition], after: &[CDICondition], phase: &str) -> Vec<Said> {
    let pair = |kind: &str| (conditions::get(before, kind), conditions::get(after, kind));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut said = Vec::new();
    if let (was, Some(is)) = pair(condition::BOUND)
        && was.is_none_or(|was| (&was.status, &was.reason, &was.message) != (&is.status, &is.reason, &is.message))
        && is.reason.is_some()
    {
        let warning = is.reason.as_ref().is_some_and(|reason| reason.starts_with("Err"));
        said.push(Said { warning, reason: text(&is.reason), message: text(&is.message) });
    }
    if let (was, Some(is)) = pair(condition::RUNNING)
        && is.status == "False"
        && phase != phase::SUCCEEDED
        && is.message.is_some()
        && was.is_none_or(|was| was.message != is.message)
    {
        let warning = is.reason.as_deref() != Some("Completed");
        said.push(Said { warning, reason: text(&is.reason), message: text(&is.message) });
    }
    said
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::datavolume::plan;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn volume(source: Value, status: Value) -> DataVolume {
        serde_json::from_value(
            json!({ "metadata": { "name": "dv", "namespace": "ns" }, "spec": { "source": source }, "status": status }),
        )
        .unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn claim(annotations: Value, bound: &str, populator: bool) -> PersistentVolumeClaim {
        let from =
            populator.then(|| json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "s" }));
        serde_json::from_value(json!({
            "metadata": { "name": "dv", "namespace": "ns", "annotations": annotations }, "spec": { "dataSourceRef": from }, "status": { "phase": bound },
        }))
        .unwrap()
    }

    #[track_caller]
    fn check(source: Value, claim: &PersistentVolumeClaim, waits: bool, expect: (&str, &str, &str)) {
        let volume = volume(source, json!({}));
        let view = View { filling: plan::filling(&volume.spec), waits, honored: true, refused: None, progress: None };
        let (status, _) = status(&volume, Some(claim), &view, Timestamp::UNIX_EPOCH);
        let of =
            |kind: &str| conditions::get(&status.conditions, kind).map(|one| one.status.clone()).unwrap_or_default();
        let found = (status.phase.unwrap(), of("Ready") + &of("Bound") + &of("Running"), status.progress.unwrap());
        assert_eq!((found.0.as_str(), found.1.as_str(), found.2.as_str()), expect);
    }

    #[test]
    fn phases_of_an_import() {
        use annotation::{POD_PHASE, POPULATOR_PROGRESS, RUNNING};
        let http = || json!({ "http": { "url": "u" } });
        let none = || json!({});
        check(http(), &claim(none(), "Pending", true), true, ("PendingPopulation", "FalseFalseFalse", "N/A"));
        check(http(), &claim(none(), "Pending", false), true, ("WaitForFirstConsumer", "FalseFalseFalse", "N/A"));
        check(http(), &claim(none(), "Pending", true), false, ("ImportScheduled", "FalseFalseFalse", "N/A"));
        check(http(), &claim(none(), "Pending", false), false, ("Pending", "FalseFalseFalse", "N/A"));
        check(http(), &claim(none(), "Bound", false), false, ("PVCBound", "FalseTrueFalse", "N/A"));
        let running = json!({ POD_PHASE: "Running", RUNNING: "true", POPULATOR_PROGRESS: "12.50%" });
        check(http(), &claim(running, "Pending", true), false, ("ImportInProgress", "FalseFalseTrue", "12.50%"));
        let done = json!({ POD_PHASE: "Succeeded", POPULATOR_PROGRESS: "100.0%" });
        check(http(), &claim(done.clone(), "Pending", true), false, ("ImportInProgress", "FalseFalseFalse", "100.0%"));
        check(http(), &claim(done, "Bound", true), false, ("Succeeded", "TrueTrueFalse", "100.0%"));
        let wrong = json!({ POD_PHASE: "Failed", annotation::FATAL_ERROR: "true" });
        check(http(), &claim(wrong, "Pending", true), false, ("Failed", "FalseFalseFalse", "N/A"));
        let paused = json!({ POD_PHASE: "Succeeded", annotation::CHECKPOINT_CURRENT: "a" });
        check(http(), &claim(paused, "Pending", true), false, ("Paused", "FalseFalseFalse", "N/A"));
        check(http(), &claim(none(), "Lost", true), false, ("Failed", "FalseFalseFalse", "N/A"));
        let filled = || json!({ annotation::POPULATED_FOR: "dv" });
        check(http(), &claim(filled(), "Pending", false), true, ("WaitForFirstConsumer", "FalseFalseFalse", "N/A"));
        check(http(), &claim(filled(), "Bound", false), false, ("Succeeded", "TrueTrueFalse", "N/A"));
    }

    #[test]
    fn phases_of_uploads_and_clones() {
        let (upload, clone) = (json!({ "upload": {} }), json!({ "pvc": { "name": "a", "namespace": "b" } }));
        check(upload.clone(), &claim(json!({}), "Pending", true), false, ("UploadScheduled", "FalseFalseFalse", "N/A"));
        let ready =
            json!({ annotation::POD_PHASE: "Running", annotation::POD_READY: "true", annotation::RUNNING: "true" });
        check(upload, &claim(ready, "Pending", true), false, ("UploadReady", "FalseFalseTrue", "N/A"));
        check(clone.clone(), &claim(json!({}), "Pending", true), false, ("CloneScheduled", "FalseFalseFalse", "N/A"));
        check(
            clone,
            &claim(json!({ annotation::CLONE_PHASE: "CSIClone" }), "Pending", true),
            false,
            ("CSICloneInProgress", "FalseFalseFalse", "N/A"),
        );
    }

    #[test]
    fn the_message_of_the_scheduler_is_in_the_conditions() {
        let view = View { filling: Filling::Upload, waits: false, honored: true, refused: None, progress: None };
        let why = "0/1 nodes are available: 1 Insufficient memory.";
        let told = json!({ annotation::POD_SCHEDULABLE: "false", annotation::RUNNING_MESSAGE: why });
        let target = claim(told, "Pending", true);
        let (found, said) =
            status(&volume(json!({ "upload": {} }), json!({})), Some(&target), &view, Timestamp::UNIX_EPOCH);
        let running = conditions::get(&found.conditions, "Running").unwrap();
        let expect = format!("Upload server pod cannot be scheduled: {why}");
        assert_eq!((running.reason.as_deref(), running.message.as_ref()), (Some("Unschedulable"), Some(&expect)));
        assert!(said.iter().any(|one| one.warning && one.message == expect));
    }

    #[test]
    fn a_change_of_phase_gives_one_event() {
        let view = View { filling: Filling::Import, waits: false, honored: true, refused: None, progress: None };
        let target = claim(json!({ annotation::POD_PHASE: "Running", annotation::RUNNING: "true" }), "Pending", true);
        let volume_of = |status: Value| volume(json!({ "http": { "url": "u" } }), status);
        let (first, said) = status(&volume_of(json!({})), Some(&target), &view, Timestamp::UNIX_EPOCH);
        let reasons: Vec<_> = said.iter().map(|one| one.reason.as_str()).collect();
        assert_eq!(reasons, ["ImportInProgress", "Pending"]);
        let (second, said) =
            status(&volume_of(serde_json::to_value(&first).unwrap()), Some(&target), &view, Timestamp::MAX);
        assert_eq!((second, said), (first, vec![]));
    }

    #[test]
    fn a_refusal_is_said() {
        let view = View {
            filling: Filling::Import,
            waits: false,
            honored: true,
            refused: Some(("ErrClaimNotValid", "no size")),
            progress: None,
        };
        let (found, _) = status(&volume(json!({}), json!({})), None, &view, Timestamp::UNIX_EPOCH);
        let bound = conditions::get(&found.conditions, "Bound").unwrap();
        assert_eq!(
            (found.phase.as_deref(), bound.reason.as_deref(), bound.message.as_deref()),
            (Some("Pending"), Some("ErrClaimNotValid"), Some("no size"))
        );
    }
}
