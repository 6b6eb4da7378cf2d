//! Which nodes the cluster has. A node's number says everything about it: its name and its share of each range.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kubelet::node;

use crate::failure::advise;
use crate::state::{API_PORT, State, VERSION};

/// From 1; what the ranges have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u8);

/// The node that every cluster has.
pub(crate) const FIRST: Number = Number(1);
const LAST: u8 = 200;

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

impl FromStr for Number {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let digits = name.strip_prefix("node").filter(|digits| !digits.starts_with(['0', '+']));
        let number = digits.and_then(|digits| digits.parse().ok()).filter(|number| (1..=LAST).contains(number));
        number.map(Self).ok_or_else(|| format!("nodes are called node1 to node{LAST}"))
    }
}

/// The first `count` numbers.
pub(crate) fn first(count: u8) -> Vec<Number> {
    (1..=count).map(Number).collect()
}

/// Reads how many nodes are wanted.
pub(crate) fn count(text: &str) -> Result<u8, String> {
    let count = text.parse().ok().filter(|count| (1..=LAST).contains(count));
    count.ok_or_else(|| format!("a cluster has 1 to {LAST} nodes"))
}

/// The lowest number that is not taken.
pub(crate) fn free(taken: &[Number]) -> anyhow::Result<Number> {
    let found = (1..=LAST).map(Number).find(|number| !taken.contains(number));
    found.ok_or_else(|| {
        advise(anyhow::anyhow!("there are {LAST} nodes, which is the most"), "`ferrovirt node remove` removes one")
    })
}

/// Whether the node's Ready condition is true, and was found so at `since` or later.
pub(crate) fn is_ready(node: &Node, since: Option<Timestamp>) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready.is_some_and(|condition| match (since, &condition.last_heartbeat_time) {
        (None, _) => true,
        // The API keeps whole seconds.
        (Some(since), Some(beat)) => beat.0.as_second() >= since.as_second(),
        (Some(_), None) => false,
    })
}

/// What node `number` is started with, its own addresses in the ranges of an embedded cluster.
fn config(state: &State, number: Number, resolvers: Vec<std::net::IpAddr>) -> anyhow::Result<node::Config> {
    let n = number.0;
    let nets = |texts: [&str; 2]| texts.into_iter().map(str::parse).collect::<Result<Vec<_>, _>>();
    let own = |texts: [String; 2]| texts.into_iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>();
    let ips = |texts: [&str; 2]| texts.into_iter().map(str::parse).collect::<Result<Vec<_>, _>>();
    let gateways = nets(["10.88.0.1/24", "fd00:10:88::1/64"])?;
    Ok(node::Config {
        name: number.to_string(),
        dir: state.nodes_dir().join(number.to_string()),
        shared: Some(state.shared_dir()),
        bridge: "fv0".into(),
        // The control plane passes queries on to name servers that only the host reaches.
        resolvers: if resolvers.is_empty() { gateways.iter().take(1).map(IpNet::addr).collect() } else { resolvers },
        gateways,
        addresses: own([format!("10.88.0.{}/24", 10 + n), format!("fd00:10:88::{:x}/64", 0x10 + u16::from(n))])?,
        pod_cidrs: own([format!("10.244.{}.0/24", n - 1), format!("fd00:10:244:{:x}::/64", n - 1)])?,
        cluster_cidrs: nets(["10.244.0.0/16", "fd00:10:244::/48"])?,
        service_cidrs: nets(["10.96.0.0/16", "fd00:10:96::/112"])?,
        dns: ips(["10.96.0.10", "fd00:10:96::a"])?,
        domain: "cluster.local".into(),
        api_server: format!("https://10.88.0.1:{API_PORT}"),
        mtu: node::config::host_mtu(),
        sandbox_image: format!("ferrovirt.local/pause:{VERSION}"),
    })
}

impl State {
    /// Node `number`, in the address families the host knows.
    pub(crate) fn node(&self, number: Number) -> anyhow::Result<node::Config> {
        let config = config(self, number, node::config::host_resolvers())?;
        Ok(if has_ipv6() { config } else { config.without_ipv6() })
    }

    /// Nodes that were started and not removed, in order; the first is always one of them.
    pub(crate) fn nodes(&self) -> anyhow::Result<Vec<Number>> {
        let dir = self.nodes_dir();
        let mut found = vec![FIRST];
        let entries = match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
            entries => entries.with_context(|| format!("cannot read {}", dir.display()))?,
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<Number>().ok()));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Refuses a node that the cluster does not have.
    pub(crate) fn has_node(&self, number: Number) -> anyhow::Result<()> {
        if self.nodes()?.contains(&number) {
            return Ok(());
        }
        let hint = "`ferrovirt node list` shows the nodes, `ferrovirt node add` adds one";
        Err(advise(anyhow::anyhow!("there is no {number}"), hint))
    }

    /// The pid, on the host, of a running node's init.
    pub(crate) fn node_pid(&self, number: Number) -> anyhow::Result<Option<u32>> {
        Ok(sys::lock::holder(&self.node(number)?.lock())?)
    }
}

fn has_ipv6() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|text| text.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers() {
        let check =
            |name: &str, expect: Option<u8>| assert_eq!(name.parse::<Number>().ok(), expect.map(Number), "{name}");
        check("node1", Some(1));
        check("node200", Some(200));
        for wrong in ["node0", "node01", "node+1", "node201", "node", "worker1", "node1 "] {
            check(wrong, None);
        }
        assert_eq!(first(2).iter().map(ToString::to_string).collect::<Vec<_>>(), ["node1", "node2"]);
        assert_eq!(count("0").unwrap_err(), "a cluster has 1 to 200 nodes");
        assert_eq!(free(&[Number(1), Number(3)]).unwrap(), Number(2));
        assert!(free(&first(LAST)).is_err());
    }

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let state = State::at("/s".into());
        let check = |n: u8, expect: [&str; 4]| {
            let config = config(&state, Number(n), vec!["192.0.2.53".parse().unwrap()]).unwrap();
            let found: Vec<_> = config.addresses.iter().chain(&config.pod_cidrs).map(ToString::to_string).collect();
            assert_eq!(found, expect);
        };
        check(1, ["10.88.0.11/24", "fd00:10:88::11/64", "10.244.0.0/24", "fd00:10:244::/64"]);
        check(2, ["10.88.0.12/24", "fd00:10:88::12/64", "10.244.1.0/24", "fd00:10:244:1::/64"]);
        check(200, ["10.88.0.210/24", "fd00:10:88::d8/64", "10.244.199.0/24", "fd00:10:244:c7::/64"]);
    }
}
