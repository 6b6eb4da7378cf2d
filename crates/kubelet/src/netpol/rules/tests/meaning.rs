//! What policies mean, by their documentation and as slowly as it reads, against the rules made of them.

use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::render;
use super::packets::Packet;
use super::{settings, view};
use crate::netpol::plan::plan;

/// Decisions taken from bytes: what fails shrinks to few and small ones.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn below(&mut self, n: u8) -> u8 {
        self.0.next().copied().unwrap_or(0) % n
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::from(self.below(u8::try_from(of.len()).unwrap()))].clone()
    }

    fn some<T>(&mut self, most: u8, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }

    fn labels(&mut self) -> Value {
        json!({"app": self.one(&["a", "b"]), "tier": self.one(&["x", "y"])})
    }

    fn selector(&mut self) -> Value {
        let (key, values) = self.one(&[("app", ["a", "b"]), ("tier", ["x", "y"])]);
        let value = self.one(&values);
        match self.below(6) {
            0 => json!({}),
            1 => json!({"matchLabels": {key: value}}),
            2 => json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}),
            3 => json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]}),
            4 => json!({"matchExpressions": [{"key": self.one(&[key, "none"]), "operator": "Exists"}]}),
            _ => json!({"matchExpressions": [{"key": self.one(&[key, "none"]), "operator": "DoesNotExist"}]}),
        }
    }

    fn peer(&mut self) -> Value {
        match self.below(4) {
            0 => json!({"podSelector": self.selector()}),
            1 => json!({"namespaceSelector": self.selector()}),
            2 => json!({"podSelector": self.selector(), "namespaceSelector": self.selector()}),
            _ => {
                let (cidr, holes) = self.one(&[
                    ("0.0.0.0/0", ["192.0.2.0/24", "10.0.0.0/8"]),
                    ("10.0.0.0/8", ["10.0.1.0/24", "10.0.0.2/32"]),
                    ("::/0", ["2001:db8::/32", "fd00::/64"]),
                    ("fd00::/48", ["fd00::/64", "fd00::2/128"]),
                ]);
                json!({"ipBlock": {"cidr": cidr, "except": self.some(2, |c| c.one(&holes))}})
            }
        }
    }

    fn port(&mut self) -> Value {
        let protocol = self.one(&["TCP", "UDP", "SCTP"]);
        match self.below(4) {
            0 => json!({"protocol": protocol}),
            1 => json!({"protocol": protocol, "port": self.one(&[80, 81, 90])}),
            2 => json!({"protocol": protocol, "port": self.one(&[79, 80]), "endPort": self.one(&[80, 85, 90])}),
            _ => json!({"protocol": protocol, "port": self.one(&["web", "none"])}),
        }
    }

    fn rule(&mut self, peers: &str) -> Value {
        json!({peers: self.some(2, Self::peer), "ports": self.some(3, Self::port)})
    }

    fn policy(&mut self, name: &str) -> Value {
        let mut spec = json!({"podSelector": self.selector(), "ingress": self.some(2, |c| c.rule("from")),
            "egress": self.some(2, |c| c.rule("to"))});
        if let Some(types) =
            self.one(&[None, Some(json!(["Ingress"])), Some(json!(["Egress"])), Some(json!(["Ingress", "Egress"]))])
        {
            spec["policyTypes"] = types;
        }
        json!({"metadata": {"name": name, "namespace": self.one(&["one", "two"])}, "spec": spec})
    }

    fn pod(&mut self, n: u8) -> Value {
        let port = json!({"name": "web", "containerPort": self.one(&[80, 81]), "protocol": self.one(&["TCP", "UDP"])});
        json!({"metadata": {"name": format!("p{n}"), "uid": format!("p{n}"), "namespace": self.one(&["one", "two"]), "labels": self.labels()},
            "spec": {"nodeName": self.one(&["here", "there"]), "containers": [{"name": "c", "ports": self.some(1, |_| port.clone())}]},
            "status": {"podIPs": [{"ip": format!("10.0.{}.{n}", self.below(2))}, {"ip": format!("fd00::{n}")}]}})
    }
}

