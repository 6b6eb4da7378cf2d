//! From machines to names. Pure.

use std::net::IpAddr;

use api::kubevirt::v1::VirtualMachineInstance;
use kube::ResourceExt;

use super::zone::Records;

/// Longest label of a name.
const LABEL: usize = 63;

/// The names of all machines: `INTERFACE.VM.NAMESPACE` for each interface of a secondary network that has addresses, and `VM.NAMESPACE`
/// for the first of these.
pub fn records(vmis: &[VirtualMachineInstance]) -> Records {
    let mut records = Records::new();
    for vmi in vmis {
        let (name, namespace) = (vmi.name_any(), vmi.namespace().unwrap_or_default());
        let machine = format!("{name}.{namespace}");
        let mut first: Option<(String, Vec<IpAddr>)> = None;
        for interface in vmi.status.iter().flat_map(|status| &status.interfaces) {
            let Some(network) = interface.name.as_deref().filter(|network| is_secondary(vmi, network)) else {
                continue;
            };
            let label = network.to_lowercase();
            let said = interface.ip_addresses.iter().chain(&interface.ip_address);
            let mut addresses: Vec<IpAddr> = said.filter_map(|text| address(text)).collect();
            addresses.sort();
            addresses.dedup();
            if addresses.is_empty() || !is_label(&label) || !machine.split('.').all(is_label) {
                continue;
            }
            if first.as_ref().is_none_or(|(held, _)| label < *held) {
                first = Some((label.clone(), addresses.clone()));
            }
            records.insert(format!("{label}.{machine}"), addresses);
        }
        records.extend(first.map(|(_, addresses)| (machine, addresses)));
    }
    records
}

/// The network of the pod itself is the cluster's business.
fn is_secondary(vmi: &VirtualMachineInstance, network: &str) -> bool {
    vmi.spec.networks.iter().any(|held| held.name == network && held.pod.is_none())
}

/// An address that others can reach: none that means something on its own link alone. A guest may say a prefix with it.
fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.split('/').next()?.parse().ok()?;
    let usable = match address {
        IpAddr::V4(v4) => {
            !(v4.is_loopback() || v4.is_unspecified() || v4.is_multicast() || v4.is_link_local() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local()),
    };
    usable.then_some(address)
}

/// What the guest's agent names is in no zone unless it is a label.
fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    !text.is_empty() && text.len() <= LABEL && text.chars().all(inner)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(interfaces: Value, expect: &[(&str, &[&str])]) {
        let vmi = json!({
            "metadata": { "name": "web", "namespace": "ns" },
            "spec": { "domain": { "devices": {} }, "networks": [
                { "name": "default", "pod": {} }, { "name": "blue", "multus": { "networkName": "b" } },
                { "name": "red", "multus": { "networkName": "r" } },
            ] },
            "status": { "interfaces": interfaces },
        });
        let found = records(&[serde_json::from_value(vmi).unwrap()]);
        let expect: Records = expect
            .iter()
            .map(|(name, all)| ((*name).to_owned(), all.iter().map(|one| one.parse().unwrap()).collect()))
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn secondary_networks_have_names_and_the_first_is_the_machines() {
        let interfaces = json!([
            { "name": "default", "ipAddress": "10.244.0.5" },
            { "name": "red", "ipAddress": "192.168.2.2", "ipAddresses": ["192.168.2.2", "fd00::2", "fe80::1"] },
            { "name": "blue", "ipAddresses": ["192.168.1.2"] },
            { "interfaceName": "docker0", "ipAddress": "172.17.0.1" },
        ]);
        check(
            interfaces,
            &[
                ("blue.web.ns", &["192.168.1.2"]),
                ("red.web.ns", &["192.168.2.2", "fd00::2"]),
                ("web.ns", &["192.168.1.2"]),
            ],
        );
    }

    #[test]
    fn what_a_guest_says_is_believed_only_where_it_makes_sense() {
        check(
            json!([{ "name": "blue", "ipAddresses": ["127.0.0.1", "0.0.0.0", "224.0.0.1", "no", "169.254.1.1"] }]),
            &[],
        );
        check(json!([{ "name": "strange", "ipAddress": "192.168.1.2" }]), &[]);
        check(json!([{ "name": "default", "ipAddress": "192.168.1.2" }]), &[]);
        check(json!([]), &[]);
    }
}
