//! What of a pod may change once it is there: images, its deadline, more tolerations, fewer scheduling gates; and its place,
//! as long as a gate keeps it from having one.

use serde_json::{Map, Value, json};

use super::super::field::{Causes, Field};

const FIELDS: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Checks what of a pod changed.
pub(in super::super) fn update(old: &Value, new: &Value, causes: &mut Causes) {
    let (before, after) = (Field::new("spec", &old["spec"]), Field::new("spec", &new["spec"]));
    for list in ["containers", "initContainers"] {
        if before.each(list).count() != after.each(list).count() {
            after.get(list).forbidden("pod updates may not add or remove containers", causes);
            return;
        }
    }
    deadline(&before.get("activeDeadlineSeconds"), &after.get("activeDeadlineSeconds"), causes);
    tolerations(&before, &after, causes);
    for gate in after.each("schedulingGates") {
        if !before.each("schedulingGates").any(|known| known.value == gate.value) {
            let name = gate.get("name").text();
            let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            gate.get("name").forbidden(&why, causes);
        }
    }
    let mut free = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
    let grace = "terminationGracePeriodSeconds";
    if before.get(grace).number() < 0 && after.get(grace).number() == 1 {
        free.push(grace);
    }
    let waits = !before.get("schedulingGates").is_empty();
    if waits {
        place(&before, &after, causes);
        free.push("nodeSelector");
    }
    let fixed = |pod: &Value| fixed(pod["spec"].clone(), &free, waits);
    if fixed(old) != fixed(new) {
        after.forbidden(FIELDS, causes);
    }
}

/// A spec without what of it may change.
fn fixed(mut spec: Value, free: &[&str], waits: bool) -> Value {
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        containers.filter_map(Value::as_object_mut).for_each(|container| {
            container.remove("image");
        });
    }
    let Some(fields) = spec.as_object_mut() else { return spec };
    if let Some(affinity) = fields.get_mut("affinity").and_then(Value::as_object_mut).filter(|_| waits) {
        affinity.remove("nodeAffinity");
    }
    fields.retain(|name, value| {
        let nothing = waits && name == "affinity" && value.as_object().is_some_and(Map::is_empty);
        !nothing && !free.contains(&name.as_str())
    });
    spec
}

/// A deadline comes nearer or stays.
fn deadline(old: &Field<'_>, new: &Field<'_>, causes: &mut Causes) {
    if old.is_set() && !new.is_set() {
        new.invalid("must not update from a positive integer to nil value", causes);
    } else if old.is_set() && new.number() > old.number() {
        new.invalid("must be less than or equal to previous value", causes);
    }
}

/// Tolerations stay, but for how long they last.
fn tolerations(old: &Field<'_>, new: &Field<'_>, causes: &mut Causes) {
    let lasting = |toleration: &Field<'_>| {
        let mut value = toleration.value.clone();
        value.as_object_mut().map(|fields| fields.remove("tolerationSeconds"));
        value
    };
    let kept: Vec<Value> = new.each("tolerations").map(|each| lasting(&each)).collect();
    if old.each("tolerations").any(|each| !kept.contains(&lasting(&each))) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        new.get("tolerations").forbidden(why, causes);
    }
}

fn node_terms<'a>(spec: &Field<'a>) -> Field<'a> {
    spec.get("affinity").get("nodeAffinity").get(REQUIRED).get("nodeSelectorTerms")
}

/// The place of a pod that waits may become narrower.
fn place(old: &Field<'_>, new: &Field<'_>, causes: &mut Causes) {
    let selector = new.get("nodeSelector");
    if old.entries("nodeSelector").any(|(key, value)| selector.value[key] != *value.value) {
        selector.invalid("only additions to spec.nodeSelector are allowed (no mutations or deletions)", causes);
    }
    let (before, after) = (node_terms(old), node_terms(new));
    let all = |terms: &Field<'_>| terms.value.as_array().cloned().unwrap_or_default();
    let narrows = |(old, new): (&Value, &Value)| {
        ["matchExpressions", "matchFields"].iter().all(|list| {
            let new = new[*list].as_array().map(Vec::as_slice).unwrap_or_default();
            old[*list].as_array().is_none_or(|old| old.iter().all(|requirement| new.contains(requirement)))
        })
    };
    let (old, new) = (all(&before), all(&after));
    if !old.is_empty() && (old.len() != new.len() || !old.iter().zip(&new).all(narrows)) {
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        Field::new(after.path, &json!(new)).invalid(why, causes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(old: Value, new: Value, expect: &[&str]) {
        let mut causes = Vec::new();
        update(&json!({"spec": old}), &json!({"spec": new}), &mut causes);
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, expect);
    }

    #[test]
    fn a_pod_that_waits_may_be_given_a_narrower_place() {
        let affinity = |key: &str| json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}}});
        let gated = |place: Value| {
            let mut spec = json!({"schedulingGates": [{"name": "g"}]});
            spec.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
            spec
        };
        check(gated(json!({})), gated(json!({"nodeSelector": {"a": "b"}, "affinity": affinity("a")})), &[]);
        check(json!({}), json!({"nodeSelector": {"a": "b"}}), &["spec"]);
        check(
            gated(json!({"nodeSelector": {"a": "b"}})),
            gated(json!({"nodeSelector": {"a": "c"}})),
            &["spec.nodeSelector"],
        );
        let terms = format!("spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms");
        check(gated(json!({"affinity": affinity("a")})), gated(json!({"affinity": affinity("b")})), &[&terms]);
        check(gated(json!({})), json!({}), &[]);
        check(json!({}), gated(json!({})), &["spec.schedulingGates[0].name"]);
    }

    #[test]
    fn deadlines_come_nearer_and_grace_stays() {
        check(json!({"activeDeadlineSeconds": 5}), json!({"activeDeadlineSeconds": 4}), &[]);
        check(
            json!({"activeDeadlineSeconds": 5}),
            json!({"activeDeadlineSeconds": 6}),
            &["spec.activeDeadlineSeconds"],
        );
        check(json!({"activeDeadlineSeconds": 5}), json!({}), &["spec.activeDeadlineSeconds"]);
        check(json!({"terminationGracePeriodSeconds": 5}), json!({"terminationGracePeriodSeconds": 6}), &["spec"]);
        check(json!({"terminationGracePeriodSeconds": -5}), json!({"terminationGracePeriodSeconds": 1}), &[]);
    }
}
