//! A reader of the rules' text: what would become of the first packet of a connection?

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::Ruleset;

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) protocol: String,
    pub(super) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Accept,
    Drop,
}

impl Packet {
    /// `10.0.0.1 10.0.0.2 tcp 80`
    pub(super) fn parse(text: &str) -> Self {
        let words: Vec<_> = text.split(' ').collect();
        let [from, to, protocol, port] = words[..] else { panic!("{text}") };
        Self {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            protocol: protocol.into(),
            port: port.parse().unwrap(),
        }
    }

    /// Whether it is let through; what is for cluster DNS does not go further than the node.
    pub(super) fn passes(&self, rules: &Ruleset) -> bool {
        let asks = super::settings().dns.contains(&self.to);
        let chains: &[&str] = if asks { &["ask"] } else { &["send", "receive"] };
        chains.iter().all(|chain| self.run(rules, chain) != Some(Verdict::Drop))
    }

    fn run(&self, rules: &Ruleset, chain: &str) -> Option<Verdict> {
        for line in &rules.chains[chain] {
            let skipped = ["type filter", "ct state", "icmpv6 type"].iter().any(|start| line.starts_with(start));
            if skipped {
                continue;
            }
            if let Some(end) = self.line(rules, line) {
                return end;
            }
        }
        None
    }

    /// None: on to the next line. Some(None): the chain ends without a verdict.
    fn line(&self, rules: &Ruleset, line: &str) -> Option<Option<Verdict>> {
        let words: Vec<&str> = line.split(' ').collect();
        let mut rest = words.as_slice();
        loop {
            let (matches, left) = match rest {
                ["accept"] => return Some(Some(Verdict::Accept)),
                ["drop"] => return Some(Some(Verdict::Drop)),
                ["jump", chain] => return self.run(rules, chain).map(Some),
                [ip, end, "vmap", map] => {
                    let address = self.end(ip, end)?;
                    let key = format!("{address} : goto ");
                    let found = rules.sets[&map[1..]].elements.iter().find_map(|element| element.strip_prefix(&key))?;
                    return Some(self.run(rules, found));
                }
                ["meta", "nfproto", version, left @ ..] => ((*version == "ipv6") == self.from.is_ipv6(), left),
                ["meta", "l4proto", protocol, left @ ..] => (*protocol == self.protocol, left),
                [ip, "saddr", ".", _, "daddr", set, left @ ..] if set.starts_with('@') => {
                    let both = self.end(ip, "saddr").is_some()
                        && rules.sets[&set[1..]].elements.contains(&format!("{} . {}", self.from, self.to));
                    (both, left)
                }
                [ip, "daddr", ".", "meta", "l4proto", ".", "th", "dport", set, left @ ..] => {
                    let key = format!("{} . {} . {}", self.to, self.protocol, self.port);
                    (self.end(ip, "daddr").is_some() && rules.sets[&set[1..]].elements.contains(&key), left)
                }
                [protocol, "dport", "{", left @ ..] => {
                    let close = left.iter().position(|word| *word == "}").unwrap();
                    let within = left[..close].iter().any(|range| {
                        let range = range.trim_end_matches(',');
                        let (first, last) = range.split_once('-').unwrap_or((range, range));
                        (first.parse::<u16>().unwrap()..=last.parse().unwrap()).contains(&self.port)
                    });
                    (*protocol == self.protocol && within, &left[close + 1..])
                }
                [ip, end, "!=", net, left @ ..] => {
                    (self.end(ip, end).is_some_and(|address| !net_of(net).contains(&address)), left)
                }
                [ip, end, set, left @ ..] if set.starts_with('@') => {
                    let known = |address: IpAddr| rules.sets[&set[1..]].elements.contains(&address.to_string());
                    (self.end(ip, end).is_some_and(known), left)
                }
                [ip, end, net, left @ ..] => {
                    (self.end(ip, end).is_some_and(|address| net_of(net).contains(&address)), left)
                }
                _ => panic!("cannot read {line:?}"),
            };
            if !matches {
                return None;
            }
            rest = left;
        }
    }

    /// The address a rule looks at, when it is of the rule's family.
    fn end(&self, ip: &str, end: &str) -> Option<IpAddr> {
        let address = if end == "saddr" { self.from } else { self.to };
        (address.is_ipv6() == (ip == "ip6")).then_some(address)
    }
}

fn net_of(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| IpNet::from(text.parse::<IpAddr>().unwrap()))
}
