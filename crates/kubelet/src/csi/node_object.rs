//! What the cluster knows of a node's drivers: the CSINode object, the node's topology labels and its `nodeid` annotation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use kit::backoff::Backoff;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::context::Context;
use crate::drivers::Driver;
use crate::error::{Error, Result};
use crate::owner;

/// Driver to node id, as JSON.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
const TRIES: u32 = 8;
const RETRY: Backoff = Backoff { base: Duration::from_millis(50), max: Duration::from_secs(10) };

/// Makes the CSINode if it is not there, with the drivers that are registered.
pub(crate) async fn ensure(context: &Context) -> Result<()> {
    let _held = context.csi.node_object.lock().await;
    change(context, |_| {}).await?;
    for driver in context.csi.drivers.all().values() {
        label(context, driver).await?;
        change(context, |drivers| put(drivers, driver)).await?;
    }
    Ok(())
}

/// Tells the cluster of a driver.
pub(crate) async fn announce(context: &Context, driver: &Driver) -> Result<()> {
    let _held = context.csi.node_object.lock().await;
    label(context, driver).await?;
    change(context, |drivers| put(drivers, driver)).await
}

/// Tells the cluster that a driver is gone, unless it came back meanwhile; goes on until it is told.
pub(crate) async fn withdraw(context: Arc<Context>, name: String) {
    let mut failures = 0;
    loop {
        match withdrawn(&context, &name).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(driver = name, error = %kit::Chain(&error), "CSINode still names the driver"),
        }
        failures += 1;
        tokio::time::sleep(RETRY.delay(failures)).await;
    }
}

async fn withdrawn(context: &Context, name: &str) -> Result<()> {
    let _held = context.csi.node_object.lock().await;
    if context.csi.drivers.get(name).is_ok() {
        return Ok(());
    }
    change(context, |drivers| drivers.retain(|driver| driver.name != name)).await?;
    let api: Api<Node> = Api::all(context.client.clone());
    let node = &context.config.node_name;
    let found = api.get(node).await.map_err(Error::api("get node"))?;
    let mut ids = node_ids(&found);
    if ids.remove(name).is_some() {
        let ids = (!ids.is_empty()).then(|| json!(ids).to_string());
        let patch = json!({"metadata": {"annotations": {NODE_ID: ids}}});
        api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(Error::api("annotate node"))?;
    }
    Ok(())
}

/// Drivers of an earlier life that did not register again.
pub(crate) async fn forget_absent(context: Arc<Context>) {
    let api: Api<CSINode> = Api::all(context.client.clone());
    let Ok(Some(node)) = api.get_opt(&context.config.node_name).await else { return };
    for driver in node.spec.drivers {
        if context.csi.drivers.get(&driver.name).is_err() {
            tracing::info!(driver = driver.name, "CSI driver did not come back");
            withdraw(context.clone(), driver.name).await;
        }
    }
}

/// Changes the list of drivers; others may write the object too.
async fn change(context: &Context, edit: impl Fn(&mut Vec<CSINodeDriver>)) -> Result<()> {
    let api: Api<CSINode> = Api::all(context.client.clone());
    let name = &context.config.node_name;
    let mut last = None;
    for attempt in 1..=TRIES {
        let found = api.get_opt(name).await.map_err(Error::api("get csinode"))?;
        let written = match found {
            Some(mut node) => {
                let before = node.spec.drivers.clone();
                edit(&mut node.spec.drivers);
                if node.spec.drivers == before {
                    return Ok(());
                }
                api.replace(name, &PostParams::default(), &node).await
            }
            None => {
                let mut drivers = Vec::new();
                edit(&mut drivers);
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    owner_references: Some(vec![owner::owner(context).await?]),
                    ..Default::default()
                };
                api.create(&PostParams::default(), &CSINode { metadata, spec: CSINodeSpec { drivers } }).await
            }
        };
        match written {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => last = Some(kube::Error::Api(status)),
            Err(error) => return Err(Error::api("write csinode")(error)),
        }
        tokio::time::sleep(RETRY.delay(attempt)).await;
    }
    last.map_or(Ok(()), |error| Err(Error::api("write csinode")(error)))
}

fn put(drivers: &mut Vec<CSINodeDriver>, driver: &Driver) {
    let keys: Vec<String> = driver.info.topology.keys().cloned().collect();
    let entry = CSINodeDriver {
        name: driver.name.clone(),
        node_id: driver.info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: driver.info.limit.map(|count| VolumeNodeResources { count: Some(count) }),
    };
    match drivers.iter_mut().find(|known| known.name == driver.name) {
        Some(known) => *known = entry,
        None => drivers.push(entry),
    }
}

fn node_ids(node: &Node) -> BTreeMap<String, String> {
    let text = node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NODE_ID));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The topology of the driver as labels, and its name for the node as an annotation.
async fn label(context: &Context, driver: &Driver) -> Result<()> {
    let api: Api<Node> = Api::all(context.client.clone());
    let name = &context.config.node_name;
    let node = api.get(name).await.map_err(Error::api("get node"))?;
    let labels = node.metadata.labels.clone().unwrap_or_default();
    collision(&labels, &driver.info.topology).map_or(Ok(()), |text| Err(Error::Invalid(text)))?;
    let mut ids = node_ids(&node);
    let known = ids.insert(driver.name.clone(), driver.info.node_id.clone());
    let labelled = driver.info.topology.iter().all(|(key, value)| labels.get(key) == Some(value));
    if known.as_ref() == Some(&driver.info.node_id) && labelled {
        return Ok(());
    }
    let patch = json!({"metadata": {"labels": driver.info.topology, "annotations": {NODE_ID: json!(ids).to_string()}}});
    let written = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.map(drop).map_err(Error::api("label node"))
}

/// A node is in one place only.
fn collision(labels: &BTreeMap<String, String>, topology: &BTreeMap<String, String>) -> Option<String> {
    topology.iter().find_map(|(key, value)| {
        let other = labels.get(key).filter(|other| *other != value)?;
        Some(format!(
            "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{other:?}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_does_not_move() {
        let map = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
            list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        assert_eq!(collision(&map(&[("zone", "a"), ("x", "y")]), &map(&[("zone", "a"), ("new", "b")])), None);
        let text = collision(&map(&[("zone", "a")]), &map(&[("zone", "b")])).unwrap();
        let expect =
            r#"detected topology value collision: driver reported "zone":"b" but existing label is "zone":"a""#;
        assert_eq!(text, expect);
    }
}
