//! `ferrovirt node`: what a hand in the machine room does.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use clap::{Parser, Subcommand};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use kubelet::node::host_network;

use crate::failure::{advise, parse};
use crate::nodes::{self, Number};
use crate::state::{State, StateArgs, need_root};
use crate::{cluster, down, images, node, power, simulated, terminal, up};

/// Manage the nodes of the cluster
#[derive(Debug, Parser)]
#[command(name = "node")]
struct NodeArgs {
    #[command(flatten)]
    state: StateArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say which nodes there are and how they are
    List,
    /// Start one more node
    Add,
    /// Take a node away for good, with what it keeps
    Remove { name: Number },
    /// Start a node that does not run
    Start { name: Number },
    /// Stop a node in good order: its pods get their grace, then the power goes
    Stop { name: Number },
    /// Cut a node's power
    Kill { name: Number },
    /// Cut a node off the network; everything on it runs on
    Cut { name: Number },
    /// Connect a node to the network again
    Heal { name: Number },
    /// Run a command inside of a node
    Exec {
        name: Number,
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<OsString>,
    },
    /// Run a node in the foreground; it ends when this command does
    Run {
        #[arg(default_value_t = nodes::FIRST)]
        name: Number,
    },
}

/// `ferrovirt node`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<NodeArgs>(words)? else { return Ok(()) };
    terminal::log(if matches!(arguments.action, Action::Run { .. }) { "info" } else { "error,kube_client=off" });
    let state = arguments.state.state()?;
    if !matches!(arguments.action, Action::List) {
        need_root()?;
    }
    let runtime = cluster::runtime()?;
    match arguments.action {
        Action::List => runtime.block_on(list(&state)),
        Action::Exec { name, command } => exec(&state, name, &command),
        Action::Run { name } => runtime.block_on(node::run(&state, name)),
        // Power and cables fail whatever else is going on, also several at once.
        failure @ (Action::Kill { .. } | Action::Cut { .. } | Action::Heal { .. }) => {
            runtime.block_on(apply(&state, failure))
        }
        change => {
            state.make()?;
            sys::inherited::end_here()?;
            let _turn = state.exclusive_in_turn()?;
            runtime.block_on(apply(&state, change))
        }
    }
}

async fn apply(state: &State, change: Action) -> anyhow::Result<()> {
    match change {
        Action::Add => start(state, nodes::free(&state.nodes()?)?).await,
        Action::Start { name } => {
            state.has_node(name)?;
            if state.node_pid(name)?.is_some() {
                terminal::say(&format!("{name} runs already"));
                return Ok(());
            }
            start(state, name).await
        }
        Action::Stop { name } => {
            running(state, name)?;
            power::off(state, name).await?;
            terminal::say(&format!("{name} is stopped; `ferrovirt node start {name}` starts it with its pods"));
            Ok(())
        }
        Action::Kill { name } => {
            running(state, name)?;
            down::stop_node(state, name)?;
            terminal::say(&format!("{name} has no power; `ferrovirt node start {name}` gives it back"));
            Ok(())
        }
        Action::Cut { name } => {
            running(state, name)?;
            host_network::set_plugged(&state.node(name)?, false).await.context("cannot cut the node off")?;
            terminal::say(&format!("{name} is cut off; `ferrovirt node heal {name}` connects it again"));
            Ok(())
        }
        Action::Heal { name } => {
            running(state, name)?;
            host_network::set_plugged(&state.node(name)?, true).await.context("cannot connect the node")?;
            terminal::say(&format!("{name} is connected"));
            Ok(())
        }
        Action::Remove { name } => remove(state, name).await,
        Action::List | Action::Exec { .. } | Action::Run { .. } => Ok(()),
    }
}

/// Starts a node, and returns when pods can be placed on it.
async fn start(state: &State, number: Number) -> anyhow::Result<()> {
    if state.control_plane_pid()?.is_none() {
        return Err(advise(anyhow::anyhow!("there is no cluster to join"), "`ferrovirt up` starts it"));
    }
    let since = kit::clock::now();
    node::start(state, number).await?;
    let client = cluster::client(&state.kubeconfig(), "ferrovirt").await?;
    up::wait_for_node(state, &client, number, Some(since)).await?;
    if let Some(pid) = state.node_pid(number)? {
        images::load_into(&images::default_workshop()?, number, pid, &images::Image::all())?;
    }
    terminal::say(&format!("node {number} is Ready"));
    Ok(())
}

