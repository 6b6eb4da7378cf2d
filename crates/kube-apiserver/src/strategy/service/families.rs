//! Which address families a Service has: what it asks for, within what the cluster has.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use apimachinery::error::ApiError;

use super::super::invalid;
use super::{is_empty, is_headless, refuse, text, texts};

pub(super) fn of(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

pub(super) fn of_range(range: &IpNet) -> &'static str {
    if matches!(range, IpNet::V4(_)) { "IPv4" } else { "IPv6" }
}

/// The families of a Service, written into its spec together with the policy.
pub(super) fn settle(ranges: &[IpNet], old: Option<&Value>, object: &mut Value) -> Result<(), ApiError> {
    let available: Vec<&'static str> = ranges.iter().map(of_range).collect();
    let anywhere =
        is_headless(&object["spec"]) && object["spec"]["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    let spec = &mut object["spec"];
    if text(spec, "ipFamilyPolicy").is_empty() {
        // Without a selector its author writes the endpoints, of whichever family.
        spec["ipFamilyPolicy"] = if anywhere { "RequireDualStack" } else { "SingleStack" }.into();
    }
    let policy = text(spec, "ipFamilyPolicy").to_owned();
    let mut causes = Vec::new();
    reduce(old, spec, &policy, &mut causes);
    for (list, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if policy == "SingleStack" && texts(spec, list).len() == 2 {
            let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            invalid("spec.ipFamilyPolicy", &json!(policy), &why, &mut causes);
        }
    }
    let mut families: Vec<String> = texts(spec, "ipFamilies").into_iter().map(str::to_owned).collect();
    for (index, ip) in texts(spec, "clusterIPs").iter().enumerate().skip(families.len()) {
        let Ok(ip) = ip.parse::<IpAddr>() else { break };
        if !available.contains(&of(&ip)) {
            let why = format!("{} is not configured on this cluster", of(&ip));
            invalid(&format!("spec.clusterIPs[{index}]"), &spec["clusterIPs"], &why, &mut causes);
        }
        families.push(of(&ip).to_owned());
    }
    if !anywhere {
        if policy == "RequireDualStack" && available.len() < 2 {
            let why = "this cluster is not configured for dual-stack services";
            invalid("spec.ipFamilyPolicy", &json!(policy), why, &mut causes);
        }
        for (index, family) in families.iter().enumerate().filter(|(_, f)| !available.contains(&f.as_str())) {
            let field = format!("spec.ipFamilies[{index}]");
            invalid(&field, &json!(family), "not configured on this cluster", &mut causes);
        }
    }
    if !causes.is_empty() {
        return Err(refuse(object, causes));
    }
    if families.is_empty() {
        families.push(available.first().copied().unwrap_or("IPv4").to_owned());
    }
    if policy != "SingleStack" && families.len() == 1 && (anywhere || available.len() == 2) {
        families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
    }
    object["spec"]["ipFamilies"] = json!(families);
    Ok(())
}

/// An update to one family gives the second back; one that leaves the second out must say so by the policy.
fn reduce(old: Option<&Value>, spec: &mut Value, policy: &str, causes: &mut Vec<apimachinery::error::Cause>) {
    let Some(before) = old.map(|old| &old["spec"]) else { return };
    for (list, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (had, has) = (texts(before, list), texts(spec, list));
        if policy == "SingleStack" {
            if had == has && has.len() > 1 {
                spec[list] = json!([has[0]]);
            }
        } else if had.len() == 2 && has.len() == 1 && had[0] == has[0] && !is_empty(spec, list) {
            let why = format!("must be 'SingleStack' to release the secondary {what}");
            invalid("spec.ipFamilyPolicy", &json!(policy), &why, causes);
        }
    }
}
