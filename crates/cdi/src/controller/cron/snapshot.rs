//! Golden images that are kept as snapshots: where many clones of one snapshot cost less than many of one volume.

use std::collections::BTreeMap;

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataImportCron;
use kit::clock;
use kit::store::Key;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::Error;
use crate::controller::context::{Context, annotation_of};
use crate::controller::cron::collect;
use crate::controller::cron::plan::{self, Import};
use crate::controller::labels::of_image;
use crate::controller::snapshot_api_in;

/// Has the latest import kept as a snapshot, and its claim go once that is ready.
pub async fn keep(
    context: &Context,
    cron: &DataImportCron,
    name: &str,
    snapshot: Option<&DynamicObject>,
    claim: bool,
) -> Result<Import, Error> {
    let namespace = cron.namespace().unwrap_or_default();
    if let Some(snapshot) = snapshot {
        if snapshot.data["status"]["readyToUse"] != true {
            return Ok(Import::Snapping);
        }
        if claim {
            collect::volume(context, &namespace, name).await?;
        }
        return Ok(Import::Done);
    }
    let from = context.claims.get(&Key::new(namespace.as_str(), name));
    // What the image has said of itself would be lost with its claim.
    let mut labels: BTreeMap<String, String> = from.iter().flat_map(|from| from.labels().clone()).collect();
    labels.retain(|name, _| of_image(name));
    labels.extend(plan::marks(cron));
    let mode = from.as_ref().and_then(|from| from.spec.as_ref()?.volume_mode.clone());
    let mut annotations = BTreeMap::from([(annotation::LAST_USE_TIME, clock::now().to_string())]);
    annotations.extend(mode.map(|mode| (annotation::SOURCE_VOLUME_MODE, mode)));
    let class = from.and_then(|claim| context.class_of(&claim));
    let class = class.and_then(|class| {
        let profile = context.profiles.get(&Key::new("", class.name_any()));
        let said = profile.as_ref().and_then(|profile| annotation_of(profile, annotation::CRON_SNAPSHOT_CLASS));
        let of_profile = || profile.as_ref()?.status.as_ref()?.snapshot_class.clone();
        said.and_then(|said| context.snapshot_class(&class.provisioner, Some(said)))
            .or_else(of_profile)
            .or_else(|| context.snapshot_class(&class.provisioner, None))
    });
    let body = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {
            "name": name, "namespace": namespace, "labels": labels,
            "annotations": annotations,
        },
        "spec": { "volumeSnapshotClassName": class, "source": { "persistentVolumeClaimName": name } },
    });
    let made: DynamicObject = serde_json::from_value(body).map_err(Error::setup("render a snapshot"))?;
    let api: Api<DynamicObject> = snapshot_api_in(&context.client, "VolumeSnapshot", &namespace);
    match api.create(&PostParams::default(), &made).await {
        Ok(_) => Ok(Import::Snapping),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Import::Snapping),
        Err(error) => Err(Error::api("create", "VolumeSnapshot", name)(error)),
    }
}
