//! From the plan to an nftables ruleset, as text. Pure.
//!
//! ```text
//!  forward ─▶ send ─ sender's address ──▶ isolate/… ─┬▶ egress/<policy> ─ accept
//!          │                                         └▶ drop
//!          └▶ receive ─ receiver's address ▶ isolate/… ─┬▶ ingress/<policy> ─ accept
//!  input ──▶ ask (cluster DNS) ─ as send               └▶ drop
//! ```
//! `send` and `receive` are chains of their own in the kernel's eyes: what one accepts the other still judges. Policies
//! name sets, so that pods that come and go change elements and no rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use super::Settings;
use super::plan::{Direction, Peer, Plan, Port, Rule};
use crate::proxy::ports::Protocol;

/// The nftables table on the node.
pub const TABLE: &str = "network_policies";

/// A whole ruleset, comparable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Rules by chain; base chains carry their hook as first line.
    pub chains: BTreeMap<String, Vec<String>>,
    /// Sets and maps by name.
    pub sets: BTreeMap<String, Set>,
}

/// A set, or a map when its type says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// The keys' type, for a map that of the values as well.
    pub kind: String,
    /// Elements; those of a map with their verdict.
    pub elements: BTreeSet<String>,
}

impl Set {
    fn is_map(&self) -> bool {
        self.kind.ends_with(": verdict")
    }
}

impl Ruleset {
    /// The text that takes the kernel from `before` to this ruleset in one transaction: elements only, where the rules
    /// stay as they are. With no `before` the table is made anew, whatever it held.
    pub fn transaction(&self, before: Option<&Self>) -> String {
        let same_frame = |before: &&Self| {
            let kinds =
                |rules: &Self| rules.sets.iter().map(|(n, set)| (n.clone(), set.kind.clone())).collect::<Vec<_>>();
            before.chains == self.chains && kinds(before) == kinds(self)
        };
        match before.filter(same_frame) {
            Some(before) => self.elements_since(before),
            None => self.anew(),
        }
    }

    fn elements_since(&self, before: &Self) -> String {
        let mut text = String::new();
        for (name, set) in &self.sets {
            let Some(old) = before.sets.get(name) else { continue };
            let gone: Vec<_> = old.elements.difference(&set.elements).map(String::as_str).collect();
            let new: Vec<_> = set.elements.difference(&old.elements).map(String::as_str).collect();
            for (verb, elements) in [("delete", gone), ("add", new)] {
                if !elements.is_empty() {
                    let _ = writeln!(text, "{verb} element inet {TABLE} {name} {{ {} }}", elements.join(", "));
                }
            }
        }
        text
    }

    fn anew(&self) -> String {
        let mut text = format!("add table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n");
        // Declared before they are referred to.
        for name in self.chains.keys().filter(|name| !is_base(name)) {
            let _ = writeln!(text, "  chain {name} {{\n  }}");
        }
        for (name, set) in &self.sets {
            let _ = writeln!(text, "  {} {name} {{\n    type {}", if set.is_map() { "map" } else { "set" }, set.kind);
            if !set.elements.is_empty() {
                let elements: Vec<_> = set.elements.iter().map(String::as_str).collect();
                let _ = writeln!(text, "    elements = {{ {} }}", elements.join(", "));
            }
            text.push_str("  }\n");
        }
        for (name, lines) in &self.chains {
            let _ = writeln!(text, "  chain {name} {{");
            for line in lines {
                let _ = writeln!(text, "    {line}");
            }
            text.push_str("  }\n");
        }
        text.push_str("}\n");
        text
    }

    fn set(&mut self, name: String, kind: &str, elements: BTreeSet<String>) {
        self.sets.insert(name, Set { kind: kind.to_owned(), elements });
    }
}

const BASE: [&str; 3] = ["ask", "receive", "send"];

fn is_base(name: &str) -> bool {
    BASE.contains(&name)
}

struct Family {
    ip: &'static str,
    address: &'static str,
    suffix: &'static str,
    is_v6: bool,
}

