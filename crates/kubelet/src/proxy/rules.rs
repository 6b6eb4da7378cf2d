//! From ports to an nftables ruleset, as text. Pure.
//!
//! ```text
//!  prerouting, output ─▶ services ─ map of addresses ─▶ service/… ─▶ choose/… ─▶ endpoint/… ─ dnat
//!                                 └ map of node ports ─▶ outside/… ─┘
//! ```
//! A packet that must come back through the node is marked on the way and masqueraded in postrouting: one from outside
//! the pod network, and one whose endpoint is the pod that sent it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::Settings;
use super::ports::Port;

/// The nftables table on the node.
pub const TABLE: &str = "services";

const MARK: &str = "0x4000";

/// A whole ruleset, comparable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Rules by chain; base chains carry their hook as first line.
    pub chains: BTreeMap<String, Vec<String>>,
    /// Clients that stay with an endpoint: set name to definition. Their contents are kept across changes.
    pub sets: BTreeMap<String, Vec<String>>,
    /// Verdict maps: name to type and elements.
    pub maps: BTreeMap<String, (String, Vec<String>)>,
    /// UDP endpoints in use, whose flows are forgotten when they go.
    pub udp_endpoints: BTreeSet<SocketAddr>,
}

impl Ruleset {
    /// The text that takes the kernel from `before` to this ruleset in one transaction. With no `before` the table is
    /// made anew, whatever it held.
    pub fn transaction(&self, before: Option<&Self>) -> String {
        let mut text = format!("add table inet {TABLE}\n");
        match before {
            None => {
                let _ = writeln!(text, "delete table inet {TABLE}");
            }
            Some(before) => {
                // Rules first: they hold references to everything else. Sets keep their elements.
                let _ = writeln!(text, "flush table inet {TABLE}");
                for name in before.maps.keys() {
                    let _ = writeln!(text, "flush map inet {TABLE} {name}");
                }
                for name in before.chains.keys().filter(|name| !self.chains.contains_key(*name)) {
                    let _ = writeln!(text, "delete chain inet {TABLE} {name}");
                }
                for (name, _) in before.sets.iter().filter(|(name, old)| self.sets.get(*name) != Some(old)) {
                    let _ = writeln!(text, "delete set inet {TABLE} {name}");
                }
            }
        }
        let _ = writeln!(text, "table inet {TABLE} {{");
        for (name, definition) in &self.sets {
            block(&mut text, "set", name, definition);
        }
        // Declared before they are filled: a map's elements and a rule's verdicts refer to chains.
        for (name, _) in self.chains.iter().filter(|(_, rules)| !is_base(rules)) {
            let _ = writeln!(text, "  chain {name} {{\n  }}");
        }
        for (name, (kind, elements)) in &self.maps {
            let mut lines = vec![format!("type {kind} : verdict")];
            if !elements.is_empty() {
                lines.push(format!("elements = {{ {} }}", elements.join(", ")));
            }
            block(&mut text, "map", name, &lines);
        }
        for (name, rules) in &self.chains {
            block(&mut text, "chain", name, rules);
        }
        text.push_str("}\n");
        text
    }

    fn element(&mut self, map: &str, element: String) {
        if let Some((_, elements)) = self.maps.get_mut(map) {
            elements.push(element);
        }
    }
}

/// A chain the kernel calls, whose hook must be in its first declaration.
fn is_base(rules: &[String]) -> bool {
    rules.first().is_some_and(|rule| rule.starts_with("type "))
}

fn block(text: &mut String, what: &str, name: &str, lines: &[String]) {
    let _ = writeln!(text, "  {what} {name} {{");
    for line in lines {
        let _ = writeln!(text, "    {line}");
    }
    text.push_str("  }\n");
}

const FAMILIES: [Family; 2] = [
    Family { ip: "ip", nf: "ipv4", address: "ipv4_addr", suffix: "4" },
    Family { ip: "ip6", nf: "ipv6", address: "ipv6_addr", suffix: "6" },
];

struct Family {
    ip: &'static str,
    nf: &'static str,
    address: &'static str,
    suffix: &'static str,
}

