//! Which existing volume suits a claim. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use csi_controllers::{facts, place};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kit::controller::{owner, pod};

/// Why a volume the claim names cannot be bound to it; `None` when it can.
pub(crate) fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    if facts::requested(claim) > facts::capacity(volume) {
        return Some("requested PV is too small");
    }
    if facts::class_of(claim) != facts::class_of_volume(volume) {
        return Some("storageClassName does not match");
    }
    if facts::attributes_class(claim) != facts::attributes_class_of_volume(volume) {
        return Some("volumeAttributesClassName does not match");
    }
    if !same_volume_mode(volume, claim) {
        return Some("incompatible volumeMode");
    }
    (!offers_modes(volume, claim)).then_some("incompatible accessMode")
}

/// Whether both are file systems, or both block devices.
pub(crate) fn same_volume_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    facts::volume_mode(volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref()))
        == facts::volume_mode(claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref()))
}

fn offers_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let offered = facts::modes_of_volume(volume);
    facts::modes(claim).iter().all(|mode| offered.contains(mode))
}

/// What a volume is sought for.
#[derive(Clone, Copy)]
pub(crate) enum For<'a> {
    /// To be bound now.
    Now,
    /// The claim waits for its consumer: only a volume kept for it by name will do.
    Consumer,
    /// The consumer is to run on this node.
    Node(&'a Node),
}

