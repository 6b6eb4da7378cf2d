//! Networks and interfaces: each of the one has one of the other.

use std::net::Ipv6Addr;

use api::kubevirt::v1::{Interface, MultusNetwork, VirtualMachineInstanceSpec};
use kit::admission::Cause;

use super::{Rules, duplicate, invalid, names, required};
use crate::written;

const MODELS: [&str; 6] = ["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139"];

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, rules: &Rules, causes: &mut Vec<Cause>) {
    let networks = format!("{path}.networks");
    let mut pods = 0;
    for (index, network) in spec.networks.iter().enumerate() {
        let field = format!("{networks}[{index}]");
        if let Some(other) = spec.networks[..index].iter().position(|held| held.name == network.name) {
            let message =
                format!("Network with name {:?} already exists, every network must have a unique name", network.name);
            causes.push(duplicate(format!("{field}.name"), format!("{message}: {networks}[{other}] has it")));
        }
        match (network.pod.is_some(), network.multus.is_some()) {
            (true, true) => causes.push(invalid(field.clone(), "should have only one network type".to_owned())),
            (false, false) if network.resource_claim.is_some() => {}
            (false, false) => causes.push(required(
                field.clone(),
                "should have a network type: pod: {} is the pod's own network".to_owned(),
            )),
            (true, false) => pods += 1,
            (false, true) => {}
        }
        if let Some(multus) = &network.multus {
            secondary(&field, multus, causes);
        }
        if let Some(pod) = &network.pod {
            let is_four = |at: &str| written::ipv4(at).is_some();
            let is_six = |at: &str| at.parse::<Ipv6Addr>().is_ok();
            let four = pod.vm_network_cidr.as_deref().filter(|text| !is_range(text, is_four, 31));
            let six = pod.vm_i_pv6_network_cidr.as_deref().filter(|text| !is_range(text, is_six, 126));
            for (name, wrong, example) in
                [("vmNetworkCIDR", four, "10.0.2.0/24"), ("vmIPv6NetworkCIDR", six, "fd10:0:2::/120")]
            {
                let Some(wrong) = wrong else { continue };
                let place = format!("{field}.pod.{name}");
                let room = "is not a network with room for a gateway and a guest";
                causes.push(invalid(place.clone(), format!("{place} {wrong:?} {room}: write it like {example}")));
            }
        }
        if !spec.domain.devices.interfaces.iter().any(|interface| interface.name == network.name) {
            let message = format!(
                "{field}.name '{}' not found: add an interface of this name to {path}.domain.devices.interfaces",
                network.name
            );
            causes.push(required(format!("{field}.name"), message));
        }
    }
    if pods > 1 {
        causes.push(duplicate(
            networks,
            format!("more than one interface is connected to a pod network in {path}.interfaces"),
        ));
    }
    let attach = spec.domain.devices.autoattach_pod_interface;
    if attach == Some(false) && pods > 0 {
        let field = format!("{path}.domain.devices.autoattachPodInterface");
        causes.push(invalid(
            field.clone(),
            format!("{field} is false, but {path}.networks has the pod network: remove one of them"),
        ));
    }
    for (index, interface) in spec.domain.devices.interfaces.iter().enumerate() {
        one(path, index, interface, spec, rules, causes);
    }
}

/// A network that is defined by a NetworkAttachmentDefinition.
fn secondary(field: &str, multus: &MultusNetwork, causes: &mut Vec<Cause>) {
    let place = format!("{field}.multus.networkName");
    let name = multus.network_name.as_str();
    let is_name = |part: &str| part.split('.').all(names::is_label) && part.len() <= 253;
    let (namespace, rest) = name.split_once('/').unwrap_or(("default", name));
    if name.is_empty() {
        causes.push(required(place, "CNI delegating plugin must have a networkName".to_owned()));
    } else if !names::is_label(namespace) || !is_name(rest) {
        let message = format!(
            "{place} {name:?} does not name a NetworkAttachmentDefinition: write it like red, or namespace/red"
        );
        causes.push(invalid(place, message));
    }
}

