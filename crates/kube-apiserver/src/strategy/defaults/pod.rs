//! Defaults of pod specs, alone and in templates.

use serde_json::{Value, json};

use super::{child, drop_fields, each, set};
use crate::strategy::{aggregated_requests, of_whole_pods};

/// Where the spec stands; a job's template has no default restart policy, a template gets no pod-only defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Pod,
    Template,
    Job,
}

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

pub(super) fn defaults(spec: &mut Value, owner: Owner) {
    set(spec, "dnsPolicy", "ClusterFirst");
    if owner != Owner::Job {
        set(spec, "restartPolicy", "Always");
    }
    set(spec, "schedulerName", "default-scheduler");
    set(spec, "terminationGracePeriodSeconds", 30);
    for sysctl in each(child(spec, "securityContext"), "sysctls") {
        set(sysctl, "value", "");
    }
    if owner == Owner::Pod {
        set(spec, "enableServiceLinks", true);
    }
    // The old and the new name of one field follow each other.
    for (from, to) in [("serviceAccountName", "serviceAccount"), ("serviceAccount", "serviceAccountName")] {
        let name = spec[from].as_str().unwrap_or_default().to_owned();
        if !name.is_empty() {
            set(spec, to, name);
        }
    }
    let host_network = spec["hostNetwork"] == true;
    for list in CONTAINERS {
        for container in each(spec, list) {
            self::container(container, owner, host_network);
        }
    }
    each(spec, "volumes").for_each(volume);
    if owner == Owner::Pod && spec["resources"]["limits"].as_object().is_some_and(|limits| !limits.is_empty()) {
        whole_requests(spec);
    }
}

/// A pod that is limited as a whole asks for what its containers ask for together, and for its limit of what none of them
/// asks for.
fn whole_requests(spec: &mut Value) {
    let asked = aggregated_requests(spec);
    let resources = child(spec, "resources");
    let limits = resources["limits"].as_object().cloned().unwrap_or_default();
    let requests = child(resources, "requests");
    for (name, amount) in asked.into_iter().filter(|(name, _)| of_whole_pods(name)) {
        set(requests, &name, amount);
    }
    for (name, limit) in limits.into_iter().filter(|(name, _)| of_whole_pods(name)) {
        set(requests, &name, limit);
    }
}

fn container(container: &mut Value, owner: Owner, host_network: bool) {
    let image = container["image"].as_str().unwrap_or_default();
    let policy = pull_policy(image);
    if !image.is_empty() {
        set(container, "imagePullPolicy", policy);
    }
    set(container, "terminationMessagePath", "/dev/termination-log");
    set(container, "terminationMessagePolicy", "File");
    let resources = child(container, "resources");
    if owner == Owner::Pod {
        // A limit without a request is the request.
        let limits = resources["limits"].as_object().cloned().unwrap_or_default();
        for (name, quantity) in limits {
            set(child(resources, "requests"), &name, quantity);
        }
    }
    for port in each(container, "ports") {
        set(port, "protocol", "TCP");
        if host_network {
            let number = port["containerPort"].clone();
            set(port, "hostPort", number);
        }
    }
    for env in each(container, "env") {
        if let Some(field) = env["valueFrom"].get_mut("fieldRef").filter(|field| field.is_object()) {
            set(field, "apiVersion", "v1");
        }
        if let Some(field) = env["valueFrom"].get_mut("resourceFieldRef").filter(|field| field.is_object()) {
            set(field, "divisor", "0");
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(name).filter(|probe| probe.is_object()) {
            self::probe(probe);
        }
    }
    if let Some(lifecycle) = container.get_mut("lifecycle").filter(|lifecycle| lifecycle.is_object()) {
        // What the node agent does not look at, nobody is promised.
        drop_fields(lifecycle, &["stopSignal"]);
        for name in ["postStart", "preStop"] {
            if lifecycle[name].is_object() {
                http_get(&mut lifecycle[name]);
                if lifecycle[name]["sleep"].is_object() {
                    set(&mut lifecycle[name]["sleep"], "seconds", 0);
                }
            }
        }
    }
}

/// When an image is fetched, where nobody says.
fn pull_policy(image: &str) -> &'static str {
    if latest(image) { "Always" } else { "IfNotPresent" }
}

