//! StorageProfiles: one for each storage class, completed from what is known of its provisioner.

pub mod plan;
pub mod provisioners;

use std::collections::BTreeMap;

use api::cdi::constants::{annotation, label};
use api::cdi::v1beta1::StorageProfile;
use kit::clock;
use kit::queue::Next;
use kit::store::Key;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::Error;
use crate::controller::context::{Context, annotation_of};
use crate::controller::labels::labels;
use crate::controller::write;

/// Brings the profile of the class `name` in line.
pub async fn sync(context: &Context, name: &str) -> Result<Next, Error> {
    let api: Api<StorageProfile> = Api::all(context.client.clone());
    let key = Key::new("", name);
    let stored = context.profiles.get(&key);
    let Some(class) = context.classes.get(&key).filter(|class| class.metadata.deletion_timestamp.is_none()) else {
        if stored.is_some() {
            match api.delete(name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                outcome => drop(outcome.map_err(Error::api("delete", "StorageProfile", name))?),
            }
        }
        return Ok(Next::Wait);
    };
    let profile = match stored {
        Some(profile) => profile,
        None => {
            let mut labels: BTreeMap<String, String> = labels("");
            labels.insert(label::COMPONENT.to_owned(), String::new());
            let profile = json!({ "metadata": { "name": name, "labels": labels }, "spec": {} });
            let profile = serde_json::from_value(profile).map_err(Error::setup("render a StorageProfile"))?;
            match api.create(&PostParams::default(), &profile).await {
                // The watch brings it.
                Err(kube::Error::Api(status)) if status.code == 409 => return Ok(Next::Wait),
                made => made.map_err(Error::api("create", "StorageProfile", name))?,
            }
        }
    };
    let least = provisioners::known(&class).and_then(|known| known.least);
    if let Some(least) = least
        && annotation_of(&profile, annotation::MINIMUM_PVC_SIZE).is_none()
    {
        let patch = json!({ "metadata": { "annotations": { annotation::MINIMUM_PVC_SIZE: least } } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(Error::api(
            "change",
            "StorageProfile",
            name,
        ))?;
        return Ok(Next::Wait);
    }
    let snapshots = context.snapshot_class(&class.provisioner, None);
    let status = plan::status(&profile, &class, &context.persistent.list(), snapshots.as_deref(), clock::now());
    if profile.status.as_deref() != Some(&status) {
        let patch = Patch::Merge(write::status_of(&profile, write::replacing(&profile.status, &status)));
        let done = api.patch_status(name, &PatchParams::default(), &patch).await;
        done.map_err(Error::api("write the status of", "StorageProfile", name))?;
    }
    Ok(Next::Wait)
}

impl Context {
    /// The snapshot class of the driver `provisioner`: `wanted`, the default, or the first by name.
    pub fn snapshot_class(&self, provisioner: &str, wanted: Option<&str>) -> Option<String> {
        let mut of_driver: Vec<_> = self
            .snapshot_classes
            .list()
            .into_iter()
            .filter(|class| class.data["driver"].as_str() == Some(provisioner))
            .collect();
        of_driver.sort_by_key(|class| {
            (annotation_of(class, annotation::DEFAULT_SNAPSHOT_CLASS) != Some("true"), class.name_any())
        });
        let names: Vec<_> = of_driver.iter().map(ResourceExt::name_any).collect();
        match wanted {
            Some(wanted) => names.into_iter().find(|name| name == wanted),
            None => names.into_iter().next(),
        }
    }
}
