//! What a Service may say. The sentences are those clients of Kubernetes know.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::super::{invalid, one_of, required, rules};
use super::{
    has_address, has_health_check, has_node_ports, is_empty, is_external, is_headless, is_load_balancer, text, texts,
};

const KUBELET_PORT: i64 = 10250;
const LONGEST_AFFINITY: i64 = 86_400;
const PORT: &str = "must be between 1 and 65535, inclusive";
pub(in super::super) const ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const BALANCER_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
const FIXED: &str = "may not change once set";

fn forbidden(field: &str, why: &str, causes: &mut Vec<Cause>) {
    causes.push(cause("FieldValueForbidden", field, format!("Forbidden: {why}")));
}

fn duplicate(field: &str, value: &Value, causes: &mut Vec<Cause>) {
    causes.push(cause("FieldValueDuplicate", field, format!("Duplicate value: {value}")));
}

/// Checks a Service by itself.
pub(in super::super) fn validate(spec: &Value, causes: &mut Vec<Cause>) {
    one_of("spec.type", &spec["type"], &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], causes);
    if is_empty(spec, "ports") && !is_headless(spec) && has_address(spec) {
        required("spec.ports", causes);
    }
    by_type(spec, causes);
    ports(spec, causes);
    affinity(spec, causes);
    addresses(spec, causes);
    outside(spec, causes);
    one_of("spec.internalTrafficPolicy", &spec["internalTrafficPolicy"], &["Cluster", "Local"], causes);
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    one_of("spec.trafficDistribution", &spec["trafficDistribution"], &distributions, causes);
    for (key, value) in spec["selector"].as_object().into_iter().flatten() {
        for (said, why) in
            [(json!(key), rules::qualified(key)), (value.clone(), value.as_str().and_then(rules::label_value))]
        {
            if let Some(why) = why {
                invalid("spec.selector", &said, &why, causes);
            }
        }
    }
}

/// Checks what an update may not change.
pub(in super::super) fn validate_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    // What does not fit is told of the addresses alone.
    let fits = !causes.iter().any(|cause| cause.field.starts_with("spec.clusterIPs"));
    if fits && has_address(old) && has_address(new) {
        for (list, what) in [("clusterIPs", "spec.clusterIPs[0]"), ("ipFamilies", "spec.ipFamilies[0]")] {
            let (before, now) = (texts(old, list), texts(new, list));
            if let (Some(before), Some(now)) = (before.first(), now.first())
                && before != now
            {
                invalid(what, &new[list], FIXED, causes);
            }
            if let (Some(before), Some(now)) = (before.get(1), now.get(1))
                && before != now
            {
                invalid(&what.replace('0', "1"), &new[list], FIXED, causes);
            }
        }
    }
    if has_health_check(old) && has_health_check(new) && old["healthCheckNodePort"] != new["healthCheckNodePort"] {
        invalid("spec.healthCheckNodePort", &new["healthCheckNodePort"], "field is immutable", causes);
    }
    if is_load_balancer(old) && is_load_balancer(new) && old["loadBalancerClass"] != new["loadBalancerClass"] {
        invalid("spec.loadBalancerClass", &new["loadBalancerClass"], FIXED, causes);
    }
}

fn by_type(spec: &Value, causes: &mut Vec<Cause>) {
    let kind = text(spec, "type");
    if kind == "ExternalName" {
        for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let is_set = !is_empty(spec, field) || (field == "clusterIPs" && !text(spec, "clusterIP").is_empty());
            if is_set {
                forbidden(&format!("spec.{field}"), "may not be set for ExternalName services", causes);
            }
        }
        let name = text(spec, "externalName");
        if name.is_empty() {
            required("spec.externalName", causes);
        } else if let Some(why) = apimachinery::names::subdomain_problem(name.strip_suffix('.').unwrap_or(name)) {
            invalid("spec.externalName", &json!(name), why, causes);
        }
    }
    if has_node_ports(spec) && is_headless(spec) {
        let why = format!("may not be set to 'None' for {kind} services");
        invalid("spec.clusterIPs[0]", &json!("None"), &why, causes);
    }
    if is_load_balancer(spec) {
        for (index, _) in all(spec, "ports").iter().enumerate().filter(|(_, port)| port["port"] == KUBELET_PORT) {
            let why = format!("may not expose port {KUBELET_PORT} externally since it is used by kubelet");
            invalid(&format!("spec.ports[{index}]"), &json!(KUBELET_PORT), &why, causes);
        }
    } else {
        for (field, shown) in [
            ("loadBalancerSourceRanges", "LoadBalancerSourceRanges"),
            ("allocateLoadBalancerNodePorts", "allocateLoadBalancerNodePorts"),
            ("loadBalancerClass", "loadBalancerClass"),
        ] {
            if !is_empty(spec, field) {
                forbidden(&format!("spec.{shown}"), BALANCER_ONLY, causes);
            }
        }
    }
    for (index, range) in texts(spec, "loadBalancerSourceRanges").iter().enumerate() {
        if range.trim().parse::<IpNet>().is_err() {
            invalid(&format!("spec.LoadBalancerSourceRanges[{index}]"), &json!(range), RANGE, causes);
        }
    }
}