/// The cluster a model is asked about.
struct World {
    policies: Vec<Value>,
    namespaces: Vec<(&'static str, Value)>,
    pods: Vec<Value>,
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// "The requirements are ANDed"; an empty selector selects everything.
fn selects(selector: &Value, labels: &Value) -> bool {
    let equal = selector["matchLabels"].as_object().into_iter().flatten().all(|(key, value)| labels[key] == *value);
    let expressions = list(&selector["matchExpressions"]).iter().all(|expression| {
        let value = &labels[expression["key"].as_str().unwrap()];
        let among = list(&expression["values"]).contains(value);
        match expression["operator"].as_str().unwrap() {
            "In" => among,
            "NotIn" => !among,
            "Exists" => !value.is_null(),
            _ => value.is_null(),
        }
    });
    equal && expressions
}

impl World {
    fn pod_at(&self, address: &str) -> Option<&Value> {
        self.pods.iter().find(|pod| list(&pod["status"]["podIPs"]).iter().any(|ip| ip["ip"] == address))
    }

    fn admits(&self, packet: &Packet) -> bool {
        let (from, to) = (packet.from.to_string(), packet.to.to_string());
        from == to
            || (self.admits_way(packet, &from, "Egress", "to", &to)
                && self.admits_way(packet, &to, "Ingress", "from", &from))
    }

    fn admits_way(&self, packet: &Packet, subject: &str, way: &str, peers: &str, other: &str) -> bool {
        let Some(pod) = self.pod_at(subject).filter(|pod| pod["spec"]["nodeName"] == "here") else { return true };
        let isolating = self.policies.iter().filter(|policy| {
            let spec = &policy["spec"];
            let of_type = match spec.get("policyTypes") {
                Some(types) => list(types).iter().any(|kind| kind == way),
                None => way == "Ingress" || !list(&spec["egress"]).is_empty(),
            };
            policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
                && of_type
                && selects(&spec["podSelector"], &pod["metadata"]["labels"])
        });
        let isolating: Vec<_> = isolating.collect();
        isolating.is_empty()
            || isolating.iter().any(|policy| {
                let rules = list(&policy["spec"][way.to_lowercase()]);
                rules.iter().any(|rule| {
                    let peer = list(&rule[peers]).is_empty()
                        || list(&rule[peers])
                            .iter()
                            .any(|peer| self.is_peer(peer, &policy["metadata"]["namespace"], other));
                    let port = list(&rule["ports"]).is_empty()
                        || list(&rule["ports"]).iter().any(|port| self.is_port(port, packet));
                    peer && port
                })
            })
    }

    fn is_peer(&self, peer: &Value, namespace: &Value, address: &str) -> bool {
        if let Some(block) = peer.get("ipBlock") {
            let within = |net: &Value| {
                net.as_str().unwrap().parse::<IpNet>().unwrap().contains(&address.parse::<std::net::IpAddr>().unwrap())
            };
            return within(&block["cidr"]) && !list(&block["except"]).iter().any(within);
        }
        let Some(pod) = self.pod_at(address) else { return false };
        let of_namespace = match peer.get("namespaceSelector") {
            Some(selector) => {
                let (_, labels) =
                    self.namespaces.iter().find(|(name, _)| pod["metadata"]["namespace"] == *name).unwrap();
                selects(selector, labels)
            }
            None => pod["metadata"]["namespace"] == *namespace,
        };
        of_namespace && peer.get("podSelector").is_none_or(|selector| selects(selector, &pod["metadata"]["labels"]))
    }

    fn is_port(&self, port: &Value, packet: &Packet) -> bool {
        if port["protocol"].as_str().unwrap().to_lowercase() != packet.protocol {
            return false;
        }
        match (&port["port"], &port["endPort"]) {
            (Value::Null, _) => true,
            (Value::String(name), _) => {
                let pod = self.pod_at(&packet.to.to_string());
                pod.is_some_and(|pod| {
                    list(&pod["spec"]["containers"][0]["ports"]).iter().any(|own| {
                        own["name"] == *name
                            && own["protocol"] == port["protocol"]
                            && own["containerPort"] == packet.port
                    })
                })
            }
            (first, Value::Null) => *first == packet.port,
            (first, last) => (first.as_u64().unwrap()..=last.as_u64().unwrap()).contains(&u64::from(packet.port)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn rules_mean_what_policies_say(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
        let mut choices = Choices(bytes.iter());
        let policies = (0..=choices.below(3)).map(|n| choices.policy(&format!("np{n}"))).collect();
        let world = World {
            policies,
            namespaces: vec![("one", choices.labels()), ("two", choices.labels())],
            pods: (1..=4).map(|n| choices.pod(n)).collect(),
        };
        let view = view(&world.policies, &world.namespaces, &world.pods);
        let rules = render(&settings(), &plan(&view, &settings(), Vec::new()));
        let addresses = |at: usize, outside: &str| -> Vec<String> {
            let pods = world.pods.iter().map(|pod| pod["status"]["podIPs"][at]["ip"].as_str().unwrap().to_owned());
            pods.chain([outside.to_owned()]).collect()
        };
        for family in [addresses(0, "192.0.2.9"), addresses(1, "2001:db8::9")] {
            for from in &family {
                for to in &family {
                    for protocol in ["tcp", "udp", "sctp"] {
                        for port in [79, 80, 81, 90] {
                            let packet = Packet::parse(&format!("{from} {to} {protocol} {port}"));
                            prop_assert_eq!(packet.passes(&rules), world.admits(&packet), "{:?} by {}", packet, rules.transaction(None));
                        }
                    }
                }
            }
        }
    }
}
