//! cdi-apiserver: who gets tokens, and what is admitted.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cdi::apiserver::Server;
use cdi::operator::install;
use cdi::operator::manifests::crds;
use cdi::token::{self, ISSUER_APISERVER, Payload, Resource, Signer, Verifier, operation};
use http::Request;
use kit::apply::Applied;
use kit::certs::{Authority, Leaf};
use kit::clock;
use kit::server::Peer;
use kit::tls::Trust;
use kube::Client;
use kube_apiserver::ApiServer;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tower::ServiceExt;

struct Setup {
    client: Client,
    router: Router,
    peer: Peer,
    verifier: Verifier,
    _server: ApiServer,
    _cdi: Server,
}

impl Setup {
    async fn new() -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        let installed: Vec<Value> = serde_saphyr::from_multiple(&install::operator().unwrap()).unwrap();
        apply(&client, &installed).await;
        kit::apply::crds(&client, &Applied::by("test"), crds::ALL).await.unwrap();
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
        apply(&client, &[vouching]).await;
        let (private, public) = token::generate().unwrap();
        let cdi = Server::start(client.clone(), Signer::new(&private).unwrap(), Trust::new()).await.unwrap();
        let certificate = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
        let peer = Peer { address: ([127, 0, 0, 1], 1).into(), certificates: Arc::from([certificate]) };
        let verifier = Verifier::new(&public).unwrap();
        Self { client, router: cdi.router(), peer, verifier, _server: server, _cdi: cdi }
    }

    async fn post(&self, path: &str, user: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(path)
            .header("x-remote-user", user)
            .header("x-remote-group", if user == "admin" { "system:masters" } else { "system:authenticated" })
            .extension(self.peer.clone())
            .body(Body::from(body.to_string()));
        let response = self.router.clone().oneshot(request.unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// What a webhook answers to the creation of `object` by `user`.
    async fn review(&self, path: &str, user: &str, object: &Value) -> Value {
        let groups = if user == "admin" { ["system:masters"] } else { ["system:authenticated"] };
        let review = json!({ "request": {
            "uid": "1", "operation": "CREATE", "namespace": "here", "name": object["metadata"]["name"],
            "userInfo": { "username": user, "groups": groups }, "object": object,
        } });
        let (code, answer) = self.post(path, user, &review).await;
        assert_eq!(code, 200, "{answer}");
        answer["response"].clone()
    }
}

async fn apply(client: &Client, manifests: &[Value]) {
    kit::apply::all(client, &Applied::by("test"), manifests).await.unwrap();
}

fn volume(source: &Value) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "v", "namespace": "here" },
        "spec": { "source": source, "storage": { "resources": { "requests": { "storage": "1Gi" } } } },
    })
}

