//! The subresource `resize` of a pod: what of a write counts, and how the cpu and memory of containers may change while
//! the pod has a node. What else a write says is not looked at, as with the status.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use apimachinery::schema::validate::cause;

use super::super::field::{Causes, Field};
use super::{amount, quality};

const LISTS: [&str; 2] = ["containers", "initContainers"];
const RESIZED: [&str; 2] = ["cpu", "memory"];
/// The annotation of a pod that only shows one that its node runs by itself.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
const ONLY: &str = "only cpu and memory resources are mutable";

/// Leaves of a write the resources and resize policies of containers. One that adds, removes, renames or reorders
/// containers stays as it is, to be refused.
pub(crate) fn keep_rest(old: &Value, new: &mut Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        carry(&old["metadata"], &mut new["metadata"], field);
    }
    carry(old, new, "status");
    let count = |pod: &Value, list: &str| pod["spec"][list].as_array().map_or(0, Vec::len);
    if LISTS.iter().any(|list| count(old, list) != count(new, list)) {
        return;
    }
    let mut spec = old["spec"].clone();
    for list in LISTS {
        let kept = spec.get_mut(list).and_then(Value::as_array_mut);
        let (Some(kept), Some(sent)) = (kept, new["spec"][list].as_array()) else { continue };
        if kept.iter().zip(sent).any(|(old, new)| old["name"] != new["name"]) {
            spec[list] = Value::Array(sent.clone());
            continue;
        }
        for (old, new) in kept.iter_mut().zip(sent) {
            carry(new, old, "resources");
            carry(new, old, "resizePolicy");
        }
    }
    // What a pod as a whole has is not kept in silence: who changes it is told.
    carry(&new["spec"], &mut spec, "resources");
    new["spec"] = spec;
}

/// Takes a field over as it is, also that it is not there.
pub(super) fn carry(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => drop(to.as_object_mut().and_then(|map| map.remove(field))),
    }
}

/// Checks a resize against the pod as it was.
pub(in super::super) fn resize(old: &Value, new: &Value, causes: &mut Causes) {
    let refuse = |why: &str| cause("FieldValueForbidden", "", format!("Forbidden: {why}"));
    if old["metadata"]["annotations"].get(MIRROR).is_some() {
        *causes = vec![refuse("static pods cannot be resized")];
        return;
    }
    if old["spec"]["os"]["name"] == "windows" {
        *causes = vec![refuse("windows pods cannot be resized")];
        return;
    }
    let (before, after) = (Field::new("spec", &old["spec"]), Field::new("spec", &new["spec"]));
    let class = old["status"]["qosClass"].as_str().unwrap_or_else(|| quality(&old["spec"]));
    if class != quality(&new["spec"]) {
        after.invalid_word(class, "Pod QOS Class may not change as a result of resizing", causes);
    }
    if !is_supported(old) {
        after.forbidden("Pod running on node without support for resize", causes);
    }
    let whole = |spec: &Field<'_>| !spec.get("resources").is_empty();
    if whole(&before) || whole(&after) {
        causes.push(refuse("pods with pod-level resources cannot be resized"));
        return;
    }
    let known = causes.len();
    order(&before, &after, causes);
    if causes.len() > known {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (old, new) in before.each(list).zip(after.each(list)) {
            container(list, &old, &new, &after, causes);
        }
    }
}

/// The node of a running pod tells what its containers have, if it can change that.
fn is_supported(pod: &Value) -> bool {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let running = statuses.into_iter().flatten().find(|status| !status["state"]["running"].is_null());
    running.is_none_or(|status| !status["resources"].is_null())
}

fn order(before: &Field<'_>, after: &Field<'_>, causes: &mut Causes) {
    for list in LISTS {
        let (old, new): (Vec<_>, Vec<_>) = (before.each(list).collect(), after.each(list).collect());
        if old.len() != new.len() {
            after.get(list).forbidden(&format!("{list} may not be added or removed on resize"), causes);
            continue;
        }
        for (old, new) in old.iter().zip(&new) {
            if old.value["name"] != new.value["name"] {
                new.get("name").forbidden(&format!("{list} may not be renamed or reordered on resize"), causes);
            }
        }
    }
}

