//! Services: what an update keeps and drops, what is valid, and the addresses and ports allocated from what the store holds.

mod allocate;
mod families;
mod validate;

use serde_json::Value;

pub(super) use allocate::allocate;
pub(super) use validate::{ADDRESS, port_name_problems, special, validate, validate_update};

use apimachinery::error::{ApiError, Cause};

use apimachinery::tree::each;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn texts<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    value.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn is_empty(value: &Value, key: &str) -> bool {
    value.get(key).is_none_or(|value| value.is_null() || value.as_array().is_some_and(Vec::is_empty))
}

fn has_address(spec: &Value) -> bool {
    text(spec, "type") != "ExternalName"
}

fn is_headless(spec: &Value) -> bool {
    text(spec, "clusterIP") == "None" || texts(spec, "clusterIPs").first() == Some(&"None")
}

fn has_node_ports(spec: &Value) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

fn is_load_balancer(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer"
}

/// Whether clients outside of the cluster can reach it.
fn is_external(spec: &Value) -> bool {
    has_node_ports(spec) || (text(spec, "type") == "ClusterIP" && !is_empty(spec, "externalIPs"))
}

/// Whether load balancers ask each node if it has endpoints.
fn has_health_check(spec: &Value) -> bool {
    is_load_balancer(spec) && text(spec, "externalTrafficPolicy") == "Local"
}

/// Prepares an update: what it says nothing of is kept, and what the new type has no use for goes, unless somebody
/// changed it in the same breath.
pub(super) fn keep_allocated(old: &Value, new: &mut Value) {
    let (before, spec) = (&old["spec"], &mut new["spec"]);
    if !spec.is_object() {
        return;
    }
    drop_what_the_type_has_not(before, spec);
    settle_addresses(before, spec);
    if has_address(before) && has_address(spec) {
        keep_address(before, spec);
    }
    if has_node_ports(before) && has_node_ports(spec) {
        keep_node_ports(before, spec);
    }
    if has_health_check(before) && has_health_check(spec) && spec["healthCheckNodePort"].as_i64().unwrap_or(0) == 0 {
        spec["healthCheckNodePort"] = before["healthCheckNodePort"].clone();
    }
    apimachinery::schema::stored::nulls(spec);
}

fn drop_what_the_type_has_not(before: &Value, spec: &mut Value) {
    let lost = |need: fn(&Value) -> bool, now: &Value| need(before) && !need(now);
    let mut goes = Vec::new();
    if lost(has_address, spec) {
        goes.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]);
    }
    if lost(has_health_check, spec) {
        goes.push("healthCheckNodePort");
    }
    if lost(is_load_balancer, spec) {
        goes.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if lost(is_external, spec) {
        goes.push("externalTrafficPolicy");
    }
    let no_node_ports = lost(has_node_ports, spec);
    let same_ports = |spec: &Value| {
        let numbers = |spec: &Value| -> Vec<Value> {
            spec["ports"].as_array().into_iter().flatten().map(|port| port["nodePort"].clone()).collect()
        };
        numbers(before) == numbers(spec)
    };
    if no_node_ports && same_ports(spec) {
        for port in each(spec, "ports") {
            if let Some(map) = port.as_object_mut() {
                map.remove("nodePort");
            }
        }
    }
    if let Some(map) = spec.as_object_mut() {
        map.retain(|field, value| !goes.contains(&field.as_str()) || *value != before[field.as_str()]);
    }
}

/// `clusterIP` and `clusterIPs` say the same; who changes one only means both.
fn settle_addresses(before: &Value, spec: &mut Value) {
    let (was, now) = (text(before, "clusterIP").to_owned(), text(spec, "clusterIP").to_owned());
    let same_list = !is_empty(spec, "clusterIPs") && spec["clusterIPs"] == before["clusterIPs"];
    if same_list && was != now {
        match now.as_str() {
            "" => spec["clusterIPs"] = Value::Null,
            changed => spec["clusterIPs"] = serde_json::json!([changed]),
        }
    }
}

fn keep_address(before: &Value, spec: &mut Value) {
    if text(spec, "clusterIP").is_empty() && is_empty(spec, "clusterIPs") {
        spec["clusterIP"] = before["clusterIP"].clone();
    }
    if is_empty(spec, "clusterIPs") && spec["clusterIP"] == before["clusterIP"] {
        spec["clusterIPs"] = before["clusterIPs"].clone();
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if is_empty(spec, field) {
            spec[field] = before[field].clone();
        }
    }
}

fn keep_node_ports(before: &Value, spec: &mut Value) {
    let known: Vec<Value> = before["ports"].as_array().cloned().unwrap_or_default();
    for port in each(spec, "ports") {
        if port["nodePort"].as_i64().unwrap_or(0) == 0 {
            let same = known.iter().find(|o| o["port"] == port["port"] && o["protocol"] == port["protocol"]);
            if let Some(number) = same.and_then(|o| o.get("nodePort")) {
                port["nodePort"] = number.clone();
            }
        }
    }
}

fn refuse(object: &Value, causes: Vec<Cause>) -> ApiError {
    ApiError::invalid("", "Service", text(&object["metadata"], "name"), causes)
}
