//! Several nodes: how soon three of them are up, and how fast pods start on many that run no containers.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::cluster::Cluster;
use crate::process::{self, Process, processor_time};
use crate::table::Table;

const NODES: usize = 500;
const CLIENTS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(300);
const KIND: &str = "node.kubernetes.io/instance-type";

/// Rows for `pods` pods; the cluster is a fresh one, and none afterwards.
pub(crate) fn measure(
    cluster: &Cluster,
    runtime: &tokio::runtime::Runtime,
    pods: usize,
    table: &mut Table,
) -> Result<()> {
    let begin = Instant::now();
    cluster.ferrovirt(&["up", "--cluster-only", "--nodes", "3"])?;
    table.row("ferrovirt up --nodes 3, to all Ready (s)", format!("{:.2}", begin.elapsed().as_secs_f64()), "aim 8");
    cluster.ferrovirt(&["down", "--purge"])?;
    cluster.ferrovirt(&["up", "--cluster-only", "--simulated-nodes", &NODES.to_string()])?;
    let before = spent(cluster);
    let took = runtime.block_on(async { start(&cluster.client().await?, pods).await })?;
    let after = spent(cluster);
    let each = after.iter().zip(before).map(|(after, before)| (after - before) * 1000.0 / pods as f64);
    let each: Vec<_> = each.map(|time| format!("{time:.2}")).collect();
    table.row(
        format!("{pods} pods created, scheduled, started on {NODES} simulated nodes (pods/s)"),
        format!("{:.0}", pods as f64 / took.as_secs_f64()),
        "aim 1000",
    );
    table.row("processor time of each, control plane / node agents / client (ms)", each.join(" / "), "");
    Ok(())
}

/// Processor time of those who take part, in seconds.
fn spent(cluster: &Cluster) -> [f64; 3] {
    let state = cluster.state().to_string_lossy();
    let own = |process: &Process, word: &str| [word, &state].iter().all(|word| process.words.iter().any(|w| w == word));
    let processes = process::all();
    let [server, nodes] = ["control-plane", "simulated-nodes"]
        .map(|word| processes.iter().filter(|process| own(process, word)).map(|p| processor_time(p.pid)).sum());
    [server, nodes, processor_time(std::process::id())]
}

/// From the first creation to the last pod seen Running.
async fn start(client: &Client, pods: usize) -> Result<Duration> {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let version = api.list_metadata(&Default::default()).await?.metadata.resource_version.unwrap_or_default();
    let ours = WatchParams::default().labels("app=load").fields("status.phase=Running").timeout(290);
    let mut events = api.watch_metadata(&ours, &version).await.context("cannot watch pods")?.boxed();
    let begin = Instant::now();
    let seen = async {
        let mut running = HashSet::new();
        while let Some(event) = events.next().await {
            if let WatchEvent::Added(pod) = event? {
                running.insert(pod.name_any());
            }
            if running.len() == pods {
                return Ok(begin.elapsed());
            }
        }
        bail!("the watch ended with {} of {pods} pods running", running.len())
    };
    let created = try_join_all((0..CLIENTS).map(|client| {
        let api = api.clone();
        async move {
            for n in (client..pods).step_by(CLIENTS) {
                let pod = json!({"metadata": {"name": format!("load-{n}"), "labels": {"app": "load"}},
                    "spec": {"nodeSelector": {(KIND): "simulated"}, "terminationGracePeriodSeconds": 0,
                        "containers": [{"name": "c", "image": "registry.example/app:1",
                            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}});
                api.create(&PostParams::default(), &serde_json::from_value(pod)?)
                    .await
                    .context("cannot create a pod")?;
            }
            anyhow::Ok(())
        }
    }));
    let both = async {
        let (took, _) = futures::try_join!(seen, created)?;
        Ok(took)
    };
    tokio::time::timeout(PATIENCE, both).await.context("the pods do not start")?
}