async fn remove(state: &State, number: Number) -> anyhow::Result<()> {
    state.has_node(number)?;
    if number == nodes::FIRST {
        let error = anyhow::anyhow!("{number} stays: every cluster has it");
        return Err(advise(error, "`ferrovirt down --purge` removes the whole cluster"));
    }
    let config = state.node(number)?;
    down::stop_node(state, number)?;
    host_network::remove_node(&config).await.context("cannot take the node's interface away")?;
    if state.control_plane_pid()?.is_some() {
        let client = cluster::client(&state.kubeconfig(), "ferrovirt").await?;
        absent(Api::<Node>::all(client.clone()).delete(&config.name, &DeleteParams::default()).await)
            .with_context(|| format!("cannot delete the Node {number}"))?;
        forget_pods(&client, &config.name).await.with_context(|| format!("cannot delete the pods of {number}"))?;
    }
    std::fs::remove_dir_all(&config.dir).with_context(|| format!("cannot remove {}", config.dir.display()))?;
    terminal::say(&format!("{number} is removed"));
    Ok(())
}

/// Deletes the pods of a node that is gone for good, and that the cluster would wait for.
async fn forget_pods(client: &kube::Client, node: &str) -> kube::Result<()> {
    let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
    for pod in Api::<Pod>::all(client.clone()).list(&here).await? {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        absent(pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await)?;
    }
    Ok(())
}

/// Who is not there any more needs no deletion.
fn absent<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Becomes the command, in all namespaces of the node.
fn exec(state: &State, number: Number, command: &[OsString]) -> anyhow::Result<()> {
    let pid = running(state, number)?;
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--target={pid}"));
    enter.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"]).args(command);
    let error = enter.exec();
    Err(advise(anyhow::Error::new(error).context("cannot run nsenter"), "the package util-linux has it"))
}

async fn list(state: &State) -> anyhow::Result<()> {
    let listed = match state.control_plane_pid()? {
        Some(_) => registered(state).await.unwrap_or_default(),
        None => Vec::new(),
    };
    terminal::say(&format!("{:<10} {:<26} {:<14} {}", "NAME", "POWER", "ADDRESS", "READY"));
    for number in state.nodes()? {
        let config = state.node(number)?;
        let power = match state.node_pid(number)? {
            None => "off".to_owned(),
            Some(pid) if host_network::is_plugged(&config).await.unwrap_or(true) => format!("on, pid {pid}"),
            Some(pid) => format!("on, pid {pid}, cut off"),
        };
        let address = config.addresses.first().map(|address| address.addr().to_string()).unwrap_or_default();
        let object = listed.iter().find(|node| node.metadata.name.as_deref() == Some(&config.name));
        let ready = object.map_or("unknown", |node| if nodes::is_ready(node, None) { "yes" } else { "no" });
        terminal::say(&format!("{:<10} {power:<26} {address:<14} {ready}", config.name));
    }
    for node in listed.iter().filter(|node| simulated::is_simulated(node)) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let address = addresses.into_iter().find(|a| a.type_ == "InternalIP").map_or("", |a| a.address.as_str());
        let ready = if nodes::is_ready(node, None) { "yes" } else { "no" };
        terminal::say(&format!("{name:<10} {:<26} {address:<14} {ready}", "simulated"));
    }
    Ok(())
}

async fn registered(state: &State) -> anyhow::Result<Vec<Node>> {
    let client = cluster::client(&state.kubeconfig(), "ferrovirt").await?;
    Ok(Api::<Node>::all(client).list(&ListParams::default()).await?.items)
}

/// The pid of the node's init.
fn running(state: &State, number: Number) -> anyhow::Result<u32> {
    state.has_node(number)?;
    let pid = state.node_pid(number)?;
    pid.ok_or_else(|| {
        advise(anyhow::anyhow!("{number} does not run"), format!("`ferrovirt node start {number}` starts it"))
    })
}