/// Whether an image reference means the newest: no tag, or `latest`, and no digest. What is no reference means nothing.
fn latest(image: &str) -> bool {
    const LONGEST: usize = 255;
    let (path, last) = image.rsplit_once('/').unwrap_or(("", image));
    let (name, tag) = last.split_once(':').unwrap_or((last, "latest"));
    let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    // The first part may be a host.
    let mut repository = path.split('/').skip(1).chain([name]);
    let good = image.len() <= LONGEST && repository.all(|part| !part.is_empty() && part.chars().all(small));
    good && tag == "latest" && !image.contains('@')
}

fn probe(probe: &mut Value) {
    for (field, value) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        if probe[field] == 0 {
            probe[field] = Value::Null;
        }
        set(probe, field, value);
    }
    if probe["grpc"].is_object() && probe["grpc"]["service"].is_null() {
        probe["grpc"]["service"] = "".into();
    }
    http_get(probe);
}

fn http_get(handler: &mut Value) {
    if let Some(get) = handler.get_mut("httpGet").filter(|get| get.is_object()) {
        set(get, "path", "/");
        set(get, "scheme", "HTTP");
    }
}

const SOURCES: [&str; 30] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "persistentVolumeClaim",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageos",
    "vsphereVolume",
];

fn volume(volume: &mut Value) {
    if !volume.is_object() {
        return;
    }
    if SOURCES.iter().all(|source| volume[*source].is_null()) {
        volume["emptyDir"] = json!({});
    }
    prune_nulls(volume);
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(found) = volume.get_mut(source).filter(|found| found.is_object()) {
            set(found, "defaultMode", 420);
            downward_items(found);
        }
    }
    if let Some(path) = volume.get_mut("hostPath").and_then(Value::as_object_mut) {
        path.entry("type").or_insert_with(|| "".into());
    }
    if let Some(projected) = volume.get_mut("projected") {
        for source in each(projected, "sources") {
            if let Some(token) = source.get_mut("serviceAccountToken").filter(|token| token.is_object()) {
                set(token, "expirationSeconds", 3600);
            }
            if let Some(downward) = source.get_mut("downwardAPI") {
                downward_items(downward);
            }
        }
    }
    if let Some(image) = volume.get_mut("image").filter(|image| image.is_object()) {
        let policy = pull_policy(image["reference"].as_str().unwrap_or_default());
        set(image, "pullPolicy", policy);
    }
    if let Some(template) = volume.get_mut("ephemeral").and_then(|e| e.get_mut("volumeClaimTemplate")) {
        child(template, "metadata");
        set(child(template, "spec"), "volumeMode", "Filesystem");
    }
}

/// Indexing made nulls of the sources that were asked for.
fn prune_nulls(volume: &mut Value) {
    if let Some(map) = volume.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
}

fn downward_items(source: &mut Value) {
    for item in each(source, "items") {
        if let Some(field) = item.get_mut("fieldRef").filter(|field| field.is_object()) {
            set(field, "apiVersion", "v1");
        }
        if let Some(field) = item.get_mut("resourceFieldRef").filter(|field| field.is_object()) {
            set(field, "divisor", "0");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_images() {
        for (image, expect) in [
            ("a", true),
            ("a:latest", true),
            ("a:1", false),
            ("h:5000/a", true),
            ("h:5000/a:1", false),
            ("a@sha256:0", false),
            ("A", false),
            ("H:5000/a", true),
            ("h/A/b", false),
        ] {
            assert_eq!(latest(image), expect, "{image}");
        }
    }
}
