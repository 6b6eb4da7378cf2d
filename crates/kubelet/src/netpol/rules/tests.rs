//! Rules by data; and the rules' text against the documented meaning of policies, on random ones.

mod meaning;
mod packets;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::netpol::plan::plan;
use crate::netpol::view::{Member, View};
use packets::Packet;

pub(super) fn settings() -> Settings {
    Settings {
        node: "here".into(),
        dns: ["10.96.0.10", "fd00:10:96::a"].map(|address| address.parse().unwrap()).to_vec(),
    }
}

pub(super) fn view(policies: &[Value], namespaces: &[(&str, Value)], pods: &[Value]) -> View {
    let labels = |value: &Value| serde_json::from_value(value.clone()).unwrap();
    View {
        policies: policies.iter().map(|policy| Arc::new(serde_json::from_value(policy.clone()).unwrap())).collect(),
        namespaces: namespaces.iter().map(|(name, value)| ((*name).to_owned(), labels(value))).collect(),
        pods: pods.iter().map(|pod| Member::of(&serde_json::from_value(pod.clone()).unwrap())).collect(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn pod(name: &str, node: &str, n: u8, labels: Value) -> Value {
    json!({"metadata": {"name": name, "uid": name, "namespace": "shop", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]},
        "status": {"podIPs": [{"ip": format!("10.244.0.{n}")}, {"ip": format!("fd00:10:244::{n:x}")}]}})
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn policy(spec: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec})
}

fn pods() -> Vec<Value> {
    vec![
        pod("db", "here", 5, json!({"app": "db"})),
        pod("web", "here", 6, json!({"app": "web"})),
        pod("far", "there", 7, json!({"app": "web"})),
    ]
}

/// Which packets the policy lets pass, each `<from> <to> <protocol> <port>`.
#[track_caller]
fn check(spec: Value, cases: &[(&str, bool)]) {
    let namespaces =
        [("shop", json!({"team": "a"})), ("kube-system", json!({"kubernetes.io/metadata.name": "kube-system"}))];
    let view = view(&[policy(spec)], &namespaces, &pods());
    let rules = render(&settings(), &plan(&view, &settings(), Vec::new()));
    for (packet, passes) in cases {
        assert_eq!(Packet::parse(packet).passes(&rules), *passes, "{packet} by\n{}", rules.transaction(None));
    }
}

#[test]
fn a_policy_without_rules_denies_its_direction() {
    let db = json!({"matchLabels": {"app": "db"}});
    let to_db = "10.244.0.6 10.244.0.5 tcp 5432";
    let from_db = "10.244.0.5 10.244.0.6 tcp 8080";
    check(json!({"podSelector": db}), &[(to_db, false), (from_db, true), ("10.244.0.6 10.244.0.7 tcp 80", true)]);
    check(json!({"podSelector": db, "policyTypes": ["Egress"]}), &[(to_db, true), (from_db, false)]);
    check(
        json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        &[
            (to_db, false),
            (from_db, false),
            ("192.0.2.1 10.244.0.5 udp 53", false),
            ("fd00:10:244::6 fd00:10:244::5 tcp 5432", false),
            // To itself, by a Service, a pod may always talk; the other node's pods are the other node's concern.
            ("10.244.0.5 10.244.0.5 tcp 5432", true),
            ("192.0.2.1 10.244.0.7 tcp 80", true),
        ],
    );
}

#[test]
fn peers_and_ports_are_both_needed() {
    let web = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    let ports = json!([{"protocol": "TCP", "port": 5432}, {"protocol": "TCP", "port": 7000, "endPort": 7009}]);
    check(
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": web, "ports": ports}]}),
        &[
            ("10.244.0.6 10.244.0.5 tcp 5432", true),
            ("fd00:10:244::7 fd00:10:244::5 tcp 7009", true),
            ("10.244.0.6 10.244.0.5 tcp 7010", false),
            ("10.244.0.6 10.244.0.5 udp 5432", false),
            ("192.0.2.1 10.244.0.5 tcp 5432", false),
        ],
    );
}

#[test]
fn blocks_have_holes() {
    let block = json!([{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.64/26", "192.0.2.70/32"]}}]);
    check(
        json!({"podSelector": {}, "ingress": [{"from": block}]}),
        &[
            ("192.0.2.1 10.244.0.5 sctp 9", true),
            ("192.0.2.70 10.244.0.5 tcp 80", false),
            ("198.51.100.1 10.244.0.5 tcp 80", false),
        ],
    );
    let all = json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]);
    check(
        json!({"podSelector": {}, "egress": [{"to": all}], "policyTypes": ["Egress"]}),
        &[
            ("10.244.0.5 192.0.2.1 tcp 80", true),
            ("10.244.0.5 10.1.2.3 tcp 80", false),
            ("fd00:10:244::5 2001:db8::1 tcp 80", false),
        ],
    );
}

#[test]
fn a_named_port_is_the_receivers() {
    let ports = json!([{"port": "web"}]);
    check(
        json!({"podSelector": {}, "egress": [{"ports": ports}], "policyTypes": ["Egress"]}),
        &[
            ("10.244.0.5 10.244.0.7 tcp 8080", true),
            ("10.244.0.5 10.244.0.7 tcp 8081", false),
            ("10.244.0.5 192.0.2.1 tcp 8080", false),
        ],
    );
    check(
        json!({"podSelector": {}, "ingress": [{"ports": [{"port": "none"}]}]}),
        &[("10.244.0.6 10.244.0.5 tcp 8080", false)],
    );
}

#[test]
fn cluster_dns_is_a_pod_of_kube_system() {
    let to = |peer: Value| json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [peer], "ports": [{"protocol": "UDP", "port": 53}]}]});
    let ask = |passes| [("10.244.0.5 10.96.0.10 udp 53", passes), ("fd00:10:244::5 fd00:10:96::a udp 53", passes)];
    check(json!({"podSelector": {}, "policyTypes": ["Egress"]}), &ask(false));
    let system = json!({"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}});
    check(
        to(json!({"namespaceSelector": system, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}})),
        &ask(true),
    );
    check(to(json!({"namespaceSelector": system, "podSelector": {"matchLabels": {"k8s-app": "other"}}})), &ask(false));
    check(to(json!({"namespaceSelector": {}})), &ask(true));
}

