//! What deploys the name server. Pure.

use std::net::Ipv4Addr;

use kit::operator::manifests::{Program, account, binding, pod, role, rule};
use kit::workload;
use serde_json::{Value, json};

use super::{PROGRAM, zone};
use crate::base::Base;

/// Where it listens.
pub const PORT: u16 = 5353;
/// Where its health is served.
pub const HEALTH: u16 = 8082;
/// Its account and its role.
const ACCOUNT: &str = "secondary";

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where it goes, and what it runs.
    pub base: Base,
    /// What follows `vm` in the zone's name.
    pub domain: String,
    /// The address by which others reach it.
    pub name_server_ip: String,
}

/// What is wrong with a domain and an address, in a sentence each.
pub fn refused(domain: &str, name_server_ip: &str) -> Vec<String> {
    let mut out = Vec::new();
    if zone::origin(domain).is_err() {
        out.push(format!(
            "kubeSecondaryDNS.domain is {domain:?}, which is no domain: write it as secondary.example.org"
        ));
    }
    if !name_server_ip.is_empty() && name_server_ip.parse::<Ipv4Addr>().is_err() {
        out.push(format!("kubeSecondaryDNS.nameServerIP is {name_server_ip:?}, which is no IPv4 address"));
    }
    out
}

/// All of it.
pub fn render(input: &Input) -> Vec<Value> {
    let here = json!({ "name": PROGRAM, "namespace": input.base.namespace });
    let own = json!({ "name": ACCOUNT, "namespace": input.base.namespace });
    let rules = [rule("kubevirt.io", &["virtualmachineinstances"], &["get", "list", "watch"])];
    let protocol = |protocol: &str| json!({ "port": PORT, "protocol": protocol });
    vec![
        account(&own),
        role(&json!({ "name": ACCOUNT }), &rules),
        binding(&json!({ "name": ACCOUNT }), ACCOUNT, (&input.base.namespace, ACCOUNT)),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": here,
            "data": { "DOMAIN": input.domain, "NAME_SERVER_IP": input.name_server_ip },
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": here,
            "spec": {
                "podSelector": { "matchLabels": labels() }, "policyTypes": ["Ingress"],
                "ingress": [{ "ports": [protocol("UDP"), protocol("TCP")] }],
            },
        }),
        deployment(input),
    ]
}

fn labels() -> Value {
    json!({ "k8s-app": PROGRAM })
}

fn deployment(input: &Input) -> Value {
    let program = Program {
        name: PROGRAM,
        account: ACCOUNT,
        image: &input.base.image,
        args: &[],
        env: &[("DOMAIN", &input.domain), ("NAME_SERVER_IP", &input.name_server_ip)],
        ports: &[("health", HEALTH)],
        memory: "16Mi",
    };
    let mut pod = pod(&program);
    pod["containers"][0]["imagePullPolicy"] = json!(input.base.pull_policy);
    let ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
        .map(|(name, protocol)| json!({ "name": name, "containerPort": PORT, "protocol": protocol }));
    if let Some(all) = pod["containers"][0]["ports"].as_array_mut() {
        all.extend(ports);
    }
    input.base.placement.place(&mut pod);
    let metadata = json!({ "name": PROGRAM, "namespace": input.base.namespace });
    workload::deployment(&metadata, 1, &labels(), &labels(), &pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_domain_and_a_bad_address_are_named() {
        assert!(refused("", "").is_empty() && refused("example.org", "192.0.2.1").is_empty());
        let found = refused(&format!("{}.org", "a".repeat(70)), "::1");
        assert!(found.len() == 2 && found[0].contains("domain") && found[1].contains("nameServerIP"), "{found:?}");
    }
}
