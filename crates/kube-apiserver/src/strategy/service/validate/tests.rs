//! Services and what is said of them.

use serde_json::{Value, json};

use super::*;

/// What is wrong with a Service of one port, the given fields merged in.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn check(fields: Value, expect: &[&str]) {
    let mut spec = json!({"type": "ClusterIP", "sessionAffinity": "None", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]});
    json_patch::merge(&mut spec, &fields);
    // Defaults come before validation.
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        if port["targetPort"].is_null() {
            port["targetPort"] = port["port"].clone();
        }
    }
    let mut causes = Vec::new();
    validate(&spec, &mut causes);
    let said: Vec<_> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    assert_eq!(said, expect);
}

#[test]
fn types_have_fields_of_their_own() {
    check(json!({}), &[]);
    check(
        json!({"ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}]}),
        &["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
    );
    check(
        json!({"externalTrafficPolicy": "Local"}),
        &["spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services"],
    );
    check(json!({"externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.1"]}), &[]);
    check(
        json!({"allocateLoadBalancerNodePorts": true}),
        &["spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'"],
    );
    check(
        json!({"type": "NodePort", "clusterIP": "None", "clusterIPs": ["None"]}),
        &["spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services"],
    );
    check(
        json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/33"]}),
        &[
            "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.0/33\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ],
    );
    check(
        json!({"healthCheckNodePort": 30001}),
        &[
            "spec.healthCheckNodePort: Invalid value: 30001: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ],
    );
    check(json!({"type": "ExternalName", "externalName": "db.example.org.", "ports": null}), &[]);
    check(
        json!({"type": "ExternalName", "ipFamilies": ["IPv4"]}),
        &["spec.ipFamilies: Forbidden: may not be set for ExternalName services", "spec.externalName: Required value"],
    );
}

#[test]
fn ports_are_told_apart() {
    check(json!({"ports": []}), &["spec.ports: Required value"]);
    let two = |more: Value| {
        let mut second = json!({"port": 81, "protocol": "TCP", "name": "b"});
        json_patch::merge(&mut second, &more);
        json!({"ports": [{"port": 80, "protocol": "TCP", "name": "a"}, second]})
    };
    check(two(json!({"name": "a"})), &["spec.ports[1].name: Duplicate value: \"a\""]);
    check(two(json!({"name": null})), &["spec.ports[1].name: Required value"]);
    check(two(json!({"port": 80})), &["spec.ports[1]: Duplicate value: {\"port\":80,\"protocol\":\"TCP\"}"]);
    check(two(json!({"port": 80, "protocol": "UDP"})), &[]);
    check(
        two(json!({"port": 0, "targetPort": 80})),
        &["spec.ports[1].port: Invalid value: 0: must be between 1 and 65535, inclusive"],
    );
    check(
        two(json!({"targetPort": "has--two"})),
        &["spec.ports[1].targetPort: Invalid value: \"has--two\": must not contain consecutive hyphens"],
    );
}

#[test]
fn affinity_is_within_a_day() {
    let seconds =
        |n: i64| json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": n}}});
    check(seconds(86_400), &[]);
    check(
        seconds(0),
        &[
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than 86400",
        ],
    );
    check(
        json!({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}),
        &["spec.sessionAffinityConfig: Forbidden: must not be set when session affinity is None"],
    );
}

#[test]
fn addresses_fit_their_families() {
    let ips = |ips: &[&str], families: &[&str]| json!({"clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families});
    check(ips(&["10.96.0.1", "fd00::1"], &["IPv4", "IPv6"]), &[]);
    check(
        ips(&["10.96.0.1"], &["IPv6"]),
        &["spec.clusterIPs[0]: Invalid value: \"10.96.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`"],
    );
    check(
        ips(&["x"], &[]),
        &["spec.clusterIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"],
    );
    check(
        json!({"clusterIP": "10.96.0.2", "clusterIPs": ["10.96.0.1"]}),
        &["spec.clusterIPs: Invalid value: [\"10.96.0.1\"]: first value must match `clusterIP`"],
    );
    check(json!({"ipFamilies": ["IPv4", "IPv4"]}), &["spec.ipFamilies[1]: Duplicate value: \"IPv4\""]);
    check(
        json!({"externalIPs": ["127.0.0.1"]}),
        &["spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)"],
    );
}

#[test]
fn allocated_addresses_and_ports_are_immutable() {
    let check = |old: Value, new: Value, expect: &[&str]| {
        let mut causes = Vec::new();
        validate_update(&old, &new, &mut causes);
        assert_eq!(
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect::<Vec<_>>(),
            expect
        );
    };
    let ip = |ip: &str| json!({"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip]});
    check(ip("10.96.0.1"), ip("10.96.0.1"), &[]);
    check(
        ip("10.96.0.1"),
        ip("10.96.0.2"),
        &["spec.clusterIPs[0]: Invalid value: [\"10.96.0.2\"]: may not change once set"],
    );
    check(ip("10.96.0.1"), json!({"type": "ExternalName"}), &[]);
}
