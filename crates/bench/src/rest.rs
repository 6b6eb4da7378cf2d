//! What everything takes while nothing happens: memory, and processor time over a minute.

use std::time::Duration;

use crate::process::{self, Memory, Process};
use crate::table::Table;

const WATCHED: Duration = Duration::from_secs(60);
const COMPONENTS: [&str; 4] = ["virt-operator", "virt-api", "virt-controller", "virt-handler"];

/// Rows for the components and for the embedded cluster.
pub(crate) async fn measure() -> Table {
    let mut table = Table::default();
    let processes = process::all();
    let components: Vec<&Process> = processes.iter().filter(|process| component(process).is_some()).collect();
    let cluster: Vec<&Process> = processes.iter().filter(|process| embedded(process).is_some()).collect();
    let used = |of: &[&Process]| of.iter().map(|process| process::processor_time(process.pid)).sum::<f64>();
    let before = (used(&components), used(&cluster));
    tokio::time::sleep(WATCHED).await;
    let share = |of: &[&Process], before: f64| (used(of) - before) / WATCHED.as_secs_f64() * 100.0;

    let mut sum = Memory::default();
    for process in &components {
        let memory = process::memory(process.pid);
        sum += memory;
        table.row(format!("{} at rest, RSS / PSS (MiB)", process.name()), memory.to_string(), "");
    }
    let load = share(&components, before.0);
    table.row("components at rest, RSS / PSS (MiB)", sum.to_string(), "aim 100 (RSS); KubeVirt 925");
    table.row(format!("components at rest, CPU over {} s (%)", WATCHED.as_secs()), format!("{load:.2}"), "");

    let mut sum = Memory::default();
    for process in &cluster {
        let memory = process::memory(process.pid);
        sum += memory;
        let name = embedded(process).unwrap_or_default();
        table.row(format!("{name} at rest, RSS / PSS (MiB)"), memory.to_string(), "");
    }
    let load = share(&cluster, before.1);
    let reference = "aim 120 (RSS), containerd apart; Kubernetes 760";
    table.row("control plane and node agent at rest, RSS / PSS (MiB)", sum.to_string(), reference);
    table.row(format!("control plane and node agent, CPU over {} s (%)", WATCHED.as_secs()), format!("{load:.2}"), "");
    table
}

fn component(process: &Process) -> Option<&'static str> {
    COMPONENTS.into_iter().find(|name| process.name() == *name)
}

/// The embedded cluster's processes start themselves again by way of `/proc/self/exe`.
fn embedded(process: &Process) -> Option<&'static str> {
    let program = process.words.first().map(String::as_str);
    if !matches!(program, Some("/proc/self/exe" | "bin/ferrovirt")) {
        return None;
    }
    Some(match process.words.get(1).map(String::as_str)? {
        "control-plane" => "control plane",
        "node-init" => "node's init",
        "node-agent" => "node agent",
        _ => return None,
    })
}
