//! A node that is emptied, and one that loses its power: how soon its machines run on another one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::cluster::{self, Cluster};
use crate::table::Table;

/// Machines that leave a node together.
const MACHINES: usize = 6;
const FIRST: &str = "node1";
const SECOND: &str = "node2";
const PATIENCE: Duration = Duration::from_secs(300);

/// Rows for a drain and a power cut. The cluster has both nodes; the second is dead afterwards.
pub(crate) async fn measure(cluster: &Cluster, client: &Client, table: &mut Table) -> Result<()> {
    let names: Vec<_> = (0..MACHINES).map(|number| format!("drained-{number}")).collect();
    let machines = names.iter().map(|name| {
        let mut machine = cluster::instance(cluster.root(), name)?;
        machine["spec"]["evictionStrategy"] = json!("LiveMigrate");
        Ok(machine)
    });
    let machines: Vec<_> = machines.collect::<Result<_>>()?;
    let api = cluster::kind(client, "default", "VirtualMachineInstance");
    cluster.kubectl(&["cordon", SECOND])?;
    let agent = |seen: &Value| cluster::condition(seen, "AgentConnected");
    try_join_all(machines.iter().map(|machine| cluster::create(&api, machine, agent, |_| false))).await?;
    cluster.kubectl(&["uncordon", SECOND])?;
    let begin = Instant::now();
    let drain =
        ["drain", FIRST, "--pod-selector=kubevirt.io=virt-launcher", "--delete-emptydir-data", "--timeout=280s"];
    cluster.kubectl(&drain)?;
    table.row(
        format!("kubectl drain of {MACHINES} machines, to no launcher left (s)"),
        format!("{:.1}", begin.elapsed().as_secs_f64()),
        "two leave a node at a time",
    );
    for machine in api.list(&ListParams::default()).await? {
        let status = &machine.data["status"];
        ensure!(status["nodeName"] == SECOND && status["phase"] == "Running", "after the drain: {status}");
    }
    try_join_all(names.iter().map(|name| cluster::delete(&api, name))).await?;

    let instance = cluster::instance(cluster.root(), "survivor")?;
    let machine = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "survivor"},
        "spec": {"runStrategy": "Always", "template": {"spec": instance["spec"]}}});
    let machines = cluster::kind(client, "default", "VirtualMachine");
    cluster::create(&machines, &machine, |seen| cluster::condition(seen, "Ready"), |_| false).await?;
    cluster.kubectl(&["uncordon", FIRST])?;
    let begin = Instant::now();
    cluster.ferrovirt(&["node", "kill", SECOND])?;
    loop {
        let found = api.get_opt("survivor").await.context("cannot read the survivor")?;
        let status = found.map(|found| found.data["status"].clone()).unwrap_or_default();
        if status["nodeName"] == FIRST && status["phase"] == "Running" {
            break;
        }
        ensure!(begin.elapsed() < PATIENCE, "the machine of a dead node does not run elsewhere: {status}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    table.row(
        "a node loses its power, to its machine running on another (s)",
        format!("{:.1}", begin.elapsed().as_secs_f64()),
        "aim 60",
    );
    Ok(())
}
