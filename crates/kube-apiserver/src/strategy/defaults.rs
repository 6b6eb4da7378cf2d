//! Defaults of built-in kinds that no schema can state, because they depend on other fields or on the object's kind.
//!
//! All are idempotent: they run on what a client sent and again on what admission made of it.

mod pod;

use serde_json::{Value, json};

use apimachinery::tree::{child, each, set, set_missing};

use super::Resource;

/// Takes away fields that say nothing here.
fn drop_fields(object: &mut Value, fields: &[&str]) {
    if let Some(map) = object.as_object_mut() {
        map.retain(|field, _| !fields.contains(&field.as_str()));
    }
}

/// Sets the defaults of a kind.
pub(crate) fn apply(resource: &Resource, object: &mut Value) {
    if resource.crd.is_some() {
        return;
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod::defaults(child(object, "spec"), pod::Owner::Pod),
        ("", "podtemplates") => template(child(object, "template")),
        ("", "services") => service(child(object, "spec")),
        ("", "secrets") => set(object, "type", "Opaque"),
        ("", "replicationcontrollers") => replication_controller(object),
        ("", "persistentvolumeclaims") => claim(object),
        ("", "persistentvolumes") => volume(child(object, "spec")),
        ("", "namespaces") => {
            let name = object["metadata"]["name"].clone();
            if name.is_string() {
                child(child(object, "metadata"), "labels")["kubernetes.io/metadata.name"] = name;
            }
        }
        ("", "limitranges") => each(child(object, "spec"), "limits").for_each(limit),
        ("", "endpoints") => {
            for subset in each(object, "subsets") {
                each(subset, "ports").for_each(|port| set(port, "protocol", "TCP"));
            }
        }
        ("apps", "controllerrevisions") => set_missing(object, "revision", 0),
        ("apps", plural) => workload(plural, child(object, "spec")),
        ("batch", "jobs") => job(child(object, "spec")),
        ("batch", "cronjobs") => cron_job(child(object, "spec")),
        ("discovery.k8s.io", _) => endpoint_slice(object),
        ("coordination.k8s.io", _) => drop_fields(child(object, "spec"), &["preferredHolder", "strategy"]),
        ("networking.k8s.io", "ingressclasses") => {
            if let Some(parameters) = child(object, "spec").get_mut("parameters").filter(|value| value.is_object()) {
                set_missing(parameters, "scope", "Cluster");
            }
        }
        ("resource.k8s.io", plural) => super::devices::defaults(plural, object),
        ("storage.k8s.io", "csinodes") => {
            child(object, "spec");
        }
        ("flowcontrol.apiserver.k8s.io", plural) => super::flow_control::defaults(plural, child(object, "spec")),
        ("networking.k8s.io", "networkpolicies") => network_policy(child(object, "spec")),
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => binding(object),
        ("scheduling.k8s.io", _) => {
            set_missing(object, "preemptionPolicy", "PreemptLowerPriority");
            set_missing(object, "value", 0);
        }
        ("policy", "poddisruptionbudgets") => {
            child(object, "spec");
        }
        ("storage.k8s.io", "storageclasses") => {
            set_missing(object, "reclaimPolicy", "Delete");
            set_missing(object, "volumeBindingMode", "Immediate");
        }
        ("storage.k8s.io", "csidrivers") => csi_driver(child(object, "spec")),
        ("admissionregistration.k8s.io", plural) => admission(plural, object),
        ("apiregistration.k8s.io", _) => {
            if let Some(service) = object["spec"].get_mut("service").filter(|service| service.is_object()) {
                set(service, "port", 443);
            }
        }
        ("autoscaling", _) => autoscaler(child(object, "spec")),
        ("", "resourcequotas") => {
            child(object, "spec");
        }
        _ => {}
    }
}

fn template(template: &mut Value) {
    child(template, "metadata");
    pod::defaults(child(template, "spec"), pod::Owner::Template);
}

fn replication_controller(object: &mut Value) {
    let spec = child(object, "spec");
    set(spec, "replicas", 1);
    if spec["template"].is_object() {
        template(child(spec, "template"));
        let labels = spec["template"]["metadata"]["labels"].clone();
        if labels.is_object() {
            set(spec, "selector", labels);
        }
    }
    let labels = spec["template"]["metadata"]["labels"].clone();
    if labels.is_object() {
        set(child(object, "metadata"), "labels", labels);
    }
}

fn autoscaler(spec: &mut Value) {
    set_missing(spec, "minReplicas", 1);
    if spec["metrics"].as_array().is_none_or(Vec::is_empty) {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        spec["metrics"] = json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]);
    }
    if !spec["behavior"].is_object() {
        return;
    }
    let policy = |kind: &str, value: i64| json!({"type": kind, "value": value, "periodSeconds": 15});
    let up = child(child(spec, "behavior"), "scaleUp");
    set_missing(up, "stabilizationWindowSeconds", 0);
    set_missing(up, "policies", json!([policy("Pods", 4), policy("Percent", 100)]));
    set_missing(up, "selectPolicy", "Max");
    let down = child(child(spec, "behavior"), "scaleDown");
    set_missing(down, "policies", json!([policy("Percent", 100)]));
    set_missing(down, "selectPolicy", "Max");
}

