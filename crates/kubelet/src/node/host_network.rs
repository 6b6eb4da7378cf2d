//! The host's side of the cluster's network: one bridge, one nftables table, a few kernel settings, all taken back.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use net::link::{Netlink, Route};

use super::config::LINKS;
use super::{Config, Result, file};

/// The nftables table on the host.
pub const TABLE: &str = "ferrovirt";

/// Bridged packets pass the rules of Services and policies only with this module, which a kernel may have built in.
fn load_bridge_filter() {
    if Path::new("/proc/sys/net/bridge").exists() {
        return;
    }
    let loaded =
        std::process::Command::new("modprobe").arg("br_netfilter").status().is_ok_and(|status| status.success());
    if !loaded {
        tracing::warn!("the kernel has no br_netfilter: pods of one node reach each other past network policies");
    }
}

/// Sets up the bridge, forwarding and translation. `saved` receives the settings as they were before, once; an
/// existing file is kept, because it holds the values from before the first of several runs.
pub async fn set_up(config: &Config, saved: &Path) -> Result<()> {
    load_bridge_filter();
    let host = Netlink::open()?;
    let mut links = Vec::new();
    for link in host.links().await? {
        if link.name != config.bridge {
            refuse_overlap(config, &link.name, &host.addresses(&link).await?)?;
        }
        links.push(link.name);
    }
    let wanted = settings(&links, |name| std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok());
    if !saved.exists() {
        let before: BTreeMap<&str, &str> = wanted.iter().map(|s| (s.name.as_str(), s.before.as_str())).collect();
        let text =
            serde_json::to_vec(&before).map_err(|source| super::Error::Config { path: saved.to_owned(), source })?;
        super::write(saved, text)?;
    }
    for setting in &wanted {
        super::write(&Path::new("/proc/sys").join(&setting.name), &setting.wanted)?;
    }
    host.ensure_bridge(&config.bridge).await?;
    host.set_mtu(&config.bridge, config.mtu).await?;
    if let Some(mac) = config.bridge_mac() {
        host.set_mac(&config.bridge, mac).await?;
    }
    for address in &config.gateways {
        host.ensure_address(&config.bridge, *address).await?;
    }
    net::nft::load(&ruleset(config))?;
    Ok(())
}

/// Cuts a node off, as if its cable were pulled, or plugs it in again.
pub async fn set_plugged(config: &Config, plugged: bool) -> Result<()> {
    let host = Netlink::open()?;
    let link = config.host_link();
    let changed = if plugged { host.set_up(&link).await } else { host.set_down(&link).await };
    Ok(changed?)
}

/// Makes the host reach Services through this node, which translates their addresses, in place of whichever it was.
pub async fn lead_to_services(config: &Config) -> Result<()> {
    let host = Netlink::open()?;
    for (to, via) in super::start::through(config, &config.service_cidrs) {
        host.ensure_route(&Route { to, via: Some(via), link: None }).await?;
    }
    Ok(())
}

/// Whether the node is connected to the host's bridge.
pub async fn is_plugged(config: &Config) -> Result<bool> {
    Ok(Netlink::open()?.find(&config.host_link()).await?.is_some_and(|link| link.up))
}

/// Takes a node's interface and the routes through it away.
pub async fn remove_node(config: &Config) -> Result<()> {
    let host = Netlink::open()?;
    for (to, via) in super::start::routes(config) {
        host.remove_route(&Route { to, via: Some(via), link: None }).await?;
    }
    Ok(host.remove_link(&config.host_link()).await?)
}

/// Takes everything back but the nodes' interfaces. What is not there is not missed.
pub async fn tear_down(config: &Config, saved: &Path) -> Result<()> {
    let host = Netlink::open()?;
    host.remove_link(&config.bridge).await?;
    net::nft::load(&format!("add table inet {TABLE}\ndelete table inet {TABLE}\n"))?;
    let Ok(text) = std::fs::read(saved) else { return Ok(()) };
    let before: BTreeMap<String, String> =
        serde_json::from_slice(&text).map_err(|source| super::Error::Config { path: saved.to_owned(), source })?;
    for (name, value) in before {
        // An interface may be gone, and its settings with it.
        let _ = std::fs::write(Path::new("/proc/sys").join(name), value);
    }
    std::fs::remove_file(saved).map_err(file("remove", saved))
}

/// Traffic for the cluster would go astray if the host had the same addresses elsewhere.
fn refuse_overlap(config: &Config, link: &str, addresses: &[ipnet::IpNet]) -> Result<()> {
    let ranges: Vec<_> = config.gateways.iter().chain(&config.cluster_cidrs).chain(&config.service_cidrs).collect();
    for taken in addresses {
        if let Some(range) = ranges.iter().find(|range| range.contains(taken) || taken.contains(**range)) {
            return Err(super::Error::Overlap { range: range.trunc(), taken: taken.trunc(), link: link.to_owned() });
        }
    }
    Ok(())
}