/// The ruleset of these ports.
pub fn render(settings: &Settings, ports: &[Port]) -> Ruleset {
    let mut rules = base(settings);
    let mut taken = BTreeSet::new();
    for port in ports {
        let family = &FAMILIES[usize::from(port.is_v6)];
        let id = format!("{}/{}/{}/{}", port.service, port.protocol.word(), port.port, family.suffix);
        let pods = list(settings.pod_cidrs.iter().filter(|net| net.addr().is_ipv6() == port.is_v6));
        let choose = format!("choose/{id}");
        let choose_here = format!("choose_here/{id}");
        endpoints(&mut rules, port, family, &id, &choose, &port.endpoints);
        for here in port.inside.iter().chain(&port.local_endpoints) {
            endpoints(&mut rules, port, family, &id, &choose_here, here);
        }
        let (answering, choice) = match &port.inside {
            Some(here) => (here, &choose_here),
            None => (&port.endpoints, &choose),
        };
        let inside = if answering.is_empty() { "reject".to_owned() } else { format!("service/{id}") };
        if !answering.is_empty() {
            let mark = format!("{} saddr != {pods} meta mark set meta mark or {MARK}", family.ip);
            rules.chains.insert(inside.clone(), vec![mark, format!("goto {choice}")]);
        }
        let outside = outside(&mut rules, port, family, &id, &pods);
        let balancer = firewall(&mut rules, port, family, &id, &outside);
        let (addresses, node_ports) = (format!("addresses{}", family.suffix), format!("node_ports{}", family.suffix));
        let of_port = format!("{} . {}", port.protocol.word(), port.port);
        let by_address =
            [(&port.cluster_ips, &inside), (&port.external_ips, &outside), (&port.balancer_ips, &balancer)];
        for (ips, chain) in by_address {
            for ip in ips {
                // Two Services may claim one external address; an element can be there once.
                if taken.insert((*ip, port.protocol, port.port)) {
                    add_verdict(&mut rules, &addresses, &format!("{ip} . {of_port}"), chain);
                }
            }
        }
        if let Some(node_port) = port.node_port {
            let element = format!("{} . {node_port}", port.protocol.word());
            add_verdict(&mut rules, &node_ports, &element, &outside);
        }
        if port.protocol == super::ports::Protocol::Udp {
            rules.udp_endpoints.extend(&port.endpoints);
        }
    }
    rules
}

/// Where a lookup leads. Refusals have maps of their own, because they are made where packets are filtered and not
/// where they are translated.
fn add_verdict(rules: &mut Ruleset, map: &str, key: &str, chain: &str) {
    if chain == "reject" {
        rules.element(&format!("refused_{map}"), format!("{key} : goto reject_it"));
    } else {
        rules.element(map, format!("{key} : goto {chain}"));
    }
}

/// The chain for what comes from outside: everybody answers and the client's address is lost, or only this node's
/// endpoints answer and see it. Who is inside already, a pod or the node itself, is led to everybody even then.
fn outside(rules: &mut Ruleset, port: &Port, family: &Family, id: &str, pods: &str) -> String {
    let wanted = port.node_port.is_some() || !port.external_ips.is_empty() || !port.balancer_ips.is_empty();
    if port.endpoints.is_empty() || !wanted {
        return "reject".into();
    }
    let chain = format!("outside/{id}");
    let everybody = format!("meta mark set meta mark or {MARK} goto choose/{id}");
    let lines = match &port.local_endpoints {
        None => vec![everybody],
        Some(here) => vec![
            format!("{} saddr {pods} goto choose/{id}", family.ip),
            format!("fib saddr type local {everybody}"),
            // Dropped and not refused: a load balancer sends the client's next packet to a node that has some.
            if here.is_empty() { "drop".into() } else { format!("goto choose_here/{id}") },
        ],
    };
    rules.chains.insert(chain.clone(), lines);
    chain
}

/// The chain before [`outside`] for a load balancer that not everybody may come by.
fn firewall(rules: &mut Ruleset, port: &Port, family: &Family, id: &str, outside: &str) -> String {
    if port.sources.is_empty() || port.balancer_ips.is_empty() || outside == "reject" {
        return outside.to_owned();
    }
    let mut ranges: Vec<_> = port.sources.iter().filter(|range| range.addr().is_ipv6() == port.is_v6).collect();
    // A set's ranges must not overlap.
    ranges.sort_by_key(|range| range.prefix_len());
    let mut kept: Vec<&ipnet::IpNet> = Vec::new();
    for range in ranges {
        if !kept.iter().any(|wider| wider.contains(range)) {
            kept.push(range);
        }
    }
    let chain = format!("firewall/{id}");
    let admitted = list(kept.iter().map(|range| range.trunc()));
    let guard = if kept.is_empty() { "drop".into() } else { format!("{} saddr != {admitted} drop", family.ip) };
    rules.chains.insert(chain.clone(), vec![guard, format!("goto {outside}")]);
    chain
}

