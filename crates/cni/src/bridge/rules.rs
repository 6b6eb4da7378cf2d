//! Rules of nftables for one port: who may be the sender of its frames, and masquerading. The texts are pure.
//!
//! One table of each kind is the plugin's. A port's rules are a chain of the port's name, so they are taken away by that name alone, in one
//! transaction that succeeds whether they are there or not.

use std::net::IpAddr;

use ipnet::IpNet;
use net::nft;

use crate::call::mac_text;
use crate::error::Error;

const TABLE: &str = "ferrovirt_cni";

/// Lets only frames of `mac` in by `port`. The port is found in a map: frames of other ports meet no rule more for it.
fn sender_text(port: &str, mac: &[u8]) -> String {
    format!(
        "{}flush chain bridge {TABLE} prerouting\n\
         add rule bridge {TABLE} prerouting iifname vmap @ports\n\
         add chain bridge {TABLE} {port}\n\
         flush chain bridge {TABLE} {port}\n\
         add rule bridge {TABLE} {port} ether saddr {} return\n\
         add rule bridge {TABLE} {port} drop\n\
         add element bridge {TABLE} ports {{ \"{port}\" : jump {port} }}\n",
        sender_frame(),
        mac_text(mac),
    )
}

fn sender_frame() -> String {
    format!(
        "add table bridge {TABLE}\n\
         add map bridge {TABLE} ports {{ type ifname : verdict; }}\n\
         add chain bridge {TABLE} prerouting {{ type filter hook prerouting priority -300; policy accept; }}\n"
    )
}

fn no_sender_text(port: &str) -> String {
    format!(
        "{}add chain bridge {TABLE} {port}\n\
         add element bridge {TABLE} ports {{ \"{port}\" : jump {port} }}\n\
         delete element bridge {TABLE} ports {{ \"{port}\" }}\n\
         flush chain bridge {TABLE} {port}\n\
         delete chain bridge {TABLE} {port}\n",
        sender_frame(),
    )
}

fn masquerade_frame(port: &str) -> String {
    format!(
        "add table inet {TABLE}\n\
         add chain inet {TABLE} {port} {{ type nat hook postrouting priority 100; policy accept; }}\n\
         flush chain inet {TABLE} {port}\n"
    )
}

/// Gives what leaves the networks of `addresses` the node's address.
fn masquerade_text(port: &str, addresses: &[IpNet]) -> String {
    let mut text = masquerade_frame(port);
    for address in addresses {
        let (family, groups) = match address.addr() {
            IpAddr::V4(_) => ("ip", "224.0.0.0/4"),
            IpAddr::V6(_) => ("ip6", "ff00::/8"),
        };
        text += &format!(
            "add rule inet {TABLE} {port} {family} saddr {} {family} daddr != {} {family} daddr != {groups} masquerade\n",
            address.addr(),
            address.trunc(),
        );
    }
    text
}

fn no_masquerade_text(port: &str) -> String {
    format!("{}delete chain inet {TABLE} {port}\n", masquerade_frame(port))
}

fn load(what: String, text: &str) -> Result<(), Error> {
    nft::load(text).map_err(|source| Error::Rules { what, source })
}

/// See [`sender_text`].
pub(super) fn check_sender(port: &str, mac: &[u8]) -> Result<(), Error> {
    load(format!("restrict the senders at {port}, as macspoofchk asks for"), &sender_text(port, mac))
}

/// Takes the rule away, if it is there.
pub(super) fn uncheck_sender(port: &str) -> Result<(), Error> {
    load(format!("take the rules about senders at {port} away"), &no_sender_text(port))
}

/// See [`masquerade_text`].
pub(super) fn masquerade(port: &str, addresses: &[IpNet]) -> Result<(), Error> {
    load(format!("masquerade what comes from {port}, as ipMasq asks for"), &masquerade_text(port, addresses))
}

/// Takes the rules away, if they are there.
pub(super) fn unmasquerade(port: &str) -> Result<(), Error> {
    load(format!("take the masquerading of {port} away"), &no_masquerade_text(port))
}

/// The chains of the plugin's tables: the family of the table, and the port.
pub(super) fn chains() -> Result<Vec<(&'static str, String)>, Error> {
    let all = nft::list().map_err(|source| Error::Rules { what: "list the rules of ports".to_owned(), source })?;
    Ok(chains_of(&all))
}

fn chains_of(ruleset: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut family = None;
    for line in ruleset.lines() {
        if let Some(table) = line.strip_prefix("table ") {
            family = ["bridge", "inet"].into_iter().find(|family| table.starts_with(&format!("{family} {TABLE} ")));
        }
        let chain = line.trim_start().strip_prefix("chain ").and_then(|rest| rest.split(' ').next());
        if let (Some(family), Some(port)) = (family, chain.filter(|name| name.starts_with("veth"))) {
            found.push((family, port.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_the_port_and_its_addresses() {
        let text = sender_text("veth1", &[2, 0, 0, 0, 0, 1]);
        assert!(text.contains("add rule bridge ferrovirt_cni veth1 ether saddr 02:00:00:00:00:01 return\n"), "{text}");
        let text = masquerade_text("veth1", &["10.1.0.2/24".parse().unwrap(), "fd00:1::2/64".parse().unwrap()]);
        assert!(
            text.contains("ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24 ip daddr != 224.0.0.0/4 masquerade"),
            "{text}"
        );
        assert!(
            text.contains("ip6 saddr fd00:1::2 ip6 daddr != fd00:1::/64 ip6 daddr != ff00::/8 masquerade"),
            "{text}"
        );
    }

    #[test]
    fn only_chains_of_the_plugin_are_its_own() {
        let ruleset = "table inet other {\n\tchain veth1 {\n\t}\n}\ntable bridge ferrovirt_cni {\n\tmap ports {\n\t}\n\tchain prerouting {\n\t}\n\
                       \tchain veth2 {\n\t}\n}\ntable inet ferrovirt_cni {\n\tchain veth3 {\n\t}\n}\n";
        assert_eq!(chains_of(ruleset), [("bridge", "veth2".to_owned()), ("inet", "veth3".to_owned())]);
    }
}
