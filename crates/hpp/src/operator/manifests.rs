//! What is deployed for a HostPathProvisioner. Pure.

use api::hpp::{PathConfig, Spec, StoragePool};
use kit::operator::manifests as roles;
use kit::workload::{self, field, variable};
use serde_json::{Value, json};

use super::monitoring::{self, PORT, SCRAPED};
use super::pools::short;
use super::settings::{ACCOUNT, CLASS, Controllers, DRIVER, LEGACY, LEGACY_ACCOUNT, Settings, labels};
use super::{claims, constraints, sidecar};
use crate::csi;

/// Where the driver's socket lies on a node.
const PLUGIN: &str = "/var/lib/kubelet/plugins/csi-hostpath";

/// An object at least of every kind that is ever applied, for what watches them.
pub(crate) fn every_kind(settings: &Settings) -> Vec<Value> {
    let settings = Settings { monitored: true, constrained: true, captured: true, ..settings.clone() };
    let spec = Spec { path_config: Some(PathConfig::default()), ..Spec::default() };
    let pool = StoragePool { pvc_template: Some(Default::default()), ..StoragePool::default() };
    let mut all = render(&spec, &[], &[], &settings);
    all.extend(sidecar::rights(&settings));
    all.extend(claims::render(&spec, &[pool], &[String::new()], &settings));
    all
}

/// All manifests.
pub(crate) fn render(spec: &Spec, pools: &[StoragePool], shared: &[&str], settings: &Settings) -> Vec<Value> {
    let mut all = vec![account(ACCOUNT, DRIVER, false, settings)];
    if settings.controllers == Controllers::Driver {
        all.extend(sidecar::rights(settings));
    }
    if settings.monitored {
        all.extend(monitoring::render(settings));
    }
    if settings.constrained {
        all.extend(constraints::render(settings, spec.path_config.is_some()));
    }
    if settings.captured {
        all.push(snapshot_class());
    }
    all.extend([object(settings.controllers), daemon_set(spec, pools, shared, settings)]);
    if let Some(config) = &spec.path_config {
        all.extend(legacy(spec, config, settings));
    }
    all
}

fn account(name: &str, app: &str, token: bool, settings: &Settings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": name, "namespace": settings.namespace, "labels": labels(app) },
        "automountServiceAccountToken": token,
    })
}

/// What the legacy provisioner does with the cluster's objects. Who gives this away must have it.
pub(crate) fn legacy_rules() -> [Value; 3] {
    [
        json!({ "apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["get", "list", "watch", "create", "delete"] }),
        json!({ "apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get", "list", "watch"] }),
    ]
}

/// The legacy provisioner; with an empty path only what it is found by.
pub(crate) fn legacy(spec: &Spec, config: &PathConfig, settings: &Settings) -> Vec<Value> {
    let path = config.path.trim_end_matches('/');
    let container = json!({
        "name": "hostpath-provisioner",
        "image": settings.image,
        "imagePullPolicy": spec.image_pull_policy.as_deref().unwrap_or("IfNotPresent"),
        "command": ["hostpath-provisioner"],
        "env": [
            field("NODE_NAME", "spec.nodeName"),
            variable("PV_DIR", path),
            variable("USE_NAMING_PREFIX", &config.use_naming_prefix.to_string()),
            workload::one_arena(),
        ],
        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
        "securityContext": { "privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "pv-volume", "mountPath": path }],
    });
    let mut pod = json!({
        "serviceAccountName": LEGACY_ACCOUNT, "terminationGracePeriodSeconds": 5, "containers": [container],
        "volumes": [{ "name": "pv-volume", "hostPath": { "path": path, "type": "DirectoryOrCreate" } }],
    });
    place_pod(&mut pod, spec);
    let metadata = json!({ "name": LEGACY_ACCOUNT, "labels": labels(LEGACY) });
    vec![
        account(LEGACY_ACCOUNT, LEGACY, true, settings),
        roles::role(&metadata, &legacy_rules()),
        roles::binding(&metadata, LEGACY_ACCOUNT, (&settings.namespace, LEGACY_ACCOUNT)),
        set(LEGACY, &pod, settings),
    ]
}

/// On a CSIDriver: what a control plane that serves drivers is to do for it.
const SERVED: &str = "ferrovirt.io/csi-controller";

fn object(controllers: Controllers) -> Value {
    let served = if controllers == Controllers::Driver { "none" } else { "all" };
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": { "name": csi::NAME, "labels": labels(DRIVER), "annotations": { SERVED: served } },
        "spec": {
            "attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File", "storageCapacity": true,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        },
    })
}

