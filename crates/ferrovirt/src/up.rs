//! `ferrovirt up`: from nothing, or from any state in between, to a node that is Ready.
//!
//! Each step first looks whether it is already done, so that running it again repairs what is broken and no more.
//! Nothing is undone when it is interrupted: the next `up` goes on from there and `down` clears it away.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kubelet::node::host_network;

use crate::available::{Starts, Told};
use crate::backup::restore;
use crate::failure::{advise, parse};
use crate::nodes::{self, Number};
use crate::operators::Arrangement;
use crate::state::{State, StateArgs, need_root};
use crate::{available, cluster, deploy, down, images, importer, node, process, simulated, status, storage, terminal};

/// Start the cluster on this machine, or repair it
#[derive(Debug, Parser)]
#[command(name = "up")]
struct UpArgs {
    #[command(flatten)]
    state: StateArgs,
    /// How many nodes to have at least; nodes that were added before stay
    #[arg(long, value_name = "N", value_parser = nodes::count, default_value = "1")]
    nodes: u8,
    /// How many nodes to have besides that run no containers, for load on the control plane; 0 removes them
    #[arg(long, value_name = "N", value_parser = simulated::count)]
    simulated_nodes: Option<u16>,
    /// Stop when the node is Ready, without virtual machine support
    #[arg(long)]
    cluster_only: bool,
    /// Give each operator a process of its own, as on other clusters, instead of one for all
    #[arg(long)]
    separate_operators: bool,
}

/// `ferrovirt up`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<UpArgs>(words)? else { return Ok(()) };
    need_root()?;
    need_programs()?;
    sys::inherited::end_here()?;
    // The client reports every attempt to reach a server that is still starting; what matters comes back as an error.
    terminal::log("error,kube_client=off");
    let state = arguments.state.state()?;
    state.make()?;
    let _exclusive = state.exclusive()?;
    if state.control_plane_pid()?.is_none() {
        restore::finish(&state)?;
    }
    cluster::runtime()?.block_on(run(&state, &arguments))
}

/// Programs of the host that the cluster is built on.
const PROGRAMS: [&str; 4] = ["containerd", "runc", "nft", "ctr"];

fn need_programs() -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    let mut missing: Vec<_> =
        PROGRAMS.into_iter().filter(|name| !dirs.iter().any(|dir| dir.join(name).is_file())).collect();
    let plugins = kubelet::node::containerd::cni_bin_dir(Path::new("/"));
    if !Path::new(plugins).join("bridge").is_file() {
        missing.push("the CNI plugins");
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(advise(anyhow::anyhow!("not installed: {}", missing.join(", ")), "`make deps` installs what is needed"))
}

/// Prints each step with the time it took.
struct Steps {
    begin: Instant,
    changed: bool,
}

impl Steps {
    fn done(&mut self, what: &str, since: Instant) {
        self.changed = true;
        terminal::say(&format!("{:>7.2} s  {what}", since.elapsed().as_secs_f64()));
    }
}

async fn run(state: &State, arguments: &UpArgs) -> anyhow::Result<()> {
    let mut steps = Steps { begin: Instant::now(), changed: false };
    let mut numbers = state.nodes()?;
    numbers.extend(nodes::first(arguments.nodes));
    numbers.sort_unstable();
    numbers.dedup();
    let starts = start_cluster(state, &numbers, &mut steps).await?;
    let since = Instant::now();
    let client = cluster::client(&state.kubeconfig(), "ferrovirt").await?;
    wait_for_api(state, &client).await?;
    if steps.changed {
        steps.done("API server answers", since);
    }
    let since = Instant::now();
    for number in &numbers {
        wait_for_node(state, &client, *number, starts.get(&number.to_string()).copied()).await?;
        if steps.changed {
            steps.done(&format!("node {number} is Ready"), since);
        }
    }
    if steps.changed {
        terminal::say(&format!("up after {:.2} s", steps.begin.elapsed().as_secs_f64()));
    } else {
        terminal::say("already up");
    }
    terminal::say(&format!("guests run on {}", status::virtualization(&sys::kvm::verdict())));
    if arguments.cluster_only {
        load_pause_image(state)?;
    } else {
        let operators = if arguments.separate_operators { Arrangement::Apart } else { Arrangement::Together };
        Box::pin(virtual_machines(state, &client, &starts, operators)).await?;
    }
    // Last: what the cluster itself needs has found its place on nodes that run it.
    let since = Instant::now();
    if let Some(what) = simulated::ensure(state, &client, arguments.simulated_nodes).await? {
        terminal::say(&format!("{:>7.2} s  {what}", since.elapsed().as_secs_f64()));
    }
    terminal::say(&format!("export KUBECONFIG={}", state.kubeconfig().display()));
    Ok(())
}

