//! From the VMI's interfaces to links, addresses, rules and offers. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::kubevirt::identity::pod_interface;
use api::kubevirt::v1::{Interface, Network, VirtualMachineInstance};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use net::router::Announcement;
use net::{dhcp4, dhcp6};

use super::observe::{PodLink, Resolver};
use crate::Error;

/// KubeVirt's networks behind masquerade, unless the VMI names others.
const NETWORK_4: &str = "10.0.2.0/24";
const NETWORK_6: &str = "fd10:0:2::/120";
/// Address of the bridge when the guest has the pod's own: only the DHCP server uses it. The last number is the interface's.
const BRIDGE_ADDRESS: [u8; 4] = [169, 254, 75, 10];
/// The link of the pod network.
const POD_LINK: &str = "eth0";

/// How an interface reaches the pod's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// Behind the pod's address.
    Masquerade,
    /// With the pod's address.
    Bridge,
}

/// Everything to make for one interface.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InterfacePlan {
    /// Name in the VMI.
    pub name: String,
    /// How.
    pub binding: Binding,
    /// The pod's link.
    pub pod_link: PodLink,
    /// Bridge to make.
    pub bridge: String,
    /// Its addresses.
    pub bridge_addresses: Vec<IpNet>,
    /// Its hardware address.
    pub bridge_mac: [u8; 6],
    /// Tap to make.
    pub tap: String,
    /// Queues of the tap.
    pub queues: u32,
    /// The guest's hardware address.
    pub mac: [u8; 6],
    /// nftables ruleset, empty when none is needed.
    pub rules: String,
    /// Sysctls of the pod's namespace, path below /proc/sys and value.
    pub sysctls: Vec<(String, String)>,
    /// DHCPv4 offer.
    pub dhcp4: Option<dhcp4::Offer>,
    /// DHCPv6 offer.
    pub dhcp6: Option<dhcp6::Offer>,
    /// Router advertisement.
    pub announcement: Option<Announcement>,
    /// Routes through the bridge, in the order in which they can be made: destination and gateway.
    pub routes: Vec<(IpNet, Option<IpAddr>)>,
}

/// The pod's link of each interface that is to be plugged, by the interface's position: what must be observed first.
pub(crate) fn pod_links(vmi: &VirtualMachineInstance) -> Vec<(usize, String)> {
    let interfaces = &vmi.spec.domain.devices.interfaces;
    let plugged = interfaces.iter().enumerate().filter(|(_, interface)| is_plugged(interface));
    plugged.map(|(at, interface)| (at, pod_link(vmi, &interface.name))).collect()
}

/// What the pod calls its interface of a network.
fn pod_link(vmi: &VirtualMachineInstance, network: &str) -> String {
    if is_secondary(vmi, network) { pod_interface(network) } else { POD_LINK.to_owned() }
}

/// Whether this is a network beside the pod's own.
pub(crate) fn is_secondary(vmi: &VirtualMachineInstance, network: &str) -> bool {
    vmi.spec.networks.iter().any(|found| found.name == network && found.multus.is_some())
}

fn is_plugged(interface: &Interface) -> bool {
    interface.state.as_deref() != Some("absent")
}

