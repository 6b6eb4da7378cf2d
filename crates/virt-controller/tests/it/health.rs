//! What `/healthz` tells of the configuration that the controllers work by.

use std::time::Duration;

use api::kubevirt::v1::KubeVirt;
use kit::health::Report;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::start;

#[tokio::test]
async fn health_names_the_configuration_that_the_controllers_work_by() {
    let cluster = start().await;
    let context = &cluster.controllers.context;
    let report = Report::new(cluster.client.clone());
    report.obeys(&context.stores.kubevirts);
    assert_eq!(report.version_in_force(), "");
    let kubevirts: Api<KubeVirt> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let wanted = json!({ "metadata": { "name": "kubevirt" }, "spec": {} });
    kubevirts.create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await.unwrap();
    let change = json!({ "spec": { "configuration": { "migrations": { "parallelMigrationsPerCluster": 3 } } } });
    let changed = kubevirts.patch("kubevirt", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    let follows = async {
        while Some(report.version_in_force()) != changed.metadata.resource_version {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), follows).await.unwrap();
    let configuration = context.stores.kubevirts.list().remove(0).spec.configuration.unwrap();
    assert_eq!(configuration.migrations.unwrap().parallel_migrations_per_cluster, Some(3));
}