/// The image that every pod begins with, which comes from no registry.
fn load_pause_image(state: &State) -> anyhow::Result<()> {
    let shop = images::default_workshop()?;
    if shop.list()?.is_empty() {
        terminal::say("no images are built: `ferrovirt images build`, then `ferrovirt images load`, let pods start");
        return Ok(());
    }
    images::load(&shop, state, &[images::Image::Pause]).map(drop)
}

/// The product's images on the nodes, its components in the cluster.
async fn virtual_machines(
    state: &State,
    client: &kube::Client,
    starts: &Starts,
    operators: Arrangement,
) -> anyhow::Result<()> {
    let mut steps = Steps { begin: Instant::now(), changed: false };
    let shop = images::default_workshop()?;
    images::build(&shop, &images::Image::DEFAULT)?;
    let since = Instant::now();
    let loaded = images::load(&shop, state, &images::Image::DEFAULT)?;
    if !loaded.is_empty() {
        steps.done(&format!("{} images loaded", loaded.len()), since);
    }
    let since = Instant::now();
    if loaded.iter().any(|name| name.contains("/component:")) {
        deploy::restart(client).await?;
    }
    operators.alone(client).await?;
    deploy::apply(client, &operators.of(&storage::operators())?, without_boot_images()).await?;
    storage::apply(client).await?;
    available::wait_until_available(client, Told::KubeVirt, starts, available::PATIENCE).await?;
    steps.done("virtual machines can be created", since);
    let nodes: Vec<String> = state.nodes()?.iter().map(ToString::to_string).collect();
    storage::wait_until_ready(client, &nodes, starts).await?;
    steps.done(&format!("claims get volumes of class {}", storage::CLASS), since);
    importer::wait_until_it_judges(client).await?;
    steps.done("disks can be imported", since);
    available::wait_until_available(client, Told::HyperConverged, starts, available::PATIENCE).await?;
    steps.done("HyperConverged is Available", since);
    Ok(())
}

/// What the HyperConverged object of this machine is made with. The common boot images are many GiB, which nobody asked for here.
fn without_boot_images() -> serde_json::Value {
    serde_json::json!({ "workloadSources": { "enableCommonBootImageImport": false } })
}

/// Starts what does not run, and says when nodes were started.
async fn start_cluster(state: &State, numbers: &[Number], steps: &mut Steps) -> anyhow::Result<Starts> {
    let config = state.node(nodes::FIRST)?;
    cluster::write_kubeconfig(state)?;
    let mut control_plane = state.control_plane_pid()?;
    if let Some(pid) = control_plane
        && !process::is_this_program(pid)
    {
        let since = Instant::now();
        down::stop_control_plane(state)?;
        control_plane = None;
        steps.done("control plane of another version stopped", since);
    }
    let mut missing = Vec::new();
    for number in numbers {
        let runs = state.node_pid(*number)?;
        if runs.is_some_and(|pid| !process::is_this_program(pid)) {
            let since = Instant::now();
            down::stop_node(state, *number)?;
            steps.done(&format!("{number} of another version stopped; what ran on it starts again"), since);
            missing.push(*number);
        } else if runs.is_none() {
            missing.push(*number);
        }
    }
    if control_plane.is_none() || !missing.is_empty() || !bridge_is_there(&config).await? {
        let since = Instant::now();
        host_network::set_up(&config, &state.host_settings()).await?;
        steps.done("host network", since);
    }
    if control_plane.is_none() {
        let since = Instant::now();
        spawn_control_plane(state)?;
        steps.done("control plane started", since);
    }
    let mut starts = Starts::new();
    for number in missing {
        let since = Instant::now();
        starts.insert(number.to_string(), kit::clock::now());
        node::start(state, number).await?;
        steps.done(&format!("node {number} started"), since);
    }
    Ok(starts)
}

async fn bridge_is_there(config: &kubelet::node::Config) -> anyhow::Result<bool> {
    let host = net::link::Netlink::open()?;
    Ok(host.find(&config.bridge).await?.is_some_and(|link| link.up) && host.find(&config.host_link()).await?.is_some())
}

