//! Whether a node can be trusted with guests. Pure.

use std::time::Duration;

use api::kubevirt::words::{annotation, label};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;

/// virt-handler renews its heartbeat every minute; five missed ones are silence.
const SILENCE: SignedDuration = SignedDuration::from_secs(300);

/// What to think of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// virt-handler has not been heard of for too long.
    pub silent: bool,
    /// The node itself is not ready.
    pub dead: bool,
    /// The node must be marked unschedulable for virtual machines.
    pub unschedulable: bool,
    /// Look again after this long.
    pub again: Option<Duration>,
}

/// The verdict on `node`.
pub fn verdict(node: &Node, now: Timestamp) -> Verdict {
    let heartbeat = node
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(annotation::HEARTBEAT))
        .and_then(|text| text.parse::<Timestamp>().ok());
    let age = heartbeat.map(|at| now.duration_since(at));
    // Without any heartbeat virt-handler is only just starting; its own label decides.
    let silent = age.is_some_and(|age| age > SILENCE);
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|c| c.type_ == "Ready");
    let dead = ready.is_some_and(|condition| condition.status != "True");
    let labels = node.metadata.labels.as_ref();
    let schedulable = labels.and_then(|all| all.get(label::SCHEDULABLE)).is_some_and(|value| value == "true");
    let left = age.filter(|_| !silent).map(|age| SILENCE - age + SignedDuration::from_secs(1));
    Verdict {
        silent,
        dead,
        unschedulable: silent && schedulable,
        again: left.and_then(|left| Duration::try_from(left).ok()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(heartbeat: &str, ready: &str, expect: (bool, bool, bool)) {
        let node = json!({
            "metadata": { "labels": { "kubevirt.io/schedulable": "true" },
                "annotations": { "kubevirt.io/heartbeat": heartbeat } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let found = verdict(&serde_json::from_value(node).unwrap(), now);
        assert_eq!((found.silent, found.dead, found.unschedulable), expect);
        assert_eq!(found.again.is_some(), !found.silent);
    }

    #[test]
    fn silence_is_five_missed_heartbeats() {
        check("2026-01-01T00:09:30Z", "True", (false, false, false));
        check("2026-01-01T00:04:00Z", "True", (true, false, true));
        check("2026-01-01T00:04:00Z", "Unknown", (true, true, true));
    }
}
