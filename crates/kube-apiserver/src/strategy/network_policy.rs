//! What a NetworkPolicy may say. The sentences are those clients of Kubernetes know.

use ipnet::IpNet;
use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::service::port_name_problems;
use super::{invalid, one_of, required};

const RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const PORT: &str = "must be between 1 and 65535, inclusive";

pub(super) fn validate(spec: &Value, causes: &mut Vec<Cause>) {
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in all(&spec[direction]).iter().enumerate() {
            let at = format!("spec.{direction}[{index}]");
            for (n, port) in all(&rule["ports"]).iter().enumerate() {
                self::port(&format!("{at}.ports[{n}]"), port, causes);
            }
            for (n, peer) in all(&rule[peers]).iter().enumerate() {
                self::peer(&format!("{at}.{peers}[{n}]"), peer, causes);
            }
        }
    }
    let types = all(&spec["policyTypes"]);
    if types.len() > 2 {
        invalid("spec.policyTypes", &spec["policyTypes"], "may not specify more than two policyTypes", causes);
        return;
    }
    for (index, kind) in types.iter().enumerate() {
        one_of(&format!("spec.policyTypes[{index}]"), kind, &["Egress", "Ingress"], causes);
    }
}

fn all(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn port(at: &str, port: &Value, causes: &mut Vec<Cause>) {
    one_of(&format!("{at}.protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"], causes);
    let in_range = |value: &Value| value.as_i64().is_some_and(|number| (1..=65535).contains(&number));
    let (first, last) = (&port["port"], &port["endPort"]);
    match first {
        Value::Number(_) if !in_range(first) => invalid(&format!("{at}.port"), first, PORT, causes),
        Value::String(name) => {
            port_name_problems(name).for_each(|why| invalid(&format!("{at}.port"), first, why, causes));
        }
        _ => {}
    }
    if last.is_null() {
        return;
    }
    let why = match first {
        Value::Number(number) if number.as_i64() > last.as_i64() => "must be greater than or equal to `port`",
        Value::Number(_) if !in_range(last) => PORT,
        Value::Number(_) => return,
        Value::String(_) => "may not be specified when `port` is non-numeric",
        _ => "may not be specified when `port` is not specified",
    };
    invalid(&format!("{at}.endPort"), last, why, causes);
}

fn peer(at: &str, peer: &Value, causes: &mut Vec<Cause>) {
    let selects = !peer["podSelector"].is_null() || !peer["namespaceSelector"].is_null();
    let block = &peer["ipBlock"];
    if !selects && block.is_null() {
        causes.push(cause("FieldValueRequired", at, "Required value: must specify a peer".into()));
    }
    if selects && !block.is_null() {
        let why = "Forbidden: may not specify both ipBlock and another peer".into();
        causes.push(cause("FieldValueForbidden", at, why));
    }
    if block.is_null() {
        return;
    }
    let text = block["cidr"].as_str().unwrap_or_default();
    if text.is_empty() {
        required(&format!("{at}.ipBlock.cidr"), causes);
        return;
    }
    let Ok(range) = text.parse::<IpNet>() else {
        invalid(&format!("{at}.ipBlock.cidr"), &json!(text), RANGE, causes);
        return;
    };
    if let Some(why) = loose(text, &range) {
        invalid(&format!("{at}.ipBlock.cidr"), &json!(text), why, causes);
    }
    for (index, hole) in all(&block["except"]).iter().enumerate() {
        let field = format!("{at}.ipBlock.except[{index}]");
        match hole.as_str().and_then(|hole| hole.parse::<IpNet>().ok()) {
            None => invalid(&field, hole, RANGE, causes),
            Some(net) if !range.contains(&net) || range.prefix_len() >= net.prefix_len() => {
                invalid(&field, hole, "must be a strict subset of `cidr`", causes);
            }
            Some(_) => {}
        }
    }
}

/// Why a range is not written as ranges are.
fn loose(text: &str, range: &IpNet) -> Option<&'static str> {
    if range.trunc() != *range {
        return Some("must not have bits set beyond the prefix length");
    }
    let padded = |part: &str| part.len() > 1 && part.starts_with('0');
    let zeros = range.addr().is_ipv4() && text.split(['.', '/']).any(padded);
    zeros.then_some("must not have leading 0s in IP or prefix length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, expect: &[&str]) {
        let mut causes = Vec::new();
        validate(&spec, &mut causes);
        let said: Vec<_> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        assert_eq!(said, expect);
    }

    #[test]
    fn ports() {
        let port = |port: Value| json!({"ingress": [{"ports": [port]}]});
        check(port(json!({"protocol": "TCP", "port": 80, "endPort": 90})), &[]);
        check(
            port(json!({"port": 80, "endPort": 70})),
            &["spec.ingress[0].ports[0].endPort: Invalid value: 70: must be greater than or equal to `port`"],
        );
        check(
            port(json!({"port": "web", "endPort": 70})),
            &["spec.ingress[0].ports[0].endPort: Invalid value: 70: may not be specified when `port` is non-numeric"],
        );
        check(
            port(json!({"endPort": 70})),
            &["spec.ingress[0].ports[0].endPort: Invalid value: 70: may not be specified when `port` is not specified"],
        );
        check(
            port(json!({"port": 0})),
            &["spec.ingress[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"],
        );
        check(
            port(json!({"protocol": "ICMP"})),
            &[
                "spec.ingress[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ],
        );
    }

    #[test]
    fn peers() {
        let peer = |peer: Value| json!({"egress": [{"to": [peer]}]});
        check(peer(json!({})), &["spec.egress[0].to[0]: Required value: must specify a peer"]);
        check(
            peer(json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}})),
            &["spec.egress[0].to[0]: Forbidden: may not specify both ipBlock and another peer"],
        );
        check(
            peer(json!({"ipBlock": {"cidr": "10.0.0.0"}})),
            &[
                "spec.egress[0].to[0].ipBlock.cidr: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ],
        );
        check(peer(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}})), &[]);
        check(
            peer(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}})),
            &[
                "spec.egress[0].to[0].ipBlock.except[0]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `cidr`",
            ],
        );
    }

    #[test]
    fn types() {
        check(json!({"policyTypes": ["Ingress", "Egress"]}), &[]);
        check(
            json!({"policyTypes": ["Both"]}),
            &["spec.policyTypes[0]: Unsupported value: \"Both\": supported values: \"Egress\", \"Ingress\""],
        );
    }
}