/// What to make for the interface at position `at`, whose pod link is `link`.
pub(crate) fn plan(
    vmi: &VirtualMachineInstance,
    at: usize,
    link: &PodLink,
    resolver: &Resolver,
) -> Result<InterfacePlan, Error> {
    let interface = &vmi.spec.domain.devices.interfaces[at];
    let refuse = |what: String| Error::Plug { interface: interface.name.clone(), what, source: None };
    let network = vmi
        .spec
        .networks
        .iter()
        .find(|network| network.name == interface.name)
        .ok_or_else(|| refuse("no network in spec.networks has its name".into()))?;
    if network.pod.is_none() && network.multus.is_none() {
        return Err(refuse("its network is neither pod nor multus; set one of them".into()));
    }
    if network.pod.is_none() && interface.masquerade.is_some() {
        return Err(refuse("only the pod network can be masqueraded; set bridge: {}".into()));
    }
    let mac = match interface.mac_address.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => parse_mac(text).ok_or_else(|| refuse(format!("{text:?} is not a MAC address")))?,
        // A guest that comes from another node has one already.
        None if interface.bridge.is_some() => held_mac(vmi, &interface.name).unwrap_or(link.mac),
        None => generated_mac(vmi, &interface.name),
    };
    let base = InterfacePlan {
        name: interface.name.clone(),
        binding: Binding::Masquerade,
        pod_link: link.clone(),
        bridge: format!("k6t-{}", link.name.strip_prefix("pod").unwrap_or(&link.name)),
        bridge_addresses: Vec::new(),
        bridge_mac: [0x02, 0, 0, 0, 0, u8::try_from(at).unwrap_or(0)],
        tap: format!("tap{at}"),
        queues: queues(vmi),
        mac,
        rules: String::new(),
        sysctls: Vec::new(),
        dhcp4: None,
        dhcp6: None,
        announcement: None,
        routes: Vec::new(),
    };
    if interface.masquerade.is_some() {
        masquerade(base, vmi, interface, network, resolver)
    } else if interface.bridge.is_some() {
        bridge(base, vmi, interface, at, resolver)
    } else {
        Err(refuse("its binding is neither masquerade nor bridge; set one of them".into()))
    }
}

fn masquerade(
    mut plan: InterfacePlan,
    vmi: &VirtualMachineInstance,
    interface: &Interface,
    network: &Network,
    resolver: &Resolver,
) -> Result<InterfacePlan, Error> {
    let pod = network.pod.clone().unwrap_or_default();
    let refuse = |field: &str, value: &str| Error::Plug {
        interface: interface.name.clone(),
        what: format!("spec.networks: {field} {value:?} is not a network with room for a gateway and a guest"),
        source: None,
    };
    let has = |v6: bool| plan.pod_link.addresses.iter().any(|a| a.addr().is_ipv6() == v6);
    let mtu = plan.pod_link.mtu;
    if has(false) {
        let text = pod.vm_network_cidr.as_deref().unwrap_or(NETWORK_4);
        let (gateway, guest) = hosts4(text).ok_or_else(|| refuse("vmNetworkCIDR", text))?;
        plan.bridge_addresses.push(gateway.into());
        plan.rules +=
            &nat("ip", &plan.pod_link.name, &plan.bridge, guest.addr().into(), gateway.addr().into(), interface);
        let name = &plan.bridge;
        plan.sysctls.push(("net/ipv4/ip_forward".into(), "1".into()));
        plan.sysctls.push((format!("net/ipv4/conf/{name}/route_localnet"), "1".into()));
        plan.dhcp4 =
            Some(offer4(vmi, interface, resolver, plan.mac, mtu, guest, gateway.addr(), Some(gateway.addr()), vec![]));
    }
    if has(true) {
        let text = pod.vm_i_pv6_network_cidr.as_deref().unwrap_or(NETWORK_6);
        let (gateway, guest) = hosts6(text).ok_or_else(|| refuse("vmIPv6NetworkCIDR", text))?;
        plan.bridge_addresses.push(gateway.into());
        plan.rules +=
            &nat("ip6", &plan.pod_link.name, &plan.bridge, guest.addr().into(), gateway.addr().into(), interface);
        plan.sysctls.push((format!("net/ipv6/conf/{}/accept_dad", plan.bridge), "0".into()));
        plan.sysctls.push(("net/ipv6/conf/all/forwarding".into(), "1".into()));
        plan.dhcp6 = Some(offer6(resolver, plan.bridge_mac, guest.addr()));
        plan.announcement =
            Some(Announcement { prefix: gateway.trunc(), mac: plan.bridge_mac, mtu, default_router: true });
    }
    Ok(plan)
}

