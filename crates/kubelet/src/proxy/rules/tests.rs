//! Rulesets by data, from the objects to the text.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::proxy::ports::collect;
use crate::service_view::View;

fn settings() -> Settings {
    Settings {
        node: "node1".into(),
        pod_cidrs: ["10.244.0.0/24", "fd00:10:244::/64"].map(|net| net.parse().unwrap()).to_vec(),
        service_cidrs: ["10.96.0.0/16", "fd00:10:96::/112"].map(|net| net.parse().unwrap()).to_vec(),
        own_addresses: vec!["10.96.0.10".parse().unwrap()],
    }
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn service(spec: Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec})
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn slice(kind: &str, port: u16, endpoints: Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": format!("web-{kind}"), "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": kind, "ports": [{"name": "http", "port": port, "protocol": "TCP"}], "endpoints": endpoints})
}

fn ready(ip: &str) -> Value {
    json!({"addresses": [ip], "nodeName": "node1", "conditions": {"ready": true, "serving": true, "terminating": false}})
}

fn ruleset(services: &[Value], slices: &[Value]) -> Ruleset {
    let view = View {
        zone: Some("a".into()),
        services: services.iter().map(|s| Arc::new(serde_json::from_value(s.clone()).unwrap())).collect(),
        slices: slices.iter().map(|s| Arc::new(serde_json::from_value(s.clone()).unwrap())).collect(),
    };
    render(&settings(), &collect(&view, &settings()))
}

/// The chains that exist because of Services, and the elements of all maps.
#[track_caller]
fn check(services: &[Value], slices: &[Value], expect: &str) {
    let (rules, none) = (ruleset(services, slices), ruleset(&[], &[]));
    let mut text = String::new();
    for (name, (_, elements)) in &rules.maps {
        for element in elements {
            text.push_str(&format!("{name}: {element}\n"));
        }
    }
    for (name, lines) in rules.chains.iter().filter(|(name, _)| !none.chains.contains_key(*name)) {
        text.push_str(&format!("{name}\n"));
        for line in lines {
            text.push_str(&format!("  {line}\n"));
        }
    }
    assert_eq!(text.trim(), expect.trim());
}

fn http() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "TCP"}])
}

#[test]
fn a_cluster_ip_with_one_endpoint() {
    check(
        &[service(json!({"clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"], "ports": http()}))],
        &[slice("IPv4", 8080, json!([ready("10.244.0.5")]))],
        "
addresses4: 10.96.1.1 . tcp . 80 : goto service/shop/web/tcp/80/4
choose/shop/web/tcp/80/4
  goto endpoint/shop/web/tcp/80/4/10.244.0.5/8080
endpoint/shop/web/tcp/80/4/10.244.0.5/8080
  ip saddr 10.244.0.5 meta mark set meta mark or 0x4000
  meta l4proto tcp dnat ip to 10.244.0.5:8080
service/shop/web/tcp/80/4
  ip saddr != { 10.244.0.0/24 } meta mark set meta mark or 0x4000
  goto choose/shop/web/tcp/80/4
",
    );
}

#[test]
fn both_families_and_two_endpoints() {
    check(
        &[service(json!({"clusterIPs": ["10.96.1.1", "fd00:10:96::1"], "ports": http()}))],
        &[
            slice("IPv4", 8080, json!([ready("10.244.0.5"), ready("10.244.0.6")])),
            slice("IPv6", 8080, json!([ready("fd00:10:244::5")])),
        ],
        "
addresses4: 10.96.1.1 . tcp . 80 : goto service/shop/web/tcp/80/4
addresses6: fd00:10:96::1 . tcp . 80 : goto service/shop/web/tcp/80/6
choose/shop/web/tcp/80/4
  numgen random mod 2 vmap { 0 : goto endpoint/shop/web/tcp/80/4/10.244.0.5/8080, 1 : goto endpoint/shop/web/tcp/80/4/10.244.0.6/8080 }
choose/shop/web/tcp/80/6
  goto endpoint/shop/web/tcp/80/6/fd00.10.244..5/8080
endpoint/shop/web/tcp/80/4/10.244.0.5/8080
  ip saddr 10.244.0.5 meta mark set meta mark or 0x4000
  meta l4proto tcp dnat ip to 10.244.0.5:8080
endpoint/shop/web/tcp/80/4/10.244.0.6/8080
  ip saddr 10.244.0.6 meta mark set meta mark or 0x4000
  meta l4proto tcp dnat ip to 10.244.0.6:8080
endpoint/shop/web/tcp/80/6/fd00.10.244..5/8080
  ip6 saddr fd00:10:244::5 meta mark set meta mark or 0x4000
  meta l4proto tcp dnat ip6 to [fd00:10:244::5]:8080
service/shop/web/tcp/80/4
  ip saddr != { 10.244.0.0/24 } meta mark set meta mark or 0x4000
  goto choose/shop/web/tcp/80/4
service/shop/web/tcp/80/6
  ip6 saddr != { fd00:10:244::/64 } meta mark set meta mark or 0x4000
  goto choose/shop/web/tcp/80/6
",
    );
}

