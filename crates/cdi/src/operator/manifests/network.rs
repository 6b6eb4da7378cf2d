//! Who may connect to whom in the product's namespace, for clusters whose namespaces are closed unless a policy opens them.

use serde_json::{Value, json};

use api::cdi::constants::label;

use super::Input;

/// Where the components serve: the API, uploads, health and metrics.
const PORT: u16 = 8443;
/// Where clusters serve their API; behind a Service, some policies see one port and some the other.
const CLUSTER: [u16; 4] = [443, 6443, 8443, 16443];
/// Where DNS is served, by OpenShift's pods at the second.
const DNS: [u16; 2] = [53, 5353];

/// The policies.
pub fn render(input: &Input) -> Vec<Value> {
    let component = |name: &str| json!({ (label::COMPONENT): name });
    let (scraped, polls) = (json!({ (label::PROMETHEUS): "true" }), json!({ (label::POLLER): "" }));
    let workers = |labels: &Value| json!([{ "podSelector": { "matchLabels": labels }, "namespaceSelector": {} }]);
    let ports = json!([tcp(PORT)]);
    let uploads = json!({
        "ingress": [{ "ports": ports }],
        "egress": [{ "to": workers(&component(label::UPLOAD_SERVER)), "ports": ports }],
    });
    let progress = json!({ "egress": [{ "to": workers(&scraped), "ports": ports }] });
    let taken = json!({ "ingress": [{ "ports": ports }] });
    let mut services: Vec<Value> = CLUSTER.into_iter().map(tcp).collect();
    services.extend(DNS.into_iter().flat_map(|port| [tcp(port), json!({ "port": port, "protocol": "UDP" })]));
    let cluster = json!({ "egress": [{ "ports": services }] });
    [
        ("cdi-allow-ingress-to-metrics", &scraped, taken.clone()),
        ("cdi-allow-cdi-api-webhook-server", &component("cdi-apiserver"), taken),
        ("cdi-allow-uploadproxy-communications", &component("cdi-uploadproxy"), uploads),
        // The upload proxy reads claims, and finds upload servers by name.
        ("cdi-allow-uploadproxy-cluster-services", &component("cdi-uploadproxy"), cluster.clone()),
        ("cdi-allow-cdi-deployment-importer-metrics", &component("cdi-deployment"), progress),
        // A policy that lets it out to importers closes every other way.
        ("cdi-allow-cdi-deployment-cluster-services", &component("cdi-deployment"), cluster),
        // Registries are anywhere. Those who ask them are pods of crons, which may be in this namespace as in any other.
        ("cdi-allow-egress-from-poller", &polls, json!({ "egress": [{}] })),
    ]
    .into_iter()
    .map(|(name, pods, rules)| policy(&input.namespace, name, pods, rules))
    .collect()
}

fn tcp(port: u16) -> Value {
    json!({ "port": port, "protocol": "TCP" })
}

fn policy(namespace: &str, name: &str, pods: &Value, rules: Value) -> Value {
    let types = [("ingress", "Ingress"), ("egress", "Egress")];
    let types: Vec<&str> =
        types.into_iter().filter(|(key, _)| rules.get(key).is_some()).map(|(_, kind)| kind).collect();
    let mut spec = rules;
    spec["podSelector"] = json!({ "matchLabels": pods });
    spec["policyTypes"] = json!(types);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": namespace }, "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::workloads;
    use super::*;

    /// A policy that selects no pod of ours opens nothing, and one that selects too many closes. Registries are for no component to ask.
    #[test]
    fn each_policy_is_of_the_pods_it_is_named_after() {
        let input = Input { namespace: "cdi".into(), ..Input::default() };
        let pods: Vec<(String, Value)> = workloads::render(&input)
            .iter()
            .filter(|manifest| manifest["kind"] == "Deployment")
            .map(|manifest| {
                let name = manifest["metadata"]["name"].as_str().unwrap().to_owned();
                (name, manifest["spec"]["template"]["metadata"]["labels"].clone())
            })
            .collect();
        let selected = |policy: &Value| -> Vec<&str> {
            let wanted = policy["spec"]["podSelector"]["matchLabels"].as_object().unwrap();
            let has = |labels: &Value| wanted.iter().all(|(key, value)| labels[key] == *value);
            pods.iter().filter(|(_, labels)| has(labels)).map(|(name, _)| name.as_str()).collect()
        };
        let found: Vec<_> = render(&input)
            .iter()
            .map(|policy| (policy["spec"]["policyTypes"].to_string(), selected(policy).join(" ")))
            .collect();
        let expect = [
            (r#"["Ingress"]"#, "cdi-deployment cdi-apiserver cdi-uploadproxy"),
            (r#"["Ingress"]"#, "cdi-apiserver"),
            (r#"["Ingress","Egress"]"#, "cdi-uploadproxy"),
            (r#"["Egress"]"#, "cdi-uploadproxy"),
            (r#"["Egress"]"#, "cdi-deployment"),
            (r#"["Egress"]"#, "cdi-deployment"),
            (r#"["Egress"]"#, ""),
        ];
        assert_eq!(found, expect.map(|(types, pods)| (types.to_owned(), pods.to_owned())));

        // Who is let out somewhere is let out to the API server and to DNS.
        let leaves = |policy: &Value| policy["spec"]["egress"].is_array();
        let port = |policy: &Value, port: u16| {
            let rules = policy["spec"]["egress"].as_array().cloned().unwrap_or_default();
            let open = |rule: &Value| rule["ports"].as_array().is_none_or(|ports| ports.contains(&tcp(port)));
            rules.iter().any(|rule| rule["to"].is_null() && open(rule))
        };
        let policies = render(&input);
        let out: BTreeSet<&str> = policies.iter().filter(|policy| leaves(policy)).flat_map(selected).collect();
        let served: BTreeSet<&str> =
            policies.iter().filter(|policy| port(policy, 6443) && port(policy, 53)).flat_map(selected).collect();
        assert_eq!(out, served);
    }
}
