//! The pod that fills a claim from elsewhere. Pure.

use api::cdi::constants::{annotation, env, label, path, source};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::controller::context::annotation_of;
use crate::controller::names;
use crate::controller::settings::Settings;
use crate::controller::storage::requested;
use crate::controller::worker::{self, Environment, confined, extend, is_block, proxies, variable};

/// What nodes say of their processors.
const ARCHITECTURE: &str = "kubernetes.io/arch";

/// Name of the importer pod of `claim`; each checkpoint has its own.
pub fn name(claim: &PersistentVolumeClaim) -> String {
    let base = names::joined("importer", &claim.name_any());
    match annotation_of(claim, annotation::CHECKPOINT_CURRENT) {
        Some(checkpoint) => names::joined(&base, &format!("checkpoint-{checkpoint}")),
        None => base,
    }
}

/// What an import has beside its claim.
pub struct Extras<'a> {
    /// The image with the VDDK, for a source that needs it.
    pub vddk: Option<&'a str>,
    /// ConfigMap in the claim's namespace with the certificates of the proxy.
    pub proxy_certs: Option<&'a str>,
    /// The registry's certificate is not checked, and need not be there.
    pub insecure_registry: bool,
}

/// The importer pod of `claim`.
pub fn render(
    claim: &PersistentVolumeClaim,
    extras: &Extras<'_>,
    environment: &Environment<'_>,
) -> Result<Pod, serde_json::Error> {
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    let mut variables = variables(claim, environment.settings, extras.insecure_registry);
    let get = |key: &str| annotation_of(claim, key).filter(|value| !value.is_empty());
    let mut mount = |name: &str, at: &str, source: Value| {
        let (volume, mount) = worker::mounted(name, at, source);
        volumes.push(volume);
        mounts.push(mount);
    };

    if let Some(secret) = get(annotation::SECRET) {
        if get(annotation::SOURCE) == Some(source::GCS) {
            mount("google-credentials", path::GOOGLE, json!({ "secret": { "secretName": secret } }));
            variables.push(variable(env::GOOGLE_CREDENTIALS, &format!("{}/credentials.json", path::GOOGLE)));
        } else {
            variables.extend(worker::login(secret));
        }
    }
    if let Some(map) = get(annotation::CERT_CONFIG_MAP) {
        mount("cdi-cert-vol", path::CERTS, json!({ "configMap": { "name": map } }));
        variables.push(variable(env::CERT_DIR, path::CERTS));
    }
    if let Some(map) = extras.proxy_certs {
        mount("cdi-proxy-cert-vol", path::PROXY_CERTS, json!({ "configMap": { "name": map } }));
        variables.push(variable(env::PROXY_CERT_DIR, path::PROXY_CERTS));
    }
    for (number, secret) in numbered(claim, annotation::SECRET_EXTRA_HEADERS).enumerate() {
        let at = format!("{}/{number}", env::SECRET_EXTRA_HEADERS_DIR);
        mount(&format!("cdi-secret-extra-headers-vol-{number}"), &at, json!({ "secret": { "secretName": secret } }));
    }
    if let Some(map) = get(annotation::VDDK_EXTRA_ARGS) {
        mount("vddk-extra-args", path::VDDK_ARGS, json!({ "configMap": { "name": map } }));
    }
    let resources = &environment.settings.resources;
    let mut before = Vec::new();
    if let Some(image) = extras.vddk {
        volumes.push(json!({ "name": "vddk-vol-mount", "emptyDir": {} }));
        let library = json!({ "name": "vddk-vol-mount", "mountPath": "/opt" });
        mounts.push(library.clone());
        before.push(json!({ "name": "vddk-side-car", "image": image, "volumeMounts": [library],
            "securityContext": confined(), "resources": resources }));
    }
    let mut container = json!({
        "name": "importer",
        "image": environment.image,
        "imagePullPolicy": environment.pull_policy,
        "command": ["cdi-importer"],
        "env": variables,
        "ports": [{ "name": "metrics", "containerPort": 8443, "protocol": "TCP" }],
        "resources": resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": confined(),
    });
    worker::attach(&mut container, claim);
    extend(&mut container["volumeMounts"], mounts);
    let mut pod = worker::shell(claim, &name(claim), label::IMPORTER, environment);
    pod["metadata"]["labels"][label::IMPORT_PVC] = json!(names::short(&claim.name_any(), 63));
    if let Some(labels) = pod["metadata"]["labels"].as_object_mut() {
        for (key, value) in worker::inherited(claim) {
            labels.entry(key).or_insert(json!(value));
        }
    }
    pod["spec"]["containers"] = json!([container]);
    pod["spec"]["initContainers"] = json!(before);
    extend(&mut pod["spec"]["volumes"], volumes);
    // A failed import is tried again in its pod, whose restarts are counted; one that is complete is not.
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    if get(annotation::REGISTRY_IMPORT_METHOD) == Some("node") {
        node_pull(&mut pod, claim, environment);
    }
    serde_json::from_value(pod)
}