#[test]
fn services_without_endpoints_are_rejected() {
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]);
    check(
        &[service(json!({"type": "NodePort", "clusterIPs": ["10.96.1.1"], "ports": ports}))],
        &[],
        "
refused_addresses4: 10.96.1.1 . tcp . 80 : goto reject_it
refused_node_ports4: tcp . 30080 : goto reject_it
",
    );
}

#[test]
fn services_without_rules() {
    check(&[service(json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": http()}))], &[], "");
    check(&[service(json!({"type": "ExternalName", "externalName": "example.org"}))], &[], "");
    // Cluster DNS is answered by the node itself.
    check(&[service(json!({"clusterIPs": ["10.96.0.10"], "ports": http()}))], &[], "");
}

#[test]
fn a_node_port_with_affinity() {
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]);
    let spec = json!({"type": "NodePort", "clusterIPs": ["10.96.1.1"], "ports": ports, "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}});
    let slices = [slice("IPv4", 8080, json!([ready("10.244.0.5")]))];
    check(
        &[service(spec.clone())],
        &slices,
        "
addresses4: 10.96.1.1 . tcp . 80 : goto service/shop/web/tcp/80/4
node_ports4: tcp . 30080 : goto outside/shop/web/tcp/80/4
choose/shop/web/tcp/80/4
  ip saddr @affinity/shop/web/tcp/80/4/10.244.0.5/8080 goto endpoint/shop/web/tcp/80/4/10.244.0.5/8080
  goto endpoint/shop/web/tcp/80/4/10.244.0.5/8080
endpoint/shop/web/tcp/80/4/10.244.0.5/8080
  ip saddr 10.244.0.5 meta mark set meta mark or 0x4000
  update @affinity/shop/web/tcp/80/4/10.244.0.5/8080 { ip saddr }
  meta l4proto tcp dnat ip to 10.244.0.5:8080
outside/shop/web/tcp/80/4
  meta mark set meta mark or 0x4000 goto choose/shop/web/tcp/80/4
service/shop/web/tcp/80/4
  ip saddr != { 10.244.0.0/24 } meta mark set meta mark or 0x4000
  goto choose/shop/web/tcp/80/4
",
    );
    let sets = ruleset(&[service(spec)], &slices).sets;
    assert_eq!(
        sets["affinity/shop/web/tcp/80/4/10.244.0.5/8080"],
        ["type ipv4_addr", "flags dynamic,timeout", "timeout 60s"]
    );
}

#[test]
fn local_traffic_keeps_the_client_address() {
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]);
    let elsewhere = json!({"addresses": ["10.244.1.5"], "nodeName": "node2", "conditions": {"ready": true}});
    let spec =
        json!({"type": "NodePort", "clusterIPs": ["10.96.1.1"], "ports": ports, "externalTrafficPolicy": "Local"});
    let rules = ruleset(&[service(spec)], &[slice("IPv4", 8080, json!([ready("10.244.0.5"), elsewhere]))]);
    assert_eq!(
        rules.chains["outside/shop/web/tcp/80/4"],
        [
            "ip saddr { 10.244.0.0/24 } goto choose/shop/web/tcp/80/4",
            "fib saddr type local meta mark set meta mark or 0x4000 goto choose/shop/web/tcp/80/4",
            "goto choose_here/shop/web/tcp/80/4"
        ]
    );
    assert_eq!(rules.chains["choose_here/shop/web/tcp/80/4"], ["goto endpoint/shop/web/tcp/80/4/10.244.0.5/8080"]);
    assert!(rules.chains["choose/shop/web/tcp/80/4"][0].starts_with("numgen random mod 2"));
}

#[test]
fn inside_local_leaves_the_outside_as_it_is() {
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]);
    let elsewhere = json!({"addresses": ["10.244.1.5"], "nodeName": "node2", "conditions": {"ready": true}});
    let spec =
        json!({"type": "NodePort", "clusterIPs": ["10.96.1.1"], "ports": ports, "internalTrafficPolicy": "Local"});
    let slices = [slice("IPv4", 8080, json!([elsewhere]))];
    check(
        &[service(spec)],
        &slices,
        "
node_ports4: tcp . 30080 : goto outside/shop/web/tcp/80/4
refused_addresses4: 10.96.1.1 . tcp . 80 : goto reject_it
choose/shop/web/tcp/80/4
  goto endpoint/shop/web/tcp/80/4/10.244.1.5/8080
endpoint/shop/web/tcp/80/4/10.244.1.5/8080
  ip saddr 10.244.1.5 meta mark set meta mark or 0x4000
  meta l4proto tcp dnat ip to 10.244.1.5:8080
outside/shop/web/tcp/80/4
  meta mark set meta mark or 0x4000 goto choose/shop/web/tcp/80/4
",
    );
}

