//! Whether a node can be trusted with guests. Pure.

use std::time::Duration;

use api::kubevirt::constants::{annotation, label};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;

use super::renewals::Sound;
use crate::facts::nodes::{Lost, OUT_OF_SERVICE};

/// virt-handler renews its heartbeat every minute; five missed ones are silence.
const SILENCE: SignedDuration = SignedDuration::from_secs(300);

/// What to think of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// virt-handler has not been heard of for too long.
    pub silent: bool,
    /// The node itself is not ready.
    pub dead: bool,
    /// Virtual machines may be scheduled to it.
    pub schedulable: bool,
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
    let dead = !matches!(ready(node), "True" | "");
    let labels = node.metadata.labels.as_ref();
    let schedulable = labels.and_then(|all| all.get(label::SCHEDULABLE)).is_some_and(|value| value == "true");
    let left = age.filter(|_| !silent).map(|age| SILENCE - age + SignedDuration::from_secs(1));
    Verdict { silent, dead, schedulable, again: left.and_then(|left| Duration::try_from(left).ok()) }
}

/// The `Ready` condition: `True`, `False`, or `Unknown` where nobody has said anything for long.
pub fn ready(node: &Node) -> &str {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let found = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    found.map_or("", |condition| condition.status.as_str())
}

/// Whether `node` is lost: its lease is silent (`sound`), or the cluster says that its kubelet is and no renewal was seen
/// since (`renews`). Whoever asks sees to it that another node is well: when all are lost at once, none is.
pub fn lost(node: &Node, sound: Sound, renews: bool) -> Option<Lost> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let word = taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE);
    if word && ready(node) != "True" {
        return Some(Lost { word: true });
    }
    let silent = sound == Sound::Silent || (ready(node) == "Unknown" && !renews);
    silent.then_some(Lost { word: word && sound == Sound::Silent })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_lost(ready: &str, taint: Option<&str>, sound: Sound, renews: bool, expect: Option<bool>) {
        let taints = taint.map(|key| json!([{ "key": key, "effect": "NoExecute" }]));
        let node = json!({
            "spec": { "taints": taints }, "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        let found = lost(&serde_json::from_value(node).unwrap(), sound, renews);
        assert_eq!(found.map(|lost| lost.word), expect);
    }

    #[test]
    fn a_node_is_lost_when_it_is_silent() {
        let heard = Sound::Heard(Duration::from_secs(30));
        check_lost("True", None, heard, true, None);
        check_lost("True", None, Sound::Silent, false, Some(false));
        check_lost("Unknown", None, heard, false, Some(false));
        check_lost("Unknown", None, heard, true, None);
        // Its kubelet answers, and says why it is not ready: that is no loss.
        check_lost("False", None, heard, true, None);
    }

    #[test]
    fn the_administrators_word_counts_for_a_node_that_is_not_ready() {
        let heard = Sound::Heard(Duration::from_secs(30));
        check_lost("Unknown", Some(OUT_OF_SERVICE), Sound::Silent, false, Some(true));
        check_lost("True", Some(OUT_OF_SERVICE), heard, true, None);
        check_lost("True", Some(OUT_OF_SERVICE), Sound::Silent, false, Some(true));
    }

    #[track_caller]
    fn check(heartbeat: &str, ready: &str, expect: (bool, bool, bool)) {
        let node = json!({
            "metadata": { "labels": { "kubevirt.io/schedulable": "true" },
                "annotations": { "kubevirt.io/heartbeat": heartbeat } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let found = verdict(&serde_json::from_value(node).unwrap(), now);
        assert_eq!((found.silent, found.dead, found.silent && found.schedulable), expect);
        assert_eq!(found.again.is_some(), !found.silent);
    }

    #[test]
    fn silence_is_five_missed_heartbeats() {
        check("2026-01-01T00:09:30Z", "True", (false, false, false));
        check("2026-01-01T00:04:00Z", "True", (true, false, true));
        check("2026-01-01T00:04:00Z", "Unknown", (true, true, true));
    }
}
