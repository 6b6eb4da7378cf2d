//! What the pod's network looks like before anything is changed; kept on disk, because bridge binding takes it apart.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;

use ipnet::IpNet;
use net::link::{Netlink, Route};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Bytes of a resolv.conf that are read.
const LARGEST: u64 = 64 << 10;

/// A link that the cluster's network plugin made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodLink {
    /// `eth0`
    pub name: String,
    /// Hardware address.
    pub mac: [u8; 6],
    /// Maximum transmission unit.
    pub mtu: u32,
    /// Addresses, link-local ones left out.
    pub addresses: Vec<IpNet>,
    /// Destinations and gateways reached through it.
    pub routes: Vec<(IpNet, Option<IpAddr>)>,
}

/// How names are resolved in the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolver {
    /// Servers.
    pub servers: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
}

impl Resolver {
    /// Reads resolv.conf(5) text; what is not understood is passed over.
    pub(crate) fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => resolver.servers.extend(words.next().and_then(|w| w.parse::<IpAddr>().ok())),
                Some("search" | "domain") => resolver.search = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        resolver
    }

    /// That of a launcher's pod. A pod without the file resolves nothing.
    pub(crate) fn of(root: &sys::beneath::Dir) -> Self {
        use std::io::Read;
        let mut text = String::new();
        match root.read("etc/resolv.conf") {
            Ok(file) => {
                let _ = file.take(LARGEST).read_to_string(&mut text);
                Self::parse(&text)
            }
            Err(_) => Self::default(),
        }
    }
}

/// The link `name` of the pod as it was when first seen: from `record`, or now, and then recorded.
pub(crate) async fn pod_link(netns: BorrowedFd<'_>, name: &str, record: &Path) -> Result<PodLink, Error> {
    if let Ok(bytes) = std::fs::read(record)
        && let Ok(link) = serde_json::from_slice::<PodLink>(&bytes)
    {
        return Ok(link);
    }
    let found = look(netns, name).await.map_err(Error::plug(name, "look at the pod's link"))?;
    let save = || -> std::io::Result<()> {
        if let Some(dir) = record.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let partial = record.with_extension("partial");
        std::fs::write(&partial, serde_json::to_vec(&found)?)?;
        std::fs::rename(partial, record)
    };
    save().map_err(Error::plug(name, "record the pod's link"))?;
    Ok(found)
}

async fn look(netns: BorrowedFd<'_>, name: &str) -> net::link::Result<PodLink> {
    let netlink = Netlink::open_in(netns)?;
    let link = netlink.get(name).await?;
    let addresses = netlink.addresses(&link).await?;
    let routes = netlink.routes().await?;
    Ok(PodLink {
        name: link.name.clone(),
        mac: link.mac.clone().try_into().unwrap_or_default(),
        mtu: link.mtu,
        addresses: addresses.into_iter().filter(|a| !is_link_local(a.addr())).collect(),
        routes: routes.iter().filter(|r| concerns(r, link.index)).map(|r| (r.to, r.via)).collect(),
    })
}

fn concerns(route: &Route, index: u32) -> bool {
    route.link == Some(index) && !is_link_local(route.to.addr()) && !route.to.addr().is_multicast()
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf() {
        let text = "# c\nsearch default.svc.cluster.local cluster.local\nnameserver 10.96.0.10\nnameserver fd00::a\nnameserver x\noptions ndots:5\n";
        let resolver = Resolver::parse(text);
        assert_eq!(resolver.servers, ["10.96.0.10".parse::<IpAddr>().unwrap(), "fd00::a".parse().unwrap()]);
        assert_eq!(resolver.search, ["default.svc.cluster.local", "cluster.local"]);
        assert_eq!(Resolver::parse("\0\u{feff}nameserver"), Resolver::default());
    }
}
