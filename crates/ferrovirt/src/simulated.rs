//! Nodes that run no containers: one process beside the control plane is all of them.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use kubelet::simulated::{LABEL, MOST, SIMULATED};

use crate::failure::{advise, parse};
use crate::state::{State, StateArgs};
use crate::{cluster, nodes, process, terminal};

/// The subcommand that is the nodes.
pub(crate) const PROGRAM: &str = "simulated-nodes";

/// Be the simulated nodes
#[derive(Debug, Parser)]
#[command(name = PROGRAM)]
struct SimulatedArgs {
    #[command(flatten)]
    state: StateArgs,
    #[arg(long, value_parser = count)]
    count: u16,
}

/// Reads how many there are to be.
pub(crate) fn count(text: &str) -> Result<u16, String> {
    let count = text.parse().ok().filter(|count| *count <= MOST);
    count.ok_or_else(|| format!("there can be 0 to {MOST} simulated nodes"))
}

/// Whether a node is one of them.
pub(crate) fn is_simulated(node: &Node) -> bool {
    node.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)).is_some_and(|kind| kind == SIMULATED)
}

/// The process that is the nodes.
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<SimulatedArgs>(words)? else { return Ok(()) };
    terminal::log("info");
    // Out of the terminal's reach, when started from one; a failure means that this already holds.
    let _ = sys::process::detach_from_terminal();
    let state = arguments.state.state()?;
    let _lock = sys::lock::acquire(&state.simulated_lock())?.context("the simulated nodes run already")?;
    cluster::runtime()?.block_on(async {
        let client = cluster::client(&state.kubeconfig(), "kubelet").await?;
        let stop = kit::shutdown::on_signals().context("cannot listen for signals")?;
        kubelet::simulated::run(client, arguments.count, stop).await.context("the simulated nodes failed")
    })
}

/// Sees to it that there are as many as wanted, or as many as there were; says what was done.
pub(crate) async fn ensure(
    state: &State,
    client: &kube::Client,
    wanted: Option<u16>,
) -> anyhow::Result<Option<String>> {
    let path = state.simulated_count();
    let before = std::fs::read_to_string(&path).ok().and_then(|text| count(text.trim()).ok()).unwrap_or(0);
    let count = wanted.unwrap_or(before);
    let runs = state.simulated_pid()?;
    if count == before && runs.is_some_and(process::is_this_program) == (count > 0) {
        return Ok(None);
    }
    stop(state)?;
    std::fs::write(&path, count.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
    if count == 0 {
        kubelet::simulated::remove(client, |_| true).await.context("cannot remove the simulated nodes")?;
        return Ok((before > 0).then(|| "simulated nodes are removed".to_owned()));
    }
    spawn(state, count)?;
    wait_until_ready(state, client, count).await?;
    Ok(Some(format!("{count} simulated nodes are Ready")))
}

fn spawn(state: &State, count: u16) -> anyhow::Result<()> {
    state.rotate(SIMULATED)?;
    let path = state.log(SIMULATED);
    let log = OpenOptions::new().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("cannot open {}", path.display()))?;
    let errors = log.try_clone().context("cannot share the log")?;
    let mut command = Command::new("/proc/self/exe");
    command.args([PROGRAM, "--count", &count.to_string(), "--state-dir"]).arg(state.dir());
    let (tunables, small) = sys::heap::MANY_SMALL;
    command.env(tunables, small);
    command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().context("cannot start the simulated nodes")?;
    Ok(())
}

const PATIENCE: Duration = Duration::from_secs(120);

async fn wait_until_ready(state: &State, client: &kube::Client, count: u16) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let ours = ListParams::default().labels(&format!("{LABEL}={SIMULATED}"));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let known = nodes.list(&ours).await.context("cannot list the nodes")?;
        let ready = known.iter().filter(|node| nodes::is_ready(node, None)).count();
        if ready == usize::from(count) && known.items.len() == ready {
            return Ok(());
        }
        if Instant::now() > deadline {
            let error = anyhow::anyhow!("{ready} of {count} simulated nodes are Ready after {} s", PATIENCE.as_secs());
            return Err(advise(error, format!("{} says more", state.log(SIMULATED).display())));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Ends the process; true if it ran.
pub(crate) fn stop(state: &State) -> anyhow::Result<bool> {
    let Some(process) = process::open(state.simulated_pid()?)? else { return Ok(false) };
    process.terminate()?;
    if !process.ended_within(Duration::from_secs(5))? {
        process.kill()?;
        process::end(&process, "the process of the simulated nodes")?;
    }
    Ok(true)
}

impl State {
    fn simulated_pid(&self) -> anyhow::Result<Option<u32>> {
        Ok(sys::lock::holder(&self.simulated_lock())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!((count("0"), count("500")), (Ok(0), Ok(500)));
        for wrong in ["-1", "5001", "many", ""] {
            assert_eq!(count(wrong).unwrap_err(), "there can be 0 to 5000 simulated nodes", "{wrong}");
        }
    }
}
