//! Simulated nodes on the real API server in this process.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use kube_apiserver::ApiServer;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);

async fn until<K>(api: &Api<K>, name: &str, condition: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let waited = tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, condition)).await;
    waited.unwrap_or_else(|_| panic!("{name}: the condition never held")).unwrap()
}

fn is_ready(node: Option<&Node>) -> bool {
    let conditions = node.and_then(|node| node.status.as_ref()?.conditions.clone()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn server() -> (ApiServer, Client) {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    // It may be there from the first second.
    let _ = accounts.create(&PostParams::default(), &account).await;
    (server, client)
}

#[tokio::test]
async fn nodes_and_their_pods() {
    let (_server, client) = server().await;
    let stop = CancellationToken::new();
    let agents = tokio::spawn(kubelet::simulated::run(client.clone(), 3, stop.clone()));
    let (nodes, pods): (Api<Node>, Api<Pod>) = (Api::all(client.clone()), Api::default_namespaced(client.clone()));
    for name in ["simulated1", "simulated2", "simulated3"] {
        until(&nodes, name, is_ready).await;
    }
    let pod = |name: &str, annotations: serde_json::Value| {
        serde_json::from_value::<Pod>(json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": "simulated2", "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}))
        .unwrap()
    };
    pods.create(&PostParams::default(), &pod("p", json!({}))).await.unwrap();
    let phase = |pod: Option<&Pod>| pod.and_then(|pod| pod.status.as_ref()?.phase.clone()).unwrap_or_default();
    let running = until(&pods, "p", |pod| phase(pod) == "Running").await.unwrap().status.unwrap();
    assert_eq!(running.pod_ip.as_deref(), Some("100.64.2.2"));
    assert!(running.container_statuses.unwrap()[0].ready);
    pods.create(&PostParams::default(), &pod("q", json!({"simulated.ferrovirt.io/runs-for": "0"}))).await.unwrap();
    let ended = until(&pods, "q", |pod| phase(pod) == "Succeeded").await.unwrap().status.unwrap();
    assert_eq!(ended.pod_ip.as_deref(), Some("100.64.2.3"));
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    until(&pods, "p", |pod| pod.is_none()).await;
    // A node that is thought lost says that it is not, and one that is deleted comes back.
    let lost = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    nodes.patch_status("simulated1", &PatchParams::default(), &Patch::Strategic(lost)).await.unwrap();
    until(&nodes, "simulated1", is_ready).await;
    let uid = nodes.get("simulated3").await.unwrap().metadata.uid;
    nodes.delete("simulated3", &DeleteParams::default()).await.unwrap();
    let back = |node: Option<&Node>| is_ready(node) && node.is_some_and(|node| node.metadata.uid != uid);
    let back = until(&nodes, "simulated3", back).await.unwrap().metadata.uid;
    // Its lease goes with it.
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let owner = |lease: Option<&Lease>| lease.and_then(|lease| Some(lease.owner_references().first()?.uid.clone()));
    until(&leases, "simulated3", |lease| owner(lease) == back).await;
    stop.cancel();
    agents.await.unwrap().unwrap();
    // Fewer of them: the others go, with what is on them.
    let stop = CancellationToken::new();
    let agents = tokio::spawn(kubelet::simulated::run(client.clone(), 1, stop.clone()));
    until(&nodes, "simulated2", |node| node.is_none()).await;
    until(&pods, "q", |pod| pod.is_none()).await;
    stop.cancel();
    agents.await.unwrap().unwrap();
}
