//! `ferrovirt images`: build, list, load, push.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
pub(crate) use images::Image;
use images::{Layout, Workshop};

use crate::failure::{advise, parse};
use crate::nodes::Number;
use crate::state::{State, StateArgs, need_root};
use crate::{cluster, terminal};

/// Build, list, load and push the product's container images
#[derive(Debug, Parser)]
#[command(name = "images")]
struct ImagesArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct Place {
    /// Where images and the packages they are made of are kept
    #[arg(long, global = true, env = "FERROVIRT_IMAGES", default_value = "/var/cache/ferrovirt/images")]
    cache: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make every image whose inputs changed
    Build {
        /// Images that are made for who asks for them, beside those that every cluster takes
        #[arg(value_name = "IMAGE", value_parser = on_demand())]
        more: Vec<String>,
    },
    /// Say what was built
    List,
    /// Give the images to the running node
    Load {
        #[command(flatten)]
        state: StateArgs,
    },
    /// Send the images to a registry
    Push {
        /// host[:port][/path]
        registry: String,
        #[command(flatten)]
        credentials: Credentials,
    },
}

/// How a registry is spoken to.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Credentials {
    /// User name, when the registry asks for one
    #[arg(long, requires = "password_file")]
    username: Option<String>,
    /// File with the password
    #[arg(long)]
    password_file: Option<PathBuf>,
    /// Speak HTTP without TLS
    #[arg(long)]
    plain_http: bool,
}

impl Credentials {
    /// Whether anything was said.
    pub(crate) fn are_given(&self) -> bool {
        self.username.is_some() || self.password_file.is_some() || self.plain_http
    }
}

/// Sends images to a registry, and says which.
pub(crate) async fn push(layout: &Layout, registry: &str, credentials: &Credentials) -> anyhow::Result<()> {
    let password = credentials.password_file.as_ref();
    let password = password
        .map(|path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display())))
        .transpose()?;
    let auth = credentials.username.clone().zip(password.map(|text| text.trim_end().to_owned()));
    let mut say = |line: &str| terminal::say(line);
    let pushed = images::push(layout, registry, auth, credentials.plain_http, &mut say).await.map_err(|error| {
        let hint = error.hint();
        let error = anyhow::Error::new(error);
        hint.map(|hint| advise(anyhow::anyhow!("{error}"), hint)).unwrap_or(error)
    })?;
    terminal::say(&format!("pushed {} images to {registry}", pushed.len()));
    Ok(())
}

/// `ferrovirt images`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<ImagesArgs>(words)? else { return Ok(()) };
    terminal::log("warn");
    let shop = workshop(arguments.place.cache)?;
    match arguments.action {
        Action::Build { more } => {
            let asked = Image::ON_DEMAND.into_iter().filter(|image| more.iter().any(|name| name == image.short()));
            build(&shop, &Image::DEFAULT.into_iter().chain(asked).collect::<Vec<_>>())?;
            print_list(&shop)
        }
        Action::List => print_list(&shop),
        Action::Load { state } => {
            need_root()?;
            let loaded = load(&shop, &state.state()?, &Image::all())?;
            let text = if loaded.is_empty() {
                "the node has them all".to_owned()
            } else {
                format!("loaded {}", loaded.join(", "))
            };
            terminal::say(&text);
            Ok(())
        }
        Action::Push { registry, credentials } => {
            cluster::runtime()?.block_on(push(&shop.layout(), &registry, &credentials))
        }
    }
}

/// The workshop of the default place, for `up`.
pub(crate) fn default_workshop() -> anyhow::Result<Workshop> {
    let cache =
        std::env::var_os("FERROVIRT_IMAGES").map_or_else(|| "/var/cache/ferrovirt/images".into(), PathBuf::from);
    workshop(cache)
}

fn workshop(cache: PathBuf) -> anyhow::Result<Workshop> {
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    let (launcher, container_disk) = (binary.with_file_name("virt-launcher"), binary.with_file_name("container-disk"));
    let (virtctl, cni) = (binary.with_file_name("virtctl"), binary.with_file_name("ferrovirt-cni"));
    Ok(Workshop { cache, binary, launcher, virtctl, container_disk, cni })
}

/// What can be asked for by name.
fn on_demand() -> PossibleValuesParser {
    Image::ON_DEMAND.map(Image::short).into()
}

/// Builds what of `wanted` is not up to date.
pub(crate) fn build(shop: &Workshop, wanted: &[Image]) -> anyhow::Result<()> {
    if let Some(missing) =
        [&shop.launcher, &shop.virtctl, &shop.container_disk, &shop.cni].into_iter().find(|program| !program.is_file())
    {
        let error = anyhow::anyhow!("{} is missing", missing.display());
        return Err(advise(error, "`make build` puts it beside the program"));
    }
    shop.build(wanted, &mut |line| terminal::say(line))?;
    Ok(())
}

/// Loads what the nodes that run lack of `wanted`, and returns the names.
pub(crate) fn load(shop: &Workshop, state: &State, wanted: &[Image]) -> anyhow::Result<Vec<String>> {
    let mut loaded = Vec::new();
    let mut running = 0;
    for number in state.nodes()? {
        let Some(pid) = state.node_pid(number)? else { continue };
        running += 1;
        loaded.extend(load_into(shop, number, pid, wanted)?);
    }
    if running == 0 {
        return Err(advise(anyhow::anyhow!("no node runs"), "`ferrovirt up` starts it"));
    }
    loaded.sort();
    loaded.dedup();
    Ok(loaded)
}

/// Loads what one node lacks of `wanted`, whose init is `pid`, and returns the names.
pub(crate) fn load_into(shop: &Workshop, number: Number, pid: u32, wanted: &[Image]) -> anyhow::Result<Vec<String>> {
    let socket = socket_of(pid);
    if !socket.exists() {
        return Err(advise(anyhow::anyhow!("containerd of {number} does not run"), "`ferrovirt up` starts it"));
    }
    Ok(images::load(&shop.layout(), &socket, wanted)?)
}

/// Where containerd of the node listens whose init is `pid`.
pub(crate) fn socket_of(pid: u32) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    root.join(kubelet::node::containerd::SOCKET.trim_start_matches('/'))
}

fn print_list(shop: &Workshop) -> anyhow::Result<()> {
    let list = shop.list()?;
    if list.is_empty() {
        terminal::say("no images; `ferrovirt images build` makes them");
    }
    for image in list {
        let digest: String = image.digest.chars().take(19).collect();
        terminal::say(&format!("{:<42} {digest}  {:>5} MiB", image.name, image.size.div_ceil(1 << 20)));
    }
    Ok(())
}