#[test]
fn unintelligible_policies_admit_no_traffic() {
    let odd = json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["w"]}]});
    let cases = [("10.244.0.6 10.244.0.5 tcp 80", false)];
    check(json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": odd}]}]}), &cases);
    check(json!({"podSelector": {}, "ingress": [{"from": [{}]}]}), &cases);
    check(json!({"podSelector": {}, "ingress": [{"ports": [{"protocol": "ICMP"}]}]}), &cases);
    check(json!({"podSelector": {}, "ingress": [{"ports": [{"port": 90, "endPort": 80}]}]}), &cases);
}

#[test]
fn a_pod_that_starts_is_protected_before_the_api_knows_its_address() {
    let newcomer = Member { addresses: vec!["10.244.0.9".parse().unwrap()], ..view(&[], &[], &pods()).pods[0].clone() };
    let newcomer = Member { uid: "new".into(), ..newcomer };
    let deny = view(&[policy(json!({"podSelector": {"matchLabels": {"app": "db"}}}))], &[("shop", json!({}))], &pods());
    let passes = |newcomers: Vec<&Member>, packet: &str| {
        Packet::parse(packet).passes(&render(&settings(), &plan(&deny, &settings(), newcomers)))
    };
    assert!(passes(vec![], "10.244.0.6 10.244.0.9 tcp 80"));
    assert!(!passes(vec![&newcomer], "10.244.0.6 10.244.0.9 tcp 80"));
    // An address that went from one pod to another counts for the newer one only.
    let heir = Member {
        uid: "heir".into(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        addresses: vec!["10.244.0.5".parse().unwrap()],
        ..newcomer
    };
    assert!(passes(vec![&heir], "10.244.0.6 10.244.0.5 tcp 80"));
}

#[test]
fn a_pod_more_changes_elements_only() {
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [{"podSelector": {}}]}]});
    let rules = |pods: &[Value]| {
        let view = view(&[policy(spec.clone())], &[("shop", json!({}))], pods);
        render(&settings(), &plan(&view, &settings(), Vec::new()))
    };
    let (before, after) = (rules(&pods()), rules(&[pods(), vec![pod("new", "there", 8, json!({}))]].concat()));
    let text = after.transaction(Some(&before));
    let lines: Vec<_> = text.lines().map(|line| line.split("pods/").next().unwrap()).collect();
    assert_eq!(lines, ["add element inet network_policies "; 2], "{text}");
    assert!(before.transaction(Some(&after)).starts_with("delete element"));
    assert_eq!(before.transaction(Some(&before)), "");
}

/// The kernel is the judge of the syntax, where there is one that lets us ask.
#[test]
fn the_kernel_accepts_it() {
    use sys::namespace::{Namespace, current_netns, in_netns, unshare};
    let made = std::thread::spawn(|| unshare(&[Namespace::Net]).and_then(|()| current_netns())).join().unwrap();
    let Ok(netns) = made else { return };
    let everything = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{}, {"from": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}}],
            "ports": [{"port": 80}, {"port": 80, "endPort": 90}, {"port": 85, "endPort": 95}, {"protocol": "SCTP"}, {"protocol": "UDP", "port": "web"}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "10.1.0.0/16"]}}], "ports": [{"port": "web"}]}]});
    let long = json!({"metadata": {"name": "n".repeat(253), "namespace": "shop"}, "spec": {"podSelector": {}}});
    let of = |policies: &[Value], pods: &[Value]| {
        render(&settings(), &plan(&view(policies, &[("shop", json!({}))], pods), &settings(), Vec::new()))
    };
    let full = [policy(everything), long];
    let steps = [of(&[], &pods()), of(&full, &pods()), of(&full, &pods()[..2]), of(&full, &pods()), of(&[], &[])];
    let mut before: Option<&Ruleset> = None;
    for rules in &steps {
        let text = rules.transaction(before);
        in_netns(std::os::fd::AsFd::as_fd(&netns), || net::nft::load(&text))
            .unwrap()
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        before = Some(rules);
    }
}
