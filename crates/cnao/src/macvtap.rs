//! macvtap-device-plugin: links of a node as devices, each an interface of a machine with its own address at that link.
//!
//! ```text
//! DP_MACVTAP_CONF + links of the node --resources (pure)--> a device plugin for each, macvtap.network.kubevirt.io/NAME
//! kubelet --Allocate--> a macvtap link on the node, and its /dev/tapN --CNI plugin macvtap--> the pod's interface
//! ```

pub mod manifests;
mod plugin;
mod resources;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kit::shutdown::{self, CancellationToken};
use kit::{Chain, Task};
use net::link::{Changes, Netlink};
use net::macvtap;
use resources::Seen;
use tokio::sync::watch;

use crate::Error;

/// Its command.
pub const PROGRAM: &str = "macvtap-device-plugin";
/// How often the links are read again, whatever changed or did not.
const LOOK: Duration = Duration::from_secs(600);
/// How long it waits after a failure.
const PAUSE: Duration = Duration::from_secs(2);

/// Command line of the device plugin.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Which links are devices, a JSON list of {"name", "lowerDevice", "mode", "capacity"}; empty: each physical link and bond
    #[arg(long, env = "DP_MACVTAP_CONF", default_value = "[]")]
    pub config: String,
    /// Where the kubelet looks for device plugins.
    #[arg(long, default_value = rpc::deviceplugin::PLUGIN_DIR)]
    pub plugin_dir: PathBuf,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up, or the configuration is refused.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let wanted = resources::parse(&args.config).map_err(Error::setup("use DP_MACVTAP_CONF"))?;
    let (news, seen) = watch::channel(Seen::default());
    let mut plugins: BTreeMap<String, Task<()>> = BTreeMap::new();
    loop {
        let done = tokio::select! {
            done = follow(&news, &stop, |now| {
                // Whose link is gone has no devices, and stays for when it comes back.
                for resource in resources::resources(&wanted, now) {
                    plugins.entry(resource.name.clone()).or_insert_with(|| {
                        let dir = args.plugin_dir.clone();
                        kit::spawn("device-plugin", plugin::keep(resource, dir, seen.clone(), stop.clone()))
                    });
                }
            }) => done,
            () = stop.cancelled() => break,
        };
        if let Err(error) = done {
            tracing::warn!(error = %Chain(&error), "will look at the links of the node again");
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = stop.cancelled() => break,
        }
    }
    // Each removes its socket.
    for (_, plugin) in plugins {
        let _ = plugin.await;
    }
    Ok(())
}

/// Follows the links until something fails.
async fn follow(
    news: &watch::Sender<Seen>,
    stop: &CancellationToken,
    mut tell: impl FnMut(&Seen),
) -> Result<(), Error> {
    // First the news, then the look: nothing falls between.
    let mut changes = Changes::follow().map_err(Error::setup("follow the links of the node"))?;
    let links = Netlink::open().map_err(Error::setup("read the links of the node"))?;
    while !stop.is_cancelled() {
        let all = links.links().await.map_err(Error::setup("read the links of the node"))?;
        let lower = macvtap::lower_links(&links).await.map_err(Error::setup("read the links of the node"))?;
        let now = Seen { all: all.into_iter().map(|link| link.name).collect(), lower };
        tell(&now);
        news.send_if_modified(|held| {
            let differs = *held != now;
            *held = now;
            differs
        });
        match tokio::time::timeout(LOOK, changes.next()).await {
            Ok(Some(())) | Err(_) => {}
            Ok(None) => return Ok(()),
        }
    }
    Ok(())
}