fn bridge(
    mut plan: InterfacePlan,
    vmi: &VirtualMachineInstance,
    interface: &Interface,
    at: usize,
    resolver: &Resolver,
) -> Result<InterfacePlan, Error> {
    plan.binding = Binding::Bridge;
    let link = plan.pod_link.clone();
    plan.bridge_mac = guest_mac(link.mac);
    let secondary = link.name != POD_LINK;
    if link.addresses.is_empty() && secondary {
        // Frames pass and nothing is served: who gives addresses on that network, if anybody, is its own affair.
        for silent in [&link.name, &plan.tap, &plan.bridge] {
            plan.sysctls.push((format!("net/ipv6/conf/{silent}/disable_ipv6"), "1".into()));
        }
        return Ok(plan);
    }
    plan.rules = only_for_the_guest(&link.name);
    // Ports of a bridge need no address, and the pod's link would keep the link-local one that is now the guest's.
    for port in [&link.name, &plan.tap] {
        plan.sysctls.push((format!("net/ipv6/conf/{port}/disable_ipv6"), "1".into()));
    }
    let [a, b, c, first] = BRIDGE_ADDRESS;
    let server = Ipv4Addr::new(a, b, c, first.saturating_add(u8::try_from(at).unwrap_or(u8::MAX)));
    plan.bridge_addresses.push(IpNet::from(IpAddr::from(server)));
    let v4 = link.addresses.iter().find_map(|a| match a {
        IpNet::V4(net) => Some(*net),
        IpNet::V6(_) => None,
    });
    if let Some(address) = v4 {
        let default = link.routes.iter().find_map(|(to, via)| match (to, via) {
            (IpNet::V4(to), Some(IpAddr::V4(via))) if to.prefix_len() == 0 => Some(*via),
            _ => None,
        });
        let others = link.routes.iter().filter_map(|(to, via)| match (to, via) {
            (IpNet::V4(to), Some(IpAddr::V4(via))) if to.prefix_len() != 0 => Some((*to, *via)),
            _ => None,
        });
        plan.dhcp4 =
            Some(offer4(vmi, interface, resolver, plan.mac, link.mtu, address, server, default, others.collect()));
    }
    let v6 = link.addresses.iter().find_map(|a| match a {
        IpNet::V6(net) => Some(*net),
        IpNet::V4(_) => None,
    });
    if let Some(address) = v6 {
        plan.sysctls.push((format!("net/ipv6/conf/{}/accept_dad", plan.bridge), "0".into()));
        plan.dhcp6 = Some(offer6(resolver, plan.bridge_mac, address.addr()));
        // Neighbours answer the guest itself. For the rest IPv6 has no way to name another router than the one that
        // speaks, so the pod forwards, through the bridge and to the gateway that it was given.
        plan.routes.push((address.trunc().into(), None));
        let gateways = link.routes.iter().filter(|(to, via)| to.addr().is_ipv6() && via.is_some());
        plan.routes.extend(gateways.clone().copied());
        plan.sysctls.push(("net/ipv6/conf/all/forwarding".into(), "1".into()));
        let leads_out = gateways.clone().any(|(to, _)| to.prefix_len() == 0);
        plan.announcement = Some(Announcement {
            prefix: address.trunc(),
            mac: plan.bridge_mac,
            mtu: link.mtu,
            default_router: leads_out || !secondary,
        });
    }
    Ok(plan)
}

/// A hardware address beside the pod's own, which the guest answers with: unlike in masquerade, the cluster's network
/// sees it, so it differs from pod to pod.
pub(super) fn guest_mac(mut mac: [u8; 6]) -> [u8; 6] {
    mac[0] = (mac[0] & 0xfc) | 0x02;
    mac[5] ^= 0xff;
    mac
}