fn container(list: &str, old: &Field<'_>, new: &Field<'_>, spec: &Field<'_>, causes: &mut Causes) {
    if list == "initContainers" && old.get("restartPolicy").text() != "Always" {
        if resources(old) != resources(new) || rest(old) != rest(new) {
            spec.forbidden("resources for non-sidecar init containers are immutable", causes);
        }
        return;
    }
    for part in ["requests", "limits"] {
        let named = |container: &Field<'_>| {
            let map = container.value["resources"][part].as_object();
            map.into_iter().flat_map(Map::keys).cloned().collect::<Vec<_>>()
        };
        let left = named(new);
        if named(old).iter().any(|name| !left.contains(name)) {
            let part_of = new.get("resources").get(part);
            part_of.forbidden(&format!("resource {part} cannot be removed"), causes);
        }
    }
    let others = |container: &Field<'_>| {
        let mut all = resources(container);
        all.retain(|(_, name), _| !RESIZED.contains(&name.as_str()));
        all
    };
    if others(old) != others(new) || rest(old) != rest(new) {
        let only = if list == "containers" {
            ONLY
        } else {
            "only cpu and memory resources for sidecar containers are mutable"
        };
        spec.forbidden(only, causes);
    }
}

/// What a container requests and may use, by part and name; a quantity is the same however it is written.
fn resources(container: &Field<'_>) -> BTreeMap<(&'static str, String), Option<i128>> {
    let of = |part: &'static str| {
        let entries = container.get("resources").entries(part);
        entries.map(move |(name, quantity)| ((part, name.to_owned()), amount(quantity.value)))
    };
    of("requests").chain(of("limits")).collect()
}