/// Has the kubelet pull the image of the disk. A program of ours is lent to the image's own container, and serves its disk to
/// the importer beside it.
fn node_pull(pod: &mut Value, claim: &PersistentVolumeClaim, environment: &Environment<'_>) {
    // The kubelet pulls what its own machine runs.
    if let Some(architecture) = annotation_of(claim, annotation::REGISTRY_ARCHITECTURE).filter(|name| !name.is_empty())
    {
        pod["spec"]["nodeSelector"][ARCHITECTURE] = json!(architecture);
    }
    let endpoint = annotation_of(claim, annotation::ENDPOINT).unwrap_or_default();
    let image = endpoint.trim_start_matches("docker://");
    let mount = json!({ "name": "shared-volume", "mountPath": "/shared" });
    let resources = &environment.settings.resources;
    extend(&mut pod["spec"]["volumes"], vec![json!({ "name": "shared-volume", "emptyDir": {} })]);
    extend(
        &mut pod["spec"]["initContainers"],
        vec![json!({
            "name": "init", "image": environment.image, "imagePullPolicy": environment.pull_policy, "volumeMounts": [mount],
            "command": ["cdi-image-server", "--copy-to", "/shared/server"], "securityContext": confined(), "resources": resources,
        })],
    );
    extend(
        &mut pod["spec"]["containers"],
        vec![json!({
            "name": "server", "image": image, "volumeMounts": [mount], "securityContext": confined(), "resources": resources,
            "command": ["/shared/server", "-p", "8100", "-image-dir", "/disk", "-ready-file", "/shared/ready", "-done-file", "/shared/done"],
        })],
    );
    if let Some(importer) = pod["spec"]["containers"].get_mut(0) {
        extend(&mut importer["volumeMounts"], vec![mount]);
        if let Some(variables) = importer["env"].as_array_mut() {
            variables.retain(|one| one["name"] != env::SOURCE && one["name"] != env::ENDPOINT);
        }
        let replaced = [
            (env::SOURCE, source::HTTP),
            (env::ENDPOINT, "http://localhost:8100/disk.img"),
            (env::READY_FILE, "/shared/ready"),
            (env::DONE_FILE, "/shared/done"),
            (env::PULL_METHOD, "node"),
        ];
        extend(&mut importer["env"], replaced.map(|(name, value)| variable(name, value)).to_vec());
    }
}

