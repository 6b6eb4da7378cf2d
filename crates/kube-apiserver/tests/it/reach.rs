//! A tenant who has written where a pod or an endpoint is, and asks the API server to go there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::{Endpoints, Namespace, Node, Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What listens for this machine only, and how often somebody came.
async fn private() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let came = Arc::new(AtomicUsize::new(0));
    let count = came.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (port, came)
}

async fn get(client: &Client, what: &str) -> (u16, String) {
    let path = format!("/api/v1/namespaces/evil/{what}/proxy/secret");
    match client.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await {
        Ok(text) => (200, text),
        Err(Error::Api(status)) => (status.code, status.message.clone()),
        Err(other) => panic!("{what}: {other}"),
    }
}

/// The pod `p`, on the network of its node or on one of its own, whose status says that it is there.
async fn pod(pods: &Api<Pod>, host_network: bool, address: &str) {
    let pod = json!({
        "metadata": { "name": "p", "labels": { "app": "p" } },
        "spec": { "hostNetwork": host_network, "nodeName": "n", "containers": [{ "name": "c", "image": "i" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let status = json!({ "status": {
        "podIP": address, "podIPs": [{ "ip": address }], "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

async fn scene() -> (ApiServer, Client, Api<Pod>) {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let create = json!({ "metadata": { "name": "evil" } });
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(create).unwrap()).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({ "metadata": { "name": "n" } });
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let addresses = [("InternalIP", "192.0.2.10"), ("InternalIP", "2001:db8::10"), ("Hostname", "n")];
    let addresses: Vec<Value> = addresses.iter().map(|(kind, at)| json!({ "type": kind, "address": at })).collect();
    let status = Patch::Merge(json!({ "status": { "addresses": addresses } }));
    nodes.patch_status("n", &PatchParams::default(), &status).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "evil");
    (server, client, pods)
}

#[tokio::test]
async fn no_proxy_leads_to_the_machine_of_the_api_server_or_to_a_node() {
    let (_server, client, pods) = scene().await;
    let (port, came) = private().await;
    let services: Api<Service> = Api::namespaced(client.clone(), "evil");
    let service =
        json!({ "metadata": { "name": "s" }, "spec": { "selector": { "app": "p" }, "ports": [{ "port": port }] } });
    services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    for address in [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "::",
        "169.254.169.254",
        "fe80::1",
        "224.0.0.1",
        "192.0.2.10",
        "2001:db8::10",
    ] {
        pod(&pods, false, address).await;
        for what in [format!("pods/p:{port}"), format!("pods/https:p:{port}"), format!("services/s:{port}")] {
            let (code, why) = get(&client, &what).await;
            assert!(code == 400 && why.contains("address not allowed"), "{what} at {address}: {code} {why}");
        }
        pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    // Nor do endpoints that somebody wrote by hand, however they were let in.
    let bare = json!({ "metadata": { "name": "bare" }, "spec": { "ports": [{ "port": port }] } });
    services.create(&PostParams::default(), &serde_json::from_value(bare).unwrap()).await.unwrap();
    let endpoints: Api<Endpoints> = Api::namespaced(client.clone(), "evil");
    for address in ["127.0.0.1", "169.254.169.254", "::1"] {
        let written = json!({ "metadata": { "name": "bare" }, "subsets": [{ "addresses": [{ "ip": address }], "ports": [{ "port": port }] }] });
        if endpoints.create(&PostParams::default(), &serde_json::from_value(written).unwrap()).await.is_ok() {
            let (code, why) = get(&client, &format!("services/bare:{port}")).await;
            assert!(code == 400 && why.contains("address not allowed"), "{address}: {code} {why}");
            endpoints.delete("bare", &DeleteParams::default()).await.unwrap();
        }
    }
    assert_eq!(came.load(Ordering::SeqCst), 0);
}

/// A pod that shares the network of its node is at the node's address, and is reached there.
#[tokio::test(start_paused = true)]
async fn a_pod_on_the_network_of_its_node_is_gone_to() {
    let (_server, client, pods) = scene().await;
    pod(&pods, true, "192.0.2.10").await;
    let (code, why) = get(&client, "pods/p:80").await;
    assert!(code == 503 && why.contains("error trying to reach service"), "{code} {why}");
}
