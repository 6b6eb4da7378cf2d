//! What a node's silence, conditions and name mean: conditions, taints, pod CIDRs. Pure.

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::condition::state;
use super::zone::{Evict, evicts};

const PREFIX: &str = "node.kubernetes.io/";
/// The conditions a node agent reports and which become Unknown when it is silent.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The conditions of a node nobody has heard of for too long; `None` when they say so already.
pub(crate) fn silent(node: &Node, now: &Time) -> Option<Vec<NodeCondition>> {
    let mut conditions = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let before = conditions.clone();
    for type_ in REPORTED {
        match conditions.iter_mut().find(|c| c.type_ == type_) {
            Some(condition) if condition.status != "Unknown" => {
                condition.status = "Unknown".into();
                condition.reason = Some("NodeStatusUnknown".into());
                condition.message = Some("Kubelet stopped posting node status.".into());
                condition.last_transition_time = Some(now.clone());
            }
            Some(_) => {}
            None => conditions.push(NodeCondition {
                type_: type_.into(),
                status: "Unknown".into(),
                reason: Some("NodeStatusNeverUpdated".into()),
                message: Some("Kubelet never posted node status.".into()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(now.clone()),
            }),
        }
    }
    (conditions != before).then_some(conditions)
}

/// The taints a node should have: ours by its conditions, everybody else's as they are. `None` when it has them.
/// `evict` says whether pods may be driven off a node that is not ready.
pub(crate) fn taints(node: &Node, evict: Evict, now: &Time) -> Option<Vec<Taint>> {
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    let lost = match state(node, "Ready") {
        "True" => None,
        "False" => Some("not-ready"),
        _ => Some("unreachable"),
    };
    if let Some(key) = lost {
        wanted.push((key, "NoSchedule"));
        if evict == Evict::Yes || (evict == Evict::Hold && evicts(node)) {
            wanted.push((key, "NoExecute"));
        }
    }
    let pressures = [
        ("MemoryPressure", "memory-pressure"),
        ("DiskPressure", "disk-pressure"),
        ("PIDPressure", "pid-pressure"),
        ("NetworkUnavailable", "network-unavailable"),
    ];
    wanted.extend(
        pressures.iter().filter(|(type_, _)| state(node, type_) == "True").map(|(_, key)| (*key, "NoSchedule")),
    );
    if node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false) {
        wanted.push(("unschedulable", "NoSchedule"));
    }
    let has = kit::controller::placement::taints(node);
    let ours = |taint: &Taint| {
        let key = taint.key.strip_prefix(PREFIX).unwrap_or_default();
        let keys = ["not-ready", "unreachable", "unschedulable"];
        keys.contains(&key) || pressures.iter().any(|(_, pressure)| *pressure == key)
    };
    let same = |taint: &Taint, (key, effect): &(&str, &str)| {
        taint.key.strip_prefix(PREFIX) == Some(*key) && taint.effect == *effect
    };
    let mut taints: Vec<Taint> =
        has.iter().filter(|taint| !ours(taint) || wanted.iter().any(|w| same(taint, w))).cloned().collect();
    for missing in wanted.iter().filter(|w| !has.iter().any(|taint| same(taint, w))) {
        taints.push(Taint {
            key: format!("{PREFIX}{}", missing.0),
            effect: missing.1.into(),
            time_added: Some(now.clone()),
            value: None,
        });
    }
    (taints.as_slice() != has).then_some(taints)
}

/// The first subnet of `length` bits in `cluster` that overlaps none of `taken`.
pub(crate) fn free_subnet(cluster: IpNet, length: u8, taken: &[IpNet]) -> Option<IpNet> {
    let mut subnets = cluster.subnets(length).ok()?;
    subnets.find(|subnet| !taken.iter().any(|t| t.contains(subnet) || subnet.contains(t)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(ready: &str, taints: &str, cordoned: bool) -> Node {
        let taint = |word: &str| {
            let (key, effect) = word.split_once(':').unwrap();
            let key = if key == "own" { key.to_owned() } else { format!("{PREFIX}{key}") };
            json!({"key": key, "effect": effect})
        };
        let taints: Vec<_> = taints.split_whitespace().map(taint).collect();
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": taints, "unschedulable": cordoned},
            "status": {"conditions": [{"type": "Ready", "status": ready}, {"type": "DiskPressure", "status": "False"}]}}))
        .unwrap()
    }

    #[track_caller]
    fn check(node: &Node, expect: Option<&str>) {
        let now = kit::clock::time();
        let text = taints(node, Evict::Yes, &now).map(|taints| {
            let one = |t: &Taint| format!("{}:{}", t.key.trim_start_matches(PREFIX), t.effect);
            taints.iter().map(one).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(text.as_deref(), expect);
    }

    #[test]
    fn taints_follow_conditions() {
        check(&node("True", "", false), None);
        check(&node("True", "not-ready:NoSchedule own:NoSchedule", false), Some("own:NoSchedule"));
        check(&node("False", "own:NoExecute", false), Some("own:NoExecute not-ready:NoSchedule not-ready:NoExecute"));
        check(&node("Unknown", "not-ready:NoExecute", false), Some("unreachable:NoSchedule unreachable:NoExecute"));
        check(&node("True", "", true), Some("unschedulable:NoSchedule"));
        let now = kit::clock::time();
        let count = |node: &Node, evict: Evict| taints(node, evict, &now).map(|taints| taints.len());
        assert_eq!(count(&node("False", "", false), Evict::Hold), Some(1));
        assert_eq!(count(&node("Unknown", "not-ready:NoExecute", false), Evict::Hold), Some(2));
        assert_eq!(count(&node("Unknown", "unreachable:NoSchedule unreachable:NoExecute", false), Evict::No), Some(1));
    }

    #[test]
    fn silence_is_unknown_and_said_once() {
        let mut node = node("True", "", false);
        let now = kit::clock::time();
        let conditions = silent(&node, &now).unwrap();
        assert!(conditions.iter().all(|c| c.status == "Unknown"));
        assert_eq!(conditions.len(), 4);
        node.status.as_mut().unwrap().conditions = Some(conditions);
        assert_eq!(silent(&node, &now), None);
    }

    #[test]
    fn subnets_do_not_overlap() {
        let cluster: IpNet = "10.244.0.0/16".parse().unwrap();
        let first = free_subnet(cluster, 24, &[]).unwrap();
        assert_eq!(first.to_string(), "10.244.0.0/24");
        assert_eq!(free_subnet(cluster, 24, &[first]).unwrap().to_string(), "10.244.1.0/24");
        assert_eq!(free_subnet(cluster, 24, &[cluster]), None);
        let six: IpNet = "fd00:10:244::/48".parse().unwrap();
        assert_eq!(free_subnet(six, 64, &[]).unwrap().to_string(), "fd00:10:244::/64");
    }
}