/// The chain that chooses one of the endpoints, and theirs.
fn endpoints(rules: &mut Ruleset, port: &Port, family: &Family, id: &str, choose: &str, all: &BTreeSet<SocketAddr>) {
    if all.is_empty() {
        return;
    }
    let ip = family.ip;
    let (mut sticky, mut chains) = (Vec::new(), Vec::new());
    for endpoint in all {
        let place = format!("{id}/{}/{}", name_of(endpoint.ip()), endpoint.port());
        let chain = format!("endpoint/{place}");
        let mut lines = vec![format!("{ip} saddr {} meta mark set meta mark or {MARK}", endpoint.ip())];
        if let Some(seconds) = port.affinity {
            let set = format!("affinity/{place}");
            sticky.push(format!("{ip} saddr @{set} goto {chain}"));
            lines.push(format!("update @{set} {{ {ip} saddr }}"));
            let definition =
                vec![format!("type {}", family.address), "flags dynamic,timeout".into(), format!("timeout {seconds}s")];
            rules.sets.insert(set, definition);
        }
        lines.push(format!("meta l4proto {} dnat {ip} to {endpoint}", port.protocol.word()));
        rules.chains.insert(chain.clone(), lines);
        chains.push(chain);
    }
    let mut lines = sticky;
    match chains.as_slice() {
        [only] => lines.push(format!("goto {only}")),
        many => {
            let verdicts: Vec<_> = many.iter().enumerate().map(|(n, chain)| format!("{n} : goto {chain}")).collect();
            lines.push(format!("numgen random mod {} vmap {{ {} }}", many.len(), verdicts.join(", ")));
        }
    }
    rules.chains.insert(choose.to_owned(), lines);
}

/// An address as a part of a name: colons are not allowed there.
fn name_of(ip: IpAddr) -> String {
    ip.to_string().replace(':', ".")
}

fn list<T: ToString>(items: impl Iterator<Item = T>) -> String {
    let items: Vec<_> = items.map(|item| item.to_string()).collect();
    format!("{{ {} }}", items.join(", "))
}

/// What is there without any Service.
fn base(settings: &Settings) -> Ruleset {
    let mut rules = Ruleset::default();
    let (mut services, mut refuse, mut refuse_node_ports, mut unknown) = (vec![], vec![], vec![], vec![]);
    for (is_v6, Family { ip, nf, address, suffix }) in FAMILIES.iter().enumerate().map(|(n, family)| (n == 1, family)) {
        for (map, kind) in [
            ("addresses", format!("{address} . inet_proto . inet_service")),
            ("node_ports", "inet_proto . inet_service".into()),
        ] {
            rules.maps.insert(format!("{map}{suffix}"), (kind.clone(), Vec::new()));
            rules.maps.insert(format!("refused_{map}{suffix}"), (kind, Vec::new()));
        }
        let loopback = if is_v6 { "::1" } else { "127.0.0.0/8" };
        let here =
            format!("meta nfproto {nf} fib daddr type local {ip} daddr != {loopback} meta l4proto . th dport vmap");
        let there = format!("{ip} daddr . meta l4proto . th dport vmap");
        services.push(format!("{there} @addresses{suffix}"));
        services.push(format!("{here} @node_ports{suffix}"));
        refuse.push(format!("{there} @refused_addresses{suffix}"));
        refuse_node_ports.push(format!("{here} @refused_node_ports{suffix}"));
        let of_family = |ip: &IpAddr| ip.is_ipv6() == is_v6;
        let ranges: Vec<_> = settings.service_cidrs.iter().filter(|net| of_family(&net.addr())).collect();
        let own: Vec<_> = settings.own_addresses.iter().filter(|ip| of_family(ip)).collect();
        if !ranges.is_empty() {
            let but = if own.is_empty() { String::new() } else { format!("{ip} daddr != {} ", list(own.iter())) };
            // A cluster IP that nobody has would otherwise travel in circles between host and node.
            unknown.push(format!("{ip} daddr {} {but}goto reject_it", list(ranges.iter())));
        }
    }
    let first =
        |hook: &str, rest: &[&[String]]| std::iter::once(hook.to_owned()).chain(rest.concat()).collect::<Vec<_>>();
    let jump = ["jump services".to_owned()];
    let mut chain = |name: &str, lines: Vec<String>| rules.chains.insert(name.into(), lines);
    chain("prerouting", first("type nat hook prerouting priority dstnat", &[&jump]));
    chain("output", first("type nat hook output priority -100", &[&jump]));
    chain(
        "postrouting",
        vec![
            "type nat hook postrouting priority srcnat".into(),
            format!("meta mark and {MARK} != {MARK} return"),
            format!("meta mark set meta mark xor {MARK}"),
            "masquerade".into(),
        ],
    );
    let new = "ct state new jump refuse".to_owned();
    let new_here = "ct state new jump refuse_node_ports".to_owned();
    chain("filter_forward", first("type filter hook forward priority filter", &[std::slice::from_ref(&new)]));
    chain("filter_output", first("type filter hook output priority filter", &[&[new.clone(), new_here.clone()]]));
    chain("filter_input", first("type filter hook input priority filter", &[&[new, new_here]]));
    chain("services", services);
    chain("refuse", [refuse, unknown].concat());
    chain("refuse_node_ports", refuse_node_ports);
    let reset = "meta l4proto tcp reject with tcp reset";
    chain("reject_it", vec![reset.into(), "reject with icmpx port-unreachable".into()]);
    rules
}

#[cfg(test)]
mod tests;