fn workload(plural: &str, spec: &mut Value) {
    template(child(spec, "template"));
    if plural != "daemonsets" {
        set(spec, "replicas", 1);
    }
    if plural != "replicasets" {
        set(spec, "revisionHistoryLimit", 10);
    }
    match plural {
        "deployments" => {
            set(spec, "progressDeadlineSeconds", 600);
            let strategy = child(spec, "strategy");
            set(strategy, "type", "RollingUpdate");
            if strategy["type"] == "RollingUpdate" {
                set_missing(child(strategy, "rollingUpdate"), "maxSurge", "25%");
                set_missing(child(strategy, "rollingUpdate"), "maxUnavailable", "25%");
            }
        }
        "daemonsets" => {
            let strategy = child(spec, "updateStrategy");
            set(strategy, "type", "RollingUpdate");
            if strategy["type"] == "RollingUpdate" {
                set_missing(child(strategy, "rollingUpdate"), "maxSurge", 0);
                set_missing(child(strategy, "rollingUpdate"), "maxUnavailable", 1);
            } else if strategy["rollingUpdate"].is_object() {
                set_missing(child(strategy, "rollingUpdate"), "maxSurge", 0);
            }
        }
        "statefulsets" => {
            set(spec, "podManagementPolicy", "OrderedReady");
            let retention = child(spec, "persistentVolumeClaimRetentionPolicy");
            set(retention, "whenDeleted", "Retain");
            set(retention, "whenScaled", "Retain");
            let strategy = child(spec, "updateStrategy");
            // What the controller does not look at, nobody is promised.
            if let Some(rolling) = strategy.get_mut("rollingUpdate") {
                drop_fields(rolling, &["maxUnavailable"]);
            }
            if strategy["type"].as_str().is_none_or(str::is_empty) {
                set(strategy, "type", "RollingUpdate");
                set_missing(child(strategy, "rollingUpdate"), "partition", 0);
            } else if strategy["type"] == "RollingUpdate" && strategy["rollingUpdate"].is_object() {
                set_missing(&mut strategy["rollingUpdate"], "partition", 0);
            }
            if spec["ordinals"].is_object() {
                set_missing(&mut spec["ordinals"], "start", 0);
            }
            for template in each(spec, "volumeClaimTemplates") {
                set(template, "apiVersion", "v1");
                set(template, "kind", "PersistentVolumeClaim");
                claim(template);
                set(child(template, "status"), "phase", "Pending");
            }
        }
        _ => {}
    }
}

fn job(spec: &mut Value) {
    job_template(spec);
    if spec["completions"].is_null() && spec["parallelism"].is_null() {
        set(spec, "completions", 1);
    }
    set(spec, "parallelism", 1);
    set_missing(spec, "completionMode", "NonIndexed");
    if let Some(policy) = spec.get_mut("podFailurePolicy") {
        for rule in each(policy, "rules") {
            each(rule, "onPodConditions").for_each(|condition| set(condition, "status", "True"));
        }
    }
    set(spec, "suspend", false);
    set(spec, "manualSelector", false);
    let policy = if spec["podFailurePolicy"].is_object() { "Failed" } else { "TerminatingOrFailed" };
    set(spec, "podReplacementPolicy", policy);
    let per_index = spec["backoffLimitPerIndex"].is_number();
    set(spec, "backoffLimit", if per_index { i32::MAX } else { 6 });
}

fn job_template(spec: &mut Value) {
    let template = child(spec, "template");
    child(template, "metadata");
    pod::defaults(child(template, "spec"), pod::Owner::Job);
}

fn cron_job(spec: &mut Value) {
    set(spec, "concurrencyPolicy", "Allow");
    set(spec, "suspend", false);
    set(spec, "successfulJobsHistoryLimit", 3);
    set(spec, "failedJobsHistoryLimit", 1);
    let template = child(spec, "jobTemplate");
    child(template, "metadata");
    job_template(child(template, "spec"));
}