/// A container without its requests and limits.
fn rest(container: &Field<'_>) -> Value {
    let mut value = container.value.clone();
    let claims = value["resources"]["claims"].take();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("resources".to_owned(), claims);
        fields.retain(|_, value| !Field::new("", value).is_empty());
    }
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(containers: &Value, inits: &Value) -> Value {
        let mut pod = json!({"metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"containers": containers, "initContainers": inits, "nodeName": "n"}, "status": {"phase": "Running"}});
        pod["status"]["qosClass"] = quality(&pod["spec"]).into();
        pod
    }

    fn one(resources: &Value) -> Value {
        pod(&json!([{"name": "c", "image": "i", "resources": resources}]), &json!([]))
    }

    /// `field: message` of each cause, as the write passes.
    #[track_caller]
    fn check(old: &Value, mut new: Value, expect: &[&str]) {
        keep_rest(old, &mut new);
        let mut causes = Vec::new();
        resize(old, &new, &mut causes);
        let said: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        assert_eq!(said, expect);
    }

    fn burstable(cpu: &str, memory: &str) -> Value {
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": cpu, "memory": memory}})
    }

    #[test]
    fn cpu_and_memory_change_within_the_class() {
        check(&one(&burstable("1", "128Mi")), one(&burstable("2", "256Mi")), &[]);
        // A lower memory limit is for the node to refuse, which knows what is in use.
        check(&one(&burstable("1", "128Mi")), one(&burstable("500m", "96Mi")), &[]);
        let (same, full) = (json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "2", "memory": "2Gi"}));
        let guaranteed = |amounts: &Value| one(&json!({"requests": amounts, "limits": amounts}));
        check(&guaranteed(&same), guaranteed(&full), &[]);
        let class = "spec: Invalid value: \"Guaranteed\": Pod QOS Class may not change as a result of resizing";
        check(&guaranteed(&same), one(&json!({"requests": same, "limits": full})), &[class]);
        let class = "spec: Invalid value: \"BestEffort\": Pod QOS Class may not change as a result of resizing";
        check(&one(&json!({})), one(&json!({"requests": {"cpu": "1"}})), &[class]);
    }

    #[test]
    fn nothing_is_removed_and_nothing_else_changes() {
        let old = one(&burstable("1", "128Mi"));
        let removed = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "128Mi"}});
        let why = "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed";
        check(&old, one(&removed), &[why]);
        let removed = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
        let why = "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed";
        check(&old, one(&removed), &[why]);
        let only = "spec: Forbidden: only cpu and memory resources are mutable";
        for name in ["ephemeral-storage", "hugepages-2Mi", "example.com/device"] {
            let mut resources = burstable("1", "128Mi");
            resources["limits"][name] = "2Mi".into();
            check(&old, one(&resources), &[only]);
        }
        let mut policy = old.clone();
        policy["spec"]["containers"][0]["resizePolicy"] =
            json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        check(&old, policy, &[only]);
        // The same amounts in other words are no change.
        let (old, new) =
            (json!({"limits": {"cpu": "1", "x.io/a": "1"}}), json!({"limits": {"cpu": "2", "x.io/a": "1000m"}}));
        check(&one(&old), one(&new), &[]);
    }

    #[test]
    fn what_is_no_resource_stays_as_it_was() {
        let mut old = one(&burstable("1", "128Mi"));
        old["spec"].as_object_mut().unwrap().remove("initContainers");
        let mut new = one(&burstable("2", "128Mi"));
        new["spec"].as_object_mut().unwrap().remove("initContainers");
        new["metadata"]["labels"] = json!({"other": "x"});
        new["spec"]["nodeName"] = "elsewhere".into();
        new["spec"]["containers"][0]["image"] = "evil".into();
        new["status"] = json!({"phase": "Succeeded"});
        keep_rest(&old, &mut new);
        let mut expect = old.clone();
        expect["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "2".into();
        assert_eq!(new, expect);
    }

    #[test]
    fn containers_are_the_same_in_the_same_order() {
        let two = |names: [&str; 2]| pod(&json!([{"name": names[0]}, {"name": names[1]}]), &json!([]));
        let renamed = |index: usize| {
            format!("spec.containers[{index}].name: Forbidden: containers may not be renamed or reordered on resize")
        };
        check(&two(["a", "b"]), two(["b", "a"]), &[&renamed(0), &renamed(1)]);
        let added = "spec.containers: Forbidden: containers may not be added or removed on resize";
        check(&two(["a", "b"]), pod(&json!([{"name": "a"}]), &json!([])), &[added]);
        let inits = pod(&json!([{"name": "a"}, {"name": "b"}]), &json!([{"name": "i"}]));
        check(
            &two(["a", "b"]),
            inits,
            &["spec.initContainers: Forbidden: initContainers may not be added or removed on resize"],
        );
    }

    #[test]
    fn of_init_containers_only_sidecars_change() {
        let with = |policy: Option<&str>, cpu: &str, extra: &Value| {
            let mut init = json!({"name": "i", "resources": {"requests": {"cpu": cpu}}});
            if let Some(policy) = policy {
                init["restartPolicy"] = policy.into();
            }
            json_patch::merge(&mut init["resources"], extra);
            pod(&json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]), &json!([init]))
        };
        let none = json!({});
        check(&with(Some("Always"), "1", &none), with(Some("Always"), "2", &none), &[]);
        let init = "spec: Forbidden: resources for non-sidecar init containers are immutable";
        check(&with(None, "1", &none), with(None, "2", &none), &[init]);
        let only = "spec: Forbidden: only cpu and memory resources for sidecar containers are mutable";
        let storage = json!({"requests": {"ephemeral-storage": "1Gi"}});
        check(&with(Some("Always"), "1", &none), with(Some("Always"), "1", &storage), &[only]);
    }

    #[test]
    fn pods_that_cannot_be_resized() {
        let (old, new) = (one(&burstable("1", "128Mi")), one(&burstable("2", "128Mi")));
        let mut mirror = old.clone();
        mirror["metadata"]["annotations"] = json!({MIRROR: "x"});
        check(&mirror, new.clone(), &[": Forbidden: static pods cannot be resized"]);
        let mut windows = old.clone();
        windows["spec"]["os"] = json!({"name": "windows"});
        check(&windows, new.clone(), &[": Forbidden: windows pods cannot be resized"]);
        let mut whole = new.clone();
        whole["spec"]["resources"] = json!({"requests": {"cpu": "2"}});
        check(&old, whole, &[": Forbidden: pods with pod-level resources cannot be resized"]);
        let running = |resources: Value| {
            let mut pod = old.clone();
            pod["status"]["containerStatuses"] =
                json!([{"name": "c", "state": {"running": {}}, "resources": resources}]);
            pod
        };
        check(&running(json!({})), new.clone(), &[]);
        check(&running(json!(null)), new, &["spec: Forbidden: Pod running on node without support for resize"]);
    }
}
