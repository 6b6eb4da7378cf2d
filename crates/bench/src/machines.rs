//! Virtual machines: how long they take to run, what their pods take, what they make others write.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use kube::api::DynamicObject;
use kube::{Api, Client};
use serde_json::Value;

use crate::bare::Bare;
use crate::cluster::{self, Cluster};
use crate::floor;
use crate::process::{self, Memory, Process};
use crate::table::{Table, Times};
use crate::writes::{WRITERS, Writes};

/// How many start at once.
const CROWD: usize = 10;
/// What happens after a machine's start (facts of the guest, a kubelet's last status) has happened by then.
const SETTLED: Duration = Duration::from_secs(15);

pub(crate) async fn measure(cluster: &Cluster, client: &Client, rounds: usize) -> Result<Table> {
    let mut table = Table::default();
    let api = cluster::kind(client, "default", "VirtualMachineInstance");
    let machine = |name: &str| cluster::instance(cluster.root(), name);

    // The first one warms page caches, as an image "present" has been read before, and shows what the floor is of.
    start(&api, &machine("floor")?).await?;
    tokio::time::sleep(SETTLED).await;
    let one = pods(&api, &["floor".to_owned()]).await?;
    let floor = measure_floor(&api, rounds).await?;

    let before = Writes::count(client).await?;
    let mut starts = Times::default();
    let mut ends = Times::default();
    for n in 0..rounds {
        let name = format!("one-{n}");
        starts.extend([start(&api, &machine(&name)?).await?]);
        ends.extend([cluster::delete(&api, &name).await?]);
    }
    let writes = Writes::count(client).await?.since(&before);

    let names: Vec<String> = (0..CROWD).map(|n| format!("crowd-{n}")).collect();
    let crowd = names.iter().map(|name| machine(name)).collect::<Result<Vec<_>>>()?;
    let together: Times = try_join_all(crowd.iter().map(|machine| start(&api, machine))).await?.into_iter().collect();
    tokio::time::sleep(SETTLED).await;
    let ten = pods(&api, &names).await?;
    try_join_all(names.iter().map(|name| cluster::delete(&api, name))).await?;

    let aim = 2.0 * floor.at(0.5) + 0.5;
    table.row(
        format!("VMI create -> Running, {} in sequence, p50 / p99 (s)", starts.len()),
        format!("{:.2} / {:.2}", starts.at(0.5), starts.at(0.99)),
        format!("virsh start of the same domain {:.2}; aim 2x + 0.5 = {aim:.2}; KubeVirt 4.7", floor.at(0.5)),
    );
    table.row(
        format!("VMI create -> Running, {CROWD} at once, p50 / p99 (s)"),
        format!("{:.2} / {:.2}", together.at(0.5), together.at(0.99)),
        "aim 8; KubeVirt 32",
    );
    table.row("VMI delete -> gone, without grace, p50 (s)", format!("{:.2}", ends.at(0.5)), "");
    memory(&mut table, "one VM", &one, 1);
    memory(&mut table, "each of ten VMs", &ten, CROWD);
    written(&mut table, &writes, rounds);
    Ok(table)
}

async fn start(api: &Api<DynamicObject>, machine: &Value) -> Result<Duration> {
    let phase = |seen: &Value, wanted: &str| seen["status"]["phase"] == wanted;
    cluster::create(api, machine, |seen| phase(seen, "Running"), |seen| phase(seen, "Failed")).await
}

/// The floor of the machine called `floor`, which is gone afterwards.
async fn measure_floor(api: &Api<DynamicObject>, rounds: usize) -> Result<Times> {
    let uid = pod_of(api, "floor").await?;
    let launcher = process::of_pod(&uid).into_iter().find(|process| process.name() == "virt-launcher");
    let pid = launcher.context("the launcher does not run")?.pid;
    let bare = tokio::task::spawn_blocking(move || Bare::copy(pid, 0)).await??;
    cluster::delete(api, "floor").await?;
    tokio::task::spawn_blocking(move || floor::starts(&bare, rounds)).await?
}

async fn pod_of(api: &Api<DynamicObject>, name: &str) -> Result<String> {
    let pods = api.get(name).await?.data["status"]["activePods"].take();
    let uid = pods.as_object().and_then(|pods| pods.keys().next().cloned());
    uid.with_context(|| format!("{name} has no pod"))
}

/// Memory of the pods of machines, by kind of process.
async fn pods(api: &Api<DynamicObject>, names: &[String]) -> Result<BTreeMap<String, Memory>> {
    let mut processes = Vec::new();
    for name in names {
        processes.extend(process::of_pod(&pod_of(api, name).await?));
    }
    Ok(process::by_name(&processes, part))
}

fn part(process: &Process) -> String {
    match process.name() {
        name if name.starts_with("qemu-system") => "QEMU",
        "busybox" => "pause",
        name => name,
    }
    .to_owned()
}

fn memory(table: &mut Table, whose: &str, parts: &BTreeMap<String, Memory>, pods: usize) {
    let mut beyond = Memory::default();
    for (name, memory) in parts {
        let memory = memory.over(pods);
        let beside = if name == "virt-launcher" { "aim 10" } else { "" };
        table.row(format!("{name}, {whose}, RSS / PSS (MiB)"), memory.to_string(), beside);
        if name != "QEMU" {
            beyond += memory;
        }
    }
    let reference = if pods == 1 { "aim 45 (PSS); KubeVirt 109" } else { "aim 25 (PSS); KubeVirt 48" };
    table.row(format!("pod beyond QEMU, {whose}, RSS / PSS (MiB)"), beyond.to_string(), reference);
}

fn written(table: &mut Table, writes: &Writes, machines: usize) {
    let each = |count: u64| count as f64 / machines as f64;
    let ours: u64 = ["virt-controller", "virt-handler"].iter().map(|writer| writes.by(writer)).sum();
    let by: Vec<String> = WRITERS.iter().map(|writer| format!("{writer} {:.1}", each(writes.by(writer)))).collect();
    table.row(
        "API writes per VMI, controller and handler, create + delete",
        format!("{:.1}", each(ours)),
        format!("aim 8; KubeVirt 18.6; here {}; events {:.1}", by.join(", "), each(writes.events)),
    );
}
