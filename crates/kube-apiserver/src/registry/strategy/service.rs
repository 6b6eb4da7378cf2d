//! Services: cluster IPs and node ports, allocated from what the store holds.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use rand::Rng as _;
use serde_json::{Value, json};

use super::{invalid, one_of, required};
use crate::ApiServer;
use crate::error::{ApiError, Cause};
use crate::registry::defaults::each;

/// The low addresses of a range are for those who ask for a certain one.
const STATIC_BAND: u128 = 256;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// An update that says nothing of what was allocated keeps it.
pub(super) fn keep_allocated(old: &Value, new: &mut Value) {
    let (before, spec) = (&old["spec"], &mut new["spec"]);
    if !spec.is_object() || text(spec, "type") == "ExternalName" || text(before, "type") == "ExternalName" {
        return;
    }
    if text(spec, "clusterIP").is_empty()
        && spec.get("clusterIPs").is_none_or(|ips| ips.as_array().is_none_or(Vec::is_empty))
    {
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(value) = before.get(field) {
                spec[field] = value.clone();
            }
        }
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if let Some(value) = before.get(field)
            && spec.get(field).is_none_or(Value::is_null)
        {
            spec[field] = value.clone();
        }
    }
    if !matches!(text(spec, "type"), "NodePort" | "LoadBalancer") {
        return;
    }
    let known: Vec<Value> = before["ports"].as_array().cloned().unwrap_or_default();
    for port in each(spec, "ports") {
        if port.get("nodePort").is_none_or(|p| p.as_i64().unwrap_or(0) == 0) {
            let same = known.iter().find(|o| o["port"] == port["port"] && o["protocol"] == port["protocol"]);
            if let Some(number) = same.and_then(|o| o.get("nodePort")) {
                port["nodePort"] = number.clone();
            }
        }
    }
}

pub(super) fn validate(spec: &Value, causes: &mut Vec<Cause>) {
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    one_of("spec.type", &spec["type"], &types, causes);
    one_of("spec.sessionAffinity", &spec["sessionAffinity"], &["ClientIP", "None"], causes);
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let kind = text(spec, "type");
    if kind == "ExternalName" {
        if text(spec, "externalName").is_empty() {
            required("spec.externalName", causes);
        }
        return;
    }
    if ports.is_empty() && text(spec, "clusterIP") != "None" {
        required("spec.ports", causes);
    }
    let mut names = HashSet::new();
    let mut pairs = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        let name = text(port, "name");
        if name.is_empty() && ports.len() > 1 {
            required(&format!("{at}.name"), causes);
        } else if !names.insert(name.to_owned()) {
            let message = format!("Duplicate value: {name:?}");
            causes.push(crate::schema::validate::cause("FieldValueDuplicate", &format!("{at}.name"), message));
        }
        for field in ["port", "targetPort"] {
            match port.get(field) {
                Some(Value::Number(number)) if number.as_i64().is_none_or(|n| !(1..=65535).contains(&n)) => {
                    let why = "must be between 1 and 65535, inclusive";
                    invalid(&format!("{at}.{field}"), &port[field], why, causes);
                }
                None if field == "port" => required(&format!("{at}.port"), causes),
                _ => {}
            }
        }
        one_of(&format!("{at}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"], causes);
        if !pairs.insert((port["port"].to_string(), text(port, "protocol").to_owned())) {
            let message = format!("Duplicate value: {}", json!({"port": port["port"], "protocol": port["protocol"]}));
            causes.push(crate::schema::validate::cause("FieldValueDuplicate", &at, message));
        }
    }
}

/// Addresses and ports other Services hold.
#[derive(Default)]
struct Taken {
    addresses: HashSet<IpAddr>,
    ports: HashSet<(u16, String)>,
}

impl Taken {
    fn by_others(server: &ApiServer, namespace: &str, name: &str) -> Self {
        let mut taken = Self::default();
        for object in server.store().list("services", None).objects {
            if &*object.key.namespace == namespace && &*object.key.name == name {
                continue;
            }
            let service = object.value();
            for address in service["spec"]["clusterIPs"].as_array().into_iter().flatten() {
                taken.addresses.extend(address.as_str().and_then(|text| text.parse::<IpAddr>().ok()));
            }
            for port in service["spec"]["ports"].as_array().into_iter().flatten() {
                if let Some(number) = port["nodePort"].as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0) {
                    taken.ports.insert((number, text(port, "protocol").to_owned()));
                }
            }
        }
        taken
    }
}

