//! Endpoints and EndpointSlices: addresses a Service may send to, and their ports.

use std::net::IpAddr;

use serde_json::{Value, json};

use apimachinery::error::Cause;

use super::rules::{self, Must, Rules};
use super::service::{ADDRESS, special};
use super::{invalid, required};

const PROTOCOLS: Must = Must::OneOf(&["SCTP", "TCP", "UDP"]);

const ADDRESSES: Rules =
    &[("hostname", &[Must::ReadIfAny(rules::label)]), ("nodeName", &[Must::ReadIfSet(rules::subdomain)])];

const PORTS: Rules = &[
    ("name", &[Must::ReadIfAny(rules::label)]),
    ("port", &[Must::Lie(1, 65535, rules::PORT)]),
    ("protocol", &[PROTOCOLS]),
    ("appProtocol", &[Must::ReadIfSet(rules::qualified)]),
];

pub(super) const SLICE: Rules = &[
    ("addressType", &[Must::Be]),
    ("endpoints", &[Must::HoldAtMost(1000)]),
    ("endpoints[].addresses", &[Must::BeFor("must contain at least 1 address"), Must::HoldAtMost(100)]),
    ("endpoints[].hostname", &[Must::ReadIfSet(rules::label)]),
    ("endpoints[].nodeName", &[Must::ReadIfSet(rules::subdomain)]),
    ("endpoints[].hints.forZones", &[Must::HoldAtMost(8), Must::Differ("name")]),
    ("endpoints[].hints.forZones[].name", &[Must::Read(rules::label_value)]),
    ("endpoints[].hints.forNodes", &[Must::HoldAtMost(8), Must::Differ("name")]),
    ("ports", &[Must::HoldAtMost(20_000), Must::Differ("name")]),
    ("ports[].name", &[Must::ReadIfAny(rules::label)]),
    ("ports[].protocol", &[PROTOCOLS]),
    ("ports[].appProtocol", &[Must::ReadIfSet(rules::qualified)]),
];

/// Checks an EndpointSlice.
pub(super) fn slice(object: &Value, causes: &mut Vec<Cause>) {
    rules::check(object, SLICE, causes);
    let family = object["addressType"].as_str().unwrap_or_default();
    if !family.is_empty() {
        super::one_of("addressType", &object["addressType"], &["FQDN", "IPv4", "IPv6"], causes);
    }
    for (index, endpoint) in each(&object["endpoints"]) {
        let list = format!("endpoints[{index}].addresses");
        if endpoint["addresses"].as_array().is_some_and(|all| all.len() > 100) {
            continue;
        }
        for (number, address) in each(&endpoint["addresses"]) {
            let text = address.as_str().unwrap_or_default();
            let ip: Option<IpAddr> = text.parse().ok();
            let padded = |part: &str| part.len() > 1 && part.starts_with('0');
            let four = text.split('.').count() == 4 && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            match family {
                "IPv4" if four && text.split('.').any(padded) => {
                    invalid(&format!("{list}[{number}]"), address, "must not have leading 0s", causes);
                }
                "IPv4" if !ip.is_some_and(|ip| ip.is_ipv4()) => {
                    invalid(&list, address, "must be an IPv4 address", causes);
                }
                "IPv6" if !ip.is_some_and(|ip| ip.is_ipv6()) => {
                    invalid(&list, address, "must be an IPv6 address", causes);
                }
                "IPv4" | "IPv6" => {
                    if let Some(why) = special(text) {
                        invalid(&format!("{list}[{number}]"), address, why, causes);
                    }
                }
                "FQDN" => {
                    if let Some(why) = rules::subdomain(text) {
                        invalid(&format!("{list}[{number}]"), address, &why, causes);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Checks Endpoints.
pub(super) fn endpoints(object: &Value, causes: &mut Vec<Cause>) {
    for (index, subset) in each(&object["subsets"]) {
        let at = format!("subsets[{index}]");
        if rules::empty(&subset["addresses"]) && rules::empty(&subset["notReadyAddresses"]) {
            let message = "Required value: must specify `addresses` or `notReadyAddresses`".to_owned();
            causes.push(apimachinery::schema::validate::cause("FieldValueRequired", &at, message));
        }
        for list in ["addresses", "notReadyAddresses"] {
            for (number, address) in each(&subset[list]) {
                let at = format!("{at}.{list}[{number}]");
                let ip = address["ip"].as_str().unwrap_or_default();
                if ip.parse::<IpAddr>().is_err() {
                    invalid(&format!("{at}.ip"), &json!(ip), ADDRESS, causes);
                } else if let Some(why) = special(ip) {
                    invalid(&format!("{at}.ip"), &json!(ip), why, causes);
                }
                rules::check_at(&at, address, ADDRESSES, causes);
            }
        }
        let ports = subset["ports"].as_array().map_or(0, Vec::len);
        for (number, port) in each(&subset["ports"]) {
            let at = format!("{at}.ports[{number}]");
            if ports > 1 && rules::empty(&port["name"]) {
                required(&format!("{at}.name"), causes);
            }
            rules::check_at(&at, port, PORTS, causes);
        }
    }
}

fn each(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}
