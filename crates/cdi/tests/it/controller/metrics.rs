//! What cdi-controller counts, as dashboards and alerts ask for it.

use api::cdi::v1beta1::DataImportCron;
use cdi::controller::context::Context;
use cdi::controller::metrics;
use kube::Api;
use kube::api::PostParams;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use serde_json::json;

use crate::controller::cluster::{PLAIN, start, wait};
use crate::controller::crons::says;

#[derive(Debug)]
struct Counted(Context);

impl Collector for Counted {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        metrics::encode(&self.0, encoder)
    }
}

/// Name, labels and help of every metric.
const TOLD: [(&str, &[&str], &str); 6] = [
    (
        "kubevirt_cdi_datavolume_pending",
        &[],
        "Number of DataVolumes pending for default storage class to be configured",
    ),
    ("kubevirt_cdi_import_pods_high_restart", &[], "The number of CDI import pods with high restart count"),
    ("kubevirt_cdi_upload_pods_high_restart", &[], "The number of CDI upload server pods with high restart count"),
    ("kubevirt_cdi_clone_pods_high_restart", &[], "The number of CDI clone pods with high restart count"),
    ("kubevirt_cdi_dataimportcron_outdated", &["ns", "cron_name", "pending"], "DataImportCron has an outdated import"),
    (
        "kubevirt_cdi_storageprofile_info",
        &["storageclass", "provisioner", "complete", "default", "virtdefault", "rwx", "smartclone", "degraded"],
        "`StorageProfiles` info labels: `storageclass`, `provisioner`, `complete` indicates if all storage profiles recommended PVC settings are complete",
    ),
];

#[tokio::test]
async fn the_controller_counts_what_dashboards_ask_for() {
    let cluster = start().await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    let cron = json!({ "metadata": { "name": "gold-cron" }, "spec": {
        "managedDataSource": "gold", "schedule": "* * * * *",
        "template": { "metadata": {}, "spec": {
            "source": { "registry": { "url": "docker://registry/gold:gone" } },
            "storage": { "storageClassName": PLAIN, "resources": { "requests": { "storage": "16Mi" } } },
        } },
    } });
    crons.create(&PostParams::default(), &serde_json::from_value(cron).unwrap()).await.unwrap();
    cluster.answer("gold-cron", "Status 404").await;
    wait(&crons, "gold-cron", "without an image", says("UpToDate", "NoDigest")).await;

    let mut registry = Registry::default();
    registry.register_collector(Box::new(Counted(cluster.context())));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for (name, labels, help) in TOLD {
        assert!(text.contains(&format!("# HELP {name} {help}")), "{name}: {text}");
        assert!(text.contains(&format!("# TYPE {name} gauge\n")), "{name}: {text}");
        let sample =
            text.lines().find(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")));
        let sample = sample.unwrap_or_else(|| panic!("{name} has no sample: {text}"));
        let inner = sample.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(inner, _)| inner);
        let found: Vec<&str> = inner.split(',').filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
        assert_eq!(found, labels, "{sample}");
    }
    let outdated = "kubevirt_cdi_dataimportcron_outdated{ns=\"default\",cron_name=\"gold-cron\",pending=\"false\"} 1\n";
    assert!(text.contains(outdated), "{text}");
}