fn claim(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": namespace },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

#[tokio::test]
async fn upload_tokens_need_the_right_to_create_requests() {
    let setup = Setup::new().await;
    let path = "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/here/uploadtokenrequests";
    let request = json!({ "metadata": { "name": "r" }, "spec": { "pvcName": "disk" } });
    let (code, answer) = setup.post(path, "eve", &request).await;
    assert_eq!((code, answer["reason"].as_str()), (403, Some("Forbidden")), "{answer}");
    let (code, answer) = setup.post(path, "admin", &request).await;
    assert_eq!(code, 200, "{answer}");
    let token = answer["status"]["token"].as_str().unwrap();
    let allowed = setup.verifier.verify(ISSUER_APISERVER, token, clock::now()).unwrap();
    let expect = Payload {
        operation: operation::UPLOAD.into(),
        name: "disk".into(),
        namespace: "here".into(),
        resource: Resource::claims(),
        ..Payload::default()
    };
    assert_eq!(allowed, expect);
    let (code, answer) = setup.post(path, "admin", &json!({ "spec": { "pvcName": "" } })).await;
    assert_eq!((code, answer["message"].as_str()), (400, Some("spec.pvcName is empty: name the claim to upload into")));
    // A token is for the namespace that the user was asked for, whatever the request says of itself.
    let foreign = json!({ "metadata": { "name": "r", "namespace": "victim" }, "spec": { "pvcName": "disk" } });
    let (_, answer) = setup.post(path, "admin", &foreign).await;
    let token = answer["status"]["token"].as_str().unwrap();
    assert_eq!(setup.verifier.verify(ISSUER_APISERVER, token, clock::now()).unwrap().namespace, "here");
    for name in ["victim/disk", "../../victim/persistentvolumeclaims/disk"] {
        let (code, answer) = setup.post(path, "admin", &json!({ "spec": { "pvcName": name } })).await;
        assert_eq!(code, 400, "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("without a slash"), "{answer}");
    }
    // Without the front proxy's certificate.
    let stranger = Request::post(path).header("x-remote-user", "admin").body(Body::from(request.to_string()));
    let stranger = setup.router.clone().oneshot(stranger.unwrap()).await.unwrap();
    assert_eq!(stranger.status(), 401);
}

#[tokio::test]
async fn a_clone_carries_the_leave_of_its_maker() {
    let setup = Setup::new().await;
    let source = json!({ "pvc": { "namespace": "there", "name": "golden" } });
    let mutate = async |user: &str| setup.review("/datavolume-mutate", user, &volume(&source)).await;
    let absent = mutate("admin").await;
    assert_eq!(absent["status"]["message"], "namespaces \"there\" not found");
    apply(&setup.client, &[namespace("here"), namespace("there"), claim("there", "golden")]).await;

    let refused = mutate("eve").await;
    let message = "User eve has insufficient permissions in clone source namespace there";
    assert_eq!((&refused["allowed"], &refused["status"]["message"]), (&json!(false), &json!(message)));
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "cloner", "namespace": "there" },
        "rules": [{ "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes/source"], "verbs": ["create"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "cloner", "namespace": "there" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cloner" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve" }],
    });
    apply(&setup.client, &[role, binding]).await;
    let granted = mutate("eve").await;
    let patch = BASE64_STANDARD.decode(granted["patch"].as_str().unwrap()).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    let token = patch[0]["value"]["cdi.kubevirt.io/storage.clone.token"].as_str().unwrap();
    let allowed = setup.verifier.verify(ISSUER_APISERVER, token, clock::now()).unwrap();
    assert_eq!(
        (allowed.operation.as_str(), allowed.namespace.as_str(), allowed.name.as_str()),
        ("Clone", "there", "golden")
    );
    assert_eq!(allowed.params["targetNamespace"], "here");

    // What is filled already copies nothing: a leave on it would be one for whoever finds it.
    let mut filled = volume(&source);
    filled["metadata"]["annotations"] = json!({ "cdi.kubevirt.io/storage.prePopulated": "true" });
    let filled = setup.review("/datavolume-mutate", "admin", &filled).await;
    assert_eq!((&filled["allowed"], &filled["patch"]), (&json!(true), &Value::Null));
    // A DataSource's status is its maker's to write: where it leads is what counts.
    let data_source = |name: &str, from: Value, status: Value| {
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": name, "namespace": "here" },
            "spec": { "source": from }, "status": { "source": status },
        })
    };
    let own = json!({ "pvc": { "namespace": "here", "name": "own" } });
    let to = json!({ "pvc": { "namespace": "closed", "name": "golden" } });
    let pointer = json!({ "dataSource": { "namespace": "here", "name": "direct" } });
    let closed = [namespace("closed"), data_source("direct", to, own.clone()), data_source("pointer", pointer, own)];
    apply(&setup.client, &closed).await;
    for name in ["direct", "pointer"] {
        let mut referring = volume(&Value::Null);
        referring["spec"]["sourceRef"] = json!({ "kind": "DataSource", "name": name });
        let refused = setup.review("/datavolume-mutate", "eve", &referring).await;
        let message = "User eve has insufficient permissions in clone source namespace closed";
        assert_eq!((&refused["allowed"], &refused["status"]["message"]), (&json!(false), &json!(message)), "{name}");
    }

    let blank = setup.review("/datavolume-mutate", "eve", &volume(&json!({ "blank": {} }))).await;
    assert_eq!((&blank["allowed"], &blank["patch"]), (&json!(true), &Value::Null));
}

#[tokio::test]
async fn admission_looks_at_existing_claims_and_sources() {
    let setup = Setup::new().await;
    apply(&setup.client, &[namespace("here")]).await;
    let validate = async |object: &Value| {
        let answer = setup.review("/datavolume-validate", "admin", object).await;
        answer["status"]["message"].as_str().unwrap_or_default().to_owned()
    };
    let blank = volume(&json!({ "blank": {} }));
    assert_eq!(validate(&blank).await, "");
    apply(&setup.client, &[claim("here", "v")]).await;
    assert_eq!(validate(&blank).await, "Destination PVC here/v already exists");
    let mut cloned = volume(&json!({ "pvc": { "namespace": "here", "name": "v" } }));
    cloned["metadata"]["name"] = json!("w");
    cloned["spec"]["storage"] = Value::Null;
    cloned["spec"]["pvc"] =
        json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } });
    assert_eq!(validate(&cloned).await, "target resources requests storage size is smaller than the source");
    let mut referring = volume(&Value::Null);
    referring["metadata"]["name"] = json!("w");
    referring["spec"]["sourceRef"] = json!({ "kind": "DataSource", "name": "d" });
    assert_eq!(validate(&referring).await, "SourceRef DataSource/here/d not found");

    let transfer = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "ObjectTransfer", "metadata": { "name": "t" },
        "spec": {
            "source": { "kind": "PersistentVolumeClaim", "namespace": "here", "name": "x" }, "target": { "name": "v" },
        },
    });
    let answer = setup.review("/objecttransfer-validate", "admin", &transfer).await;
    assert_eq!(answer["status"]["message"], "ObjectTransfer target \"here/v\" already exists");
}

#[tokio::test]
async fn data_volumes_hold_an_installation_that_asks_for_it() {
    let setup = Setup::new().await;
    let held = json!({
        "metadata": { "name": "cdi" }, "spec": { "uninstallStrategy": "BlockUninstallIfWorkloadsExist" },
        "status": { "phase": "Deployed" },
    });
    let delete = async || {
        let review = json!({ "request": { "uid": "1", "operation": "DELETE", "name": "cdi", "oldObject": held } });
        setup.post("/cdi-validate", "admin", &review).await.1["response"]["allowed"].clone()
    };
    assert_eq!(delete().await, true);
    apply(&setup.client, &[namespace("here"), volume(&json!({ "blank": {} }))]).await;
    assert_eq!(delete().await, false);
}