fn spawn_control_plane(state: &State) -> anyhow::Result<()> {
    state.rotate("control-plane")?;
    let path = state.log("control-plane");
    let log = OpenOptions::new().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("cannot open {}", path.display()))?;
    let errors = log.try_clone().context("cannot share the log")?;
    let (mut word, its_end) = UnixStream::pair().context("cannot make a pair of sockets")?;
    let (tunables, small) = sys::heap::MANY_SMALL;
    let mut process = Command::new("/proc/self/exe")
        .args(["control-plane", "--detach", "--state-dir"])
        .arg(state.dir())
        .env(tunables, small)
        .stdin(OwnedFd::from(its_end))
        .stdout(log)
        .stderr(errors)
        .spawn()
        .context("cannot start the control plane")?;
    // Nodes start only on what could be opened: one that is left behind by a damaged store would have to be stopped by hand.
    word.set_read_timeout(Some(PATIENCE)).context("cannot wait for the control plane")?;
    match word.read(&mut [0]) {
        Ok(1..) => Ok(()),
        Ok(0) => {
            process.wait().context("cannot wait for the control plane")?;
            Err(control_plane_ended(state))
        }
        Err(error) => {
            let error = anyhow::Error::new(error).context("the control plane has not opened its store");
            Err(advise(error, "`ferrovirt logs control-plane` says more; `ferrovirt down` stops it"))
        }
    }
}

/// Why it ended, in its own words, which are the last ones of its log.
fn control_plane_ended(state: &State) -> anyhow::Error {
    let log = std::fs::read(state.log("control-plane")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let last = log.rfind("\nerror: ").map(|at| log[at + 1..].trim_end());
    let (why, hint) = last.map_or((None, None), |text| {
        let (why, hint) = text.split_once("\nhint: ").map_or((text, None), |(why, hint)| (why, Some(hint)));
        (why.strip_prefix("error: "), hint)
    });
    let error = anyhow::anyhow!("the control plane ended{}", why.map(|why| format!(": {why}")).unwrap_or_default());
    advise(error, hint.unwrap_or("`ferrovirt logs control-plane` says more"))
}

const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(25);

async fn wait_for_api(state: &State, client: &kube::Client) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let request = || http::Request::get("/readyz").body(Vec::new());
    loop {
        let why = match client.request_text(request().context("cannot ask for readiness")?).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if state.control_plane_pid()?.is_none() {
            return Err(control_plane_ended(state));
        }
        if Instant::now() > deadline {
            let error = anyhow::Error::new(why).context("the API server does not answer");
            return Err(advise(error, "`ferrovirt logs control-plane` says more"));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Waits until the node is Ready, and was found so at `since` or later.
pub(crate) async fn wait_for_node(
    state: &State,
    client: &kube::Client,
    number: Number,
    since: Option<Timestamp>,
) -> anyhow::Result<()> {
    let name = number.to_string();
    let nodes: Api<Node> = Api::all(client.clone());
    let deadline = Instant::now() + PATIENCE;
    if state.node_pid(number)?.is_some() && !host_network::is_plugged(&state.node(number)?).await? {
        let hint = format!("`ferrovirt node heal {number}` connects it again");
        return Err(advise(anyhow::anyhow!("node {number} is cut off the network"), hint));
    }
    loop {
        let found = nodes.get_opt(&name).await.context("cannot ask for the node")?;
        // What is known of the node may be a moment older than its start, so the kubelet itself must answer as well.
        if found.as_ref().is_some_and(|node| nodes::is_ready(node, since)) && kubelet_listens(state, number).await? {
            return Ok(());
        }
        if state.node_pid(number)?.is_none() || Instant::now() > deadline {
            let why = match (state.node_pid(number)?, found) {
                (None, _) => "its init ended".to_owned(),
                (_, None) => "it has not registered".to_owned(),
                (_, Some(node)) => not_ready_because(&node),
            };
            let error = anyhow::anyhow!("node {number} is not Ready: {why}");
            let flag = format!("--node {number}");
            return Err(advise(
                error,
                format!("`ferrovirt logs node {flag}` and `ferrovirt logs containerd {flag}` say more"),
            ));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn kubelet_listens(state: &State, number: Number) -> anyhow::Result<bool> {
    let config = state.node(number)?;
    let Some(address) = config.addresses.first() else { return Ok(false) };
    let at = std::net::SocketAddr::new(address.addr(), kubelet::node::agent::PORT);
    let dialled = tokio::time::timeout(Duration::from_secs(1), tokio::net::TcpStream::connect(at)).await;
    Ok(matches!(dialled, Ok(Ok(_))))
}

fn not_ready_because(node: &Node) -> String {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready.and_then(|condition| condition.message.clone()).unwrap_or_else(|| "it reports no condition".to_owned())
}
