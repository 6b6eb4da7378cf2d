//! What a node is started with, kept as one JSON file that its init and its agent read.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Error, Result, file};
use crate::cni;

/// Settings of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Name of the Node object and of the host.
    pub name: String,
    /// The node's directory on the host.
    pub dir: PathBuf,
    /// A directory of the host that all nodes share, as they would share a file server.
    #[serde(default)]
    pub shared: Option<PathBuf>,
    /// Bridge on the host that the node is a port of.
    pub bridge: String,
    /// The bridge's addresses: the node's gateways, IPv4 first.
    pub gateways: Vec<IpNet>,
    /// The node's addresses, IPv4 first.
    pub addresses: Vec<IpNet>,
    /// Ranges of the node's pods.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of all pods of the cluster.
    pub cluster_cidrs: Vec<IpNet>,
    /// Ranges of cluster IPs.
    pub service_cidrs: Vec<IpNet>,
    /// Addresses of cluster DNS.
    pub dns: Vec<IpAddr>,
    /// Domain of cluster DNS.
    pub domain: String,
    /// URL of the API server.
    pub api_server: String,
    /// Name servers of the host, for everything outside the cluster.
    pub resolvers: Vec<IpAddr>,
    /// Largest packet on the pod network.
    pub mtu: u32,
    /// Image of the container that holds a pod's namespaces.
    pub sandbox_image: String,
}

/// What the names of the host's links to nodes begin with.
pub(super) const LINKS: &str = "fv-";

impl Config {
    /// Reads the file written by [`Config::save`].
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(file("read", path))?;
        serde_json::from_slice(&text).map_err(|source| Error::Config { path: path.to_owned(), source })
    }

    /// Writes the file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(|source| Error::Config { path: path.to_owned(), source })?;
        super::write(path, text)
    }

    /// Leaves out one address family everywhere, for a host whose kernel lacks it.
    pub fn without_ipv6(mut self) -> Self {
        for list in [
            &mut self.gateways,
            &mut self.addresses,
            &mut self.pod_cidrs,
            &mut self.cluster_cidrs,
            &mut self.service_cidrs,
        ] {
            list.retain(|net| net.addr().is_ipv4());
        }
        self.dns.retain(IpAddr::is_ipv4);
        self
    }

    /// The host's end of the interface pair; names are at most 15 bytes.
    pub fn host_link(&self) -> String {
        let mut name = format!("{LINKS}{}", self.name);
        name.truncate(15);
        name
    }

    /// The hardware address of the node's interface.
    pub fn mac(&self) -> Option<[u8; 6]> {
        mac_of(&self.addresses)
    }

    /// The hardware address of the bridge.
    pub fn bridge_mac(&self) -> Option<[u8; 6]> {
        mac_of(&self.gateways)
    }

    /// The node's cgroup on the host, relative to each hierarchy. Nodes of different directories have different ones,
    /// whatever their names.
    pub fn cgroup(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let dir = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, self.dir.as_os_str().as_bytes());
        let mut id = dir.simple().to_string();
        id.truncate(8);
        Path::new(CGROUP).join(format!("{}-{id}", self.name))
    }

    /// The lock that the node's init holds as long as it lives.
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// Files that the node proves itself with: they appear in its `/etc/ferrovirt`.
    pub fn secrets(&self) -> PathBuf {
        self.dir.join("secrets")
    }

    /// Where the product's own CNI plugins are put on the host: they appear in its [`PLUGINS`](cni::PLUGINS).
    pub fn plugins(&self) -> PathBuf {
        self.dir.join(cni::PLUGINS.trim_start_matches('/'))
    }

    /// Where this configuration is kept on the host.
    pub fn path(&self) -> PathBuf {
        self.dir.join("config.json")
    }
}

/// A hardware address that belongs to an interface's address. Were it another after each start, or for a bridge with each
/// port that comes and goes, neighbours would go on sending to the old one for several seconds.
fn mac_of(addresses: &[IpNet]) -> Option<[u8; 6]> {
    let v4 = addresses.iter().find_map(|address| match address.addr() {
        IpAddr::V4(v4) => Some(v4.octets()),
        IpAddr::V6(_) => None,
    })?;
    // Administered locally, for one receiver.
    Some([0x02, 0x42, v4[0], v4[1], v4[2], v4[3]])
}

/// The cgroup that holds the nodes of this machine.
pub const CGROUP: &str = "ferrovirt-nodes";

/// The configuration as the node itself sees it.
pub const IN_NODE: &str = "/etc/ferrovirt/node.json";