fn all<'a>(spec: &'a Value, key: &str) -> &'a [Value] {
    spec[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn ports(spec: &Value, causes: &mut Vec<Cause>) {
    let ports = all(spec, "ports");
    let (mut names, mut pairs, mut node_ports) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        let name = text(port, "name");
        if name.is_empty() && ports.len() > 1 {
            required(&format!("{at}.name"), causes);
        } else if !name.is_empty() {
            if let Some(why) = apimachinery::names::label_problem(name) {
                invalid(&format!("{at}.name"), &json!(name), why, causes);
            } else if !names.insert(name) {
                duplicate(&format!("{at}.name"), &json!(name), causes);
            }
        }
        for field in ["port", "targetPort"] {
            let zero = json!(0);
            let value = if port[field].is_null() { &zero } else { &port[field] };
            number(&format!("{at}.{field}"), value, causes);
        }
        one_of(&format!("{at}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"], causes);
        target(&format!("{at}.targetPort"), &port["targetPort"], causes);
        let node_port = port["nodePort"].as_i64().unwrap_or(0);
        if node_port != 0 && !has_node_ports(spec) {
            let why = format!("may not be used when `type` is '{}'", text(spec, "type"));
            forbidden(&format!("{at}.nodePort"), &why, causes);
        } else if node_port != 0 && !node_ports.insert((node_port, text(port, "protocol"))) {
            invalid(&format!("{at}.nodePort"), &json!(node_port), "provided port is already allocated", causes);
        }
        if let Some(why) = port["appProtocol"].as_str().and_then(rules::qualified) {
            invalid(&format!("{at}.appProtocol"), &port["appProtocol"], &why, causes);
        }
        if !pairs.insert((port["port"].to_string(), text(port, "protocol"))) {
            if node_port == 0 && has_node_ports(spec) {
                // Two of the same port are given the same port of the nodes.
                duplicate(&format!("{at}.nodePort"), &json!(node_port), causes);
            }
            duplicate(&at, &json!({"port": port["port"], "protocol": port["protocol"]}), causes);
        }
    }
}

fn number(field: &str, value: &Value, causes: &mut Vec<Cause>) {
    if value.as_i64().is_some_and(|number| !(1..=65535).contains(&number)) {
        invalid(field, value, PORT, causes);
    }
}

fn target(field: &str, value: &Value, causes: &mut Vec<Cause>) {
    if let Some(name) = value.as_str() {
        port_name_problems(name).for_each(|why| invalid(field, value, why, causes));
    }
}

