//! secondary-dns: names of virtual machines on their secondary networks, which the cluster's DNS does not know.
//!
//! ```text
//! VMIs --names (pure)--> Zone --answer (pure)--> reply
//! ```
//!
//! It is authoritative for the zone `vm.DOMAIN` and answers for no other. Until the machines are known it answers "try again", never
//! "does not exist".

pub mod answer;
pub mod manifests;
pub mod names;
mod server;
pub mod zone;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use kit::clock;
use kit::health::Ready;
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Store, Watch};
use kube::{Api, Client};
pub use server::{Served, serve};

use self::zone::Zone;
use crate::{Error, health};

/// Its command.
pub const PROGRAM: &str = "secondary-dns";
/// How soon names follow machines: several changes at once are one zone.
const GATHER: Duration = Duration::from_millis(50);

/// Command line of secondary-dns.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port of the name server, UDP and TCP.
    #[arg(long, default_value_t = manifests::PORT)]
    pub port: u16,
    /// What follows `vm` in the zone's name.
    #[arg(long, env = "DOMAIN", default_value = "")]
    pub domain: String,
    /// The address by which others reach this name server; with it the zone names one.
    #[arg(long, env = "NAME_SERVER_IP", default_value = "")]
    pub name_server_ip: String,
    /// Port for health.
    #[arg(long, default_value_t = manifests::HEALTH)]
    pub health_port: u16,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up, or the domain or the address is none.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let origin = zone::origin(&args.domain).map_err(Error::setup("read the domain"))?;
    let own: Option<Ipv4Addr> = match args.name_server_ip.trim() {
        "" => None,
        text => Some(text.parse().map_err(Error::setup("read the address of the name server"))?),
    };
    let client = kit::client::connect(PROGRAM).await.map_err(Error::setup("reach the API server"))?;
    let ready = Ready::default();
    let _health =
        health::serve(PROGRAM, (Ipv6Addr::UNSPECIFIED.into(), args.health_port), ready.clone(), &stop).await?;
    let served = Arc::new(Served::default());
    let address = (Ipv6Addr::UNSPECIFIED, args.port).into();
    let _server = serve(address, served.clone()).await.map_err(Error::setup("listen"))?;
    follow(client, Zone::new(origin, own), &served, &ready, &stop).await;
    Ok(())
}

/// Keeps what is served as the machines are, until `stop`. `ready` is true once they are known.
pub async fn follow(client: Client, mut zone: Zone, served: &Served, ready: &Ready, stop: &CancellationToken) {
    let vmis: Store<VirtualMachineInstance> = Store::default();
    let changed = Arc::new(tokio::sync::Notify::new());
    let wake = changed.clone();
    let how = Watch { trim, ..Watch::default() };
    let _watch = store::watch(Api::all(client), how, vmis.clone(), move |_| wake.notify_one());
    tokio::select! {
        () = vmis.synced() => {}
        () = stop.cancelled() => return,
    }
    loop {
        let records = names::records(&vmis.list());
        zone.replace(records, u32::try_from(clock::seconds(clock::now()).as_second()).unwrap_or(u32::MAX));
        served.put(&zone);
        ready.set(true);
        tokio::select! {
            () = changed.notified() => tokio::time::sleep(GATHER).await,
            () = stop.cancelled() => return,
        }
    }
}

/// Only networks and addresses count.
fn trim(vmi: &mut VirtualMachineInstance) {
    store::trim(vmi);
    (vmi.metadata.labels, vmi.metadata.annotations) = (None, None);
    let networks = std::mem::take(&mut vmi.spec.networks);
    vmi.spec = Default::default();
    vmi.spec.networks = networks;
    if let Some(status) = vmi.status.take() {
        let interfaces = status.interfaces.clone();
        vmi.status = Some(Default::default());
        if let Some(kept) = &mut vmi.status {
            kept.interfaces = interfaces;
        }
    }
}
