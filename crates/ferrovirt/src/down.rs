//! `ferrovirt down`: whatever the state, afterwards nothing of the cluster runs or shows on the host.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use kubelet::node::config::CGROUP;
use kubelet::node::host_network;

use crate::failure::parse;
use crate::nodes::{self, Number};
use crate::process::{self, PATIENCE};
use crate::state::{State, StateArgs, need_root};
use crate::{cluster, simulated, terminal};

/// Stop the cluster and leave nothing behind on the host; its state is kept, so that `up` resumes
#[derive(Debug, Parser)]
#[command(name = "down")]
struct DownArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Remove the state as well: objects, volumes, images, logs
    #[arg(long)]
    purge: bool,
}

/// `ferrovirt down`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<DownArgs>(words)? else { return Ok(()) };
    need_root()?;
    terminal::log("warn");
    let state = arguments.state.state()?;
    let existed = state.dir().exists();
    state.make()?;
    let exclusive = state.exclusive()?;
    let begin = Instant::now();
    let stopped = stop(&state)?;
    cluster::runtime()?.block_on(async {
        for number in state.nodes()? {
            host_network::remove_node(&state.node(number)?).await.context("cannot take a node's interface away")?;
        }
        let config = state.node(nodes::FIRST)?;
        host_network::tear_down(&config, &state.host_settings()).await.context("cannot take the host's network back")
    })?;
    unmount(&state)?;
    if arguments.purge || !existed {
        drop(exclusive);
        std::fs::remove_dir_all(state.dir()).with_context(|| format!("cannot remove {}", state.dir().display()))?;
    }
    if stopped {
        terminal::say(&format!("down after {:.2} s", begin.elapsed().as_secs_f64()));
    } else {
        terminal::say("nothing was running");
    }
    Ok(())
}

/// Ends every process; true if there was any.
fn stop(state: &State) -> anyhow::Result<bool> {
    let mut any = simulated::stop(state)?;
    for number in state.nodes()? {
        any |= stop_node(state, number)?;
    }
    // So are those in the directory that the nodes share, which no node may take from another.
    sys::loop_device::detach_below(&state.shared_dir(), Path::new("/dev"))?;
    Ok(stop_control_plane(state)? || any)
}

/// Ends a node with everything that runs on it; true if anything did.
pub(crate) fn stop_node(state: &State, number: Number) -> anyhow::Result<bool> {
    let node = process::open(state.node_pid(number)?)?;
    let any = node.is_some();
    if let Some(node) = node {
        // The init takes its whole PID namespace with it.
        node.kill()?;
        process::end(&node, &number.to_string())?;
    }
    let config = state.node(number)?;
    let cleared = clear_cgroups(&config.cgroup())?;
    // Block volumes of a driver on the node are loop devices of the host.
    sys::loop_device::detach_below(&config.dir, Path::new("/dev"))?;
    Ok(cleared || any)
}

/// Ends the control plane, which first finishes what it has begun to write; true if it ran.
pub(crate) fn stop_control_plane(state: &State) -> anyhow::Result<bool> {
    let Some(control_plane) = process::open(state.control_plane_pid()?)? else { return Ok(false) };
    control_plane.terminate()?;
    if !control_plane.ended_within(PATIENCE)? {
        control_plane.kill()?;
        process::end(&control_plane, "the control plane")?;
    }
    Ok(true)
}

/// Kills what is left in the node's cgroups and removes them; true if anything was left.
fn clear_cgroups(group: &Path) -> anyhow::Result<bool> {
    let mut stray = false;
    for hierarchy in sys::cgroup::hierarchies()? {
        let dir = hierarchy.mount.join(group);
        for pid in sys::cgroup::pids(&dir) {
            if let Some(stranger) = process::open(Some(pid))? {
                stray = true;
                stranger.kill()?;
                process::end(&stranger, &format!("process {pid}"))?;
            }
        }
        remove_group(&dir)?;
        // Refused while it holds another cluster's nodes, and rightly so.
        let _ = std::fs::remove_dir(hierarchy.mount.join(CGROUP));
    }
    Ok(stray)
}

/// A group is busy for a moment after its last process has ended.
fn remove_group(group: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match sys::cgroup::remove(group) {
            Err(error) if Instant::now() < deadline => {
                tracing::debug!(%error, "cgroup is still busy");
                sys::process::pause(Duration::from_millis(10));
            }
            other => return other.context("cannot remove the cluster's cgroups"),
        }
    }
}

/// Nothing is mounted below the state directory on the host unless somebody did it by hand or a run was cut short.
fn unmount(state: &State) -> anyhow::Result<()> {
    for point in sys::mount::points()?.iter().rev().filter(|point| point.starts_with(state.dir())) {
        sys::mount::detach(point)?;
    }
    Ok(())
}
