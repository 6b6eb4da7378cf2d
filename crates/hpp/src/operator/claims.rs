//! Pools that are volumes: on each node of the driver a claim, and a pod that mounts its volume where the pool is to
//! be. Pure.

use api::hpp::{Spec, StoragePool};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::pools::short;
use super::settings::{ACCOUNT, Settings, labels};

/// The app of the pods that mount.
pub(crate) const APP: &str = "hostpath-provisioner-pool";
/// On what is made for a pool: which one.
const POOL: &str = "hostpathprovisioner.kubevirt.io/pool";

/// Where the pod has a volume that is a block device.
const DEVICE: &str = "/dev/pool";

/// The name of the claim, and of the Deployment beside it, of a pool on a node.
pub(crate) fn name(pool: &str, node: &str) -> String {
    short(&["hpp-pool", pool, node], 63)
}

/// The manifests for the pools of these nodes.
pub(crate) fn render(spec: &Spec, pools: &[StoragePool], nodes: &[String], settings: &Settings) -> Vec<Value> {
    let mut all = Vec::new();
    for pool in pools {
        let Some(template) = &pool.pvc_template else { continue };
        for node in nodes {
            all.push(claim(pool, template, node, settings));
            all.push(mounter(spec, pool, node, settings));
        }
    }
    all
}

/// Whether a claim, or what mounts it, is of the pool.
pub(crate) fn is_of(metadata: &ObjectMeta, pool: &StoragePool) -> bool {
    let label = short(&[&pool.name], 63);
    let known = metadata.labels.as_ref().and_then(|labels| labels.get(POOL));
    pool.pvc_template.is_some() && known == Some(&label)
}

/// What a Deployment is found by.
pub(crate) fn reference(mounter: &Deployment) -> Value {
    let metadata = json!({ "name": mounter.metadata.name, "namespace": mounter.metadata.namespace });
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata })
}

fn metadata(pool: &StoragePool, node: &str, settings: &Settings) -> Value {
    let mut labels = labels(APP);
    labels[POOL] = json!(short(&[&pool.name], 63));
    json!({ "name": name(&pool.name, node), "namespace": settings.namespace, "labels": labels })
}

fn claim(pool: &StoragePool, template: &PersistentVolumeClaimSpec, node: &str, settings: &Settings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": metadata(pool, node, settings), "spec": template,
    })
}

fn mounter(spec: &Spec, pool: &StoragePool, node: &str, settings: &Settings) -> Value {
    let metadata = metadata(pool, node, settings);
    let name = metadata["name"].clone();
    let block = pool.pvc_template.as_ref().and_then(|claim| claim.volume_mode.as_deref()) == Some("Block");
    let from = if block { format!("--device={DEVICE}") } else { "--source=/source".to_owned() };
    let mut container = json!({
        "name": "mounter",
        "image": settings.image,
        "imagePullPolicy": spec.image_pull_policy.as_deref().unwrap_or("IfNotPresent"),
        "command": ["hostpath-pool", from, "--target=/target"],
        "resources": { "requests": { "cpu": "1m", "memory": "4Mi" } },
        "securityContext": { "privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "target", "mountPath": "/target", "mountPropagation": "Bidirectional" }],
    });
    if block {
        container["volumeDevices"] = json!([{ "name": "source", "devicePath": DEVICE }]);
    } else if let Some(mounts) = container["volumeMounts"].as_array_mut() {
        mounts.push(json!({ "name": "source", "mountPath": "/source" }));
    }
    let mut labels = metadata["labels"].clone();
    labels["hostpathprovisioner.kubevirt.io/mounts"] = name.clone();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": 1, "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": { "hostpathprovisioner.kubevirt.io/mounts": name } },
            "template": { "metadata": { "labels": labels }, "spec": {
                "nodeSelector": { "kubernetes.io/hostname": node },
                "tolerations": [{ "operator": "Exists" }],
                "serviceAccountName": ACCOUNT, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 5,
                "containers": [container],
                "volumes": [
                    { "name": "source", "persistentVolumeClaim": { "claimName": name } },
                    { "name": "target", "hostPath": { "path": pool.path, "type": "DirectoryOrCreate" } },
                ],
            } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_claim_and_a_pod_that_mounts_it() {
        let template = json!({"storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let pools: Vec<StoragePool> = serde_json::from_value(json!([
            {"name": "plain", "path": "/plain"}, {"name": "fast", "path": "/fast", "pvcTemplate": template}]))
        .unwrap();
        let settings = Settings { namespace: "hpp".into(), image: "i".into(), ..Settings::default() };
        let all = render(&Spec::default(), &pools, &["n1".into(), "n2".into()], &settings);
        let kinds: Vec<_> = all
            .iter()
            .map(|m| format!("{} {}", m["kind"].as_str().unwrap(), m["metadata"]["name"].as_str().unwrap()))
            .collect();
        assert_eq!(
            kinds,
            [
                "PersistentVolumeClaim hpp-pool-fast-n1",
                "Deployment hpp-pool-fast-n1",
                "PersistentVolumeClaim hpp-pool-fast-n2",
                "Deployment hpp-pool-fast-n2"
            ]
        );
        assert_eq!(all[0]["spec"]["storageClassName"], "fast");
        let pod = &all[3]["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"]["kubernetes.io/hostname"], "n2");
        assert_eq!(
            (&pod["volumes"][0]["persistentVolumeClaim"]["claimName"], &pod["volumes"][1]["hostPath"]["path"]),
            (&json!("hpp-pool-fast-n2"), &json!("/fast"))
        );
        assert_eq!(pod["containers"][0]["volumeMounts"][1]["mountPath"], "/source");
    }

    #[test]
    fn a_device_is_handed_over_as_one() {
        let pools: Vec<StoragePool> =
            serde_json::from_value(json!([{"name": "raw", "path": "/raw", "pvcTemplate": {"volumeMode": "Block"}}]))
                .unwrap();
        let all = render(&Spec::default(), &pools, &["n1".into()], &Settings::default());
        let container = &all[1]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["volumeDevices"], json!([{"name": "source", "devicePath": "/dev/pool"}]));
        assert_eq!(container["command"], json!(["hostpath-pool", "--device=/dev/pool", "--target=/target"]));
        assert_eq!(container["volumeMounts"].as_array().unwrap().len(), 1);
    }
}
