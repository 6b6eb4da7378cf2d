//! Names and addresses of a pod: its host name, its resolver, and the hosts that it knows.

use apimachinery::names::{label_problem, subdomain_problem};

use super::super::field::{Causes, Field, SUBDOMAIN};

const HOST_NAME: usize = 64;
const NAME_SERVERS: usize = 3;
const SEARCHES: usize = 32;
const SEARCH_LENGTH: usize = 2048;

/// Checks what of a pod spec concerns names and addresses.
pub(super) fn all(spec: &Field<'_>, causes: &mut Causes) {
    let config = spec.get("dnsConfig");
    if spec.get("dnsPolicy").text() == "None" && config.get("nameservers").is_empty() {
        if config.is_set() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            config.get("nameservers").required(why, causes);
        } else {
            config.required("must provide `dnsConfig` when `dnsPolicy` is None", causes);
        }
    }
    resolver(&config, causes);
    host_override(spec, causes);
    for alias in spec.each("hostAliases") {
        address(&alias.get("ip"), causes);
        alias.each("hostnames").for_each(|name| name.check(&SUBDOMAIN, causes));
    }
}

/// A host name that is no label and has nothing to do with the pod's place in DNS; nodes take 64 characters.
fn host_override(spec: &Field<'_>, causes: &mut Causes) {
    let name = spec.get("hostnameOverride");
    if name.is_empty() {
        return;
    }
    name.check(&SUBDOMAIN, causes);
    if name.text().len() > HOST_NAME {
        name.invalid(&format!("must be no more than {HOST_NAME} characters"), causes);
    }
    if spec.get("hostNetwork").value == true {
        name.forbidden("may not be set when `hostNetwork` is true", causes);
    }
    if spec.get("setHostnameAsFQDN").value == true {
        name.forbidden("may not be set when `setHostnameAsFQDN` is true", causes);
    }
}

fn resolver(config: &Field<'_>, causes: &mut Causes) {
    if config.each("nameservers").count() > NAME_SERVERS {
        let why = format!("must not have more than {NAME_SERVERS} nameservers");
        config.get("nameservers").invalid(&why, causes);
    }
    config.each("nameservers").for_each(|server| address(&server, causes));
    if config.each("searches").count() > SEARCHES {
        config.get("searches").invalid(&format!("must not have more than {SEARCHES} search paths"), causes);
    }
    let length: usize = config.each("searches").map(|search| search.text().len() + 1).sum();
    if length > SEARCH_LENGTH + 1 {
        let why = format!("must not have more than {SEARCH_LENGTH} characters (including spaces) in the search list");
        config.get("searches").invalid(&why, causes);
    }
    for search in config.each("searches") {
        // Names of services begin with underscores, and a single dot is the root.
        let name = search.text().strip_suffix('.').unwrap_or(search.text());
        let plain = name.split('.').map(|label| label.trim_start_matches('_')).collect::<Vec<_>>().join(".");
        if let Some(why) = subdomain_problem(&plain).filter(|_| !name.is_empty()) {
            search.invalid(why, causes);
        }
    }
    for option in config.each("options") {
        if option.get("name").is_empty() {
            option.required("must not be empty", causes);
        }
    }
}

/// An address as programs of every age read it.
pub(super) fn address(address: &Field<'_>, causes: &mut Causes) {
    let text = address.text();
    if text.parse::<std::net::IpAddr>().is_ok() {
        return;
    }
    let octets: Vec<Option<u8>> = text.split('.').map(|octet| octet.parse().ok()).collect();
    let zeros = octets.len() == 4 && octets.iter().all(Option::is_some);
    let why = if zeros {
        "must not have leading 0s"
    } else {
        "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    };
    address.invalid_word(text, why, causes);
}

/// What is wrong with the name of a host.
pub(super) fn host_problem(name: &str) -> Option<String> {
    let dotted = name.contains('.') && subdomain_problem(name).is_none();
    if dotted { Some("must not contain dots".into()) } else { label_problem(name).map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_name_that_overrides_is_a_name_that_a_node_can_have() {
        let check = |spec: serde_json::Value, fields: &[&str]| {
            let mut causes = Vec::new();
            host_override(&Field::new("spec", &spec), &mut causes);
            let found: Vec<_> = causes.iter().map(|cause| cause.field.as_str()).collect();
            assert_eq!(found, fields, "{spec}");
        };
        let field = "spec.hostnameOverride";
        let long = |letters: usize| format!("{}.{}", "a".repeat(letters), "b".repeat(32));
        check(json!({}), &[]);
        check(json!({"hostnameOverride": "x.y", "hostNetwork": false, "setHostnameAsFQDN": false}), &[]);
        check(json!({"hostnameOverride": long(31)}), &[]);
        check(json!({"hostnameOverride": long(32)}), &[field]);
        check(json!({"hostnameOverride": "X"}), &[field]);
        check(json!({"hostnameOverride": "x", "hostNetwork": true}), &[field]);
        check(json!({"hostnameOverride": "x", "setHostnameAsFQDN": true}), &[field]);
    }

    #[test]
    fn search_lists_are_domains() {
        let check = |search: &str, good: bool| {
            let config = json!({"searches": [search]});
            let mut causes = Vec::new();
            resolver(&Field::new("dnsConfig", &config), &mut causes);
            assert_eq!(causes.is_empty(), good, "{search}");
        };
        for good in [".", "a.b", "a.b.", "_tcp.x"] {
            check(good, true);
        }
        for bad in ["a b", "A", "a..b"] {
            check(bad, false);
        }
    }
}
