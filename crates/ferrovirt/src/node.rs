//! `ferrovirt node`, and the two processes inside: the init and the agent.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Context;
use clap::Parser;
use kubelet::node::{self, config};

use crate::failure::{advise, parse};
use crate::state::{State, StateArgs, need_root};
use crate::{cluster, terminal};

/// Run a node in the foreground; it ends when this command does
#[derive(Debug, Parser)]
#[command(name = "node")]
struct NodeArgs {
    #[command(flatten)]
    state: StateArgs,
}

/// `ferrovirt node`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<NodeArgs>(words)? else { return Ok(()) };
    need_root()?;
    terminal::log("info");
    let state = arguments.state.state()?;
    cluster::runtime()?.block_on(async {
        let handle = start(&state).await?;
        terminal::say(&format!("node {} runs; Ctrl-C is its power switch", crate::state::NODE));
        let stop = kit::shutdown::on_signals().context("cannot listen for signals")?;
        let ended = handle.ended();
        tokio::select! {
            () = stop.cancelled() => {}
            _ = ended => {}
        }
        handle.kill()
    })
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
pub(crate) async fn start(state: &State) -> anyhow::Result<Started> {
    let config = state.node()?;
    cluster::write_node_secrets(state, &config)?;
    state.rotate("node")?;
    let child = node::start::start(&config, &state.log("node")).await?;
    let process = sys::process::Handle::open(child.id())?.context("the node's init ended at once")?;
    // Only with the lock is the node one that others see running.
    while state.node_pid()? != Some(child.id()) {
        if process.ended_within(std::time::Duration::ZERO)? {
            let error = anyhow::anyhow!("the node's init ended at once");
            return Err(advise(error, "`ferrovirt logs node` says why"));
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
    cluster::runtime()?.block_on(async {
        let config = node::Config::load(Path::new(config::IN_NODE))?;
        let client = cluster::client(Path::new(node::IN_NODE_KUBECONFIG)).await?;
        let stop = kit::shutdown::on_signals().context("cannot listen for signals")?;
        node::agent::run(&config, client, stop).await.context("the node's agent failed")
    })
}
