//! A snapshot that the target's driver knows nothing of is copied by way of a claim that its own driver makes of it.

use api::cdi::constants::{annotation, label};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kit::store::Key;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::Error;
use crate::controller::clone::plan;
use crate::controller::clone::plan::Source;
use crate::controller::clone::source::{driver_of, restore_size};
use crate::controller::context::{Context, annotation_of};
use crate::controller::write;

/// Name of the claim that is made of the snapshot on the way to `target`.
pub fn name(target: &PersistentVolumeClaim) -> String {
    format!("tmp-source-pvc-{}", target.uid().unwrap_or_default())
}

/// The claim that is made of `snapshot`, or why there is none.
pub async fn claim(
    context: &Context,
    target: &PersistentVolumeClaim,
    snapshot: &DynamicObject,
) -> Result<Result<PersistentVolumeClaim, String>, Error> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let key = Key::new(namespace.as_str(), name(target));
    if let Some(found) = context.claims.get(&key) {
        return Ok(Ok(found));
    }
    let driver = driver_of(context, &Source::Snapshot(Box::new(snapshot.clone())));
    let Some(class) = class(&context.classes.list(), &driver).map(ResourceExt::name_any) else {
        return Ok(Err(format!(
            "VolumeSnapshot {namespace}/{} is of driver {driver:?}, and no storage class is: make one, so that it can be restored and copied",
            snapshot.name_any()
        )));
    };
    let made = render(target, snapshot, &class);
    let made: PersistentVolumeClaim = serde_json::from_value(made).map_err(Error::setup("render a claim"))?;
    let created = write::create_claim(context, &made).await;
    created.map_err(Error::api("create", "PersistentVolumeClaim", &key.to_string()))?;
    Ok(context.claims.get(&key).ok_or_else(|| format!("PVC {key} is being made of the snapshot")))
}

/// A class whose volumes `driver` makes: the first by name.
fn class<'a>(classes: &'a [StorageClass], driver: &str) -> Option<&'a StorageClass> {
    let of_driver = classes.iter().filter(|class| !driver.is_empty() && class.provisioner == driver);
    of_driver.min_by_key(|class| class.name_any())
}

fn render(target: &PersistentVolumeClaim, snapshot: &DynamicObject, class: &str) -> Value {
    let size = restore_size(snapshot).unwrap_or_default().max(1);
    json!({
        "metadata": {
            "name": name(target), "namespace": snapshot.namespace(), "labels": plan::owned(target, label::CLONER),
            "annotations": plan::marks(target),
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "volumeMode": annotation_of(snapshot, annotation::SOURCE_VOLUME_MODE),
            "resources": { "requests": { "storage": size.to_string() } },
            "dataSource": { "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot.name_any() },
        },
    })
}
