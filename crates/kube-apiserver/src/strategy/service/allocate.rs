//! Cluster IPs, node ports and health check ports: given from what the store says is taken.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use rand::Rng as _;
use serde_json::{Value, json};

use apimachinery::error::ApiError;

use super::super::invalid;
use super::{
    families, has_address, has_health_check, has_node_ports, is_headless, is_load_balancer, refuse, text, texts,
};
use crate::ApiServer;
use apimachinery::tree::each;

/// The low part of a range is for those who ask for a certain address, or port: a sixteenth of it, within bounds.
fn reserved(size: u128, least: u128, most: u128) -> u128 {
    let share = (size / 16).clamp(least, most);
    if size > share * 2 { share } else { 1 }
}

/// Addresses and ports other Services hold.
#[derive(Default)]
struct Taken {
    addresses: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

impl Taken {
    fn by_others(server: &ApiServer, namespace: &str, name: &str) -> Self {
        let mut taken = Self::default();
        for object in server.store().list("services", None).objects {
            if &*object.key.namespace == namespace && &*object.key.name == name {
                continue;
            }
            let service = object.value();
            let spec = &service["spec"];
            taken.addresses.extend(texts(spec, "clusterIPs").iter().filter_map(|text| text.parse::<IpAddr>().ok()));
            let ports = spec["ports"].as_array().into_iter().flatten().map(|port| &port["nodePort"]);
            taken.ports.extend(ports.chain([&spec["healthCheckNodePort"]]).filter_map(port_number));
        }
        taken
    }
}

fn port_number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0)
}

fn one(object: &Value, field: &str, value: &Value, why: &str) -> ApiError {
    let mut causes = Vec::new();
    invalid(field, value, why, &mut causes);
    refuse(object, causes)
}

/// Gives a Service the addresses and ports it is to have. The caller holds the turn of all Services. A dry run takes nothing
/// from the range of node ports, and so lets ports outside of it pass, as it does on every server.
pub(in super::super) fn allocate(
    server: &ApiServer,
    old: Option<&Value>,
    object: &mut Value,
    dry_run: bool,
) -> Result<(), ApiError> {
    let metadata = &object["metadata"];
    let taken = Taken::by_others(server, text(metadata, "namespace"), text(metadata, "name"));
    if has_address(&object["spec"]) {
        addresses(server, &taken, old, object)?;
    }
    let ports = Ports { range: server.config().node_ports, taken: &taken.ports, dry_run };
    let used = ports.of_nodes(object)?;
    ports.of_health_check(&used, object)
}

fn addresses(server: &ApiServer, taken: &Taken, old: Option<&Value>, object: &mut Value) -> Result<(), ApiError> {
    let ranges = &server.config().service_cidrs;
    let spec = &mut object["spec"];
    if texts(spec, "clusterIPs").is_empty() && !text(spec, "clusterIP").is_empty() {
        spec["clusterIPs"] = json!([text(spec, "clusterIP")]);
    }
    families::settle(ranges, old, object)?;
    let spec = &mut object["spec"];
    if is_headless(spec) {
        spec["clusterIP"] = "None".into();
        spec["clusterIPs"] = json!(["None"]);
        return Ok(());
    }
    let given: Vec<String> = texts(spec, "clusterIPs").into_iter().map(str::to_owned).collect();
    let wanted: Vec<String> = texts(spec, "ipFamilies").into_iter().map(str::to_owned).collect();
    let mut chosen = Vec::new();
    for (index, family) in wanted.iter().enumerate() {
        let Some(range) = ranges.iter().find(|range| families::of_range(range) == family) else { continue };
        match given.get(index) {
            Some(text) => chosen.push(asked_address(object, taken, range, text)?),
            None => chosen.push(free_address(range, &taken.addresses).ok_or_else(|| {
                ApiError::internal("Internal error occurred: failed to allocate a serviceIP: range is full")
            })?),
        }
    }
    let chosen: Vec<String> = chosen.iter().map(IpAddr::to_string).collect();
    object["spec"]["clusterIP"] = chosen.first().cloned().unwrap_or_default().into();
    object["spec"]["clusterIPs"] = json!(chosen);
    Ok(())
}

fn asked_address(object: &Value, taken: &Taken, range: &IpNet, text: &str) -> Result<IpAddr, ApiError> {
    let refuse = |why: &str| {
        let why = format!("failed to allocate IP {text}: {why}");
        one(object, "spec.clusterIPs", &json!([text]), &why)
    };
    let usable = |address: &IpAddr| {
        let ends = [range.network(), range.broadcast()];
        range.contains(address) && *address != ends[0] && (address.is_ipv6() || *address != ends[1])
    };
    let address = text.parse::<IpAddr>().ok().filter(usable).ok_or_else(|| {
        refuse(&format!("the provided IP ({text}) is not in the valid range. The range of valid IPs is {range}"))
    })?;
    if taken.addresses.contains(&address) {
        return Err(refuse("provided IP is already allocated"));
    }
    Ok(address)
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
    let low = reserved(size, 16, 256);
    let last = size.checked_sub(1).filter(|last| *last > low)?;
    let start = rand::rng().random_range(low..last);
    // From a random place once around the upper part, then through the lower one.
    let order = (start..last).chain(low..start).chain(1..low);
    order.filter_map(at).find(|address| !taken.contains(address))
}