fn variables(claim: &PersistentVolumeClaim, settings: &Settings, insecure_registry: bool) -> Vec<Value> {
    let get = |key: &str| annotation_of(claim, key).filter(|value| !value.is_empty());
    let spec = claim.spec.clone().unwrap_or_default();
    let size = requested(&spec).map_or_else(String::new, |bytes| bytes.to_string());
    let (overhead, _) = settings.overhead(spec.storage_class_name.as_deref());
    let overhead = if is_block(claim) { "0".to_owned() } else { overhead };
    let endpoint = get(annotation::ENDPOINT).unwrap_or_default();
    let insecure = get(annotation::INSECURE_SKIP_VERIFY) == Some("true") || insecure_registry;
    let mut out = vec![
        variable(env::SOURCE, get(annotation::SOURCE).unwrap_or(source::HTTP)),
        variable(env::ENDPOINT, endpoint),
        variable(env::CONTENT_TYPE, get(annotation::CONTENT_TYPE).unwrap_or("kubevirt")),
        variable(env::IMAGE_SIZE, &size),
        variable(env::OWNER_UID, &worker::owner(claim)),
        variable(env::FILESYSTEM_OVERHEAD, &overhead),
        variable(env::INSECURE_TLS, if insecure { "true" } else { "false" }),
        variable(env::PREALLOCATION, get(annotation::PREALLOCATION_REQUESTED).unwrap_or("false")),
    ];
    for (name, key) in [
        (env::DISK_ID, annotation::DISK_ID),
        (env::UUID, annotation::UUID),
        (env::BACKING_FILE, annotation::BACKING_FILE),
        (env::THUMBPRINT, annotation::THUMBPRINT),
        (env::CHECKSUM, annotation::CHECKSUM),
        (env::CURRENT_CHECKPOINT, annotation::CHECKPOINT_CURRENT),
        (env::PREVIOUS_CHECKPOINT, annotation::CHECKPOINT_PREVIOUS),
        (env::FINAL_CHECKPOINT, annotation::CHECKPOINT_FINAL),
        (env::REGISTRY_ARCHITECTURE, annotation::REGISTRY_ARCHITECTURE),
    ] {
        out.extend(get(key).map(|value| variable(name, value)));
    }
    if get(annotation::REQUIRES_DIRECT_IO) == Some("true") {
        out.push(variable(env::CACHE_MODE, "TRYNONE"));
    }
    for (number, header) in numbered(claim, annotation::EXTRA_HEADERS).enumerate() {
        out.push(variable(&format!("{}{number}", env::EXTRA_HEADER), header));
    }
    out.extend(worker::told(settings));
    out.extend(proxies(settings));
    out
}

