//! Tokens for the screens of machines.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use k8s_openapi::api::core::v1::ServiceAccount;
use kit::certs::{Authority, Leaf};
use kit::clock;
use kit::server::Peer;
use kit::tls::Trust;
use kube::api::DeleteParams;
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use ssp::console_proxy::Proxy;
use tower::ServiceExt;

use crate::cluster::{apply, cluster, namespace};

struct Setup {
    client: Client,
    proxy: Proxy,
    peer: Peer,
    _server: ApiServer,
}

async fn setup() -> Setup {
    let (server, client) = cluster().await;
    let (now, hour) = (clock::now(), Duration::from_secs(3600));
    let authority = Authority::generate("front-proxy-ca", now, hour).unwrap();
    let leaf = Leaf { name: "front-proxy-client".into(), role: "front".into(), ..Default::default() };
    let leaf = authority.issue(&leaf, now, hour).unwrap();
    let vouching = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "extension-apiserver-authentication", "namespace": "kube-system" },
        "data": {
            "requestheader-client-ca-file": authority.pair().certificate,
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
        },
    });
    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "vm", "namespace": "tenant" },
        "spec": { "runStrategy": "Halted", "template": { "spec": { "domain": { "devices": {} } } } },
    });
    apply(&client, &[vouching, namespace("tenant")]).await;
    apply(&client, &[machine]).await;
    let proxy = Proxy::start(client.clone(), Trust::new()).await.unwrap();
    let certificate = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
    let peer = Peer { address: ([127, 0, 0, 1], 1).into(), certificates: Arc::from([certificate]) };
    Setup { client, proxy, peer, _server: server }
}

impl Setup {
    async fn ask(&self, path: &str, groups: &[&str]) -> (u16, Value) {
        let mut request = Request::get(format!("/apis/token.kubevirt.io/v1/namespaces/{path}"))
            .header("x-remote-user", "eve")
            .extension(self.peer.clone());
        for group in groups {
            request = request.header("x-remote-group", *group);
        }
        let response = self.proxy.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

const ADMIN: &[&str] = &["system:masters", "system:authenticated"];
const NOBODY: &[&str] = &["system:authenticated"];

#[tokio::test]
async fn who_may_see_a_screen_gets_a_token_for_it() {
    let setup = setup().await;
    let (code, made) = setup.ask("tenant/virtualmachines/vm/vnc?duration=1h", ADMIN).await;
    assert_eq!(code, 200, "{made}");
    assert!(made["token"].as_str().is_some_and(|token| token.split('.').count() == 3), "{made}");
    let left = made["expirationTimestamp"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap()
        - clock::seconds(clock::now());
    assert!((3500..=3700).contains(&left.get_seconds()), "{left:?}");
    let accounts: Api<ServiceAccount> = Api::namespaced(setup.client.clone(), "tenant");
    let account = accounts.get("vm-vnc-access").await.unwrap();
    assert_eq!(account.metadata.owner_references.unwrap()[0].name, "vm");
    // Once more, and once more after it was taken back.
    assert_eq!(setup.ask("tenant/virtualmachines/vm/vnc", ADMIN).await.0, 200);
    accounts.delete("vm-vnc-access", &DeleteParams::default()).await.unwrap();
    assert_eq!(setup.ask("tenant/virtualmachines/vm/vnc", ADMIN).await.0, 200);
}

#[tokio::test]
async fn who_may_not_see_a_screen_learns_nothing() {
    let setup = setup().await;
    for name in ["vm", "none"] {
        let (code, body) = setup.ask(&format!("tenant/virtualmachines/{name}/vnc"), NOBODY).await;
        assert_eq!((code, body), (401, Value::Null), "{name}");
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(setup.client.clone(), "tenant");
    assert!(accounts.get_opt("vm-vnc-access").await.unwrap().is_none());
}

#[tokio::test]
async fn an_account_that_somebody_else_made_is_not_given_away() {
    let setup = setup().await;
    let strange = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "vm-vnc-access", "namespace": "tenant" } });
    apply(&setup.client, &[strange]).await;
    let (code, body) = setup.ask("tenant/virtualmachines/vm/vnc", ADMIN).await;
    assert_eq!(code, 409, "{body}");
    assert!(body["message"].as_str().unwrap().contains("is not of this VirtualMachine"), "{body}");
}

#[tokio::test]
async fn bad_questions_are_refused_with_the_remedy() {
    let setup = setup().await;
    let said = async |path: &str| {
        let (code, body) = setup.ask(path, ADMIN).await;
        (code, body["message"].as_str().unwrap_or_default().to_owned())
    };
    let missing = "VirtualMachine does not exist: none".to_owned();
    assert_eq!(said("tenant/virtualmachines/none/vnc").await, (404, missing));
    for bad in ["1m", "soon", "-1h"] {
        let expect = format!("duration is \"{bad}\": write it as 30m or 1h30m, from 10m on");
        assert_eq!(said(&format!("tenant/virtualmachines/vm/vnc?duration={bad}")).await, (400, expect));
    }
}
