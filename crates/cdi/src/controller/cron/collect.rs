//! What a cron has made goes: when it is of no use any more, and with a cron that keeps nothing.

use api::cdi::constants::{annotation, finalizer, label};
use api::cdi::v1beta1::DataImportCron;
use kit::queue::Next;
use kit::store::Key;
use kube::api::{DeleteParams, DynamicObject};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::Error;
use crate::controller::context::{Context, annotation_of, cron_index};
use crate::controller::cron::plan;
use crate::controller::{snapshot_api_in, write};

/// What was imported long ago goes.
pub async fn surplus(context: &Context, cron: &DataImportCron, namespace: &str) -> Result<(), Error> {
    if cron.spec.garbage_collect.as_deref() == Some("Never") {
        return Ok(());
    }
    let kept = cron.spec.imports_to_keep.and_then(|kept| usize::try_from(kept).ok()).unwrap_or(plan::KEPT);
    let word = cron_index(namespace, &cron.name_any());
    let used = |annotations: Option<&str>, made: Option<String>| {
        annotations.map(ToOwned::to_owned).or(made).unwrap_or_default()
    };
    let mut made: Vec<(String, String)> = context
        .claims
        .by_index(&word)
        .iter()
        .map(|claim| {
            (
                claim.name_any(),
                used(
                    annotation_of(claim, annotation::LAST_USE_TIME),
                    claim.creation_timestamp().map(|time| time.0.to_string()),
                ),
            )
        })
        .collect();
    for snapshot in context.snapshots.list() {
        let ours = snapshot.labels().get(label::DATA_IMPORT_CRON) == Some(&cron.name_any())
            && snapshot.namespace().as_deref() == Some(namespace);
        if ours && !made.iter().any(|(name, _)| *name == snapshot.name_any()) {
            made.push((snapshot.name_any(), used(annotation_of(&snapshot, annotation::LAST_USE_TIME), None)));
        }
    }
    let current = plan::current(cron).map(|one| one.data_volume_name.clone()).unwrap_or_default();
    for name in plan::surplus(&made, &current, kept) {
        all(context, namespace, name).await?;
    }
    Ok(())
}

/// The DataVolume of this name goes, or the claim that it left.
pub async fn volume(context: &Context, namespace: &str, name: &str) -> Result<(), Error> {
    let key = Key::new(namespace, name);
    if let Some(volume) = context.volumes.get(&key) {
        return write::delete(context, &volume).await;
    }
    if let Some(claim) = context.claims.get(&key) {
        return write::delete(context, &claim).await;
    }
    Ok(())
}

/// All that is of this name goes.
pub async fn all(context: &Context, namespace: &str, name: &str) -> Result<(), Error> {
    volume(context, namespace, name).await?;
    if context.snapshots.contains(&Key::new(namespace, name)) {
        let api: Api<DynamicObject> = snapshot_api_in(&context.client, "VolumeSnapshot", namespace);
        match api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            outcome => drop(outcome.map_err(Error::api("delete", "VolumeSnapshot", name))?),
        }
    }
    Ok(())
}

/// A cron that keeps nothing takes with it what it made.
pub async fn end(context: &Context, cron: &DataImportCron, passing: bool) -> Result<Next, Error> {
    let namespace = cron.namespace().unwrap_or_default();
    if passing {
        let word = cron_index(&namespace, &cron.name_any());
        let mut names: Vec<String> = context.volumes.by_index(&word).iter().map(ResourceExt::name_any).collect();
        names.extend(context.claims.by_index(&word).iter().map(ResourceExt::name_any));
        let snapshots = context.snapshots.list().into_iter().filter(|one| {
            one.labels().get(label::DATA_IMPORT_CRON) == Some(&cron.name_any())
                && one.namespace().as_deref() == Some(&namespace)
        });
        names.extend(snapshots.map(|one| one.name_any()));
        for name in names {
            all(context, &namespace, &name).await?;
        }
        let key = Key::new(namespace.as_str(), cron.spec.managed_data_source.as_str());
        if let Some(source) = context.sources.get(&key)
            && source.labels().get(label::DATA_IMPORT_CRON) == Some(&cron.name_any())
        {
            write::delete(context, &source).await?;
        }
    }
    let finalizers: Vec<&String> = cron.finalizers().iter().filter(|one| *one != finalizer::DATA_IMPORT_CRON).collect();
    let patch = json!({ "metadata": { "uid": cron.uid(), "resourceVersion": cron.resource_version(), "finalizers": finalizers } });
    write::patch(context, cron, &patch).await?;
    Ok(Next::Wait)
}