fn refuse(object: &Value, field: &str, value: &Value, why: &str) -> ApiError {
    let mut causes = Vec::new();
    invalid(field, value, why, &mut causes);
    ApiError::invalid("", "Service", text(&object["metadata"], "name"), causes)
}

fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn family_of(range: &IpNet) -> &'static str {
    if matches!(range, IpNet::V4(_)) { "IPv4" } else { "IPv6" }
}

/// Gives a Service the addresses and node ports it is to have. The caller holds the turn of all Services.
pub(super) fn allocate(server: &ApiServer, old: Option<&Value>, object: &mut Value) -> Result<(), ApiError> {
    let metadata = &object["metadata"];
    let taken = Taken::by_others(server, text(metadata, "namespace"), text(metadata, "name"));
    addresses(server, &taken, old, object)?;
    node_ports(server, &taken, object)
}

fn addresses(server: &ApiServer, taken: &Taken, old: Option<&Value>, object: &mut Value) -> Result<(), ApiError> {
    if text(&object["spec"], "type") == "ExternalName" {
        if let Some(spec) = object["spec"].as_object_mut() {
            for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                spec.remove(field);
            }
        }
        return Ok(());
    }
    let ranges = &server.config().service_cidrs;
    let families = wanted_families(ranges, object)?;
    let spec = &object["spec"];
    let mut given: Vec<String> =
        spec["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let single = text(spec, "clusterIP").to_owned();
    if given.is_empty() && !single.is_empty() {
        given.push(single.clone());
    }
    if !single.is_empty() && given.first() != Some(&single) {
        return Err(refuse(object, "spec.clusterIPs", &json!(given), "first value must match `clusterIP`"));
    }
    if let Some(old) = old {
        let before = text(&old["spec"], "clusterIP");
        if !before.is_empty()
            && given.first().is_some_and(|now| now != before)
            && text(&old["spec"], "type") != "ExternalName"
        {
            return Err(refuse(object, "spec.clusterIPs[0]", &json!(given), "may not change once set"));
        }
    }
    if given.first().is_some_and(|ip| ip == "None") {
        object["spec"]["clusterIP"] = "None".into();
        object["spec"]["clusterIPs"] = json!(["None"]);
        return Ok(());
    }
    let mut chosen = Vec::new();
    for (index, family) in families.iter().enumerate() {
        let Some(range) = ranges.iter().find(|range| family_of(range) == *family) else { continue };
        match given.get(index) {
            Some(text) => {
                let address = text.parse::<IpAddr>().ok().filter(|address| range.contains(address));
                let Some(address) = address else {
                    let why = format!(
                        "failed to allocate IP {text}: the provided IP ({text}) is not in the valid range. The range of valid IPs is {range}"
                    );
                    return Err(refuse(object, "spec.clusterIPs", &json!([text]), &why));
                };
                if taken.addresses.contains(&address) {
                    let why = format!("failed to allocate IP {text}: provided IP is already allocated");
                    return Err(refuse(object, "spec.clusterIPs", &json!([text]), &why));
                }
                chosen.push(address.to_string());
            }
            None => match free_address(range, &taken.addresses) {
                Some(address) => chosen.push(address.to_string()),
                None => {
                    return Err(ApiError::internal(format!("failed to allocate a serviceIP: range {range} is full")));
                }
            },
        }
    }
    object["spec"]["clusterIP"] = chosen.first().cloned().unwrap_or_default().into();
    object["spec"]["clusterIPs"] = json!(chosen);
    Ok(())
}

