//! The proxy between a client outside of the cluster and the server of an export.

use std::time::Duration;

use api::export::v1::VirtualMachineExport;
use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::Applied;
use kit::certs::{Authority, Leaf};
use kit::shutdown::CancellationToken;
use kit::tls::{self, Material};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};
use tower::ServiceExt;
use virt_export::proxy::{Proxy, router};
use virt_operator::manifests::{Input, rbac};

use crate::scene::{Scene, scene};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn exports(client: &Client) -> Api<VirtualMachineExport> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let path = "../../deploy/crds/virtualmachineexports.export.kubevirt.io.yaml";
    let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    crds.create(&PostParams::default(), &crd).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "ns" } })).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    Api::namespaced(client.clone(), "ns")
}

async fn export(api: &Api<VirtualMachineExport>, name: &str, status: Value) {
    let source = json!({ "kind": "PersistentVolumeClaim", "name": "a" });
    let object = json!({ "metadata": { "name": name }, "spec": { "source": source } });
    // A definition that was just made is served a moment later.
    let made = async {
        while api.create(&PostParams::default(), &serde_json::from_value(object.clone()).unwrap()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), made).await.unwrap();
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// The server of `scene` on a port of its own, with a certificate of `authority` for `host`.
async fn serve(scene: &Scene, authority: &Authority, host: &str, stop: CancellationToken) -> std::net::SocketAddr {
    let leaf = Leaf { name: host.into(), role: "virt-export".into(), dns: vec![host.into()], ..Leaf::default() };
    let material = Material::new();
    material.set(&authority.issue(&leaf, kit::clock::now(), DAY).unwrap()).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = kit::server::serve_tls(listener, tls::server(material, None).unwrap(), scene.router.clone(), stop);
    kit::spawn("server", serving).detach();
    address
}

/// The account of the proxy, with the rights that it is installed with and no other.
async fn account(server: &ApiServer) -> Client {
    let admin = server.client();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let own = json!({ "metadata": { "name": "kubevirt" } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(own).unwrap()).await.unwrap();
    let rights = rbac::render(&Input { namespace: "kubevirt".into(), ..Input::default() });
    kit::apply::all(&admin, &Applied::by("test"), &rights).await.unwrap();
    server.client_as(User {
        name: "system:serviceaccount:kubevirt:kubevirt-exportproxy".into(),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    })
}

async fn ask(proxy: &Router, path: &str, token: Option<&str>) -> (StatusCode, Vec<u8>) {
    let mut request = Request::get(format!("/api/export.kubevirt.io/v1/namespaces/ns/virtualmachineexports/{path}"));
    if let Some(token) = token {
        request = request.header("x-kubevirt-export-token", token).header("range", "bytes=0-9");
    }
    let answer = proxy.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    (answer.status(), answer.into_body().collect().await.unwrap().to_bytes().to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_through_to_the_server_of_its_export_alone() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let api = exports(&client).await;
    let ready = |service: &str| json!({ "phase": "Ready", "serviceName": service });
    export(&api, "e", ready("virt-export-e")).await;
    export(&api, "other", ready("virt-export-other")).await;
    let services: Api<Service> = Api::namespaced(client.clone(), "ns");
    for name in ["virt-export-e", "virt-export-other"] {
        let service =
            json!({ "metadata": { "name": name }, "spec": { "ports": [{ "port": 443 }], "selector": { "a": "b" } } });
        services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    }
    // A tenant has a name of their own stand for whatever they like, and says that their export is there.
    let elsewhere =
        json!({ "metadata": { "name": "elsewhere" }, "spec": { "type": "ExternalName", "externalName": "localhost" } });
    services.create(&PostParams::default(), &serde_json::from_value(elsewhere).unwrap()).await.unwrap();
    export(&api, "astray", ready("elsewhere")).await;
    export(&api, "early", json!({ "phase": "Pending", "serviceName": "virt-export-early" })).await;
    let (scene, stop) = (scene(), CancellationToken::new());
    let authority = Authority::generate("exports", kit::clock::now(), DAY).unwrap();
    let address = serve(&scene, &authority, "virt-export-e.ns.svc", stop.clone()).await;
    let authorities = scene.dir.path().join("ca");
    std::fs::write(&authorities, &authority.pair().certificate).unwrap();
    let client = account(&server).await;
    let proxy = router(Proxy { client, authorities: authorities.clone(), dial: Some(address) });

    let (status, body) = ask(&proxy, "e/volumes/disk/disk.img", Some("t0ken")).await;
    assert_eq!((status, body.len()), (StatusCode::PARTIAL_CONTENT, 10));
    assert_eq!(ask(&proxy, "e/volumes/disk/disk.img", None).await.0, StatusCode::UNAUTHORIZED);
    let (status, body) = ask(&proxy, "e/volumes/disk/disk.img.gz?x-kubevirt-export-token=t0ken", None).await;
    assert!(status == StatusCode::OK && crate::scene::unpacked(&body) == scene.disk);
    assert_eq!(ask(&proxy, "early/volumes/disk/disk.img", Some("t0ken")).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ask(&proxy, "none/volumes/disk/disk.img", Some("t0ken")).await.0, StatusCode::NOT_FOUND);
    assert_eq!(ask(&proxy, "e", Some("t0ken")).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(ask(&proxy, "astray/volumes/disk/disk.img", Some("t0ken")).await.0, StatusCode::BAD_GATEWAY);
    // Whoever answers for another export shows a certificate for another name.
    assert_eq!(ask(&proxy, "other/volumes/disk/disk.img", Some("t0ken")).await.0, StatusCode::BAD_GATEWAY);
    let stranger = Authority::generate("stranger", kit::clock::now(), DAY).unwrap();
    std::fs::write(&authorities, &stranger.pair().certificate).unwrap();
    assert_eq!(ask(&proxy, "e/volumes/disk/disk.img", Some("t0ken")).await.0, StatusCode::BAD_GATEWAY);
    stop.cancel();
}
