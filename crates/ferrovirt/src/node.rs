//! A node as processes: its start from the host, and the two inside, the init and the agent.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Context;
use kubelet::node::{self, config};

use crate::failure::advise;
use crate::nodes::Number;
use crate::state::State;
use crate::{at_rest, cluster, plugins, terminal};

/// Runs a node until it ends, or this command is told to, which is its power switch.
pub(crate) async fn run(state: &State, number: Number) -> anyhow::Result<()> {
    let handle = start(state, number).await?;
    terminal::say(&format!("{number} runs; Ctrl-C is its power switch"));
    let stop = kit::shutdown::on_signals().context("cannot listen for signals")?;
    let ended = handle.ended();
    tokio::select! {
        () = stop.cancelled() => {}
        _ = ended => {}
    }
    handle.kill()
}

/// A started node's init.
pub(crate) struct Started {
    process: sys::process::Handle,
}

impl Started {
    fn kill(&self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.ended_within(std::time::Duration::from_secs(10))?;
        Ok(())
    }

    async fn ended(&self) -> anyhow::Result<()> {
        loop {
            if self.process.ended_within(std::time::Duration::ZERO)? {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    }
}

/// Sets up the host's side and starts the node.
pub(crate) async fn start(state: &State, number: Number) -> anyhow::Result<Started> {
    let config = state.node(number)?;
    cluster::write_node_secrets(state, &config)?;
    plugins::lay_out(&config)?;
    state.rotate(&config.name)?;
    let child = node::start::start(&config, &state.log(&config.name)).await?;
    let process = sys::process::Handle::open(child.id())?.with_context(|| format!("init of {number} ended at once"))?;
    // Only with the lock is the node one that others see running.
    while state.node_pid(number)? != Some(child.id()) {
        if process.ended_within(std::time::Duration::ZERO)? {
            let error = anyhow::anyhow!("init of {number} ended at once");
            return Err(advise(error, format!("`ferrovirt logs node --node {number}` says why")));
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Ok(Started { process })
}

/// PID 1 of the node; its argument is the path of the configuration.
#[expect(clippy::needless_pass_by_value, reason = "programs of one table share a signature")]
pub(crate) fn init(words: Vec<OsString>) -> anyhow::Result<()> {
    terminal::log("info");
    let config = words.first().context("the node's configuration is not given")?;
    // Out of the terminal's reach, when started from one; a failure means that this already holds.
    let _ = sys::process::detach_from_terminal();
    match node::init::run(Path::new(config))? {}
}

/// The agent: kubelet, service proxy and DNS in one process.
pub(crate) fn agent(_words: Vec<OsString>) -> anyhow::Result<()> {
    terminal::log("info");
    cluster::runtime()?.block_on(at_rest::run(async {
        let config = node::Config::load(Path::new(config::IN_NODE))?;
        let client = cluster::client(Path::new(node::IN_NODE_KUBECONFIG), "kubelet").await?;
        let network = cluster::client(Path::new(node::IN_NODE_NETWORK_KUBECONFIG), "kube-proxy").await?;
        let stop = kit::shutdown::on_signals().context("cannot listen for signals")?;
        node::agent::run(&config, client, network, stop).await.context("the node's agent failed")
    }))
}