fn one(
    path: &str,
    index: usize,
    interface: &Interface,
    spec: &VirtualMachineInstanceSpec,
    rules: &Rules,
    causes: &mut Vec<Cause>,
) {
    let base = format!("{path}.domain.devices.interfaces");
    let field = format!("{base}[{index}]");
    let all = &spec.domain.devices.interfaces;
    if let Some(other) = all[..index].iter().position(|held| held.name == interface.name) {
        let message =
            format!("Only one interface can be connected to one specific network: {base}[{other}] has this name");
        causes.push(duplicate(format!("{field}.name"), message));
    }
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if interface.name.is_empty() || !interface.name.chars().all(good) {
        let message =
            "Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)";
        causes.push(invalid(format!("{field}.name"), message.to_owned()));
    }
    if let Some(state) = interface.state.as_deref().filter(|state| !["", "up", "down", "absent"].contains(state)) {
        let message =
            format!("logical {} interface state value is unsupported: {state}: use up or down", interface.name);
        causes.push(invalid(format!("{field}.state"), message));
    }
    let Some(network) = spec.networks.iter().find(|network| network.name == interface.name) else {
        let message =
            format!("{field}.name '{}' not found: add a network of this name to {path}.networks", interface.name);
        causes.push(invalid(format!("{field}.name"), message));
        return;
    };
    let bindings = [interface.bridge.is_some(), interface.masquerade.is_some()].iter().filter(|set| **set).count();
    // Each of them is refused by the table of what is not served.
    let other = interface.sriov.is_some()
        || interface.macvtap.is_some()
        || interface.passt.is_some()
        || interface.passt_binding.is_some()
        || interface.slirp.is_some()
        || interface.binding.is_some();
    if bindings == 0 && !other {
        let message = format!("{field} should have a binding method: masquerade: {{}} or bridge: {{}}");
        causes.push(required(field.clone(), message));
    }
    if bindings > 1 {
        causes
            .push(invalid(field.clone(), format!("{field} should have only one binding method: masquerade or bridge")));
    }
    if interface.masquerade.is_some() && network.pod.is_none() {
        causes.push(invalid(
            format!("{field}.name"),
            "Masquerade interface only implemented with pod network".to_owned(),
        ));
    }
    if interface.bridge.is_some() && network.pod.is_some() && !rules.bridge_on_pod_network {
        let message = "Bridge on pod network configuration is not enabled under kubevirt-config: use masquerade: {}, or set permitBridgeInterfaceOnPodNetwork in the KubeVirt object";
        causes.push(invalid(format!("{field}.name"), message.to_owned()));
    }
    if let Some(model) = interface.model.as_deref().filter(|m| !m.is_empty() && *m != "virtio" && !MODELS.contains(m)) {
        let message = format!(
            "interface {field}.name uses model {model} that is not supported: use virtio or one of {}",
            MODELS.join(", ")
        );
        causes.push(invalid(format!("{field}.model"), message));
    }
    mac(&field, interface, spec, index, causes);
    ports(&field, interface, causes);
}

/// Six bytes in hexadecimal.
fn mac_bytes(text: &str) -> Option<Vec<u8>> {
    let byte = |part: &str| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None };
    let bytes: Option<Vec<u8>> = text.split([':', '-']).map(byte).collect();
    bytes.filter(|bytes| bytes.len() == 6)
}

/// Whether `text` is a MAC address.
pub(super) fn is_mac(text: &str) -> bool {
    mac_bytes(text).is_some()
}

fn mac(field: &str, interface: &Interface, spec: &VirtualMachineInstanceSpec, index: usize, causes: &mut Vec<Cause>) {
    let Some(mac) = interface.mac_address.as_deref().filter(|mac| !mac.is_empty()) else { return };
    let place = format!("{field}.macAddress");
    let Some(bytes) = mac_bytes(mac) else {
        let message =
            format!("interface {field}.name has malformed MAC address ({mac}): write it like 02:00:00:00:00:01.");
        causes.push(invalid(place, message));
        return;
    };
    if bytes[0] & 1 == 1 {
        causes.push(invalid(
            place,
            format!("interface {field}.name has the multicast MAC address ({mac}): its first byte must be even."),
        ));
    } else {
        let same = |other: &Interface| other.mac_address.as_deref().is_some_and(|held| held.eq_ignore_ascii_case(mac));
        if spec.domain.devices.interfaces[..index].iter().any(same) {
            causes.push(duplicate(
                place,
                format!("{field} has the MAC address {mac} of another interface of this machine"),
            ));
        }
    }
}

fn ports(field: &str, interface: &Interface, causes: &mut Vec<Cause>) {
    let mut seen = std::collections::BTreeSet::new();
    for (index, port) in interface.ports.iter().enumerate() {
        let place = format!("{field}.ports[{index}]");
        if port.port == 0 {
            causes.push(required(place.clone(), "Port field is mandatory.".to_owned()));
        } else if !(1..=65535).contains(&i64::from(port.port)) {
            causes.push(invalid(place.clone(), "Port field must be in range 0 < x < 65536.".to_owned()));
        }
        if let Some(protocol) = port.protocol.as_deref().filter(|p| !["", "TCP", "UDP"].contains(p)) {
            let message = format!("Unknown protocol {protocol}, only TCP or UDP allowed");
            causes.push(invalid(format!("{place}.protocol"), message));
        }
        if let Some(name) = port.name.as_ref().filter(|name| !name.is_empty())
            && !seen.insert(name.clone())
        {
            let message = format!("Duplicate name of the port: {name}");
            causes.push(duplicate(format!("{place}.name"), message));
        }
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty() && !is_port_name(name)) {
            let message = format!("Invalid name of the port: {name}");
            causes.push(invalid(format!("{place}.name"), message));
        }
    }
}

/// What Services take for a port's name: at most 15 lower-case letters, digits and single hyphens, with a letter in it.
fn is_port_name(name: &str) -> bool {
    names::is_label(name) && name.len() <= 15 && !name.contains("--") && name.chars().any(|c| c.is_ascii_lowercase())
}

/// An address and a prefix that is no longer than `longest`.
fn is_range(text: &str, is_address: impl Fn(&str) -> bool, longest: u8) -> bool {
    let parts = text.split_once('/');
    parts.is_some_and(|(at, prefix)| is_address(at) && prefix.parse().is_ok_and(|prefix: u8| prefix <= longest))
}
