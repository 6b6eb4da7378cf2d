//! What everything takes while nothing happens: memory, and over some minutes processor time and writes to the API.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

use crate::cluster::Cluster;
use crate::process::{self, Memory};
use crate::table::Table;
use crate::writes::Writes;

const WATCHED: Duration = Duration::from_secs(300);
/// Where the product is.
pub(crate) const PRODUCT: &str = "kubevirt-hyperconverged";
/// What holds the namespaces of a pod.
const HOLDER: &str = "pause";
/// How a node's init calls its agent.
const AGENT: &str = "node-agent";

/// Rows for the components and for the embedded cluster.
pub(crate) async fn measure(cluster: &Cluster, client: &Client) -> Result<Table> {
    let mut table = Table::default();
    let components = components(cluster)?;
    let embedded = embedded(cluster)?;
    let used = |of: &[Named]| of.iter().map(|(_, pid)| process::processor_time(*pid)).sum::<f64>();
    let before = (used(&components), used(&embedded));
    let written = Writes::count(client).await?;
    tokio::time::sleep(WATCHED).await;
    let written = Writes::count(client).await?.since(&written).all();
    let share = |of: &[Named], before: f64| (used(of) - before) / WATCHED.as_secs_f64() * 100.0;
    let (ours, theirs) = (share(&components, before.0), share(&embedded, before.1));

    let mut part = |what: &str, of: &[Named], share: f64, reference: &str| {
        let mut sum = Memory::default();
        for (name, pid) in of {
            let memory = process::memory(*pid);
            sum += memory;
            table.row(format!("{name} at rest, RSS / PSS (MiB)"), memory.to_string(), "");
        }
        table.row(format!("{what} at rest, RSS / PSS (MiB)"), sum.to_string(), reference);
        table.row(format!("{what}, CPU over {} s (%)", WATCHED.as_secs()), format!("{share:.2}"), "");
    };
    part("all components", &components, ours, "aim 180 / 100, with all operators; KubeVirt alone 925 (RSS)");
    part("control plane and node", &embedded, theirs, "aim 120 (RSS), containerd apart; Kubernetes 760");
    let hourly = written as f64 * 3600.0 / WATCHED.as_secs_f64();
    table.row("API writes at rest, leases apart (1/h)", format!("{hourly:.0}"), "aim 0");
    Ok(table)
}

/// The process id of the node's agent, which sees the node's own files.
pub(crate) fn node_agent(cluster: &Cluster) -> Result<u32> {
    let found = embedded(cluster)?.into_iter().find(|(name, _)| name == "node agent");
    Ok(found.context("the node has no agent")?.1)
}

/// A name and a process id.
type Named = (String, u32);

/// The components' processes: those of the pods of their namespace, without what holds the pods.
fn components(cluster: &Cluster) -> Result<Vec<Named>> {
    let uids = cluster.kubectl(&["-n", PRODUCT, "get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"])?;
    let all = uids.split_ascii_whitespace().flat_map(process::of_pod);
    Ok(all.filter(|one| one.name() != HOLDER).map(|one| (one.name().to_owned(), one.pid)).collect())
}

/// The control plane, the node's init and its agent, whose names `ferrovirt status` and the processes themselves say.
fn embedded(cluster: &Cluster) -> Result<Vec<Named>> {
    let status = cluster.ferrovirt(&["status"])?;
    let mut found = Vec::new();
    for part in ["control plane", "node"] {
        let line = status.lines().find(|line| line.starts_with(part) && line.contains("running, pid "));
        let word = line.and_then(|line| line.split("pid ").nth(1)?.split(',').next());
        let pid = word.and_then(|word| word.parse().ok()).with_context(|| format!("no {part} in: {status}"))?;
        found.push((part.to_owned(), pid));
        let agents = process::all().into_iter().filter(|one| one.parent == pid && one.words.iter().any(|w| w == AGENT));
        found.extend(agents.map(|one| ("node agent".to_owned(), one.pid)));
    }
    Ok(found)
}