const FAMILIES: [Family; 2] = [
    Family { ip: "ip", address: "ipv4_addr", suffix: "4", is_v6: false },
    Family { ip: "ip6", address: "ipv6_addr", suffix: "6", is_v6: true },
];

impl Family {
    fn has(&self, address: &IpAddr) -> bool {
        address.is_ipv6() == self.is_v6
    }
}

/// The ruleset of this plan.
pub fn render(settings: &Settings, plan: &Plan) -> Ruleset {
    let mut rules = Ruleset::default();
    base(&mut rules, settings);
    for family in &FAMILIES {
        let of_family = |addresses: &BTreeSet<IpAddr>| -> BTreeSet<String> {
            addresses.iter().filter(|address| family.has(address)).map(IpAddr::to_string).collect()
        };
        for (group, addresses) in &plan.groups {
            rules.set(group_set(group, family), family.address, of_family(addresses));
        }
        for ((name, protocol), places) in &plan.named {
            let here = places.iter().filter(|(address, _)| family.has(address));
            let elements = here.map(|(address, port)| format!("{address} . {} . {port}", protocol.word())).collect();
            let kind = format!("{} . inet_proto . inet_service", family.address);
            rules.set(named_set(name, *protocol, family), &kind, elements);
        }
        let selves: BTreeSet<_> = plan.isolated.keys().map(|(_, address)| *address).collect();
        let selves = selves.iter().filter(|address| family.has(address)).map(|ip| format!("{ip} . {ip}")).collect();
        rules.set(format!("itself{}", family.suffix), &format!("{0} . {0}", family.address), selves);
        for direction in [Direction::Ingress, Direction::Egress] {
            let subjects = plan.isolated.iter().filter(|((way, address), _)| *way == direction && family.has(address));
            let verdicts =
                subjects.map(|((_, address), policies)| format!("{address} : goto {}", isolation(direction, policies)));
            let kind = format!("{} : verdict", family.address);
            rules.set(format!("{}{}", word(direction), family.suffix), &kind, verdicts.collect());
        }
    }
    for ((direction, _), policies) in &plan.isolated {
        let jumps = policies.iter().map(|policy| format!("jump {}", policy_chain(*direction, policy)));
        rules.chains.insert(isolation(*direction, policies), jumps.chain(["drop".to_owned()]).collect());
    }
    for ((direction, policy), admitted) in &plan.policies {
        let lines = admitted.iter().flat_map(|rule| lines(*direction, rule)).collect();
        rules.chains.insert(policy_chain(*direction, policy), lines);
    }
    rules
}

/// What is there without any policy.
fn base(rules: &mut Ruleset, settings: &Settings) {
    let always = [
        // Also answers, and what a router says about a connection.
        "ct state established,related accept",
        // Neighbours on one bridge find each other by these; nothing else can be said with them.
        "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report } accept",
    ];
    let itself = FAMILIES.iter().map(|f| format!("{0} saddr . {0} daddr @itself{1} accept", f.ip, f.suffix));
    let always: Vec<String> = always.into_iter().map(str::to_owned).chain(itself).collect();
    let chain = |hook: &str, rest: Vec<String>| [vec![hook.to_owned()], always.clone(), rest].concat();
    let send = FAMILIES.iter().map(|f| format!("{} saddr vmap @egress{}", f.ip, f.suffix));
    let receive = FAMILIES.iter().map(|f| format!("{} daddr vmap @ingress{}", f.ip, f.suffix));
    let ask = settings.dns.iter().map(|address| {
        let Family { ip, suffix, .. } = &FAMILIES[usize::from(address.is_ipv6())];
        format!("{ip} daddr {address} {ip} saddr vmap @egress{suffix}")
    });
    rules.chains.insert("send".into(), chain("type filter hook forward priority -20", send.collect()));
    rules.chains.insert("receive".into(), chain("type filter hook forward priority -10", receive.collect()));
    rules.chains.insert("ask".into(), chain("type filter hook input priority -20", ask.collect()));
}

fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

/// Names in the kernel are short, and policies' are not.
fn short(text: &str) -> String {
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, text.as_bytes()).simple().to_string()
}

fn policy_chain(direction: Direction, policy: &str) -> String {
    let name = if policy.len() <= 128 { policy.to_owned() } else { short(policy) };
    format!("{}/{name}", word(direction))
}

/// Pods that the same policies select share a chain.
fn isolation(direction: Direction, policies: &BTreeSet<String>) -> String {
    let all: Vec<_> = policies.iter().map(String::as_str).collect();
    format!("isolate/{}/{}", word(direction), short(&all.join(" ")))
}

fn group_set(group: &str, family: &Family) -> String {
    format!("pods/{}/{}", short(group), family.suffix)
}

fn named_set(name: &str, protocol: Protocol, family: &Family) -> String {
    format!("port/{name}/{}/{}", protocol.word(), family.suffix)
}

/// Every way to satisfy a rule, as lines that accept.
fn lines(direction: Direction, rule: &Rule) -> Vec<String> {
    let mut lines = Vec::new();
    for family in &FAMILIES {
        let peers: Vec<String> = if rule.peers.is_empty() {
            vec![String::new()]
        } else {
            rule.peers.iter().filter_map(|peer| self::peer(direction, peer, family)).collect()
        };
        let ports: Vec<String> = if rule.ports.is_empty() { vec![String::new()] } else { ports(rule, family) };
        let version = if family.is_v6 { "meta nfproto ipv6" } else { "meta nfproto ipv4" };
        for peer in &peers {
            for port in &ports {
                let words = [version, peer, port, "accept"].into_iter().filter(|word| !word.is_empty());
                lines.push(words.collect::<Vec<_>>().join(" "));
            }
        }
    }
    lines
}

/// Nothing, where the peer has no address of the family.
fn peer(direction: Direction, peer: &Peer, Family { ip, is_v6, .. }: &Family) -> Option<String> {
    let end = if direction == Direction::Ingress { "saddr" } else { "daddr" };
    match peer {
        Peer::Group(group) => {
            let family = &FAMILIES[usize::from(*is_v6)];
            Some(format!("{ip} {end} @{}", group_set(group, family)))
        }
        Peer::Block { net, .. } if net.addr().is_ipv6() != *is_v6 => None,
        Peer::Block { net, except } => {
            let mut text = match net.prefix_len() {
                0 => String::new(),
                _ => format!("{ip} {end} {net}"),
            };
            // One after the other: in a set they must not overlap, and the author may write them so.
            for hole in except.iter().filter(|hole| hole.addr().is_ipv6() == *is_v6) {
                if hole.prefix_len() == 0 {
                    return None;
                }
                let _ = write!(text, "{}{ip} {end} != {}", if text.is_empty() { "" } else { " " }, hole.trunc());
            }
            Some(text)
        }
    }
}

fn ports(rule: &Rule, family: &Family) -> Vec<String> {
    let mut found = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let word = protocol.word();
        let ranges = rule.ports.iter().filter_map(|port| match port {
            Port::Range(of, first, last) if *of == protocol => Some((*first, *last)),
            _ => None,
        });
        let ranges = merged(ranges.collect());
        if rule.ports.contains(&Port::All(protocol)) {
            found.push(format!("meta l4proto {word}"));
        } else if !ranges.is_empty() {
            let text = |(first, last): &(u16, u16)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            };
            let ranges: Vec<_> = ranges.iter().map(text).collect();
            found.push(format!("{word} dport {{ {} }}", ranges.join(", ")));
        }
    }
    for port in &rule.ports {
        if let Port::Named(protocol, name) = port {
            let set = named_set(name, *protocol, family);
            found.push(format!("{} daddr . meta l4proto . th dport @{set}", family.ip));
        }
    }
    found
}

/// Sorted, and without overlaps, which the kernel refuses.
fn merged(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.retain(|(first, last)| first <= last);
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

#[cfg(test)]
mod tests;
