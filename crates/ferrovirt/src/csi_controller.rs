//! `csi-controller`: the controllers of a CSI driver, beside it, on clusters whose control plane serves no drivers.

use std::path::PathBuf;

use anyhow::Context;
use csi_controllers::node_deployment::{self, Sidecar};
use csi_controllers::{Drivers, Socket};
use tokio::net::UnixStream;

/// Command line of the program.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The driver's socket, with or without `unix://`.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "/csi/csi.sock")]
    csi_address: String,
    /// The name the driver registers by.
    #[arg(long, default_value = hpp::csi::NAME)]
    driver_name: String,
    /// The node the driver is on.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Where objects are put that say how much room there is.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
}

/// Runs until it is told to stop.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let stop = kit::shutdown::on_signals().context("cannot listen for signals")?;
    let client = kit::client::connect("csi-controller").await.context("cannot reach the API server")?;
    let socket = PathBuf::from(args.csi_address.trim_start_matches("unix://").trim_start_matches("unix:"));
    tracing::info!(driver = args.driver_name, node = args.node_name, socket = %socket.display(), "serves the driver");
    let drivers = Drivers::new(move |_, _| {
        let socket = socket.clone();
        Box::pin(async move { Ok(Box::new(UnixStream::connect(socket).await?) as Box<dyn Socket>) })
    });
    let sidecar = Sidecar { driver: args.driver_name, node: args.node_name, namespace: args.namespace };
    node_deployment::run(client, drivers, sidecar, stop).await;
    Ok(())
}
