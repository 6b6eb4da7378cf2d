//! Pods: what a new one gets, its quality of service, and what a pod spec must be, alone or in a template.

mod container;
mod environment;
mod ephemeral;
mod handler;
mod mount;
mod network;
mod placement;
mod resize;
mod resources;
mod security;
mod update;
mod volumes;

use std::collections::{HashMap, HashSet};

use meta::quantity::nanos;
use serde_json::{Value, json};

use apimachinery::names::qualified_name_problem;

pub(crate) use self::ephemeral::keep_rest as keep_rest_of_ephemeral;
pub(super) use self::ephemeral::update as update_ephemeral;
pub(super) use self::placement::{node_term, toleration};
pub(crate) use self::resize::keep_rest as keep_rest_of_resize;
pub(super) use self::resize::resize;
pub(crate) use self::resources::{aggregated_requests, of_whole_pods};
pub(super) use self::resources::{amount, overhead, resource_name};
pub(super) use self::update::update;
pub(super) use self::volumes::claim;
use super::field::{Causes, Field, LABEL, NOT_NEGATIVE, QUALIFIED_NAME, Rule, SUBDOMAIN, check, labels};
use apimachinery::tree::child;

pub(super) fn prepare_create(pod: &mut Value) {
    let class = quality(&pod["spec"]);
    pod["status"] = json!({"phase": "Pending", "qosClass": class});
    placement::complete(pod);
    security::take_annotations(pod);
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        let message = "Scheduling is blocked due to non-empty scheduling gates";
        let now = pod["metadata"]["creationTimestamp"].clone();
        pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": message, "lastProbeTime": null, "lastTransitionTime": now}]);
    }
}

/// A pod keeps its quality of service and the node it has.
pub(super) fn prepare_update(old: &Value, new: &mut Value) {
    if let Some(class) = old["status"].get("qosClass") {
        child(new, "status")["qosClass"] = class.clone();
    }
}

/// A pod's address is the first of its addresses: where they differ, the one of older kubelets counts.
pub(super) fn prepare_status(pod: &mut Value) {
    let status = child(pod, "status");
    let one = status["podIP"].as_str().unwrap_or_default().to_owned();
    let first = status["podIPs"][0]["ip"].as_str().unwrap_or_default().to_owned();
    if one.is_empty() && !first.is_empty() {
        status["podIP"] = first.into();
    } else if one != first {
        status["podIPs"] = json!([{"ip": one}]);
    }
}

/// The class of a pod: Guaranteed when every container's limits equal its requests for cpu and memory, BestEffort when
/// there are none of either, Burstable otherwise.
fn quality(spec: &Value) -> &'static str {
    let containers = || {
        let lists = [&spec["initContainers"], &spec["containers"]];
        lists.into_iter().filter_map(Value::as_array).flatten()
    };
    let amount =
        |container: &Value, part: &str, name: &str| container["resources"][part][name].as_str().and_then(nanos);
    let mut any = false;
    let mut all = true;
    for container in containers() {
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount(container, "requests", name), amount(container, "limits", name));
            any |= request.is_some_and(|n| n > 0) || limit.is_some_and(|n| n > 0);
            all &= limit.is_some_and(|n| n > 0) && request.or(limit) == limit;
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