/// A kernel setting to change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    name: String,
    before: String,
    wanted: String,
}

/// The settings that differ from what is needed, on a host with these `links` that answers `read` for a path below /proc/sys.
fn settings(links: &[String], read: impl Fn(&str) -> Option<String>) -> Vec<Setting> {
    let mut all = Vec::new();
    let mut want = |name: &str, value: u64, or_more: bool| {
        let Some(before) = read(name) else { return };
        let before = before.trim().to_owned();
        let enough = before.parse::<u64>().is_ok_and(|now| now == value || (or_more && now > value));
        if !enough {
            all.push(Setting { name: name.to_owned(), before, wanted: value.to_string() });
        }
    };
    want("net/ipv4/ip_forward", 1, false);
    // A router ignores router advertisements unless told otherwise, and the host's default route may come from one.
    for name in links {
        if read(&format!("net/ipv6/conf/{name}/accept_ra")).is_some_and(|value| value.trim() == "1") {
            want(&format!("net/ipv6/conf/{name}/accept_ra"), 2, false);
        }
    }
    want("net/ipv6/conf/all/forwarding", 1, false);
    // Each containerd, kubelet and component of a node takes a few; the kernel's default is for one desktop.
    want("fs/inotify/max_user_instances", 8192, true);
    want("fs/inotify/max_user_watches", 524_288, true);
    all
}

