//! What a pod's networks came to be, as the annotation `k8s.v1.cni.cncf.io/network-status` has it.

use std::os::fd::AsFd;
use std::path::Path;

use net::cni::Made;
use net::link::Netlink;
use serde_json::{Value, json};

/// The annotation.
pub(super) const ANNOTATION: &str = "k8s.v1.cni.cncf.io/network-status";
/// The pod network's name, which is that of its CNI configuration.
const POD_NETWORK: &str = "pods";
const POD_INTERFACE: &str = "eth0";

/// One interface of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    /// `namespace/name` of its definition.
    pub(super) network: String,
    pub(super) name: String,
    pub(super) made: Made,
    /// Whether it is the pod's own.
    pub(super) default: bool,
}

/// The pod's own interface, which the runtime had made. What cannot be found out is left out.
pub(super) async fn of_pod_network(netns: &Path) -> Interface {
    Interface {
        network: POD_NETWORK.to_owned(),
        name: POD_INTERFACE.to_owned(),
        made: look(netns).await.unwrap_or_default(),
        default: true,
    }
}

async fn look(netns: &Path) -> Option<Made> {
    let netns = sys::namespace::open_netns(netns).ok()?;
    let netlink = Netlink::open_in(netns.as_fd()).ok()?;
    let link = netlink.find(POD_INTERFACE).await.ok()??;
    let addresses = netlink.addresses(&link).await.ok()?;
    let local = |address: &std::net::IpAddr| match address {
        std::net::IpAddr::V4(_) => false,
        std::net::IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    Some(Made {
        mac: Some(link.mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")),
        addresses: addresses.iter().filter(|net| !local(&net.addr())).map(ToString::to_string).collect(),
        mtu: Some(link.mtu.into()),
    })
}

/// The annotation's text.
pub(super) fn text(interfaces: &[Interface]) -> String {
    let list: Vec<Value> = interfaces.iter().map(entry).collect();
    serde_json::to_string_pretty(&list).unwrap_or_default()
}

fn entry(interface: &Interface) -> Value {
    let mut out = json!({ "name": interface.network, "interface": interface.name, "dns": {} });
    let bare = |address: &String| address.split('/').next().unwrap_or_default().to_owned();
    let addresses: Vec<String> = interface.made.addresses.iter().map(bare).collect();
    if !addresses.is_empty() {
        out["ips"] = json!(addresses);
    }
    if let Some(mac) = &interface.made.mac {
        out["mac"] = json!(mac);
    }
    if let Some(mtu) = interface.made.mtu {
        out["mtu"] = json!(mtu);
    }
    if interface.default {
        out["default"] = json!(true);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_no_prefix_and_nothing_is_invented() {
        let made = Made {
            mac: Some("02:01".into()),
            addresses: vec!["10.1.0.2/24".into(), "fd00::2/64".into()],
            mtu: Some(1500),
        };
        let own = Interface { network: "pods".into(), name: "eth0".into(), made, default: true };
        let bare = Interface { network: "ns/red".into(), name: "net1".into(), ..Interface::default() };
        let read: Value = serde_json::from_str(&text(&[own, bare])).unwrap();
        assert_eq!(
            read,
            json!([
                { "name": "pods", "interface": "eth0", "ips": ["10.1.0.2", "fd00::2"], "mac": "02:01", "mtu": 1500,
                  "default": true, "dns": {} },
                { "name": "ns/red", "interface": "net1", "dns": {} },
            ])
        );
    }
}