/// Questions about addresses stay between the guest and its pod: the pod network is one link to many guests, which
/// would otherwise be answered by each other's pods. Each link has a table of its own.
fn only_for_the_guest(pod: &str) -> String {
    let table = if pod == POD_LINK { "ferrovirt".to_owned() } else { format!("ferrovirt_{pod}") };
    let (asks, answers) = ("udp dport { 67, 547 } drop", "udp sport { 67, 547 } drop");
    let (solicits, advertises) = ("icmpv6 type nd-router-solicit drop", "icmpv6 type nd-router-advert drop");
    let chain = |hook: &str, rules: &[(&str, &str)]| {
        let rules: String = rules.iter().map(|(way, rule)| format!("    {way} \"{pod}\" {rule}\n")).collect();
        format!("  chain {hook} {{\n    type filter hook {hook} priority filter; policy accept;\n{rules}  }}\n")
    };
    let (to, from) = ("oifname", "iifname");
    let forward = chain("forward", &[(to, solicits), (to, asks), (from, advertises), (from, answers)]);
    let input = chain("input", &[(from, solicits), (from, asks)]);
    let output = chain("output", &[(to, advertises), (to, answers)]);
    format!("table bridge {table}\ndelete table bridge {table}\ntable bridge {table} {{\n{forward}{input}{output}}}\n")
}

/// Everything that arrives for the pod goes to the guest, or only the ports that the interface lists; what the guest
/// sends leaves with the pod's address.
fn nat(family: &str, pod: &str, bridge: &str, guest: IpAddr, gateway: IpAddr, interface: &Interface) -> String {
    let local = if family == "ip" { "127.0.0.1" } else { "::1" };
    let mut to_guest: Vec<String> = interface
        .ports
        .iter()
        .map(|port| format!("{} dport {} ", port.protocol.as_deref().unwrap_or("TCP").to_lowercase(), port.port))
        .chain(interface.port_ranges.iter().map(|range| {
            let protocol = if range.protocol.is_empty() { "tcp".to_owned() } else { range.protocol.to_lowercase() };
            format!("{protocol} dport {}-{} ", range.start, range.end)
        }))
        .collect();
    if to_guest.is_empty() {
        to_guest.push(String::new());
    }
    let line =
        |head: String| to_guest.iter().map(|ports| format!("    {head}{ports}dnat to {guest}\n")).collect::<String>();
    let inbound = line(format!("iifname \"{pod}\" "));
    let own = line(format!("{family} daddr {local} "));
    format!(
        "table {family} ferrovirt\ndelete table {family} ferrovirt\ntable {family} ferrovirt {{\n  \
         chain prerouting {{\n    type nat hook prerouting priority dstnat; policy accept;\n{inbound}  }}\n  \
         chain output {{\n    type nat hook output priority -100; policy accept;\n{own}  }}\n  \
         chain postrouting {{\n    type nat hook postrouting priority srcnat; policy accept;\n    \
         {family} saddr {guest} oifname \"{pod}\" masquerade\n    \
         oifname \"{bridge}\" {family} saddr {local} snat to {gateway}\n  }}\n}}\n"
    )
}

#[allow(clippy::too_many_arguments)]
fn offer4(
    vmi: &VirtualMachineInstance,
    interface: &Interface,
    resolver: &Resolver,
    mac: [u8; 6],
    mtu: u32,
    address: Ipv4Net,
    server: Ipv4Addr,
    router: Option<Ipv4Addr>,
    routes: Vec<(Ipv4Net, Ipv4Addr)>,
) -> dhcp4::Offer {
    let extra = interface.dhcp_options.clone().unwrap_or_default();
    dhcp4::Offer {
        mac,
        address,
        server,
        router,
        routes,
        dns: resolver.servers.iter().filter_map(|s| if let IpAddr::V4(v4) = s { Some(*v4) } else { None }).collect(),
        search: with_subdomain(vmi, &resolver.search),
        mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        hostname: hostname(vmi),
        ntp: extra.ntp_servers.iter().filter_map(|s| s.parse().ok()).collect(),
        tftp_server: extra.tftp_server_name.unwrap_or_default(),
        boot_file: extra.boot_file_name.unwrap_or_default(),
        private: extra
            .private_options
            .iter()
            .filter_map(|o| {
                u8::try_from(o.option).ok().filter(|n| (224..255).contains(n)).map(|n| (n, o.value.clone()))
            })
            .collect(),
    }
}