/// Translation of what leaves the cluster through the host; and what is for the cluster comes in by its own links alone: a
/// neighbour of the host that takes it for a router reaches nothing. It is dropped before connections are tracked, so the
/// answers to what left translated, which are for the host's own address then, are not concerned.
fn ruleset(config: &Config) -> String {
    let (mut leaving, mut coming) = (String::new(), String::new());
    let inside: Vec<_> = config.gateways.iter().chain(&config.cluster_cidrs).map(ipnet::IpNet::trunc).collect();
    let bridge = &config.bridge;
    for (family, is_v4) in [("ip", true), ("ip6", false)] {
        let of_family = |nets: &[ipnet::IpNet]| {
            let nets = nets.iter().filter(|net| net.addr().is_ipv4() == is_v4);
            nets.map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let nets = of_family(&inside);
        if !nets.is_empty() {
            let _ = writeln!(
                leaving,
                "    {family} saddr {{ {nets} }} {family} daddr != {{ {nets} }} oifname != \"{bridge}\" masquerade"
            );
        }
        let all: Vec<_> = inside.iter().copied().chain(config.service_cidrs.iter().copied()).collect();
        let all = of_family(&all);
        if !all.is_empty() {
            let _ = writeln!(coming, "    {family} daddr {{ {all} }} drop");
        }
    }
    format!(
        "add table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n  chain postrouting {{\n    \
         type nat hook postrouting priority srcnat\n{leaving}  }}\n  chain prerouting {{\n    \
         type filter hook prerouting priority raw\n    iifname {{ \"lo\", \"{bridge}\" }} accept\n    \
         iifname \"{LINKS}*\" accept\n{coming}  }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &[(&str, &str)], expect: &[&str]) {
        let found = settings(&["eth0".into()], |name| {
            host.iter().find(|(n, _)| *n == name).map(|(_, value)| format!("{value}\n"))
        });
        let found: Vec<_> = found.iter().map(|s| format!("{}: {} -> {}", s.name, s.before, s.wanted)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn only_what_differs_is_changed() {
        check(&[("net/ipv4/ip_forward", "0")], &["net/ipv4/ip_forward: 0 -> 1"]);
        check(&[("net/ipv4/ip_forward", "1"), ("fs/inotify/max_user_instances", "10000")], &[]);
        check(
            &[("net/ipv6/conf/eth0/accept_ra", "1"), ("net/ipv6/conf/all/forwarding", "0")],
            &["net/ipv6/conf/eth0/accept_ra: 1 -> 2", "net/ipv6/conf/all/forwarding: 0 -> 1"],
        );
        check(&[("fs/inotify/max_user_instances", "128")], &["fs/inotify/max_user_instances: 128 -> 8192"]);
    }

    #[test]
    fn ranges_in_use_are_refused() {
        let check = |address: &str| {
            let config = crate::node::config::example();
            refuse_overlap(&config, "docker0", &[address.parse().unwrap()]).map_err(|error| error.to_string())
        };
        assert_eq!(check("192.0.2.7/24"), Ok(()));
        assert_eq!(
            check("10.244.3.1/24"),
            Err("the cluster's range 10.244.0.0/16 overlaps 10.244.3.0/24 of the host's interface docker0".into())
        );
        assert!(check("10.0.0.5/8").is_err());
        assert!(check("fd00:10:88::7/64").is_err());
    }

    #[test]
    fn translation_is_for_what_leaves() {
        let text = ruleset(&crate::node::config::example());
        let rule = "ip saddr { 10.88.0.0/24, 10.244.0.0/16 } ip daddr != { 10.88.0.0/24, 10.244.0.0/16 } \
                    oifname != \"fv0\" masquerade";
        assert!(text.contains(rule), "{text}");
        assert!(text.contains("ip6 saddr { fd00:10:88::/64, fd00:10:244::/48 }"), "{text}");
        assert!(!ruleset(&crate::node::config::example().without_ipv6()).contains("ip6"));
    }

    /// A command of the network of this thread.
    fn ip(words: &str) {
        let done = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
        assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Another machine: a network namespace, entered by the thread that `words` are run on.
    fn on(netns: &std::os::fd::OwnedFd, commands: &[&str]) {
        sys::namespace::in_netns(std::os::fd::AsFd::as_fd(netns), || commands.iter().for_each(|words| ip(words)))
            .unwrap();
    }

    fn machine() -> std::os::fd::OwnedFd {
        let made = std::thread::spawn(|| {
            sys::namespace::unshare(&[sys::namespace::Namespace::Net]).unwrap();
            sys::namespace::current_netns().unwrap()
        });
        made.join().unwrap()
    }

    fn reaches(from: &std::os::fd::OwnedFd, address: &str) -> bool {
        use std::net::{SocketAddr, TcpStream};
        let address: SocketAddr = address.parse().unwrap();
        let limit = std::time::Duration::from_millis(500);
        sys::namespace::in_netns(std::os::fd::AsFd::as_fd(from), || TcpStream::connect_timeout(&address, limit).is_ok())
            .unwrap()
    }

    #[test]
    fn a_neighbour_that_takes_the_host_for_a_router_reaches_nothing() {
        if !sys::process::is_root() || std::process::Command::new("ip").arg("-V").output().is_err() {
            return;
        }
        let [host, neighbour, node] = [machine(), machine(), machine()];
        let into = |netns: &std::os::fd::OwnedFd| {
            format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(netns))
        };
        on(&host, &["link set lo up", "link add fv0 type bridge", "link add eth0 type veth peer name there"]);
        on(
            &host,
            &[&format!("link set there netns {}", into(&neighbour)), "link add fv-node1 type veth peer name uplink"],
        );
        on(&host, &[&format!("link set uplink netns {}", into(&node)), "link set fv-node1 master fv0"]);
        on(&host, &["addr add 192.0.2.1/24 dev eth0", "addr add 10.88.0.1/24 dev fv0", "link set eth0 up"]);
        on(&host, &["link set fv-node1 up", "link set fv0 up", "route add 10.244.0.0/24 via 10.88.0.11"]);
        on(&neighbour, &["addr add 192.0.2.9/24 dev there", "link set there up", "link set lo up"]);
        on(&neighbour, &["route add 10.244.0.0/16 via 192.0.2.1", "route add 10.88.0.0/24 via 192.0.2.1"]);
        on(
            &node,
            &[
                "addr add 10.88.0.11/24 dev uplink",
                "link set uplink up",
                "link set lo up",
                "addr add 10.244.0.5/32 dev lo",
            ],
        );
        on(&node, &["route add default via 10.88.0.1"]);
        let serve = |netns: &std::os::fd::OwnedFd, address: &str| {
            let bound = || std::net::TcpListener::bind(address).unwrap();
            sys::namespace::in_netns(std::os::fd::AsFd::as_fd(netns), bound).unwrap()
        };
        let _served = [serve(&node, "0.0.0.0:80"), serve(&host, "0.0.0.0:80"), serve(&neighbour, "0.0.0.0:80")];
        let inside = ["10.244.0.5:80", "10.88.0.11:80", "10.88.0.1:80"];
        let load = |rules: &str| {
            sys::namespace::in_netns(std::os::fd::AsFd::as_fd(&host), || {
                let _ = std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
                net::nft::load(rules).unwrap();
            })
            .unwrap();
        };
        load("add table inet none\n");
        assert!(inside.iter().all(|address| reaches(&neighbour, address)), "the way is there");
        load(&ruleset(&crate::node::config::example()));
        for address in inside {
            assert!(!reaches(&neighbour, address), "{address}");
            assert!(reaches(&host, address) && reaches(&node, address), "{address}");
        }
        assert!(reaches(&neighbour, "192.0.2.1:80"), "the host itself is as it was");
        assert!(reaches(&node, "192.0.2.9:80"), "what leaves is answered");
    }
}
