//! DataSources: names of golden images, which say whether there is an image behind them.

use api::cdi::constants::{annotation, condition};
use api::cdi::v1beta1::{DataSource, DataSourceSource, DataSourceStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock;
use kit::queue::Next;
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use meta::conditions;
use serde_json::json;

use crate::Error;
use crate::controller::context::{Context, annotation_of};
use crate::controller::labels::of_image;

/// Brings one DataSource in line.
pub async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(source) = context.sources.get(key).filter(|source| source.metadata.deletion_timestamp.is_none()) else {
        return Ok(Next::Wait);
    };
    let resolved = resolve(&source, |key| context.sources.get(key));
    let verdict = match &resolved {
        Ok(found) => judge(found, context),
        Err(verdict) => verdict.clone(),
    };
    let status = status(&source, resolved.ok(), &verdict, clock::now());
    let mut labels = json!({});
    if let Some(found) = &status.source {
        let at = |namespace: &str, name: &str| Key::new(namespace, name);
        let claim = found.pvc.as_ref().and_then(|from| context.claims.get(&at(&from.namespace, &from.name)));
        let snapshot = found.snapshot.as_ref().and_then(|from| context.snapshots.get(&at(&from.namespace, &from.name)));
        let labels_of = claim.iter().flat_map(ResourceExt::labels).chain(snapshot.iter().flat_map(ResourceExt::labels));
        for (name, value) in labels_of {
            if of_image(name) && source.labels().get(name) != Some(value) {
                labels[name] = json!(value);
            }
        }
    }
    let changed = source.status.as_ref() != Some(&status);
    if changed || labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        // The kind has no status subresource.
        let mut body = json!(status);
        if body.get("source").is_none() {
            body["source"] = serde_json::Value::Null;
        }
        let patch =
            json!({ "metadata": { "resourceVersion": source.resource_version(), "labels": labels }, "status": body });
        let api: Api<DataSource> = Api::namespaced(context.client.clone(), &key.namespace);
        let done = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        done.map_err(Error::api("write the status of", "DataSource", &key.to_string()))?;
    }
    Ok(Next::Wait)
}

/// Whether there is an image: status, reason and message of the condition.
type Verdict = (&'static str, String, String);

fn no(reason: &str, message: impl Into<String>) -> Verdict {
    ("False", reason.to_owned(), message.into())
}

/// What a DataSource names in the end: its own source, or that of the one it names.
pub fn resolve(source: &DataSource, find: impl Fn(&Key) -> Option<DataSource>) -> Result<DataSourceSource, Verdict> {
    let Some(other) = &source.spec.source.data_source else { return Ok(source.spec.source.clone()) };
    let (here, name) = (source.namespace().unwrap_or_default(), source.name_any());
    if other.namespace != here {
        return Err(no("CrossNamespaceReference", "DataSource cannot reference a DataSource in another namespace"));
    }
    if other.name == name {
        return Err(no("SelfReference", "DataSource cannot self-reference"));
    }
    let key = Key::new(other.namespace.as_str(), other.name.as_str());
    let Some(found) = find(&key) else { return Err(no("NotFound", format!("DataSource {key} not found"))) };
    if found.spec.source.data_source.is_some() {
        return Err(no("MaxReferenceDepthReached", "DataSource reference chain exceeds maximum depth of 1"));
    }
    Ok(found.spec.source)
}

fn judge(found: &DataSourceSource, context: &Context) -> Verdict {
    let ready = || ("True", "Ready".to_owned(), "DataSource is ready to be consumed".to_owned());
    if let Some(claim) = &found.pvc {
        let key = Key::new(claim.namespace.as_str(), claim.name.as_str());
        if let Some(volume) = context.volumes.get(&key) {
            let phase = volume.status.and_then(|status| status.phase).unwrap_or_default();
            if phase != "Succeeded" {
                return no(
                    if phase.is_empty() { "Pending" } else { &phase },
                    format!("Import DataVolume phase {phase}"),
                );
            }
        }
        return match context.claims.get(&key) {
            Some(claim) if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound") => ready(),
            // Of a class that waits for a consumer: a clone is one.
            Some(claim) if annotation_of(&claim, annotation::POPULATED_FOR).is_some() => ready(),
            Some(claim) => {
                let phase = claim.status.and_then(|status| status.phase).unwrap_or_else(|| "Pending".to_owned());
                no(&phase, format!("PVC {key} is {phase}"))
            }
            None => no("NotFound", format!("PVC {key} not found")),
        };
    }
    if let Some(snapshot) = &found.snapshot {
        let key = Key::new(snapshot.namespace.as_str(), snapshot.name.as_str());
        return match context.snapshots.get(&key) {
            Some(found) if found.data["status"]["readyToUse"] == true => ready(),
            Some(_) => no("SnapshotNotReady", "VolumeSnapshot not ready"),
            None => no("NotFound", format!("VolumeSnapshot {key} not found")),
        };
    }
    no("NoSource", "No source PVC or snapshot set")
}

fn status(
    source: &DataSource,
    resolved: Option<DataSourceSource>,
    verdict: &Verdict,
    now: Timestamp,
) -> DataSourceStatus {
    let mut all = source.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let (truth, reason, message) = verdict;
    conditions::set(&mut all, condition::READY, truth, Some(reason), Some(message), &Time(now));
    DataSourceStatus {
        conditions: all,
        source: resolved.filter(|found| found.pvc.is_some() || found.snapshot.is_some()).map(Box::new),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn source(name: &str, spec: Value) -> DataSource {
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": { "source": spec } }))
            .unwrap()
    }

    #[track_caller]
    fn check(spec: Value, expect: Result<&str, &str>) {
        let others = [
            source("gold", json!({ "pvc": { "name": "disk", "namespace": "ns" } })),
            source("far", json!({ "dataSource": { "name": "gold", "namespace": "ns" } })),
        ];
        let find = |key: &Key| others.iter().find(|one| one.name_any() == key.name).cloned();
        let found = resolve(&source("own", spec), find);
        let found = found.map(|found| found.pvc.unwrap().name).map_err(|(_, reason, _)| reason);
        assert_eq!(found.as_deref().map_err(String::as_str), expect);
    }

    #[test]
    fn a_reference_leads_one_step_and_stays_at_home() {
        let to = |name: &str, namespace: &str| json!({ "dataSource": { "name": name, "namespace": namespace } });
        check(json!({ "pvc": { "name": "disk", "namespace": "elsewhere" } }), Ok("disk"));
        check(to("gold", "ns"), Ok("disk"));
        check(to("far", "ns"), Err("MaxReferenceDepthReached"));
        check(to("own", "ns"), Err("SelfReference"));
        check(to("gold", "other"), Err("CrossNamespaceReference"));
        check(to("gone", "ns"), Err("NotFound"));
    }
}