/// The values of the annotations `PREFIX.0`, `PREFIX.1`, and so on.
fn numbered<'a>(claim: &'a PersistentVolumeClaim, prefix: &str) -> impl Iterator<Item = &'a str> {
    let prefix = format!("{prefix}.");
    let all = claim.annotations().iter();
    let mut found: Vec<(u32, &str)> =
        all.filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.parse().ok()?, value.as_str()))).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn pod(annotations: Value, block: bool, config: Value) -> Value {
        let mode = if block { "Block" } else { "Filesystem" };
        let labels = json!({ "team": "blue", "app": "mine", label::DATA_IMPORT_CRON: "gold" });
        let claim = serde_json::from_value(json!({
            "metadata": { "name": "disk", "namespace": "ns", "uid": "u1", "annotations": annotations, "labels": labels },
            "spec": { "volumeMode": mode, "storageClassName": "c", "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .unwrap();
        let settings = Settings::of(Some(&serde_json::from_value(json!({ "spec": config })).unwrap()));
        let environment =
            Environment { image: "cdi:1", pull_policy: "IfNotPresent", settings: &settings, placement: &json!({}) };
        let extras = Extras { vddk: None, proxy_certs: None, insecure_registry: false };
        serde_json::to_value(render(&claim, &extras, &environment).unwrap()).unwrap()
    }

    #[track_caller]
    fn has(pod: &Value, name: &str, value: &str) {
        let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        let found: Vec<_> = variables.iter().filter(|one| one["name"] == name).map(|one| &one["value"]).collect();
        assert_eq!(found, [&json!(value)], "{name}");
    }

    #[test]
    fn the_annotations_of_a_claim_are_the_importers_environment() {
        let pod = pod(
            json!({
                annotation::SOURCE: "http", annotation::ENDPOINT: "http://x/y", annotation::CHECKSUM: "md5:0", annotation::SECRET: "s",
                annotation::CERT_CONFIG_MAP: "certs", format!("{}.1", annotation::EXTRA_HEADERS): "B: 2",
                format!("{}.0", annotation::EXTRA_HEADERS): "A: 1", format!("{}.0", annotation::SECRET_EXTRA_HEADERS): "hidden",
            }),
            false,
            json!({ "filesystemOverhead": { "storageClass": { "c": "0.1" } }, "importProxy": { "HTTPProxy": "http://p" } }),
        );
        for (name, value) in [
            ("IMPORTER_SOURCE", "http"),
            ("IMPORTER_ENDPOINT", "http://x/y"),
            ("IMPORTER_IMAGE_SIZE", "1073741824"),
            ("IMPORTER_CHECKSUM", "md5:0"),
            ("IMPORTER_CERT_DIR", "/certs"),
            ("IMPORTER_EXTRA_HEADER_0", "A: 1"),
            ("IMPORTER_EXTRA_HEADER_1", "B: 2"),
            ("FILESYSTEM_OVERHEAD", "0.1"),
            ("OWNER_UID", "u1"),
            ("HTTP_PROXY", "http://p"),
        ] {
            has(&pod, name, value);
        }
        let mounts = &pod["spec"]["containers"][0]["volumeMounts"];
        let at: Vec<_> = mounts.as_array().unwrap().iter().map(|mount| mount["mountPath"].as_str().unwrap()).collect();
        assert_eq!(at, ["/data", "/certs", "/extraheaders/0"]);
        assert_eq!(pod["metadata"]["name"], "importer-disk");
        let labels = &pod["metadata"]["labels"];
        assert_eq!((&labels["team"], &labels["app"]), (&json!("blue"), &json!(label::APP_VALUE)));
        assert_eq!(labels[label::DATA_IMPORT_CRON], json!(null));
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(
            (&annotations["sidecar.istio.io/inject"], &annotations["linkerd.io/inject"]),
            (&json!("false"), &json!("disabled"))
        );
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "u1");
    }

    #[test]
    fn the_configuration_is_the_workers() {
        let config = json!({
            "tlsSecurityProfile": { "type": "Modern", "modern": {} }, "logVerbosity": 3, "preallocation": true,
            "imagePullSecrets": [{ "name": "pull" }], "podResourceRequirements": { "limits": { "memory": "1G" } },
        });
        let pod = pod(json!({ annotation::SOURCE: "none", annotation::PRIORITY_CLASS: "high" }), false, config);
        has(&pod, "TLS_MIN_VERSION", "VersionTLS13");
        has(&pod, "FERROVIRT_LOG", "debug");
        let spec = &pod["spec"];
        assert_eq!(
            (&spec["imagePullSecrets"][0]["name"], &spec["priorityClassName"]),
            (&json!("pull"), &json!("high"))
        );
        let limits = json!({ "cpu": "750m", "memory": "1G" });
        assert_eq!(spec["containers"][0]["resources"]["limits"], limits);
    }

    #[test]
    fn a_device_has_no_overhead() {
        let pod = pod(json!({ annotation::SOURCE: "none" }), true, json!({}));
        has(&pod, "FILESYSTEM_OVERHEAD", "0");
        assert_eq!(pod["spec"]["containers"][0]["volumeDevices"][0]["devicePath"], "/dev/cdi-block-volume");
        assert_eq!(
            pod["spec"]["securityContext"]["supplementalGroups"],
            json!([6]),
            "nodes leave it to the group disk"
        );
    }

    #[test]
    fn a_node_pulls_what_its_pod_serves() {
        let node = json!({
            annotation::SOURCE: "registry", annotation::ENDPOINT: "docker://r/i:1", annotation::REGISTRY_IMPORT_METHOD: "node",
            annotation::REGISTRY_ARCHITECTURE: "arm64",
        });
        let pod = pod(node, false, json!({}));
        assert_eq!(pod["spec"]["containers"][1]["image"], "r/i:1");
        assert_eq!(pod["spec"]["nodeSelector"], json!({ "kubernetes.io/arch": "arm64" }));
        has(&pod, "IMPORTER_ENDPOINT", "http://localhost:8100/disk.img");
        has(&pod, "IMPORTER_DONE_FILE", "/shared/done");
    }
}
