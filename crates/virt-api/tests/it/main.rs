//! Subresources over the real API server: who may, and what is written.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod eviction;

use std::{path::Path, sync::Arc, time::Duration};

use api::kubevirt::v1::VirtualMachine;
use axum::{Router, body::Body, http::Request};
use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kit::{
    certs::{Authority, Leaf},
    clock,
    server::Peer,
    tls::{Material, Trust},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use kube_apiserver::ApiServer;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use tower::ServiceExt;

struct Setup {
    client: Client,
    router: Router,
    peer: Peer,
    _api: virt_api::Server,
    _server: ApiServer,
}

async fn setup() -> Setup {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for name in ["virtualmachines", "virtualmachineinstances", "kubevirts"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../deploy/crds/{name}.kubevirt.io.yaml"));
        let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
    let (now, hour) = (clock::now(), Duration::from_secs(3600));
    let authority = Authority::generate("front-proxy-ca", now, hour).unwrap();
    let leaf = Leaf { name: "front-proxy-client".into(), role: "front".into(), ..Default::default() };
    let leaf = authority.issue(&leaf, now, hour).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let vouching = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "extension-apiserver-authentication" },
        "data": {
            "requestheader-client-ca-file": authority.pair().certificate,
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
        },
    });
    let apply = PatchParams::apply("test").force();
    maps.patch("extension-apiserver-authentication", &apply, &Patch::Apply(vouching)).await.unwrap();
    let (material, trust, front) = (Material::new(), Trust::new(), Trust::new());
    let api = virt_api::Server::start(client.clone(), "kubevirt", material, trust, front).await.unwrap();
    let certificate = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
    let peer = Peer { address: ([127, 0, 0, 1], 1).into(), certificates: Arc::from([certificate]) };
    Setup { client, router: api.router(), peer, _api: api, _server: server }
}

impl Setup {
    async fn call(&self, method: &str, path: &str, user: &str, groups: &[&str]) -> (u16, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/apis/subresources.kubevirt.io/v1{path}"))
            .header("x-remote-user", user)
            .extension(self.peer.clone());
        for group in groups {
            request = request.header("x-remote-group", *group);
        }
        let response = self.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

const ADMIN: &[&str] = &["system:masters", "system:authenticated"];

#[tokio::test]
async fn start_and_stop() {
    let setup = setup().await;
    let vms: Api<VirtualMachine> = Api::namespaced(setup.client.clone(), "default");
    let vm = json!({ "metadata": { "name": "vm" }, "spec": { "runStrategy": "Halted", "template": { "spec": { "domain": {
        "devices": {} } } } } });
    vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    let path = "/namespaces/default/virtualmachines/vm";

    let (code, body) = setup.call("PUT", &format!("{path}/start"), "eve", &["system:authenticated"]).await;
    assert_eq!((code, body["reason"].as_str()), (403, Some("Forbidden")), "{body}");
    let (code, body) = setup.call("PUT", &format!("{path}/start"), "admin", ADMIN).await;
    assert_eq!(code, 202, "{body}");
    assert_eq!(vms.get("vm").await.unwrap().spec.run_strategy.as_deref(), Some("Always"));
    let (code, _) = setup.call("PUT", &format!("{path}/stop"), "admin", ADMIN).await;
    assert_eq!(code, 202);
    assert_eq!(vms.get("vm").await.unwrap().spec.run_strategy.as_deref(), Some("Halted"));
    let (code, body) = setup.call("PUT", &format!("{path}/restart"), "admin", ADMIN).await;
    let expect = "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\": RunStategy Halted does not support manual \
                  restart requests";
    assert_eq!((code, body["message"].as_str()), (409, Some(expect)));
    let (code, body) = setup.call("PUT", "/namespaces/default/virtualmachines/none/start", "admin", ADMIN).await;
    assert_eq!((code, body["message"].as_str()), (404, Some("virtualmachine.kubevirt.io \"none\" not found")));
}

#[tokio::test]
async fn only_the_api_server_is_heard() {
    let mut setup = setup().await;
    setup.peer.certificates = Arc::from([]);
    let (code, _) = setup.call("GET", "/namespaces/default/virtualmachineinstances/vm/console", "admin", ADMIN).await;
    assert_eq!(code, 401);
    let (code, _) = setup.call("GET", "/healthz", "", &[]).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn what_is_absent_is_said_plainly() {
    let setup = setup().await;
    let path = "/namespaces/default/virtualmachines/vm/migrate";
    let (code, body) = setup.call("PUT", path, "admin", ADMIN).await;
    assert_eq!((code, body["reason"].as_str()), (405, Some("MethodNotAllowed")));
    assert!(body["message"].as_str().unwrap().contains("stop and start the VM to move it"));
    let (code, body) = setup.call("GET", "/version", "admin", ADMIN).await;
    assert_eq!(code, 200);
    assert_eq!(body["gitVersion"], format!("v{}", env!("CARGO_PKG_VERSION")));
}