fn offer6(resolver: &Resolver, server_mac: [u8; 6], address: Ipv6Addr) -> dhcp6::Offer {
    dhcp6::Offer {
        address,
        server_mac,
        dns: resolver.servers.iter().filter_map(|s| if let IpAddr::V6(v6) = s { Some(*v6) } else { None }).collect(),
        search: resolver.search.clone(),
    }
}

/// A guest with a subdomain finds itself first below it.
fn with_subdomain(vmi: &VirtualMachineInstance, search: &[String]) -> Vec<String> {
    let own = vmi.spec.subdomain.as_deref().filter(|s| !s.is_empty()).zip(search.first());
    own.map(|(sub, first)| format!("{sub}.{first}")).into_iter().chain(search.iter().cloned()).collect()
}

fn hostname(vmi: &VirtualMachineInstance) -> String {
    let asked = vmi.spec.hostname.clone().filter(|name| !name.is_empty());
    let name = asked.or_else(|| vmi.metadata.name.clone()).unwrap_or_default();
    name.split('.').next().unwrap_or_default().chars().take(63).collect()
}

/// First and second host of a network, with its prefix: the gateway's and the guest's.
fn hosts4(text: &str) -> Option<(Ipv4Net, Ipv4Net)> {
    let net: Ipv4Net = text.parse().ok()?;
    let mut hosts = net.trunc().hosts();
    let pair = (hosts.next()?, hosts.next()?);
    Some((Ipv4Net::new(pair.0, net.prefix_len()).ok()?, Ipv4Net::new(pair.1, net.prefix_len()).ok()?))
}

fn hosts6(text: &str) -> Option<(Ipv6Net, Ipv6Net)> {
    let net: Ipv6Net = text.parse().ok()?;
    if net.prefix_len() > 126 {
        return None;
    }
    let at = |n: u128| Ipv6Net::new(Ipv6Addr::from(u128::from(net.network()) + n), net.prefix_len()).ok();
    Some((at(1)?, at(2)?))
}

/// A queue for each virtual CPU when the VMI asks for several, at most as many as a tap has.
fn queues(vmi: &VirtualMachineInstance) -> u32 {
    const LIMIT: i64 = 256;
    let domain = &vmi.spec.domain;
    if !domain.devices.network_interface_multiqueue.unwrap_or(false) {
        return 1;
    }
    let cpu = domain.cpu.clone().unwrap_or_default();
    let one = |n: Option<i64>| n.unwrap_or(1).max(1);
    u32::try_from((one(cpu.cores) * one(cpu.sockets) * one(cpu.threads)).clamp(1, LIMIT)).unwrap_or(1)
}

/// The hardware address that a guest which runs is known to have.
fn held_mac(vmi: &VirtualMachineInstance, interface: &str) -> Option<[u8; 6]> {
    let known = vmi.status.as_ref()?.interfaces.iter().find(|known| known.name.as_deref() == Some(interface))?;
    parse_mac(known.mac.as_deref()?)
}