/// Name servers of a resolv.conf.
pub fn resolvers(resolv_conf: &str) -> Vec<IpAddr> {
    let servers = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.filter_map(|address| address.trim().parse().ok()).collect()
}

/// The host's name servers that can be reached from another network namespace: those of /etc/resolv.conf, or what is
/// behind it when that names a local cache.
pub fn host_resolvers() -> Vec<IpAddr> {
    let files = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/NetworkManager/resolv.conf"];
    let lists = files.iter().map(|path| read_resolvers(path, |address| !address.is_loopback()));
    lists.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// The host's name servers that only the host itself can reach.
pub fn loopback_resolvers() -> Vec<IpAddr> {
    read_resolvers("/etc/resolv.conf", IpAddr::is_loopback)
}

fn read_resolvers(path: &str, wanted: impl Fn(&IpAddr) -> bool) -> Vec<IpAddr> {
    resolvers(&std::fs::read_to_string(path).unwrap_or_default()).into_iter().filter(wanted).collect()
}

/// The largest packet that leaves the host by its default route in one piece: a larger one on the pod network would
/// rely on every peer to learn that by being refused.
pub fn host_mtu() -> u32 {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let mtu = default_link(&routes)
        .and_then(|link| std::fs::read_to_string(format!("/sys/class/net/{link}/mtu")).ok())
        .and_then(|text| text.trim().parse().ok());
    // 1280 is the least that IPv6 works with.
    mtu.unwrap_or(1500u32).clamp(1280, 9000)
}

/// The interface of the default route in `/proc/net/route`.
fn default_link(routes: &str) -> Option<&str> {
    routes.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (link, destination) = (fields.next()?, fields.next()?);
        (destination == "00000000").then_some(link)
    })
}

#[cfg(test)]
pub(crate) fn example() -> Config {
    let nets = |texts: [&str; 2]| texts.map(|text| text.parse::<IpNet>().unwrap()).to_vec();
    Config {
        name: "node1".into(),
        dir: "/var/lib/x/nodes/node1".into(),
        shared: Some("/var/lib/x/shared".into()),
        bridge: "fv0".into(),
        gateways: nets(["10.88.0.1/24", "fd00:10:88::1/64"]),
        addresses: nets(["10.88.0.11/24", "fd00:10:88::11/64"]),
        pod_cidrs: nets(["10.244.0.0/24", "fd00:10:244::/64"]),
        cluster_cidrs: nets(["10.244.0.0/16", "fd00:10:244::/48"]),
        service_cidrs: nets(["10.96.0.0/16", "fd00:10:96::/112"]),
        dns: vec!["10.96.0.10".parse().unwrap(), "fd00:10:96::a".parse().unwrap()],
        domain: "cluster.local".into(),
        api_server: "https://10.88.0.1:6443".into(),
        resolvers: vec!["192.0.2.53".parse().unwrap()],
        mtu: 1400,
        sandbox_image: "ferrovirt.local/pause:v0.1.0".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(resolv_conf: &str, expect: &[&str]) {
        let found: Vec<_> = super::resolvers(resolv_conf).iter().map(IpAddr::to_string).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn resolvers() {
        check("# x\nsearch a\nnameserver 192.0.2.1\nnameserver 2001:db8::1\n", &["192.0.2.1", "2001:db8::1"]);
        check("nameserver 127.0.0.53\n  nameserver ::1\n", &["127.0.0.53", "::1"]);
        check("nameserver fe80::1%eth0\nnameserver\tnot-an-address\n", &[]);
    }

    #[test]
    fn the_default_link() {
        let table = "Iface\tDestination\tGateway\nfv0\t0000580A\t0\neth0\t00000000\t010200C0\n";
        assert_eq!(default_link(table), Some("eth0"));
        assert_eq!(default_link("Iface\tDestination\n"), None);
        assert!((1280..=9000).contains(&host_mtu()));
    }

    #[test]
    fn names_and_families() {
        let config = example();
        assert_eq!(config.host_link(), "fv-node1");
        assert_eq!(Config { name: "a-very-long-name".into(), ..config.clone() }.host_link().len(), 15);
        assert_eq!(config.mac(), Some([0x02, 0x42, 10, 88, 0, 11]));
        assert_eq!(config.bridge_mac(), Some([0x02, 0x42, 10, 88, 0, 1]));
        let other = Config { dir: "/elsewhere".into(), ..config.clone() };
        assert!(config.cgroup().starts_with(CGROUP) && config.cgroup() != other.cgroup());
        let v4 = config.without_ipv6();
        assert_eq!((v4.gateways.len(), v4.addresses.len(), v4.pod_cidrs.len(), v4.dns.len()), (1, 1, 1, 1));
    }
}
