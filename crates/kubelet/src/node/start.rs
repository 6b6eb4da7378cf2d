//! Starting a node from the host: its namespaces, its interface, its init.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use net::link::{Netlink, Route};
use sys::namespace::{Namespace, current_netns, unshare};

use super::{Config, Error, Result, file, make_dir};

/// The subcommand of this program that becomes the init.
pub const INIT: &str = "node-init";

/// Starts the node; returns as soon as its init runs, which is before containerd and the agent are ready. The child is
/// the init: it holds the node's lock, and the node ends when it does.
pub async fn start(config: &Config, log: &Path) -> Result<Child> {
    make_dir(&config.dir)?;
    // Whatever pods leave open to all is open to none of the host's users.
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&config.dir, closed).map_err(file("set the mode of", &config.dir))?;
    let config_path = config.path();
    config.save(&config_path)?;
    let output = OpenOptions::new().create(true).append(true).open(log).map_err(file("open", log))?;
    let errors = output.try_clone().map_err(file("open", log))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(INIT).arg(config_path).stdin(Stdio::null()).stdout(output).stderr(errors);

    let (made, network) = tokio::sync::oneshot::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    // Namespaces belong to threads, and a child gets those of the thread that makes it.
    let thread = std::thread::Builder::new().name("node-start".into()).spawn(move || -> Result<Child> {
        unshare(&[Namespace::Net])?;
        let _ = made.send(current_netns()?);
        // The init finds its network ready; without the go-ahead there is nothing to start for.
        gone.recv().map_err(|_| Error::Namespaces)?;
        unshare(&[Namespace::Mount, Namespace::PidForChildren, Namespace::Ipc, Namespace::Uts])?;
        command.spawn().map_err(|source| Error::Start { program: INIT.into(), source })
    });
    let thread = thread.map_err(|source| Error::Start { program: "a thread".into(), source })?;
    if let Ok(netns) = network.await {
        connect(config, &netns).await?;
        let _ = go.send(());
    }
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    joined.map_err(|_| Error::Namespaces)?.map_err(|_| Error::Namespaces)?
}

/// The interface pair between the bridge and the node, with addresses and routes on both sides.
async fn connect(config: &Config, netns: &OwnedFd) -> Result<()> {
    let host = Netlink::open()?;
    let node = Netlink::open_in(netns.as_fd())?;
    let link = config.host_link();
    // Left by a node that was killed a moment ago.
    host.remove_link(&link).await?;
    host.add_veth(&link, "eth0", netns.as_fd()).await?;
    host.set_mtu(&link, config.mtu).await?;
    host.set_bridge(&link, &config.bridge).await?;
    host.set_up(&link).await?;

    node.set_up("lo").await?;
    for address in &config.dns {
        node.ensure_address("lo", (*address).into()).await?;
    }
    node.set_mtu("eth0", config.mtu).await?;
    if let Some(mac) = config.mac() {
        node.set_mac("eth0", mac).await?;
    }
    for address in &config.addresses {
        node.ensure_address("eth0", *address).await?;
    }
    node.set_up("eth0").await?;
    for gateway in &config.gateways {
        node.ensure_route(&default_route(gateway)).await?;
    }
    for (cidr, via) in routes(config) {
        host.ensure_route(&Route { to: cidr, via: Some(via), link: None }).await?;
    }
    Ok(())
}

fn default_route(gateway: &ipnet::IpNet) -> Route {
    let any: std::net::IpAddr = match gateway {
        ipnet::IpNet::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        ipnet::IpNet::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    Route { to: ipnet::IpNet::new_assert(any, 0), via: Some(gateway.addr()), link: None }
}

/// What the host sends through the node: its pods' traffic.
pub(super) fn routes(config: &Config) -> Vec<(ipnet::IpNet, std::net::IpAddr)> {
    through(config, &config.pod_cidrs)
}

/// Ranges, each with the node's address of its family.
pub(super) fn through(config: &Config, ranges: &[ipnet::IpNet]) -> Vec<(ipnet::IpNet, std::net::IpAddr)> {
    let address = |cidr: &ipnet::IpNet| {
        let same_family = |address: &&ipnet::IpNet| address.addr().is_ipv4() == cidr.addr().is_ipv4();
        Some((*cidr, config.addresses.iter().find(same_family)?.addr()))
    };
    ranges.iter().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_reaches_pods_through_their_node() {
        let config = crate::node::config::example();
        let text = |routes: Vec<(ipnet::IpNet, std::net::IpAddr)>| {
            routes.iter().map(|(cidr, via)| format!("{cidr} via {via}")).collect::<Vec<_>>()
        };
        assert_eq!(text(routes(&config)), ["10.244.0.0/24 via 10.88.0.11", "fd00:10:244::/64 via fd00:10:88::11"]);
        assert_eq!(
            text(through(&config, &config.service_cidrs)),
            ["10.96.0.0/16 via 10.88.0.11", "fd00:10:96::/112 via fd00:10:88::11"]
        );
        assert_eq!(default_route(&"fd00::1/64".parse().unwrap()).to.to_string(), "::/0");
    }
}