/// What snapshots of the driver's volumes are taken by, unless somebody names another class.
fn snapshot_class() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {
            "name": CLASS, "labels": labels(DRIVER),
            "annotations": { "snapshot.storage.kubernetes.io/is-default-class": "true" },
        },
        "driver": csi::NAME, "deletionPolicy": "Delete",
    })
}

/// Pods that are driven off a node need the driver until their volumes are taken from them.
fn tolerations() -> Value {
    json!([{ "key": "CriticalAddonsOnly", "operator": "Exists" }, { "operator": "Exists", "effect": "NoExecute" }])
}

/// Where a pool is in the driver's container, and the name of its volume.
fn place(pool: &StoragePool) -> (String, String) {
    let name = short(&["pool", &pool.name], 63);
    (format!("/pools/{name}"), name)
}

fn daemon_set(spec: &Spec, pools: &[StoragePool], shared: &[&str], settings: &Settings) -> Value {
    let host = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
    let mut volumes = vec![
        host("socket", PLUGIN),
        host("registration", "/var/lib/kubelet/plugins_registry"),
        host("pods", "/var/lib/kubelet/pods"),
        host("plugins", "/var/lib/kubelet/plugins/kubernetes.io"),
    ];
    let both = |name: &str, path: &str| json!({"name": name, "mountPath": path, "mountPropagation": "Bidirectional"});
    let mut mounts = vec![
        json!({"name": "socket", "mountPath": "/csi"}),
        json!({"name": "registration", "mountPath": "/registration"}),
        both("pods", "/var/lib/kubelet/pods"),
        both("plugins", "/var/lib/kubelet/plugins/kubernetes.io"),
    ];
    let mut dirs = Vec::new();
    for pool in pools {
        let (path, name) = place(pool);
        volumes.push(host(&name, &pool.path));
        // What is mounted there later is seen as well.
        mounts.push(json!({"name": name, "mountPath": path, "mountPropagation": "HostToContainer"}));
        let shared = shared.contains(&pool.name.as_str());
        dirs.push(json!({"name": pool.name, "path": path, "shared": shared, "mounted": pool.pvc_template.is_some()}));
    }
    let policy = spec.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
    let container = json!({
        "name": "hostpath-provisioner",
        "image": settings.image,
        "imagePullPolicy": policy,
        "command": ["hostpath-csi"],
        "args": [
            format!("--data-dir={}", json!(dirs)),
            "--registration-socket=/registration/csi-hostpath-reg.sock",
            format!("--kubelet-endpoint={PLUGIN}/csi.sock"),
            format!("--metrics-port={}", PORT.1),
        ],
        "ports": [{ "name": PORT.0, "containerPort": PORT.1, "protocol": "TCP" }],
        "livenessProbe": {
            "httpGet": { "path": "/healthz", "port": PORT.0, "scheme": "HTTPS" },
            "initialDelaySeconds": 10, "periodSeconds": 10, "timeoutSeconds": 3, "failureThreshold": 6,
        },
        "env": [
            field("NODE_NAME", "spec.nodeName"),
            workload::one_arena(),
        ],
        "resources": { "requests": { "cpu": "10m", "memory": "10Mi" } },
        "securityContext": { "privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    });
    let mut containers = vec![container];
    if settings.controllers == Controllers::Driver {
        containers.push(sidecar::container(policy, settings));
        volumes.push(sidecar::token());
    }
    let mut pod = json!({
        "serviceAccountName": ACCOUNT, "automountServiceAccountToken": false,
        "priorityClassName": "system-node-critical", "terminationGracePeriodSeconds": 5,
        "containers": containers,
        "volumes": volumes,
    });
    place_pod(&mut pod, spec);
    let mut set = set(DRIVER, &pod, settings);
    set["spec"]["template"]["metadata"]["labels"][SCRAPED] = json!("true");
    set
}

fn place_pod(pod: &mut Value, spec: &Spec) {
    pod["tolerations"] = spec.workload.tolerations.as_ref().map_or_else(tolerations, |list| json!(list));
    if let Some(selector) = &spec.workload.node_selector {
        pod["nodeSelector"] = json!(selector);
    }
    if let Some(affinity) = &spec.workload.affinity {
        pod["affinity"] = json!(affinity);
    }
}

fn set(name: &str, pod: &Value, settings: &Settings) -> Value {
    let metadata = json!({ "name": name, "namespace": settings.namespace, "labels": labels(name) });
    workload::daemon_set(&metadata, &json!({ "k8s-app": name }), &labels(name), pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(spec: &Value) -> Value {
        let spec: Spec = serde_json::from_value(spec.clone()).unwrap();
        let pools = super::super::pools::of(&spec).unwrap();
        let settings = Settings { namespace: "hpp".into(), image: "i".into(), ..Settings::default() };
        render(&spec, &pools, &["B"], &settings).pop().unwrap()
    }

    #[test]
    fn pools_are_mounted_and_named() {
        let set =
            rendered(&json!({"storagePools": [{"name": "local", "path": "/var/a"}, {"name": "B", "path": "/b"}]}));
        let pod = &set["spec"]["template"]["spec"];
        let data = pod["containers"][0]["args"][0].as_str().unwrap().strip_prefix("--data-dir=").unwrap();
        let pools = crate::pool::parse(data).unwrap();
        assert_eq!(pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["local", "B"]);
        assert_eq!(pools.iter().map(|pool| pool.shared).collect::<Vec<_>>(), [false, true]);
        for (pool, path) in pools.iter().zip(["/var/a", "/b"]) {
            let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
            let mount = mounts.iter().find(|mount| pool.path.to_str() == mount["mountPath"].as_str()).unwrap();
            let volume = pod["volumes"].as_array().unwrap().iter().find(|v| v["name"] == mount["name"]).unwrap();
            assert_eq!(volume["hostPath"]["path"], path);
        }
    }

    #[test]
    fn somebody_calls_the_driver() {
        let pools = [StoragePool { name: "a".into(), path: "/a".into(), ..StoragePool::default() }];
        for (controllers, containers, served) in [(Controllers::Driver, 2, "none"), (Controllers::Cluster, 1, "all")] {
            let settings = Settings { namespace: "hpp".into(), image: "i".into(), controllers, ..Settings::default() };
            let all = render(&Spec::default(), &pools, &[], &settings);
            let of = |kind: &str| all.iter().find(|manifest| manifest["kind"] == kind);
            let pod = &of("DaemonSet").unwrap()["spec"]["template"]["spec"];
            assert_eq!(pod["containers"].as_array().unwrap().len(), containers);
            // Only who needs the account's token has it.
            assert_eq!(pod["automountServiceAccountToken"], false);
            assert!(!pod["containers"][0].to_string().contains("serviceaccount"));
            assert_eq!(of("CSIDriver").unwrap()["metadata"]["annotations"][SERVED], served);
            assert_eq!(of("ClusterRole").is_some(), controllers == Controllers::Driver);
        }
    }

    #[test]
    fn one_path_is_for_both_provisioners() {
        let spec: Spec =
            serde_json::from_value(json!({"pathConfig": {"path": "/var/old/", "useNamingPrefix": true}})).unwrap();
        let pools = super::super::pools::of(&spec).unwrap();
        let all =
            render(&spec, &pools, &[], &Settings { namespace: "hpp".into(), image: "i".into(), ..Settings::default() });
        let legacy = all
            .iter()
            .find(|manifest| manifest["kind"] == "DaemonSet" && manifest["metadata"]["name"] == LEGACY)
            .unwrap();
        let pod = &legacy["spec"]["template"]["spec"];
        assert_eq!(pod["volumes"][0]["hostPath"]["path"], "/var/old");
        assert_eq!(pod["containers"][0]["volumeMounts"][0]["mountPath"], "/var/old");
        assert_eq!(pod["containers"][0]["env"][2]["value"], "true");
        let driver = all
            .iter()
            .find(|manifest| manifest["metadata"]["name"] == DRIVER && manifest["kind"] == "DaemonSet")
            .unwrap();
        assert!(driver.to_string().contains("/var/old/csi"));
    }

    #[test]
    fn the_driver_runs_where_it_is_to() {
        let pool = json!({"name": "a", "path": "/a"});
        let everywhere = rendered(&json!({ "storagePools": [pool] }));
        assert_eq!(everywhere["spec"]["template"]["spec"]["tolerations"], tolerations());
        let placed = rendered(&json!({"imagePullPolicy": "Always", "storagePools": [pool],
            "workload": {"nodeSelector": {"disk": "fast"}, "tolerations": [], "affinity": {"nodeAffinity": {}}}}));
        let pod = &placed["spec"]["template"]["spec"];
        assert_eq!((&pod["nodeSelector"], &pod["tolerations"]), (&json!({"disk": "fast"}), &json!([])));
        assert_eq!(
            (&pod["affinity"], &pod["containers"][0]["imagePullPolicy"]),
            (&json!({"nodeAffinity": {}}), &json!("Always"))
        );
    }
}
