//! Where other nodes send guests to: this pod's address on the network that the administrator dedicated to migrations
//! (`configuration.migrations.network`), else its address on the pod network.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use net::link::{Netlink, Result};
use serde_json::Value;

/// The pod's interface on that network.
const INTERFACE: &str = "migration0";
/// What the cluster's network says of a pod's interfaces.
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// The address to announce, given that of the pod.
pub(crate) async fn of_this_node(pod: String) -> String {
    match dedicated().await {
        Ok(None) => {
            tracing::info!(address = pod, "guests come over the pod network: there is no interface {INTERFACE}");
            pod
        }
        Ok(Some(addresses)) => match usable(&addresses) {
            Some(address) => {
                tracing::info!(%address, "guests come over the interface {INTERFACE}");
                address.to_string()
            }
            None => {
                tracing::warn!(address = pod, "guests come over the pod network: {INTERFACE} has no address");
                pod
            }
        },
        Err(error) => {
            let error = kit::Chain(&error).to_string();
            tracing::warn!(address = pod, error, "guests come over the pod network: {INTERFACE} cannot be looked at");
            pod
        }
    }
}

/// The interface's addresses; none when there is no such interface.
async fn dedicated() -> Result<Option<Vec<IpNet>>> {
    let netlink = Netlink::open()?;
    match netlink.find(INTERFACE).await? {
        Some(link) => netlink.addresses(&link).await.map(Some),
        None => Ok(None),
    }
}

/// The first address that other nodes can reach.
fn usable(addresses: &[IpNet]) -> Option<IpAddr> {
    let reachable = |address: &IpAddr| {
        let local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        !local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
    };
    addresses.iter().map(IpNet::addr).find(reachable)
}

/// The addresses on that network of another node's agent, as the cluster's network tells them.
pub(crate) fn on_network(pod: &Pod) -> Vec<String> {
    let told = pod.annotations().get(NETWORK_STATUS).and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
    let own = told.into_iter().flatten().filter(|entry| entry["interface"] == INTERFACE);
    let addresses = own.flat_map(|entry| entry["ips"].as_array().cloned().unwrap_or_default());
    addresses.filter_map(|address| address.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_address_that_others_reach() {
        let check = |addresses: &[&str], expect: Option<&str>| {
            let addresses: Vec<IpNet> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(usable(&addresses).map(|address| address.to_string()).as_deref(), expect);
        };
        check(&["fe80::1/64", "10.200.5.7/24", "fd00::7/64"], Some("10.200.5.7"));
        check(&["fe80::1/64", "fd00::7/64"], Some("fd00::7"));
        check(&["169.254.0.3/16", "127.0.0.1/8"], None);
        check(&[], None);
    }

    #[test]
    fn an_agent_is_known_by_its_address_on_that_network() {
        let check = |status: &str, expect: &[&str]| {
            let pod = json!({"metadata": {"annotations": {NETWORK_STATUS: status}}});
            assert_eq!(on_network(&serde_json::from_value(pod).unwrap()), expect);
        };
        check(
            r#"[{"interface": "eth0", "ips": ["10.244.0.7"]}, {"interface": "migration0", "ips": ["10.200.5.7"]}]"#,
            &["10.200.5.7"],
        );
        check(r#"[{"interface": "migration0"}]"#, &[]);
        check("nonsense", &[]);
    }
}
