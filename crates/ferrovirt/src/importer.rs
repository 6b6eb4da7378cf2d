//! Waiting until DataVolumes are taken: before that the API server refuses each, because whoever judges it is not there yet.

use std::time::Duration;

use anyhow::Context;
use api::cdi::v1beta1::{CDI, DataVolume};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::deploy::NAMESPACE;
use crate::failure::advise;

const PATIENCE: Duration = Duration::from_secs(180);
const INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the importer of disks judges what is asked of it, be it with yes or no.
pub(crate) async fn wait_until_it_judges(client: &Client) -> anyhow::Result<()> {
    let volumes: Api<DataVolume> = Api::namespaced(client.clone(), "default");
    let storage = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } });
    let empty = json!({ "metadata": { "generateName": "is-it-taken-" }, "spec": { "source": { "blank": {} }, "storage": storage } });
    let empty: DataVolume = serde_json::from_value(empty).context("cannot make a DataVolume")?;
    let tried = PostParams { dry_run: true, ..PostParams::default() };
    let cdis: Api<CDI> = Api::all(client.clone());
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        // Before everything is deployed nobody is asked; after that whoever is to be asked may have been started anew.
        let not_ready = match cdis.list(&ListParams::default()).await {
            Ok(cdis) if cdis.iter().any(is_available) => match volumes.create(&tried, &empty).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code < 500 && status.code != 404 => return Ok(()),
                Err(error) => error.to_string(),
            },
            Ok(_) => "the CDI object is not Available".to_owned(),
            Err(error) => error.to_string(),
        };
        if tokio::time::Instant::now() >= deadline {
            let error = anyhow::anyhow!("DataVolumes were not taken after {} s: {not_ready}", PATIENCE.as_secs());
            return Err(advise(error, format!("`kubectl -n {NAMESPACE} get cdi,pods,events` says more")));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn is_available(cdi: &CDI) -> bool {
    let conditions = cdi.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == "Available" && one.status == "True")
}
