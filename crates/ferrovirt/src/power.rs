//! A node's power switch, pressed gently: the agent stops the pods with their grace and ends, then the power goes.

use std::time::{Duration, Instant};

use anyhow::Context;
use kubelet::node::init::AGENT;

use crate::failure::advise;
use crate::nodes::Number;
use crate::state::State;
use crate::{down, process};

/// The longest anybody waits for pods that use up their grace.
const PATIENCE: Duration = Duration::from_secs(900);

/// Switches a running node off in good order.
pub(crate) async fn off(state: &State, number: Number) -> anyhow::Result<()> {
    let agent = agent(state, number)?;
    agent.power_fails().context("cannot tell the node's agent")?;
    let deadline = Instant::now() + PATIENCE;
    while !agent.ended_within(Duration::ZERO)? {
        if Instant::now() > deadline {
            let error = anyhow::anyhow!("the pods of {number} have not stopped within {} s", PATIENCE.as_secs());
            return Err(advise(error, format!("`ferrovirt node kill {number}` cuts the power all the same")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    down::stop_node(state, number).map(drop)
}

/// The agent is a child of the node's init.
fn agent(state: &State, number: Number) -> anyhow::Result<sys::process::Handle> {
    let init = state.node_pid(number)?.with_context(|| format!("{number} does not run"))?;
    let is_agent = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == AGENT.as_bytes())
    };
    let found = sys::process::children(init).into_iter().find(is_agent);
    process::open(found)?.ok_or_else(|| {
        let hint = format!("it starts again by itself; `ferrovirt logs node --node {number}` says why it ended");
        advise(anyhow::anyhow!("the agent of {number} does not run just now"), hint)
    })
}
