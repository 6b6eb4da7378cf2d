//! What a pod's networks came to be, as the annotation `k8s.v1.cni.cncf.io/network-status` has it.

use net::cni::Made;
use serde_json::{Value, json};

/// The annotation.
pub(crate) const ANNOTATION: &str = "k8s.v1.cni.cncf.io/network-status";

/// One interface of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// `namespace/name` of its definition.
    pub network: String,
    /// What it is called in the pod.
    pub name: String,
    /// What is known of it.
    pub made: Made,
    /// Whether it is the pod's own.
    pub default: bool,
}

/// The annotation's text.
pub(crate) fn text(interfaces: &[Interface]) -> String {
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
