//! A volume's way through a pod's life, with a driver that comes and goes.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::driver::{Driver, NAME, TOPOLOGY};
use crate::machine::{Machine, node};

const LIMIT: Duration = Duration::from_secs(30);

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

async fn until<K>(api: Api<K>, name: &str, what: &str, condition: impl Condition<K>)
where
    K: Clone + DeserializeOwned + std::fmt::Debug + Send + kube::Resource + 'static,
{
    let waiting = tokio::time::timeout(LIMIT, await_condition(api.clone(), name, condition)).await;
    if waiting.is_err() {
        panic!("{name} never {what}: {:#?}", api.get_opt(name).await);
    }
}

/// The driver's entry in the node's CSINode.
fn entry(node: Option<&CSINode>) -> Option<&k8s_openapi::api::storage::v1::CSINodeDriver> {
    node?.spec.drivers.iter().find(|driver| driver.name == NAME)
}

fn in_use(node: Option<&Node>) -> Vec<String> {
    node.and_then(|node| node.status.as_ref()?.volumes_in_use.clone()).unwrap_or_default()
}

fn size(claim: Option<&PersistentVolumeClaim>) -> Option<String> {
    Some(claim?.status.as_ref()?.capacity.as_ref()?.get("storage")?.0.clone())
}

/// A volume that is bound to a claim, as the control plane would have made them.
async fn bound(machine: &Machine) {
    let client = || machine.client.clone();
    create::<CSIDriver>(&Api::all(client()), json!({"metadata": {"name": NAME}, "spec": {"podInfoOnMount": true}}))
        .await;
    let secrets: Api<Secret> = Api::namespaced(client(), "default");
    create(&secrets, json!({"metadata": {"name": "stage"}, "stringData": {"key": "word"}})).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client(), "default");
    let claim = create(
        &claims,
        json!({"metadata": {"name": "c"}, "spec": {"storageClassName": "", "volumeName": "pv",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    )
    .await;
    let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": claim.uid()});
    create::<PersistentVolume>(
        &Api::all(client()),
        json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": reference, "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": NAME, "volumeHandle": "handle",
            "nodeStageSecretRef": {"name": "stage", "namespace": "default"}}}}),
    )
    .await;
    let status =
        json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}});
    claims.patch_status("c", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

async fn attach(machine: &Machine) {
    let digest = Sha256::digest(format!("handle{NAME}{}", node()));
    let name = format!("csi-{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let api: Api<VolumeAttachment> = Api::all(machine.client.clone());
    let spec = json!({"attacher": NAME, "nodeName": node(), "source": {"persistentVolumeName": "pv"}});
    create(&api, json!({"metadata": {"name": name}, "spec": spec})).await;
    let status = json!({"status": {"attached": true, "attachmentMetadata": {"device": "sdz"}}});
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

pub(crate) async fn volumes(machine: &mut Machine) {
    let root = machine.dir.join("kubelet");
    let driver = Driver::new(machine.dir.join("driver"));
    let mut running = driver.start(&root);
    let nodes: Api<Node> = Api::all(machine.client.clone());
    let csi_nodes: Api<CSINode> = Api::all(machine.client.clone());
    let at = node();
    until(csi_nodes.clone(), &at, "named the driver", |node: Option<&CSINode>| entry(node).is_some()).await;
    let found = csi_nodes.get(&at).await.unwrap();
    let known = entry(Some(&found)).unwrap();
    assert_eq!(known.node_id, "id-of-node");
    assert_eq!(known.topology_keys.as_deref(), Some(&[TOPOLOGY.to_owned()][..]));
    assert_eq!(known.allocatable.as_ref().and_then(|all| all.count), Some(7));
    assert_eq!(found.owner_references()[0].kind, "Node");
    assert_eq!(nodes.get(&at).await.unwrap().labels()[TOPOLOGY], "here");
    let info = machine.tls.call_driver(NAME).await;
    assert_eq!(info.node_id, "id-of-node", "through the kubelet's own server");

    bound(machine).await;
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let spec = json!({"terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        "containers": [{"name": "c", "command": ["sh", "-c", "echo written > /v/f; sleep 1000"], "volumeMounts": mount}]});
    machine.create("csi", spec).await;
    let volume = format!("kubernetes.io/csi/{NAME}^handle");
    until(nodes.clone(), &at, "used the volume", |node: Option<&Node>| in_use(node).contains(&volume)).await;
    assert!(driver.asked().is_empty(), "a volume was staged before it was attached");
    attach(machine).await;
    machine.ready("csi").await;
    assert_eq!(driver.asked(), ["stage handle device=sdz key=word", "publish handle pod=csi readonly=false"]);
    // A container is ready when its process runs; what the process writes comes a moment later.
    let written = async {
        while !machine.dir.join("driver/data/f").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), written).await.unwrap();

    let me = "kube-apiserver-kubelet-client";
    let metrics = machine.tls.get(me, "/metrics").await.1;
    let line = "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"c\"} 12\n";
    assert!(metrics.contains(line), "{metrics}");
    let summary: Value = serde_json::from_str(&machine.tls.get(me, "/stats/summary").await.1).unwrap();
    let pod = summary["pods"].as_array().unwrap().iter().find(|pod| pod["podRef"]["name"] == "csi").unwrap();
    assert_eq!(pod["volume"][0]["pvcRef"], json!({"name": "c", "namespace": "default"}));
    assert_eq!(pod["volume"][0]["capacityBytes"], 42);

    let (pvs, claims): (Api<PersistentVolume>, Api<PersistentVolumeClaim>) =
        (Api::all(machine.client.clone()), Api::namespaced(machine.client.clone(), "default"));
    let larger = json!({"spec": {"capacity": {"storage": "2Gi"}}});
    pvs.patch("pv", &PatchParams::default(), &Patch::Merge(larger)).await.unwrap();
    let required = json!({"status": {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    claims.patch_status("c", &PatchParams::default(), &Patch::Merge(required)).await.unwrap();
    let grown = |claim: Option<&PersistentVolumeClaim>| size(claim).is_some_and(|size| size != "1Gi");
    until(claims.clone(), "c", "grew", grown).await;
    assert_eq!(driver.asked(), [format!("expand handle to {}", 2_u64 << 30)]);

    // A kubelet that starts anew leaves a running pod's volume alone, and knows it when the pod goes.
    machine.stop_kubelet().await;
    running.stop().await;
    machine.start_kubelet();
    machine.ready("csi").await;
    machine.pods().delete("csi", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
    running = driver.start(&root);
    machine.wait("csi", "gone", |pod: Option<&Pod>| pod.is_none()).await;
    until(nodes, &at, "let go of the volume", |node: Option<&Node>| in_use(node).is_empty()).await;
    assert_eq!(driver.asked(), ["unpublish handle", "unstage handle"]);
    assert!(machine.dir.join("driver/data/f").exists(), "the data went with the pod");

    running.stop().await;
    until(csi_nodes, &at, "forgot the driver", |node: Option<&CSINode>| entry(node).is_none()).await;
}
