//! The pod network's configuration: a bridge per node with addresses of both families from the node's ranges.

use ipnet::IpNet;
use serde_json::{Value, json};

/// Bridge of the node's pods.
pub const BRIDGE: &str = "cni0";

/// The product's own CNI plugins in the node, for networks beside the pods' own.
pub const PLUGINS: &str = "/var/lib/ferrovirt/cni";

/// Where host-local remembers which pod has which address. It lies on memory: pods do not survive their node, so
/// neither may their addresses.
pub const LEASES: &str = "/run/cni/networks";

/// The configuration list. Hairpin mode lets a pod reach itself through a Service; masquerading is left to the host,
/// so that pods see each other's addresses.
pub fn config(pod_cidrs: &[IpNet], mtu: u32) -> Value {
    let ranges: Vec<_> = pod_cidrs.iter().map(|net| json!([{"subnet": net.to_string()}])).collect();
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isDefaultGateway": true,
                "ipMasq": false,
                "hairpinMode": true,
                "mtu": mtu,
                "ipam": {"type": "host-local", "dataDir": LEASES, "ranges": ranges},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_for_each_family() {
        let nets: Vec<IpNet> = ["10.244.0.0/24", "fd00:10:244::/64"].map(|net| net.parse().unwrap()).to_vec();
        let config = config(&nets, 1400);
        assert_eq!(
            config["plugins"][0]["ipam"]["ranges"],
            json!([[{"subnet": "10.244.0.0/24"}], [{"subnet": "fd00:10:244::/64"}]])
        );
        assert_eq!(config["plugins"][0]["hairpinMode"], true);
        assert_eq!(config["plugins"][1]["type"], "portmap");
    }
}