#[test]
fn a_load_balancer_may_be_for_some_only() {
    let spec = json!({"type": "LoadBalancer", "clusterIPs": ["10.96.1.1"], "ports": http(),
        "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["192.0.2.0/24", "192.0.2.64/26", "2001:db8::/32"]});
    let mut balanced = service(spec);
    balanced["status"] =
        json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}, {"ip": "198.51.100.2", "ipMode": "Proxy"}]}});
    let elsewhere = json!({"addresses": ["10.244.1.5"], "nodeName": "node2", "conditions": {"ready": true}});
    let rules = ruleset(&[balanced], &[slice("IPv4", 8080, json!([elsewhere]))]);
    let elements = &rules.maps["addresses4"].1;
    assert_eq!(
        *elements,
        [
            "10.96.1.1 . tcp . 80 : goto service/shop/web/tcp/80/4",
            "198.51.100.1 . tcp . 80 : goto firewall/shop/web/tcp/80/4"
        ]
    );
    assert_eq!(
        rules.chains["firewall/shop/web/tcp/80/4"],
        ["ip saddr != { 192.0.2.0/24 } drop", "goto outside/shop/web/tcp/80/4"]
    );
    assert_eq!(rules.chains["outside/shop/web/tcp/80/4"].last().unwrap(), "drop");
}