/// The families a Service has, written into its spec.
fn wanted_families(ranges: &[IpNet], object: &mut Value) -> Result<Vec<&'static str>, ApiError> {
    let available: Vec<&'static str> = ranges.iter().map(family_of).collect();
    let spec = &object["spec"];
    let by_address = spec["clusterIPs"].as_array().and_then(|ips| ips.first()).or(spec.get("clusterIP"));
    let by_address = by_address.and_then(Value::as_str).and_then(|text| text.parse::<IpAddr>().ok());
    let asked: Vec<String> =
        spec["ipFamilies"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let first = asked.first().cloned().or(by_address.as_ref().map(|a| family(a).to_owned()));
    let first = first.as_deref().or(available.first().copied()).unwrap_or("IPv4");
    let Some(first) = available.iter().find(|have| **have == first).copied() else {
        return Err(refuse(object, "spec.ipFamilies[0]", &json!(first), "not configured on this cluster"));
    };
    let policy = match text(spec, "ipFamilyPolicy") {
        "" if asked.len() > 1 => "RequireDualStack",
        "" => "SingleStack",
        given => given,
    }
    .to_owned();
    let second = available.iter().find(|have| **have != first).copied();
    let mut families = vec![first];
    match (policy.as_str(), second) {
        ("PreferDualStack" | "RequireDualStack", Some(second)) => families.push(second),
        ("RequireDualStack", None) => {
            let why = "this cluster is not configured for dual-stack services";
            return Err(refuse(object, "spec.ipFamilyPolicy", &json!("RequireDualStack"), why));
        }
        _ => {}
    }
    object["spec"]["ipFamilies"] = json!(families);
    object["spec"]["ipFamilyPolicy"] = policy.into();
    Ok(families)
}

fn free_address(range: &IpNet, taken: &HashSet<IpAddr>) -> Option<IpAddr> {
    let (base, bits) = match range {
        IpNet::V4(net) => (u128::from(u32::from(net.network())), u32::from(32 - net.prefix_len())),
        IpNet::V6(net) => (u128::from(net.network()), u32::from(128 - net.prefix_len())),
    };
    let size = 1_u128.checked_shl(bits.min(32)).unwrap_or(u128::MAX);
    let at = |offset: u128| match range {
        IpNet::V4(_) => u32::try_from(base + offset).ok().map(|n| IpAddr::V4(n.into())),
        IpNet::V6(_) => Some(IpAddr::V6((base + offset).into())),
    };
    let low = if size > STATIC_BAND * 2 { STATIC_BAND } else { 1 };
    let last = size.checked_sub(1).filter(|last| *last > low)?;
    let start = rand::rng().random_range(low..last);
    // From a random place once around the upper band, then through the lower one.
    let order = (start..last).chain(low..start).chain(1..low);
    order.filter_map(at).find(|address| !taken.contains(address))
}

fn node_ports(server: &ApiServer, taken: &Taken, object: &mut Value) -> Result<(), ApiError> {
    let kind = text(&object["spec"], "type").to_owned();
    let automatic = object["spec"].get("allocateLoadBalancerNodePorts").and_then(Value::as_bool).unwrap_or(true);
    if !matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        for port in each(&mut object["spec"], "ports") {
            if let Some(map) = port.as_object_mut() {
                map.remove("nodePort");
            }
        }
        return Ok(());
    }
    let (low, high) = server.config().node_ports;
    let mut used = taken.ports.clone();
    let ports = object["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let asked = |port: &Value| port["nodePort"].as_u64().filter(|n| *n > 0);
    for (index, port) in ports.iter().enumerate() {
        let Some(number) = asked(port) else { continue };
        let field = format!("spec.ports[{index}].nodePort");
        let number = u16::try_from(number).ok().filter(|n| (low..=high).contains(n)).ok_or_else(|| {
            let why = format!("provided port is not in the valid range. The range of valid ports is {low}-{high}");
            refuse(object, &field, &port["nodePort"], &why)
        })?;
        if !used.insert((number, text(port, "protocol").to_owned())) {
            return Err(refuse(object, &field, &port["nodePort"], "provided port is already allocated"));
        }
    }
    if kind == "LoadBalancer" && !automatic {
        return Ok(());
    }
    for port in each(&mut object["spec"], "ports") {
        if asked(port).is_some() {
            continue;
        }
        let protocol = text(port, "protocol").to_owned();
        let start = rand::rng().random_range(low..=high);
        let free = (start..=high).chain(low..start).find(|n| !used.iter().any(|(taken, _)| taken == n));
        let Some(free) = free else { return Err(ApiError::internal("failed to allocate a nodePort: range is full")) };
        used.insert((free, protocol));
        port["nodePort"] = free.into();
    }
    Ok(())
}