/// Ports on the nodes, and how they are given.
struct Ports<'a> {
    range: (u16, u16),
    /// What other Services hold.
    taken: &'a HashSet<u16>,
    dry_run: bool,
}

impl Ports<'_> {
    fn gives(&self, port: u16) -> bool {
        self.dry_run || (self.range.0..=self.range.1).contains(&port)
    }

    fn outside(&self) -> String {
        let (low, high) = self.range;
        format!("provided port is not in the valid range. The range of valid ports is {low}-{high}")
    }

    /// A port for who asks for none; in a dry run the one after those asked for.
    fn free(&self, used: &HashSet<u16>) -> Option<u16> {
        let (low, high) = self.range;
        let asked = used.difference(self.taken).max().filter(|_| self.dry_run);
        if let Some(last) = asked {
            return (*last..=u16::MAX).find(|port| !used.contains(port));
        }
        let size = u128::from(high.saturating_sub(low)) + 1;
        let first = low.saturating_add(u16::try_from(reserved(size, 16, 128)).unwrap_or(0)).min(high);
        let start = rand::rng().random_range(first..=high);
        (start..=high).chain(first..start).chain(low..first).find(|port| !used.contains(port))
    }

    /// Returns all ports that are taken then.
    fn of_nodes(&self, object: &mut Value) -> Result<HashSet<u16>, ApiError> {
        let mut used = self.taken.clone();
        if !has_node_ports(&object["spec"]) {
            return Ok(used);
        }
        let ports = object["spec"]["ports"].as_array().cloned().unwrap_or_default();
        for (index, port) in ports.iter().enumerate() {
            let asked = &port["nodePort"];
            if asked.as_i64().unwrap_or(0) == 0 {
                continue;
            }
            let field = format!("spec.ports[{index}].nodePort");
            let Some(number) = port_number(asked).filter(|number| self.gives(*number)) else {
                if self.dry_run {
                    continue;
                }
                return Err(one(object, &field, asked, &self.outside()));
            };
            if self.taken.contains(&number) {
                return Err(one(object, &field, asked, "provided port is already allocated"));
            }
            // Two protocols of one Service may share a number; the same twice was refused before.
            used.insert(number);
        }
        let spec = &mut object["spec"];
        let automatic = spec.get("allocateLoadBalancerNodePorts").and_then(Value::as_bool).unwrap_or(true);
        if is_load_balancer(spec) && !automatic {
            return Ok(used);
        }
        let mut given: Vec<(Value, String, u16)> = ports
            .iter()
            .filter_map(|port| {
                Some((port["port"].clone(), text(port, "protocol").to_owned(), port_number(&port["nodePort"])?))
            })
            .collect();
        for port in each(spec, "ports") {
            // In a dry run it may be any number.
            if port["nodePort"].as_i64().unwrap_or(0) != 0 {
                continue;
            }
            let protocol = text(port, "protocol").to_owned();
            // The same port of another protocol is the same port on the nodes, as DNS wants it.
            let shared = given.iter().find(|(number, other, node_port)| {
                let clash = given.iter().any(|(_, of, taken)| *of == protocol && taken == node_port);
                *number == port["port"] && *other != protocol && !clash
            });
            let number = match shared {
                Some((_, _, number)) => *number,
                None => self.free(&used).ok_or_else(|| {
                    ApiError::internal("Internal error occurred: failed to allocate a nodePort: range is full")
                })?,
            };
            used.insert(number);
            given.push((port["port"].clone(), protocol, number));
            port["nodePort"] = number.into();
        }
        Ok(used)
    }

    /// The port on which each node says whether it has endpoints.
    fn of_health_check(&self, used: &HashSet<u16>, object: &mut Value) -> Result<(), ApiError> {
        if !has_health_check(&object["spec"]) {
            return Ok(());
        }
        let number = match port_number(&object["spec"]["healthCheckNodePort"]) {
            Some(number) if used.contains(&number) || !self.gives(number) => {
                let why = if used.contains(&number) {
                    "provided port is already allocated".to_owned()
                } else {
                    self.outside()
                };
                return Err(ApiError::internal(format!(
                    "Internal error occurred: failed to allocate requested HealthCheck NodePort {number}: {why}"
                )));
            }
            Some(number) => number,
            None => self.free(used).ok_or_else(|| {
                ApiError::internal("Internal error occurred: failed to allocate a HealthCheck NodePort: range is full")
            })?,
        };
        object["spec"]["healthCheckNodePort"] = number.into();
        Ok(())
    }
}