#[test]
fn hints_keep_traffic_in_the_zone_as_long_as_it_has_somebody() {
    let hinted = |ip: &str, zone: Option<&str>, ready: bool| {
        let mut endpoint = json!({"addresses": [ip], "nodeName": "n", "conditions": {"ready": ready}});
        if let Some(zone) = zone {
            endpoint["hints"] = json!({"forZones": [{"name": zone}]});
        }
        endpoint
    };
    let chosen = |endpoints: Value| {
        let spec = service(json!({"clusterIPs": ["10.96.1.1"], "ports": http()}));
        let rules = ruleset(&[spec], &[slice("IPv4", 80, endpoints)]);
        let names = rules.chains.keys().filter_map(|name| name.strip_prefix("endpoint/shop/web/tcp/80/4/"));
        names.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let (a, b) = (hinted("10.0.0.1", Some("a"), true), hinted("10.0.0.2", Some("b"), true));
    assert_eq!(chosen(json!([a, b])), "10.0.0.1/80");
    assert_eq!(chosen(json!([b])), "10.0.0.2/80");
    assert_eq!(chosen(json!([a, b, hinted("10.0.0.3", None, true)])), "10.0.0.1/80 10.0.0.2/80 10.0.0.3/80");
    assert_eq!(chosen(json!([a, b, hinted("10.0.0.3", None, false)])), "10.0.0.1/80");
}

#[test]
fn endpoints_by_condition() {
    let state = |ip: &str, ready: bool, serving: bool, terminating: bool| {
        json!({"addresses": [ip], "nodeName": "node1",
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
    };
    let spec = service(json!({"clusterIPs": ["10.96.1.1"], "ports": http()}));
    let chosen = |endpoints: Value| {
        let rules = ruleset(std::slice::from_ref(&spec), &[slice("IPv4", 80, endpoints)]);
        let names = rules.chains.keys().filter_map(|name| name.strip_prefix("endpoint/shop/web/tcp/80/4/"));
        names.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let (up, going, down) = (
        state("10.0.0.1", true, true, false),
        state("10.0.0.2", false, true, true),
        state("10.0.0.3", false, false, false),
    );
    assert_eq!(chosen(json!([up, going, down])), "10.0.0.1/80");
    assert_eq!(chosen(json!([going, down])), "10.0.0.2/80");
    assert_eq!(chosen(json!([down])), "");
}

#[test]
fn a_change_keeps_sets_and_drops_what_is_gone() {
    let spec = json!({"clusterIPs": ["10.96.1.1"], "ports": http(), "sessionAffinity": "ClientIP"});
    let with = |endpoints: Value| ruleset(&[service(spec.clone())], &[slice("IPv4", 80, endpoints)]);
    let (before, after) = (with(json!([ready("10.244.0.5"), ready("10.244.0.6")])), with(json!([ready("10.244.0.5")])));
    let text = after.transaction(Some(&before));
    for line in [
        "flush table inet services",
        "flush map inet services addresses4",
        "delete chain inet services endpoint/shop/web/tcp/80/4/10.244.0.6/80",
        "delete set inet services affinity/shop/web/tcp/80/4/10.244.0.6/80",
    ] {
        assert!(text.contains(&format!("{line}\n")), "missing {line:?} in\n{text}");
    }
    assert!(!text.contains("delete set inet services affinity/shop/web/tcp/80/4/10.244.0.5/80"));
    assert!(after.transaction(None).starts_with("add table inet services\ndelete table inet services\n"));
}

/// The kernel is the judge of the syntax, where there is one that lets us ask.
#[test]
fn the_kernel_accepts_it() {
    use sys::namespace::{Namespace, current_netns, in_netns, unshare};
    let made = std::thread::spawn(|| unshare(&[Namespace::Net]).and_then(|()| current_netns())).join().unwrap();
    let Ok(netns) = made else { return };
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}, {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "sig", "port": 9, "protocol": "SCTP"}]);
    let spec = json!({"type": "NodePort", "clusterIPs": ["10.96.1.1", "fd00:10:96::1"], "ports": ports,
        "externalIPs": ["192.0.2.7"], "sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": ["192.0.2.0/24", "192.0.2.64/26"]});
    let full = |ips: &[&str]| {
        let endpoints: Vec<_> = ips.iter().map(|ip| ready(ip)).collect();
        let mut balanced = service(spec.clone());
        balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}, {"ip": "2001:db8::1"}]}});
        ruleset(&[balanced], &[slice("IPv4", 8080, endpoints.into()), slice("IPv6", 8080, json!([ready("fd00::5")]))])
    };
    let steps =
        [ruleset(&[], &[]), full(&["10.244.0.5", "10.244.0.6"]), full(&["10.244.0.6"]), full(&[]), ruleset(&[], &[])];
    let mut before: Option<&Ruleset> = None;
    for rules in &steps {
        let text = rules.transaction(before);
        in_netns(std::os::fd::AsFd::as_fd(&netns), || net::nft::load(&text))
            .unwrap()
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        before = Some(rules);
    }
}

#[test]
fn connections_stay_with_an_endpoint_that_is_there() {
    let leaving =
        json!({"addresses": ["10.244.0.8"], "conditions": {"ready": false, "serving": false, "terminating": true}});
    let slices = [
        slice("IPv4", 8080, json!([ready("10.244.0.7"), leaving])),
        slice("IPv6", 8080, json!([ready("fd00:10:244::7")])),
        json!({"metadata": {"namespace": "shop", "name": "dns"}, "addressType": "IPv4",
            "ports": [{"port": 53, "protocol": "UDP"}], "endpoints": [ready("10.244.0.9")]}),
    ];
    let slices = slices.iter().map(|s| Arc::new(serde_json::from_value(s.clone()).unwrap())).collect();
    let found = crate::proxy::ports::existing(&View { zone: None, services: Vec::new(), slices });
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["10.244.0.7:8080", "10.244.0.8:8080", "[fd00:10:244::7]:8080"]);
}