fn service(spec: &mut Value) {
    set(spec, "sessionAffinity", "None");
    if spec["sessionAffinity"] == "None" {
        drop_fields(spec, &["sessionAffinityConfig"]);
    }
    if spec["sessionAffinity"] == "ClientIP" {
        set(child(child(spec, "sessionAffinityConfig"), "clientIP"), "timeoutSeconds", 10800);
    }
    set(spec, "type", "ClusterIP");
    for port in each(spec, "ports") {
        set(port, "protocol", "TCP");
        let target = port["port"].clone();
        let unset = matches!(&port["targetPort"], Value::Null) || port["targetPort"] == 0 || port["targetPort"] == "";
        if unset && target.is_number() {
            port["targetPort"] = target;
        }
    }
    let type_ = spec["type"].as_str().unwrap_or_default().to_owned();
    if type_ != "ExternalName" {
        set_missing(spec, "internalTrafficPolicy", "Cluster");
    }
    let external_ips = spec["externalIPs"].as_array().is_some_and(|ips| !ips.is_empty());
    if matches!(type_.as_str(), "NodePort" | "LoadBalancer") || (type_ == "ClusterIP" && external_ips) {
        set(spec, "externalTrafficPolicy", "Cluster");
    }
    if type_ == "LoadBalancer" {
        set(spec, "allocateLoadBalancerNodePorts", true);
    }
}

fn claim(object: &mut Value) {
    set_missing(child(object, "spec"), "volumeMode", "Filesystem");
}

fn volume(spec: &mut Value) {
    set(spec, "persistentVolumeReclaimPolicy", "Retain");
    set_missing(spec, "volumeMode", "Filesystem");
    if spec["hostPath"].is_object() && spec["hostPath"]["type"].is_null() {
        spec["hostPath"]["type"] = "".into();
    }
}

fn limit(limit: &mut Value) {
    if limit["type"] != "Container" {
        return;
    }
    // Maxima are default limits; default limits and minima are default requests.
    for (to, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
        let source = limit[from].as_object().cloned().unwrap_or_default();
        for (name, quantity) in source {
            set(child(limit, to), &name, quantity);
        }
    }
}

fn endpoint_slice(object: &mut Value) {
    for port in each(object, "ports") {
        set_missing(port, "protocol", "TCP");
        if port["name"].is_null() {
            port["name"] = "".into();
        }
    }
    for endpoint in each(object, "endpoints") {
        child(endpoint, "conditions");
        drop_fields(endpoint, &["deprecatedTopology"]);
    }
}

fn network_policy(spec: &mut Value) {
    child(spec, "podSelector");
    if spec["policyTypes"].as_array().is_none_or(Vec::is_empty) {
        let egress = spec["egress"].as_array().is_some_and(|rules| !rules.is_empty());
        spec["policyTypes"] = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    }
    for direction in ["ingress", "egress"] {
        for rule in each(spec, direction) {
            each(rule, "ports").for_each(|port| set_missing(port, "protocol", "TCP"));
        }
    }
}

fn binding(object: &mut Value) {
    set(child(object, "roleRef"), "apiGroup", "rbac.authorization.k8s.io");
    for subject in each(object, "subjects") {
        if matches!(subject["kind"].as_str(), Some("User" | "Group")) {
            set(subject, "apiGroup", "rbac.authorization.k8s.io");
        }
    }
}

fn csi_driver(spec: &mut Value) {
    set(spec, "attachRequired", true);
    set_missing(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    for field in ["podInfoOnMount", "requiresRepublish", "seLinuxMount", "storageCapacity"] {
        set(spec, field, false);
    }
    if spec["volumeLifecycleModes"].as_array().is_none_or(Vec::is_empty) {
        spec["volumeLifecycleModes"] = json!(["Persistent"]);
    }
}

fn admission(plural: &str, object: &mut Value) {
    let rules = |list: &mut Value, key: &str| {
        for rule in each(list, key) {
            set_missing(rule, "scope", "*");
        }
    };
    for webhook in each(object, "webhooks") {
        set_missing(webhook, "failurePolicy", "Fail");
        set_missing(webhook, "matchPolicy", "Equivalent");
        set(webhook, "timeoutSeconds", 10);
        child(webhook, "namespaceSelector");
        child(webhook, "objectSelector");
        if plural == "mutatingwebhookconfigurations" {
            set_missing(webhook, "reinvocationPolicy", "Never");
        }
        if let Some(service) = webhook["clientConfig"].get_mut("service").filter(|service| service.is_object()) {
            set(service, "port", 443);
        }
        rules(webhook, "rules");
    }
    match plural {
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
            let spec = child(object, "spec");
            set_missing(spec, "failurePolicy", "Fail");
            if let Some(constraints) = spec.get_mut("matchConstraints").filter(|value| value.is_object()) {
                matching(constraints);
            }
        }
        "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings" => {
            if let Some(resources) = child(object, "spec").get_mut("matchResources").filter(|value| value.is_object()) {
                matching(resources);
            }
        }
        _ => {}
    }
}

/// What of the requests a policy or binding is about.
fn matching(resources: &mut Value) {
    set_missing(resources, "matchPolicy", "Equivalent");
    child(resources, "namespaceSelector");
    child(resources, "objectSelector");
    for list in ["resourceRules", "excludeResourceRules"] {
        each(resources, list).for_each(|rule| set_missing(rule, "scope", "*"));
    }
}
