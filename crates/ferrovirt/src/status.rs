//! `ferrovirt status`: what runs, as the kernel and the API server see it.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use sys::kvm::Verdict;

use crate::failure::parse;
use crate::nodes::{self, Number};
use crate::state::{State, StateArgs, VERSION};
use crate::{cluster, terminal};

/// Say what runs, where, and how much memory it takes
#[derive(Debug, Parser)]
#[command(name = "status")]
struct StatusArgs {
    #[command(flatten)]
    state: StateArgs,
}

/// `ferrovirt status`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<StatusArgs>(words)? else { return Ok(()) };
    terminal::log("error");
    let state = arguments.state.state()?;
    for line in cluster::runtime()?.block_on(lines(&state))? {
        terminal::say(&line);
    }
    Ok(())
}

async fn lines(state: &State) -> anyhow::Result<Vec<String>> {
    let row = |name: &str, text: String| format!("{name:<16} {text}");
    let control_plane = state.control_plane_pid()?;
    let mut lines = vec![row("version", VERSION.to_owned()), row("state", state.dir().display().to_string())];
    lines.push(row("control plane", running(control_plane.map(|pid| (pid, resident(pid))))));
    let nodes = state.nodes()?;
    for number in &nodes {
        let node = state.node_pid(*number)?;
        let memory = node_memory(&state.node(*number)?.cgroup());
        // One node needs no number.
        let name = if nodes.len() == 1 { "node".to_owned() } else { number.to_string() };
        lines.push(row(&name, running(node.map(|pid| (pid, memory.agent)))));
        if node.is_some() {
            lines.push(row("  containerd", format!("{} MiB", memory.containerd / 1024)));
            lines.push(row("  pods", format!("{} MiB", memory.pods / 1024)));
        }
    }
    lines.push(row("virtualization", virtualization(&sys::kvm::verdict())));
    if control_plane.is_some() {
        let answer = tokio::time::timeout(Duration::from_secs(3), api(state, &nodes)).await;
        let text = match answer {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => format!("does not answer: {error:#}"),
            Err(_) => "does not answer within 3 s".to_owned(),
        };
        lines.push(row("API server", text));
    }
    lines.push(row("kubeconfig", state.kubeconfig().display().to_string()));
    Ok(lines)
}

fn running(process: Option<(u32, u64)>) -> String {
    match process {
        Some((pid, kib)) => format!("running, pid {pid}, {} MiB", kib / 1024),
        None => "not running".to_owned(),
    }
}

/// What guests run on, in words.
pub(crate) fn virtualization(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Usable => "KVM".to_owned(),
        Verdict::Unusable(why) => format!("emulation ({why})"),
    }
}

async fn api(state: &State, nodes: &[Number]) -> anyhow::Result<String> {
    let client = cluster::client(&state.kubeconfig(), "ferrovirt").await?;
    let version = client.apiserver_version().await?.git_version;
    let known = Api::<Node>::all(client.clone()).list(&kube::api::ListParams::default()).await?.items;
    let pods = Api::<Pod>::all(client).list_metadata(&kube::api::ListParams::default()).await?.items.len();
    Ok(format!("{version}, {}, {pods} pods", readiness(nodes, &known)))
}

fn readiness(nodes: &[Number], known: &[Node]) -> String {
    let find = |number: &Number| known.iter().find(|node| node.metadata.name == Some(number.to_string()));
    let state = |number: &Number| match find(number) {
        Some(node) if nodes::is_ready(node, None) => "Ready",
        Some(_) => "not Ready",
        None => "not registered",
    };
    if let [one] = nodes {
        return format!("node {}", state(one));
    }
    let ready = nodes.iter().filter(|number| state(number) == "Ready").count();
    format!("{ready} of {} nodes Ready", nodes.len())
}

/// Resident memory of a process in KiB.
fn resident(pid: u32) -> u64 {
    std::fs::read_to_string(format!("/proc/{pid}/status")).ok().and_then(|text| parse_resident(&text)).unwrap_or(0)
}

/// Resident memory inside the node, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeMemory {
    /// Init and agent.
    agent: u64,
    /// The container runtime.
    containerd: u64,
    /// Containers and their shims.
    pods: u64,
}

impl NodeMemory {
    fn add(&mut self, command: &str, kib: u64) {
        // The kernel keeps 15 bytes of a command's name. The node's own processes are started by way of /proc/self/exe.
        match command {
            "containerd" => self.containerd += kib,
            "exe" => self.agent += kib,
            _ => self.pods += kib,
        }
    }
}

fn node_memory(group: &Path) -> NodeMemory {
    let mut pids = std::collections::BTreeSet::new();
    for hierarchy in sys::cgroup::hierarchies().unwrap_or_default() {
        pids.extend(sys::cgroup::pids(&hierarchy.mount.join(group)));
    }
    let mut memory = NodeMemory::default();
    for pid in pids {
        let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        memory.add(command.trim(), resident(pid));
    }
    memory
}

fn parse_resident(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_by_owner() {
        let mut memory = NodeMemory::default();
        for (command, kib) in
            [("exe", 10), ("containerd", 20), ("containerd-shim", 3), ("qemu-system-x86", 4), ("exe", 1)]
        {
            memory.add(command, kib);
        }
        assert_eq!(memory, NodeMemory { agent: 11, containerd: 20, pods: 7 });
    }

    #[test]
    fn the_status_is_told_in_sentences() {
        assert_eq!(running(Some((7, 2048))), "running, pid 7, 2 MiB");
        assert_eq!(running(None), "not running");
        assert_eq!(
            virtualization(&Verdict::Unusable("there is no /dev/kvm".into())),
            "emulation (there is no /dev/kvm)"
        );
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    5120 kB\n"), Some(5120));
        assert_eq!(parse_resident("Name:\tkthreadd\n"), None);
    }
}
