//! The hostpath provisioner and the default classes of volumes and snapshots, from the manifests that users apply too.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::available::{Starts, runs};
use crate::deploy;
use crate::failure::advise;

use hpp::operator::Controllers;
use hpp::operator::install;
/// The classes of volumes and of snapshots.
pub(crate) use hpp::operator::install::CLASS;

use crate::deploy::NAMESPACE;

/// What the hostpath operator's manifest says of who calls the driver, there and here.
const CALLED_BY_DRIVER: &str = "name: CSI_CONTROLLERS\n          value: driver";
const CALLED_BY_CLUSTER: &str = "name: CSI_CONTROLLERS\n          value: cluster";
const DRIVER: &str = "hostpath-provisioner-csi";
const PATIENCE: Duration = Duration::from_secs(180);
const INTERVAL: Duration = Duration::from_millis(100);

/// The operators of a cluster whose control plane calls drivers itself, as this one does.
pub(crate) fn operators() -> String {
    deploy::OPERATORS.replace(CALLED_BY_DRIVER, CALLED_BY_CLUSTER)
}

/// Applies the operator's object and the classes.
pub(crate) async fn apply(client: &Client) -> anyhow::Result<()> {
    let object = install::object(Controllers::Cluster).context("the HostPathProvisioner has no manifest")?;
    deploy::apply_manifest(client, &object).await
}

/// Deletes the classes that came with the object; classes of others, whatever their name, stay.
pub(crate) async fn delete_classes(client: &Client) -> anyhow::Result<()> {
    let object = install::object(Controllers::Cluster).context("the HostPathProvisioner has no manifest")?;
    let known = Api::<StorageClass>::all(client.clone()).list(&ListParams::default()).await;
    let known = known.context("cannot list the storage classes")?.items;
    let ours = |name: &str| {
        known.iter().any(|class| class.metadata.name.as_deref() == Some(name) && class.provisioner == hpp::csi::NAME)
    };
    let mut classes = deploy::documents(&object)?;
    classes.retain(|document| {
        document.types.as_ref().is_some_and(|types| types.kind == "StorageClass") && ours(&document.name_any())
    });
    deploy::delete(client, &classes).await
}

/// Waits until the driver runs wherever it is to run, and is registered on these nodes.
pub(crate) async fn wait_until_ready(client: &Client, nodes: &[String], starts: &Starts) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let not_ready = match not_ready(client, nodes, starts).await {
            Ok(None) => return Ok(()),
            Ok(Some(not_ready)) => not_ready,
            Err(error) => format!("{error:#}"),
        };
        if tokio::time::Instant::now() >= deadline {
            let seconds = PATIENCE.as_secs();
            let error = anyhow::anyhow!("the hostpath provisioner was not ready after {seconds} s: {not_ready}");
            return Err(advise(
                error,
                format!("`kubectl -n {NAMESPACE} get hostpathprovisioners,pods,events` says more"),
            ));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// What keeps the driver from being ready, if anything does.
async fn not_ready(client: &Client, nodes: &[String], starts: &Starts) -> anyhow::Result<Option<String>> {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    let Some(set) = sets.get_opt(DRIVER).await.context("cannot ask for the driver")? else {
        return Ok(Some("the operator has not deployed the driver".to_owned()));
    };
    let status = set.status.unwrap_or_default();
    let selection = ListParams::default().labels(&format!("k8s-app={DRIVER}"));
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pods = pods.list(&selection).await.context("cannot list the driver's pods")?.items;
    let wanted = usize::try_from(status.desired_number_scheduled).unwrap_or(0);
    let running = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && runs(pod, starts)).count();
    if status.observed_generation < set.metadata.generation || wanted == 0 || running < wanted {
        return Ok(Some(format!("the driver runs on {running} of {wanted} nodes")));
    }
    let all: Api<CSINode> = Api::all(client.clone());
    let all = all.list(&ListParams::default()).await.context("cannot list the nodes' drivers")?.items;
    let registered = |node: &str| {
        let found = all.iter().find(|known| known.metadata.name.as_deref() == Some(node));
        found.is_some_and(|node| node.spec.drivers.iter().any(|driver| driver.name == hpp::csi::NAME))
    };
    let mut missing = nodes.iter().filter(|node| !registered(node));
    Ok(missing.next().map(|node| format!("the driver is not registered on {node}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn here_the_cluster_calls_the_driver() {
        assert_eq!(deploy::OPERATORS.matches(CALLED_BY_DRIVER).count(), 1);
        assert_eq!(operators().matches(CALLED_BY_CLUSTER).count(), 1);
    }
}