/// The same guest keeps its address wherever it runs: it is made from the VMI's identity. Locally administered, unicast.
fn generated_mac(vmi: &VirtualMachineInstance, interface: &str) -> [u8; 6] {
    // FNV-1a: any well-mixed hash will do, and the pair (UID, name) is unique already.
    let identity = format!("{}/{interface}", vmi.metadata.uid.as_deref().unwrap_or_default());
    let hash =
        identity.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let bytes = hash.to_be_bytes();
    [(bytes[0] & 0xfc) | 0x02, bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let parts: Vec<u8> = text
        .split([':', '-'])
        .map(|part| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None })
        .collect::<Option<_>>()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vmi(interface: &serde_json::Value, network: &serde_json::Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "web.one", "namespace": "default", "uid": "u1"},
            "spec": {"domain": {"devices": {"interfaces": [interface]}}, "networks": [network]},
        }))
        .unwrap()
    }

    fn link() -> PodLink {
        PodLink {
            name: "eth0".into(),
            mac: [0x0a, 1, 2, 3, 4, 5],
            mtu: 1450,
            addresses: vec!["10.244.0.7/24".parse().unwrap(), "fd00:10:244::7/64".parse().unwrap()],
            routes: vec![
                ("0.0.0.0/0".parse().unwrap(), Some("10.244.0.1".parse().unwrap())),
                ("10.244.0.0/24".parse().unwrap(), None),
                ("10.244.0.0/16".parse().unwrap(), Some("10.244.0.1".parse().unwrap())),
                ("::/0".parse().unwrap(), Some("fd00:10:244::1".parse().unwrap())),
            ],
        }
    }

    #[test]
    fn masquerade_by_default_and_with_ports() {
        let vmi = vmi(
            &json!({"name": "default", "masquerade": {}, "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}),
            &json!({"name": "default", "pod": {}}),
        );
        let plan = plan(&vmi, 0, &link(), &Resolver::parse("nameserver 10.96.0.10\nsearch a.b\n")).unwrap();
        assert_eq!((plan.bridge.as_str(), plan.tap.as_str(), plan.queues), ("k6t-eth0", "tap0", 1));
        assert_eq!(
            plan.bridge_addresses,
            ["10.0.2.1/24".parse::<IpNet>().unwrap(), "fd10:0:2::1/120".parse().unwrap()]
        );
        let offer = plan.dhcp4.unwrap();
        assert_eq!(offer.address, "10.0.2.2/24".parse().unwrap());
        assert_eq!((offer.hostname.as_str(), offer.mtu), ("web", 1450));
        assert_eq!(plan.dhcp6.unwrap().address, "fd10:0:2::2".parse::<Ipv6Addr>().unwrap());
        assert!(plan.announcement.unwrap().default_router);
        assert!(plan.rules.contains("iifname \"eth0\" tcp dport 80 dnat to 10.0.2.2\n"), "{}", plan.rules);
        assert!(plan.rules.contains("udp dport 53 dnat to 10.0.2.2\n"));
        assert!(plan.rules.contains("ip6 saddr fd10:0:2::2 oifname \"eth0\" masquerade"));
        assert_eq!(plan.mac[0] & 3, 2, "locally administered, unicast");
    }

    #[test]
    fn the_whole_pod_is_the_guest_when_no_port_is_listed() {
        let vmi = vmi(
            &json!({"name": "n", "masquerade": {}}),
            &json!({"name": "n", "pod": {"vmNetworkCIDR": "192.168.9.0/29"}}),
        );
        let plan = plan(&vmi, 0, &link(), &Resolver::default()).unwrap();
        assert!(plan.rules.contains("    iifname \"eth0\" dnat to 192.168.9.2\n"));
    }

    #[test]
    fn bridge_gives_the_pods_own_address() {
        let vmi = vmi(&json!({"name": "default", "bridge": {}}), &json!({"name": "default", "pod": {}}));
        let plan = plan(&vmi, 0, &link(), &Resolver::default()).unwrap();
        assert_eq!((plan.binding, plan.mac), (Binding::Bridge, link().mac));
        let offer = plan.dhcp4.unwrap();
        assert_eq!(offer.address, "10.244.0.7/24".parse().unwrap());
        assert_eq!(offer.router, Some(Ipv4Addr::new(10, 244, 0, 1)));
        assert_eq!(offer.routes, [("10.244.0.0/16".parse().unwrap(), Ipv4Addr::new(10, 244, 0, 1))]);
        assert!(plan.announcement.unwrap().default_router);
        assert!(plan.rules.contains("    oifname \"eth0\" udp sport { 67, 547 } drop\n"), "{}", plan.rules);
        assert_eq!(plan.dhcp6.unwrap().address, "fd00:10:244::7".parse::<Ipv6Addr>().unwrap());
        assert_ne!(plan.bridge_mac, link().mac);
        assert_eq!(
            plan.routes,
            [
                ("fd00:10:244::/64".parse().unwrap(), None),
                ("::/0".parse().unwrap(), Some("fd00:10:244::1".parse().unwrap())),
            ]
        );
    }

    #[test]
    fn a_secondary_network_without_addresses_is_passed_through() {
        let mut vmi =
            vmi(&json!({"name": "blue", "bridge": {}}), &json!({"name": "blue", "multus": {"networkName": "n"}}));
        assert_eq!(pod_links(&vmi), [(0, "pod16477688c0e".to_owned())]);
        let bare = PodLink { name: "pod16477688c0e".into(), mac: link().mac, mtu: 1500, ..PodLink::default() };
        let found = plan(&vmi, 0, &bare, &Resolver::default()).unwrap();
        assert_eq!((found.bridge.as_str(), found.mac, found.rules.as_str()), ("k6t-16477688c0e", bare.mac, ""));
        assert!(found.dhcp4.is_none() && found.dhcp6.is_none() && found.announcement.is_none());
        assert!(found.bridge_addresses.is_empty() && found.routes.is_empty());
        // After a move the pod's link has another address, and the guest the one it had.
        vmi.status =
            serde_json::from_value(json!({"interfaces": [{"name": "blue", "mac": "02:00:00:00:00:07"}]})).unwrap();
        assert_eq!(plan(&vmi, 0, &bare, &Resolver::default()).unwrap().mac, [2, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn a_secondary_network_with_addresses_is_served_for_its_guest_alone() {
        let vmi = vmi(&json!({"name": "blue", "bridge": {}}), &json!({"name": "blue", "multus": {"networkName": "n"}}));
        let addresses = vec!["10.9.0.5/24".parse().unwrap(), "fd00:9::5/64".parse().unwrap()];
        let with = PodLink { name: "pod16477688c0e".into(), mac: link().mac, mtu: 1500, addresses, routes: vec![] };
        let found = plan(&vmi, 0, &with, &Resolver::default()).unwrap();
        let offer = found.dhcp4.unwrap();
        assert_eq!((offer.address, offer.router), ("10.9.0.5/24".parse().unwrap(), None));
        assert!(!found.announcement.unwrap().default_router);
        assert!(found.rules.contains("table bridge ferrovirt_pod16477688c0e {"), "{}", found.rules);
    }

    #[track_caller]
    fn refused(interface: &serde_json::Value, network: &serde_json::Value, words: &str) {
        let error = plan(&vmi(interface, network), 0, &link(), &Resolver::default()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn unsupported_interfaces_are_refused_by_name() {
        refused(
            &json!({"name": "a", "masquerade": {}}),
            &json!({"name": "b", "pod": {}}),
            "no network in spec.networks",
        );
        refused(&json!({"name": "a"}), &json!({"name": "a", "pod": {}}), "neither masquerade nor bridge");
        refused(
            &json!({"name": "a", "masquerade": {}, "macAddress": "zz"}),
            &json!({"name": "a", "pod": {}}),
            "not a MAC address",
        );
        refused(
            &json!({"name": "a", "masquerade": {}}),
            &json!({"name": "a", "pod": {"vmNetworkCIDR": "10.0.0.0/32"}}),
            "room for a gateway",
        );
        refused(
            &json!({"name": "a", "masquerade": {}}),
            &json!({"name": "a", "multus": {"networkName": "x"}}),
            "only the pod network",
        );
        refused(&json!({"name": "a", "bridge": {}}), &json!({"name": "a"}), "neither pod nor multus");
    }
}
