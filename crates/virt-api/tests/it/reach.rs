//! Whom virt-api dials: the guest at its pod's address, and the virt-handler of the guest's node.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::routing::put;
use k8s_openapi::api::core::v1::Pod;
use kit::certs::{Authority, Leaf};
use kit::shutdown::CancellationToken;
use kit::tls::{self, Clients, Material};
use kit::{clock, server};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{ADMIN, Setup, running, setup};

/// A running pod of the guest on node1.
async fn launcher(setup: &Setup, uid: &str, status: Value) {
    let owner = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": uid,
        "controller": true });
    let pod = json!({
        "metadata": { "name": "virt-launcher-vm", "labels": { "kubevirt.io/created-by": uid }, "ownerReferences": [owner] },
        "spec": { "nodeName": "node1", "containers": [{ "name": "compute", "image": "i" }] },
    });
    let pods: Api<Pod> = Api::namespaced(setup.client.clone(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let patch = Patch::Merge(json!({ "status": status }));
    pods.patch_status("virt-launcher-vm", &PatchParams::default(), &patch).await.unwrap();
}

/// Serves the router over plain HTTP, as if each request had come from the API server.
async fn front(setup: &Setup) -> SocketAddr {
    let peer = setup.peer.clone();
    let vouched = middleware::from_fn(move |mut request: Request, next: Next| {
        request.extensions_mut().insert(peer.clone());
        next.run(request)
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = setup.router.clone().layer(vouched);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// The head of the answer to a request for a forwarded port.
async fn forward(to: SocketAddr, port: u16) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/vm/portforward";
    let request = format!(
        "GET {path}/{port} HTTP/1.1\r\nhost: h\r\nx-remote-user: admin\r\nx-remote-group: system:masters\r\n\
         connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: plain.kubevirt.io\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 4096];
    let count = stream.read(&mut buffer).await.unwrap();
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

#[tokio::test]
async fn a_port_of_the_node_is_not_forwarded_whatever_the_status_says() {
    let setup = setup().await;
    let vmis = running(&setup).await;
    let secret = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = secret.local_addr().unwrap().port();
    let lie = json!({ "spec": { "networks": [{ "name": "default", "pod": {} }] },
        "status": { "interfaces": [{ "name": "default", "ipAddress": "127.0.0.1" }] } });
    let vmi = vmis.patch("vm", &PatchParams::default(), &Patch::Merge(lie)).await.unwrap();
    let to = front(&setup).await;
    let without_a_pod = forward(to, port).await;
    assert!(without_a_pod.starts_with("HTTP/1.1 409"), "{without_a_pod}");
    // Nor when a node that was taken over says so of the pod.
    let status = json!({ "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }] });
    launcher(&setup, &vmi.metadata.uid.unwrap(), status).await;
    let refused = forward(to, port).await;
    assert!(refused.starts_with("HTTP/1.1 409") && refused.contains("127.0.0.1 is not an address"), "{refused}");
    let nobody = tokio::time::timeout(Duration::from_millis(100), secret.accept()).await;
    assert!(nobody.is_err(), "virt-api has dialled the node");
}

/// A virt-handler whose certificate names `node`, at an address of its own.
async fn handler(setup: &Setup, node: &str, address: &str) -> CancellationToken {
    let (now, hour) = (clock::now(), Duration::from_secs(3600));
    let authority = Authority::generate("kubevirt-ca", now, hour).unwrap();
    setup.trust.set(&authority.pair().certificate).unwrap();
    let leaf = |role: &str, node: Option<&str>| {
        let leaf = Leaf { name: role.into(), role: role.into(), node: node.map(str::to_owned), ..Leaf::default() };
        authority.issue(&leaf, now, hour).unwrap()
    };
    setup.material.set(&leaf("virt-api", None)).unwrap();
    let own = Material::new();
    own.set(&leaf("virt-handler", Some(node))).unwrap();
    let config = tls::server(own, Some(Clients::Roles(setup.trust.clone(), vec!["virt-api".into()]))).unwrap();
    let listener = TcpListener::bind((address, 8186)).await.unwrap();
    let path = "/v1/namespaces/default/virtualmachineinstances/vm/pause";
    let router = Router::new().route(path, put(|| async { "paused" }));
    let stop = CancellationToken::new();
    tokio::spawn(server::serve_tls(listener, config, router, stop.clone()));
    stop
}

#[tokio::test]
async fn only_the_virt_handler_of_the_guests_node_is_asked() {
    let setup = setup().await;
    running(&setup).await;
    let (here, elsewhere) = ("127.86.0.1", "127.86.0.2");
    let pod = json!({
        "metadata": { "name": "virt-handler-a", "labels": { "kubevirt.io": "virt-handler" } },
        "spec": { "nodeName": "node1", "containers": [{ "name": "virt-handler", "image": "i" }] },
    });
    let pods: Api<Pod> = Api::namespaced(setup.client.clone(), "kubevirt");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let at = async |address: &str| {
        let status = json!({ "status": { "phase": "Running", "podIP": address } });
        pods.patch_status("virt-handler-a", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    };
    let path = "/namespaces/default/virtualmachineinstances/vm/pause";
    // Another node's virt-handler, to which this one's pod claims to have moved.
    at(elsewhere).await;
    let _other = handler(&setup, "node2", elsewhere).await;
    let (code, body) = setup.call("PUT", path, "admin", ADMIN).await;
    let message = body["message"].as_str().unwrap_or_default();
    assert!(code == 502 && message.contains("is that of node \"node2\", expected \"node1\""), "{code} {message}");
    at(here).await;
    let _own = handler(&setup, "node1", here).await;
    let (code, _) = setup.call("PUT", path, "admin", ADMIN).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn who_asks_while_virt_handler_is_replaced_waits_for_the_next_one() {
    let setup = setup().await;
    running(&setup).await;
    let pods: Api<Pod> = Api::namespaced(setup.client.clone(), "kubevirt");
    let starts = async |name: &str, address: &str, ready: &str| {
        let pod = json!({
            "metadata": { "name": name, "labels": { "kubevirt.io": "virt-handler" } },
            "spec": { "nodeName": "node1", "containers": [{ "name": "virt-handler", "image": "i" }] },
        });
        let _ = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await;
        let status = json!({ "status": { "phase": "Running", "podIP": address,
            "conditions": [{ "type": "Ready", "status": ready }] } });
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    };
    let address = "127.86.0.3";
    let _own = handler(&setup, "node1", address).await;
    let asked = setup.call("PUT", "/namespaces/default/virtualmachineinstances/vm/pause", "admin", ADMIN);
    let replaced = async {
        starts("virt-handler-b", address, "False").await;
        starts("virt-handler-b", address, "True").await;
    };
    let ((code, body), ()) = tokio::join!(asked, replaced);
    assert_eq!(code, 200, "{body}");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_virt_handler_is_named_after_a_while() {
    let setup = setup().await;
    running(&setup).await;
    let path = "/namespaces/default/virtualmachineinstances/vm/pause";
    let (code, body) = setup.call("PUT", path, "admin", ADMIN).await;
    let message = body["message"].as_str().unwrap_or_default();
    assert!(code == 502 && message.contains("virt-handler does not run on node node1"), "{code} {message}");
}
