//! Rows of services and what belongs to them.

use serde_json::Value;

use super::view::{NONE, View, pairs, selector};

pub(super) fn row(plural: &str, view: View<'_>) -> Vec<Value> {
    let (name, age) = (view.name(), view.age());
    match plural {
        "services" => vec![
            name,
            view.at("/spec/type").clone(),
            view.or_none("/spec/clusterIP"),
            external(view).into(),
            ports(view).into(),
            age,
            pairs(view.at("/spec/selector")).into(),
        ],
        "endpoints" => vec![name, endpoints(view).into(), age],
        "endpointslices" => {
            let ports =
                view.list("/ports").iter().map(|p| p["port"].as_i64().map_or("*".to_owned(), |p| p.to_string()));
            let addresses =
                view.list("/endpoints").iter().flat_map(|e| e["addresses"].as_array().into_iter().flatten());
            let addresses = addresses.filter_map(Value::as_str).map(str::to_owned);
            let empty = |text: String| if text == NONE { "<unset>".to_owned() } else { text };
            vec![
                name,
                view.at("/addressType").clone(),
                empty(few(&ports.collect::<Vec<_>>())).into(),
                empty(few(&addresses.collect::<Vec<_>>())).into(),
                age,
            ]
        }
        "ingresses" => {
            let hosts = view.list("/spec/rules").iter().filter_map(|r| r["host"].as_str()).map(str::to_owned);
            let hosts = few(&hosts.collect::<Vec<_>>());
            let hosts = if hosts == NONE { "*".to_owned() } else { hosts };
            let ports = if view.list("/spec/tls").is_empty() { "80" } else { "80, 443" };
            vec![
                name,
                view.or_none("/spec/ingressClassName"),
                hosts.into(),
                balancer(view).join(",").into(),
                ports.into(),
                age,
            ]
        }
        "ingressclasses" => {
            let parameters = match view.text("/spec/parameters/name") {
                "" => NONE.to_owned(),
                name => match view.text("/spec/parameters/apiGroup") {
                    "" => format!("{}/{name}", view.text("/spec/parameters/kind")),
                    group => format!("{}.{group}/{name}", view.text("/spec/parameters/kind")),
                },
            };
            vec![name, view.at("/spec/controller").clone(), parameters.into(), age]
        }
        "networkpolicies" => vec![name, selector(view.at("/spec/podSelector")).into(), age],
        "ipaddresses" => {
            let parent = view.at("/spec/parentRef");
            let word = |key: &str| parent[key].as_str().unwrap_or_default();
            let resource = match word("group") {
                "" => word("resource").to_owned(),
                group => format!("{}.{group}", word("resource")),
            };
            vec![name, format!("{resource}/{}/{}", word("namespace"), word("name")).into()]
        }
        _ => {
            let blocks: Vec<&str> = view.list("/spec/cidrs").iter().filter_map(Value::as_str).collect();
            vec![name, blocks.join(",").into(), age]
        }
    }
}

/// At most three, then how many more.
fn few(words: &[String]) -> String {
    match words.len() {
        0 => NONE.to_owned(),
        1..=3 => words.join(","),
        all => format!("{} + {} more...", words[..3].join(","), all - 3),
    }
}

fn balancer(view: View<'_>) -> Vec<&str> {
    let entries = view.list("/status/loadBalancer/ingress").iter();
    entries.filter_map(|i| i["ip"].as_str().or(i["hostname"].as_str())).collect()
}

fn external(view: View<'_>) -> String {
    let given: Vec<&str> = view.list("/spec/externalIPs").iter().filter_map(Value::as_str).collect();
    match view.text("/spec/type") {
        "ExternalName" => view.text("/spec/externalName").to_owned(),
        "LoadBalancer" => {
            let all: Vec<&str> = balancer(view).into_iter().chain(given).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ if given.is_empty() => NONE.to_owned(),
        _ => given.join(","),
    }
}

fn ports(view: View<'_>) -> String {
    let ports: Vec<String> = view
        .list("/spec/ports")
        .iter()
        .map(|port| {
            let (number, protocol) = (&port["port"], port["protocol"].as_str().unwrap_or("TCP"));
            match port["nodePort"].as_i64() {
                Some(node) if node > 0 => format!("{number}:{node}/{protocol}"),
                _ => format!("{number}/{protocol}"),
            }
        })
        .collect();
    if ports.is_empty() { NONE.to_owned() } else { ports.join(",") }
}

fn endpoints(view: View<'_>) -> String {
    let mut all = Vec::new();
    for subset in view.list("/subsets") {
        let addresses: Vec<&str> =
            subset["addresses"].as_array().into_iter().flatten().filter_map(|a| a["ip"].as_str()).collect();
        let host = |ip: &str| if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        match subset["ports"].as_array().map(Vec::as_slice).unwrap_or_default() {
            [] => all.extend(addresses.iter().map(|ip| (*ip).to_owned())),
            ports => {
                for port in ports {
                    all.extend(addresses.iter().map(|ip| format!("{}:{}", host(ip), port["port"])));
                }
            }
        }
    }
    few(&all)
}