/// Why a name cannot be that of a port, each reason by itself.
pub(in super::super) fn port_name_problems(name: &str) -> impl Iterator<Item = &'static str> {
    let words = [
        (name.len() > 15, "must be no more than 15 characters"),
        (
            !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (!name.contains(|c: char| c.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (name.contains("--"), "must not contain consecutive hyphens"),
        (name.starts_with('-') || name.ends_with('-'), "must not begin or end with a hyphen"),
    ];
    words.into_iter().filter(|(wrong, _)| *wrong).map(|(_, why)| why)
}

fn affinity(spec: &Value, causes: &mut Vec<Cause>) {
    one_of("spec.sessionAffinity", &spec["sessionAffinity"], &["ClientIP", "None"], causes);
    let config = spec.get("sessionAffinityConfig").filter(|config| !config.is_null());
    match (text(spec, "sessionAffinity"), config) {
        ("ClientIP", Some(config)) => {
            let seconds = &config["clientIP"]["timeoutSeconds"];
            if seconds.as_i64().is_some_and(|seconds| seconds <= 0 || seconds > LONGEST_AFFINITY) {
                let why = format!("must be greater than 0 and less than {LONGEST_AFFINITY}");
                invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, &why, causes);
            }
        }
        ("None", Some(_)) => {
            forbidden("spec.sessionAffinityConfig", "must not be set when session affinity is None", causes);
        }
        _ => {}
    }
}

fn addresses(spec: &Value, causes: &mut Vec<Cause>) {
    const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    if !has_address(spec) {
        return;
    }
    one_of("spec.ipFamilyPolicy", &spec["ipFamilyPolicy"], &POLICIES, causes);
    let families = texts(spec, "ipFamilies");
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        one_of(&field, &json!(family), &["IPv4", "IPv6"], causes);
        if families[..index].contains(family) {
            duplicate(&field, &json!(family), causes);
        }
    }
    let ips = texts(spec, "clusterIPs");
    let first = text(spec, "clusterIP");
    if ips.len() > 2 {
        invalid("spec.clusterIPs", &spec["clusterIPs"], "may only hold up to 2 values", causes);
    }
    if !ips.is_empty() && first.is_empty() {
        invalid("spec.clusterIPs", &spec["clusterIPs"], "must be empty when `clusterIP` is not specified", causes);
    } else if ips.first().is_some_and(|ip| *ip != first) {
        invalid("spec.clusterIPs", &spec["clusterIPs"], "first value must match `clusterIP`", causes);
    }
    if is_headless(spec) {
        for (index, ip) in ips.iter().enumerate().skip(1) {
            let why = "may not be set when headless service is requested";
            invalid(&format!("spec.clusterIPs[{index}]"), &json!(ip), why, causes);
        }
        return;
    }
    let mut seen = HashSet::new();
    for (index, text) in ips.iter().enumerate() {
        let field = format!("spec.clusterIPs[{index}]");
        let Ok(ip) = text.parse::<IpAddr>() else {
            invalid(&field, &json!(text), ADDRESS, causes);
            continue;
        };
        let family = super::families::of(&ip);
        if families.get(index).is_some_and(|expected| *expected != family) {
            let why = format!("expected an {} value as indicated by `ipFamilies[{index}]`", families[index]);
            invalid(&field, &json!(text), &why, causes);
        } else if !seen.insert(family) {
            let why = "may specify no more than one IP for each IP family";
            invalid("spec.clusterIPs", &spec["clusterIPs"], why, causes);
        }
    }
    if ips.is_empty() && !first.is_empty() && first.parse::<IpAddr>().is_err() {
        invalid("spec.clusterIPs[0]", &json!(first), ADDRESS, causes);
    }
}

fn outside(spec: &Value, causes: &mut Vec<Cause>) {
    for (index, ip) in texts(spec, "externalIPs").iter().enumerate() {
        if let Some(why) = special(ip) {
            invalid(&format!("spec.externalIPs[{index}]"), &json!(ip), why, causes);
        }
    }
    let policy = &spec["externalTrafficPolicy"];
    if is_external(spec) {
        one_of("spec.externalTrafficPolicy", policy, &["Cluster", "Local"], causes);
    } else if policy.as_str().is_some_and(|policy| !policy.is_empty()) {
        invalid("spec.externalTrafficPolicy", policy, "may only be set for externally-accessible services", causes);
    }
    let port = &spec["healthCheckNodePort"];
    if has_health_check(spec) {
        if port != 0 {
            number("spec.healthCheckNodePort", port, causes);
        }
    } else if port.as_i64().unwrap_or(0) != 0 {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        invalid("spec.healthCheckNodePort", port, why, causes);
    }
}

/// Why an address cannot be one of the outside.
pub(in super::super) fn special(text: &str) -> Option<&'static str> {
    let Ok(ip) = text.parse::<IpAddr>() else { return Some(ADDRESS) };
    let (link_local, multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] == 0xff02),
    };
    match () {
        () if ip.is_unspecified() => Some("may not be unspecified (0.0.0.0 or ::)"),
        () if ip.is_loopback() => Some("may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        () if link_local => Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        () if multicast => Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
        () => None,
    }
}

#[cfg(test)]
mod tests;
