//! Imports in stages: a disk as it was at a checkpoint, and then what changed since, checkpoint by checkpoint.
//!
//! ```text
//!  checkpoint 1 ─pod─▶ copied ─▶ checkpoint 2 ─pod─▶ copied ─▶ … paused until there is another ─▶ the final one ─▶ done
//! ```

use std::collections::BTreeMap;

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataVolumeCheckpoint;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use kube::ResourceExt;

use crate::Error;
use crate::controller::context::{Context, annotation_of, reference};
use crate::controller::write::{self, Changes};

/// The annotations of the first stage of an import with these checkpoints; none of one without stages.
pub fn first(checkpoints: &[DataVolumeCheckpoint], is_final: bool) -> BTreeMap<String, String> {
    next(&BTreeMap::new(), checkpoints, is_final).unwrap_or_default()
}

/// The annotations of the stage that comes next on a claim with `annotations`.
fn next(
    annotations: &BTreeMap<String, String>,
    checkpoints: &[DataVolumeCheckpoint],
    is_final: bool,
) -> Option<BTreeMap<String, String>> {
    let copied = |checkpoint: &&DataVolumeCheckpoint| annotations.contains_key(&copied_key(&checkpoint.current));
    let at = checkpoints.iter().position(|checkpoint| !copied(&checkpoint))?;
    let checkpoint = checkpoints.get(at)?;
    let last = is_final && at + 1 == checkpoints.len();
    let said = [
        (annotation::CHECKPOINT_CURRENT, checkpoint.current.clone()),
        (annotation::CHECKPOINT_PREVIOUS, checkpoint.previous.clone()),
        (annotation::CHECKPOINT_FINAL, last.to_string()),
    ];
    Some(said.map(|(key, value)| (key.to_owned(), value)).into())
}

fn copied_key(checkpoint: &str) -> String {
    format!("{}.{checkpoint}", annotation::CHECKPOINTS_COPIED)
}

/// What a stage's end changes on the claim: pure.
fn ended(claim: &PersistentVolumeClaim, checkpoints: &[DataVolumeCheckpoint], is_final: bool) -> Option<Changes> {
    let current = annotation_of(claim, annotation::CHECKPOINT_CURRENT)?;
    if annotation_of(claim, annotation::POD_PHASE) != Some("Succeeded") {
        return None;
    }
    let mut changes = Changes::new();
    let mut known = claim.annotations().clone();
    let key = copied_key(current);
    if !known.contains_key(&key) {
        let pod = annotation_of(claim, annotation::CHECKPOINT_POD_ID).unwrap_or_default().to_owned();
        known.insert(key.clone(), pod.clone());
        changes.insert(key, Some(pod));
    }
    match next(&known, checkpoints, is_final) {
        Some(stage) => {
            changes.extend(stage.into_iter().map(|(key, value)| (key, Some(value))));
            // Another pod begins.
            changes.insert(annotation::POD_PHASE.to_owned(), None);
            changes.insert(annotation::IMPORT_POD.to_owned(), None);
        }
        None if is_final => {
            for key in [
                annotation::CHECKPOINT_CURRENT,
                annotation::CHECKPOINT_PREVIOUS,
                annotation::CHECKPOINT_FINAL,
                annotation::CHECKPOINT_POD_ID,
            ] {
                changes.insert(key.to_owned(), None);
            }
            changes.insert(annotation::MULTISTAGE_DONE.to_owned(), Some("true".to_owned()));
        }
        // Paused until there are more.
        None => {}
    }
    (!changes.is_empty()).then_some(changes)
}

/// Takes the prime of `claim` on to its next stage. True when there was something to say.
pub async fn advance(
    context: &Context,
    claim: &PersistentVolumeClaim,
    prime: &PersistentVolumeClaim,
    source: &str,
) -> Result<bool, Error> {
    let Some(from) = context.imports.get(&Key::new(claim.namespace().unwrap_or_default(), source)) else {
        return Ok(false);
    };
    let Some(changes) = ended(prime, &from.spec.checkpoints, from.spec.final_checkpoint == Some(true)) else {
        return Ok(false);
    };
    let goes_on = changes.contains_key(annotation::POD_PHASE) || changes.contains_key(annotation::MULTISTAGE_DONE);
    write::annotate(context, prime, changes, Changes::new()).await?;
    if !goes_on {
        let told = format!("Multistage import into PVC {} is paused", claim.name_any());
        context.recorder.normal(&reference(claim), "ImportPaused", told);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(annotations: Value, checkpoints: &[(&str, &str)], is_final: bool, expect: Option<Value>) {
        let claim = serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap();
        let checkpoints: Vec<_> = checkpoints
            .iter()
            .map(|(previous, current)| DataVolumeCheckpoint {
                previous: (*previous).into(),
                current: (*current).into(),
            })
            .collect();
        let found = ended(&claim, &checkpoints, is_final).map(|changes| serde_json::to_value(changes).unwrap());
        assert_eq!(found, expect);
    }

    #[test]
    fn stages_follow_one_another() {
        let at = |stage: &str, phase: &str| json!({ annotation::CHECKPOINT_CURRENT: stage, annotation::CHECKPOINT_POD_ID: "p", annotation::POD_PHASE: phase });
        let both = [("", "a"), ("a", "b")];
        check(at("a", "Running"), &both, true, None);
        check(json!({ annotation::POD_PHASE: "Succeeded" }), &both, true, None);
        check(
            at("a", "Succeeded"),
            &both,
            true,
            Some(json!({
                copied_key("a"): "p", annotation::CHECKPOINT_CURRENT: "b", annotation::CHECKPOINT_PREVIOUS: "a", annotation::CHECKPOINT_FINAL: "true",
                annotation::POD_PHASE: null, annotation::IMPORT_POD: null,
            })),
        );
        check(at("a", "Succeeded"), &both[..1], false, Some(json!({ copied_key("a"): "p" })));
        let mut paused = at("a", "Succeeded");
        paused[copied_key("a")] = json!("p");
        check(paused, &both[..1], false, None);
        let mut last = at("b", "Succeeded");
        last[copied_key("a")] = json!("p");
        check(
            last,
            &both,
            true,
            Some(json!({
                copied_key("b"): "p", annotation::MULTISTAGE_DONE: "true", annotation::CHECKPOINT_CURRENT: null,
                annotation::CHECKPOINT_PREVIOUS: null, annotation::CHECKPOINT_FINAL: null, annotation::CHECKPOINT_POD_ID: null,
            })),
        );
    }
}