const RULES: &[(&str, Rule)] = &[
    ("restartPolicy", Rule::Chosen(&["Always", "OnFailure", "Never"])),
    ("dnsPolicy", Rule::Chosen(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"])),
    ("activeDeadlineSeconds", Rule::Within(1, i32::MAX as i64)),
    ("serviceAccountName", SUBDOMAIN),
    ("nodeName", SUBDOMAIN),
    ("runtimeClassName", SUBDOMAIN),
    ("priorityClassName", SUBDOMAIN),
    ("preemptionPolicy", Rule::OneOf(&["Never", "PreemptLowerPriority"])),
    ("hostname", Rule::Name(network::host_problem)),
    ("subdomain", LABEL),
];

/// What of a pod its containers must fit.
struct Around<'a> {
    /// The volumes that can be mounted.
    volumes: HashMap<&'a str, &'a Value>,
    /// Names of its resource claims.
    claims: HashSet<&'a str>,
    restart_policy: &'a str,
    /// Seconds that its containers have to end.
    grace: i64,
    host_network: bool,
    /// Whether its users are others than those of the node.
    own_users: bool,
    os: &'a str,
}

/// Checks a pod. One that is new has no ephemeral containers yet.
pub(super) fn validate(pod: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = Field::new("spec", &pod["spec"]);
    self::spec(&spec, causes);
    if old.is_none() {
        security::annotations(&Field::new("metadata", &pod["metadata"]), &spec, causes);
        spec.get("ephemeralContainers").check(&Rule::Absent("cannot be set on create"), causes);
        if !spec.get("nodeName").is_empty() && !spec.get("schedulingGates").is_empty() {
            spec.get("nodeName").forbidden("cannot be set until all schedulingGates have been cleared", causes);
        }
    }
}

/// Checks the addresses that a status gives a pod.
pub(super) fn status(pod: &Value, causes: &mut Causes) {
    let status = Field::new("status", &pod["status"]);
    for address in status.each("podIPs") {
        network::address(&address.get("ip").told_as(address.path), causes);
    }
}

/// Checks a template of pods.
pub(super) fn template(template: &Field<'_>, causes: &mut Causes) {
    let metadata = template.get("metadata").told_as(template.path.clone());
    labels(&metadata.get("labels"), causes);
    for (key, _) in metadata.entries("annotations") {
        if let Some(why) = qualified_name_problem(&key.to_lowercase()) {
            metadata.get("annotations").invalid_word(key, &why, causes);
        }
    }
    let spec = template.get("spec");
    security::annotations(&metadata, &spec, causes);
    self::spec(&spec, causes);
    spec.get("ephemeralContainers").check(&Rule::Absent("ephemeral containers not allowed in pod template"), causes);
    // The controllers that make pods of templates do not know the field, and would make pods without it.
    spec.get("hostnameOverride").check(&Rule::Absent("may be set of a pod alone, not in a pod template"), causes);
}

fn spec(spec: &Field<'_>, causes: &mut Causes) {
    let grace = spec.get("terminationGracePeriodSeconds");
    let around = Around {
        volumes: volumes::all(spec, causes),
        claims: claims(spec, causes),
        restart_policy: spec.get("restartPolicy").text(),
        grace: match grace.number() {
            _ if !grace.is_set() => 30,
            seconds if seconds < 0 => 1,
            seconds => seconds,
        },
        host_network: spec.get("hostNetwork").value == true,
        own_users: spec.get("hostUsers").value == false,
        os: spec.get("os").get("name").text(),
    };
    check(spec, RULES, causes);
    container::all(spec, &around, causes);
    resources::pod(spec, causes);
    security::pod(spec, &around, causes);
    placement::all(spec, causes);
    network::all(spec, causes);
    for gate in spec.each("readinessGates") {
        gate.get("conditionType").check(&Rule::Needed, causes);
        gate.get("conditionType").check(&QUALIFIED_NAME, causes);
    }
    overhead(&spec.get("overhead"), causes);
    if spec.get("os").is_set() {
        let name = spec.get("os").get("name");
        if name.is_empty() {
            name.required("", causes);
        } else {
            name.told_as(spec.get("os").path).check(&Rule::OneOf(&["linux", "windows"]), causes);
        }
    }
    if around.own_users {
        for name in ["hostNetwork", "hostPID", "hostIPC"] {
            if spec.get(name).value == true {
                spec.get(name).forbidden("when `hostUsers` is false", causes);
            }
        }
    }
}

/// The names of the resource claims of a pod, each with one source.
fn claims<'a>(spec: &Field<'a>, causes: &mut Causes) -> HashSet<&'a str> {
    let mut names = HashSet::new();
    for claim in spec.each("resourceClaims") {
        let name = claim.get("name");
        check(&claim, &[("name", Rule::Needed), ("name", LABEL)], causes);
        if !names.insert(name.text()) {
            name.duplicate(causes);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"].map(|field| claim.get(field));
        match sources.iter().filter(|source| source.is_set()).count() {
            0 => claim.invalid("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`", causes),
            1 => {}
            _ => claim
                .invalid("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified", causes),
        }
        sources.iter().for_each(|source| source.check(&SUBDOMAIN, causes));
    }
    names
}

/// Checks what counts of every set of pods.
pub(super) fn counts(spec: &Field<'_>, causes: &mut Causes) {
    for name in ["replicas", "revisionHistoryLimit", "minReadySeconds"] {
        spec.get(name).check(&NOT_NEGATIVE, causes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_that_overrides_is_for_pods_alone() {
        let spec =
            json!({"hostnameOverride": "a.b", "containers": [], "restartPolicy": "Always", "dnsPolicy": "Default"});
        let refused = |check: &dyn Fn(&mut Causes)| {
            let mut causes = Vec::new();
            check(&mut causes);
            causes.iter().any(|cause| cause.field.ends_with("hostnameOverride"))
        };
        let pod = json!({"metadata": {"name": "p"}, "spec": spec});
        assert!(!refused(&|causes| validate(&pod, None, causes)));
        assert!(refused(&|causes| template(&Field::new("spec.template", &pod), causes)));
    }

    #[test]
    fn classes() {
        let of = |resources: Value| quality(&json!({"containers": [{"resources": resources}]}));
        assert_eq!(of(json!({})), "BestEffort");
        assert_eq!(of(json!({"requests": {"cpu": "1"}})), "Burstable");
        let both = json!({"cpu": "1000m", "memory": "1Gi"});
        assert_eq!(of(json!({"limits": both, "requests": {"cpu": "1", "memory": "1024Mi"}})), "Guaranteed");
        assert_eq!(of(json!({"limits": {"cpu": "1"}})), "Burstable");
    }
}