/// The volume kept for the claim, else the smallest one that suits it. `taken` are left out.
pub(crate) fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
    purpose: For<'_>,
    taken: &BTreeSet<String>,
) -> Option<&'a Arc<PersistentVolume>> {
    let free = |volume: &&Arc<PersistentVolume>| {
        !facts::is_leaving(volume.as_ref())
            && !volume.metadata.name.as_ref().is_some_and(|name| taken.contains(name))
            && offers_modes(volume, claim)
            && same_volume_mode(volume, claim)
            && facts::attributes_class(claim) == facts::attributes_class_of_volume(volume)
            && facts::capacity(volume) >= facts::requested(claim)
    };
    let kept = volumes.iter().filter(free).find(|volume| facts::is_for(volume, claim));
    if let Some(kept) = kept {
        let here = !matches!(purpose, For::Node(node) if !place::reachable(kept, node));
        return Some(kept).filter(|_| here);
    }
    if matches!(purpose, For::Consumer) {
        return None;
    }
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    let suits = |volume: &&Arc<PersistentVolume>| {
        facts::claim_ref(volume).is_none()
            && facts::volume_phase(volume) == "Available"
            && facts::class_of_volume(volume) == facts::class_of(claim)
            && selector.is_none_or(|_| owner::selects(selector, pod::labels(&volume.metadata)))
            && !matches!(purpose, For::Node(node) if !place::reachable(volume, node))
    };
    let order = |volume: &&Arc<PersistentVolume>| {
        // Volumes that offer no more modes than asked for go first, so that the others stay for those who need them.
        (facts::modes_of_volume(volume).len(), facts::capacity(volume), volume.metadata.name.clone())
    };
    volumes.iter().filter(free).filter(suits).min_by_key(order)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(more: &Value) -> PersistentVolumeClaim {
        let mut value = json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {"storageClassName": "s",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}});
        merge(&mut value, more);
        serde_json::from_value(value).unwrap()
    }

    fn volume(name: &str, size: &str, more: &Value) -> Arc<PersistentVolume> {
        let mut value = json!({"metadata": {"name": name}, "status": {"phase": "Available"}, "spec": {"storageClassName": "s",
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}}});
        merge(&mut value, more);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn merge(target: &mut Value, more: &Value) {
        match (target, more) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (target, more) => *target = more.clone(),
        }
    }

    #[track_caller]
    fn check(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>], purpose: For<'_>, expect: Option<&str>) {
        let found = best(claim, volumes, purpose, &BTreeSet::new());
        assert_eq!(found.and_then(|v| v.metadata.name.as_deref()), expect);
    }

    #[test]
    fn the_smallest_that_fits() {
        let none = json!({});
        let volumes = [
            volume("small", "1Gi", &none),
            volume("large", "10Gi", &none),
            volume("right", "3Gi", &none),
            volume("taken", "2Gi", &json!({"spec": {"claimRef": {"name": "x", "namespace": "n"}}})),
            volume("used", "2Gi", &json!({"status": {"phase": "Released"}})),
            volume("block", "2Gi", &json!({"spec": {"volumeMode": "Block"}})),
            volume("other", "2Gi", &json!({"spec": {"storageClassName": "t"}})),
            volume("modes", "2Gi", &json!({"spec": {"accessModes": ["ReadWriteMany"]}})),
            volume("gold", "2Gi", &json!({"spec": {"volumeAttributesClassName": "gold"}})),
        ];
        check(&claim(&none), &volumes, For::Now, Some("right"));
        check(&claim(&none), &volumes, For::Consumer, None);
        check(&claim(&json!({"spec": {"volumeMode": "Block"}})), &volumes, For::Now, Some("block"));
        check(&claim(&json!({"spec": {"volumeAttributesClassName": "gold"}})), &volumes, For::Now, Some("gold"));
        check(&claim(&json!({"spec": {"storageClassName": ""}})), &volumes, For::Now, None);
        check(&claim(&json!({"spec": {"resources": {"requests": {"storage": "20Gi"}}}})), &volumes, For::Now, None);
    }

    #[test]
    fn selectors_and_volumes_kept_for_a_claim() {
        let labelled = volume("fast", "9Gi", &json!({"metadata": {"labels": {"disk": "fast"}}}));
        let volumes = [volume("slow", "2Gi", &json!({})), labelled];
        check(
            &claim(&json!({"spec": {"selector": {"matchLabels": {"disk": "fast"}}}})),
            &volumes,
            For::Now,
            Some("fast"),
        );
        let kept = volume("kept", "50Gi", &json!({"spec": {"claimRef": {"name": "c", "namespace": "n"}}}));
        let volumes = [volume("slow", "2Gi", &json!({})), kept];
        check(&claim(&json!({})), &volumes, For::Now, Some("kept"));
        check(&claim(&json!({})), &volumes, For::Consumer, Some("kept"));
        let strangers =
            volume("kept", "5Gi", &json!({"spec": {"claimRef": {"name": "c", "namespace": "n", "uid": "old"}}}));
        check(&claim(&json!({})), &[strangers], For::Now, None);
    }

    #[test]
    fn volumes_of_a_node() {
        let on = |node: &str| {
            json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "host", "operator": "In", "values": [node]}]}]}}}})
        };
        let volumes = [volume("a", "2Gi", &on("a")), volume("b", "3Gi", &on("b"))];
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "b", "labels": {"host": "b"}}})).unwrap();
        check(&claim(&json!({})), &volumes, For::Node(&node), Some("b"));
        let taken = BTreeSet::from(["b".to_owned()]);
        assert!(best(&claim(&json!({})), &volumes, For::Node(&node), &taken).is_none());
    }

    #[test]
    fn the_mismatch_of_a_named_volume_is_told() {
        let is = |more: Value, expect: Option<&str>| {
            assert_eq!(mismatch(&volume("v", "2Gi", &json!({})), &claim(&more)), expect);
        };
        is(json!({}), None);
        is(json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}), Some("requested PV is too small"));
        is(json!({"spec": {"storageClassName": "t"}}), Some("storageClassName does not match"));
        let other = json!({"spec": {"volumeAttributesClassName": "gold"}});
        is(other, Some("volumeAttributesClassName does not match"));
        is(json!({"spec": {"volumeMode": "Block"}}), Some("incompatible volumeMode"));
        is(json!({"spec": {"accessModes": ["ReadWriteMany"]}}), Some("incompatible accessMode"));
    }
}
