//! Subresources over the real API server: who may, and what is written.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod chosen;
mod copies;
mod eviction;
mod networks;
mod reach;
mod restore;
mod sets;
mod template;
mod typed;

use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, PersistentVolumeClaim};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kit::certs::{Authority, Leaf};
use kit::clock;
use kit::server::Peer;
use kit::tls::{Material, Trust};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tower::ServiceExt;
use virt_operator::manifests::{Input, rbac};

struct Setup {
    client: Client,
    router: Router,
    peer: Peer,
    /// What virt-api shows to virt-handlers, and by which it knows them.
    material: Arc<Material>,
    trust: Arc<Trust>,
    _api: virt_api::Server,
    _server: ApiServer,
}

/// The account of virt-api, with the rights that it is installed with and no other.
async fn account(server: &ApiServer) -> Client {
    let admin = server.client();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let own = json!({ "metadata": { "name": "kubevirt" } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(own).unwrap()).await.unwrap();
    let rights = rbac::render(&Input { namespace: "kubevirt".into(), ..Input::default() });
    apply::all(&admin, &Applied::by("test"), &rights).await.unwrap();
    server.client_as(User {
        name: "system:serviceaccount:kubevirt:kubevirt-apiserver".into(),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    })
}

async fn setup() -> Setup {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let kept = [
        "virtualmachinerestores.snapshot",
        "virtualmachinesnapshots.snapshot",
        "virtualmachinesnapshotcontents.snapshot",
    ];
    let machines = ["virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations", "kubevirts"];
    for name in machines.into_iter().chain(kept) {
        let path = format!("../../deploy/crds/{name}.kubevirt.io.yaml");
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
    let own = account(&server).await;
    let api = virt_api::Server::start(own, "kubevirt", material.clone(), trust.clone(), front).await.unwrap();
    let certificate = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
    let peer = Peer { address: ([127, 0, 0, 1], 1).into(), certificates: Arc::from([certificate]) };
    Setup { client, router: api.router(), peer, material, trust, _api: api, _server: server }
}

impl Setup {
    async fn call(&self, method: &str, path: &str, user: &str, groups: &[&str]) -> (u16, Value) {
        self.send(method, path, Body::empty(), user, groups).await
    }

    async fn send(&self, method: &str, path: &str, body: Body, user: &str, groups: &[&str]) -> (u16, Value) {
        self.send_to("subresources.kubevirt.io/v1", method, path, body, user, groups).await
    }

    async fn send_to(
        &self,
        group: &str,
        method: &str,
        path: &str,
        body: Body,
        user: &str,
        groups: &[&str],
    ) -> (u16, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/apis/{group}{path}"))
            .header("x-remote-user", user)
            .extension(self.peer.clone());
        for group in groups {
            request = request.header("x-remote-group", *group);
        }
        let response = self.router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
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

/// A VM and its instance, which runs on node1.
async fn running(setup: &Setup) -> Api<VirtualMachineInstance> {
    let template = json!({ "spec": { "domain": { "devices": {} } } });
    let vm = json!({ "metadata": { "name": "vm" }, "spec": { "runStrategy": "Always", "template": template } });
    let vms: Api<VirtualMachine> = Api::namespaced(setup.client.clone(), "default");
    vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    let status = json!({ "phase": "Running", "nodeName": "node1" });
    let vmi = json!({ "metadata": { "name": "vm" }, "spec": template["spec"], "status": status });
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(setup.client.clone(), "default");
    vmis.create(&PostParams::default(), &serde_json::from_value(vmi).unwrap()).await.unwrap();
    vmis
}

#[tokio::test]
async fn a_running_machine_is_migrated() {
    let setup = setup().await;
    let vmis = running(&setup).await;
    let path = "/namespaces/default/virtualmachines/vm/migrate";
    let migrations: Api<VirtualMachineInstanceMigration> = Api::namespaced(setup.client.clone(), "default");
    let all = async || migrations.list(&ListParams::default()).await.unwrap().items;
    let (code, _) = setup.call("PUT", path, "eve", &["system:authenticated"]).await;
    assert_eq!(code, 403);
    let (code, _) = setup.send("PUT", path, Body::from(r#"{"dryRun":["All"]}"#), "admin", ADMIN).await;
    assert_eq!((code, all().await.len()), (202, 0));
    let chosen = Body::from(r#"{"addedNodeSelector":{"kubernetes.io/hostname":"node2"}}"#);
    let (code, body) = setup.send("PUT", path, chosen, "admin", ADMIN).await;
    let found = all().await;
    assert_eq!((code, found.len()), (202, 1), "{body}");
    assert_eq!(body["details"]["name"].as_str(), found[0].metadata.name.as_deref());
    assert!(found[0].metadata.name.as_ref().unwrap().starts_with("kubevirt-migrate-vm-"));
    let spec = &found[0].spec;
    assert_eq!((spec.vmi_name.as_deref(), spec.priority.as_deref()), (Some("vm"), Some("user-triggered")));
    assert_eq!(spec.added_node_selector["kubernetes.io/hostname"], "node2");

    let pending = Patch::Merge(json!({ "status": { "phase": "Scheduled" } }));
    vmis.patch("vm", &PatchParams::default(), &pending).await.unwrap();
    let (code, body) = setup.call("PUT", path, "admin", ADMIN).await;
    let expect = "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\": VM is not running";
    assert_eq!((code, body["message"].as_str()), (409, Some(expect)));
    vmis.delete("vm", &DeleteParams::default()).await.unwrap();
    let (code, _) = setup.call("PUT", path, "admin", ADMIN).await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn an_evacuation_is_cancelled() {
    let setup = setup().await;
    let vmis = running(&setup).await;
    let leaving = async || vmis.get("vm").await.unwrap().status.unwrap().evacuation_node_name;
    for resource in ["virtualmachines", "virtualmachineinstances"] {
        let path = format!("/namespaces/default/{resource}/vm/evacuate/cancel");
        let leave = Patch::Merge(json!({ "status": { "evacuationNodeName": "node1" } }));
        vmis.patch("vm", &PatchParams::default(), &leave).await.unwrap();
        let other = Body::from(r#"{"evacuationNodeName":"node2"}"#);
        let (code, body) = setup.send("PUT", &path, other, "admin", ADMIN).await;
        assert_eq!((code, leaving().await.as_deref()), (409, Some("node1")), "{body}");
        let (code, body) =
            setup.send("PUT", &path, Body::from(r#"{"evacuationNodeName":"node1"}"#), "admin", ADMIN).await;
        assert_eq!((code, leaving().await), (200, None), "{body}");
        // Once more is as good.
        let (code, _) = setup.call("PUT", &path, "admin", ADMIN).await;
        assert_eq!(code, 200);
    }
    let node = json!({ "metadata": { "name": "node1" }, "spec": { "taints": [
        { "key": "kubevirt.io/drain", "effect": "NoSchedule" },
    ] } });
    let nodes: Api<Node> = Api::all(setup.client.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let leave = Patch::Merge(json!({ "status": { "evacuationNodeName": "node1" } }));
    vmis.patch("vm", &PatchParams::default(), &leave).await.unwrap();
    let path = "/namespaces/default/virtualmachineinstances/vm/evacuate/cancel";
    let (code, body) = setup.call("PUT", path, "admin", ADMIN).await;
    let expect = "Node \"node1\" has NodeDrainTaintKey \"kubevirt.io/drain:NoSchedule\"";
    assert_eq!((code, body["message"].as_str()), (400, Some(expect)));
}

#[tokio::test]
async fn a_memory_dump_is_requested_and_taken_back() {
    let setup = setup().await;
    running(&setup).await;
    let vms: Api<VirtualMachine> = Api::namespaced(setup.client.clone(), "default");
    let path = |verb: &str| format!("/namespaces/default/virtualmachines/vm/{verb}");
    let dump = async |claim: &str, user: &str, groups: &[&str]| {
        let body = Body::from(json!({ "claimName": claim, "phase": "" }).to_string());
        let (code, body) = setup.send("PUT", &path("memorydump"), body, user, groups).await;
        (code, body["message"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(dump("out", "eve", &["system:authenticated"]).await.0, 403);
    let missing = "persistentvolumeclaim.kubevirt.io \"out\" not found";
    assert_eq!(dump("out", "admin", ADMIN).await, (404, missing.to_owned()));
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(setup.client.clone(), "default");
    let claim = json!({ "metadata": { "name": "out" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    } });
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    assert_eq!(dump("out", "admin", ADMIN).await.0, 202);
    let held = async || json!(vms.get("vm").await.unwrap().status.unwrap().memory_dump_request);
    assert_eq!(held().await, json!({ "claimName": "out", "phase": "Associating" }));
    let busy = "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\": memory dump request for pvc [out] \
                already in progress";
    assert_eq!(dump("", "admin", ADMIN).await, (409, busy.to_owned()));

    // Of what an earlier dump said nothing is left.
    let done = json!({ "phase": "Completed", "fileName": "f", "startTimestamp": "2026-01-31T13:59:59Z" });
    let patch = Patch::Merge(json!({ "status": { "memoryDumpRequest": done } }));
    vms.patch_status("vm", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(dump("", "admin", ADMIN).await.0, 202);
    assert_eq!(held().await, json!({ "claimName": "out", "phase": "Associating" }));
    let (code, _) = setup.call("PUT", &path("removememorydump"), "admin", ADMIN).await;
    let leaving = json!({ "claimName": "out", "phase": "Dissociating", "remove": true });
    assert_eq!((code, held().await), (202, leaving));
    let (code, _) = setup.call("PUT", &path("removememorydump"), "admin", ADMIN).await;
    assert_eq!(code, 409);
}

#[tokio::test]
async fn a_migration_is_judged_by_its_guest() {
    let setup = setup().await;
    running(&setup).await;
    let ask = async |guest: &str| {
        let object = json!({ "metadata": { "name": "m" }, "spec": { "vmiName": guest } });
        let request = json!({ "uid": "1", "operation": "CREATE", "namespace": "default", "object": object });
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
        let request = Request::post("/migration-validate-create").body(Body::from(review.to_string())).unwrap();
        let response = setup.router.clone().oneshot(request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        answer["response"]["status"]["message"].as_str().map(str::to_owned)
    };
    assert_eq!(ask("vm").await, None);
    assert_eq!(ask("none").await.as_deref(), Some("the VMI \"default/none\" does not exist"));
    let labels = json!({ "kubevirt.io/vmi-name": "vm" });
    let other = json!({ "metadata": { "name": "other", "labels": labels }, "spec": { "vmiName": "vm" } });
    let migrations: Api<VirtualMachineInstanceMigration> = Api::namespaced(setup.client.clone(), "default");
    migrations.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
    assert!(ask("vm").await.unwrap().starts_with("in-flight migration detected. Active migration job ("));
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
async fn health_names_the_configuration_in_force() {
    let setup = setup().await;
    let told = async |path: &str| {
        let answer = setup.router.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()
    };
    let first = told("/healthz").await;
    assert_eq!(first["apiserver"]["connectivity"], "ok");
    assert!(first["apiserver"]["version"]["gitVersion"].is_string(), "{first}");
    assert_eq!(first["config-resource-version"], "", "there is no KubeVirt object");
    let kubevirts: Api<KubeVirt> = Api::namespaced(setup.client.clone(), "kubevirt");
    let wanted = json!({ "metadata": { "name": "kubevirt" }, "spec": {} });
    kubevirts.create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await.unwrap();
    for model in ["Haswell", "Penryn"] {
        let change = Patch::Merge(json!({ "spec": { "configuration": { "cpuModel": model } } }));
        let changed = kubevirts.patch("kubevirt", &PatchParams::default(), &change).await.unwrap();
        let version = json!(changed.metadata.resource_version);
        for path in ["/healthz", "/apis/subresources.kubevirt.io/v1/healthz"] {
            let follows = async {
                while told(path).await["config-resource-version"] != version {
                    tokio::task::yield_now().await;
                }
            };
            let found = tokio::time::timeout(Duration::from_secs(20), follows).await;
            assert!(found.is_ok(), "{path} never shows {version}: {}", told(path).await);
        }
    }
}

#[tokio::test]
async fn absent_subresources_are_named() {
    let setup = setup().await;
    let path = "/namespaces/default/virtualmachines/vm/objectgraph";
    let (code, body) = setup.call("GET", path, "admin", ADMIN).await;
    assert_eq!((code, body["reason"].as_str()), (405, Some("MethodNotAllowed")));
    assert!(body["message"].as_str().unwrap().contains("not part of this version"));
    let (code, body) = setup.call("GET", "/version", "admin", ADMIN).await;
    assert_eq!(code, 200);
    assert_eq!(body["gitVersion"], format!("v{}", env!("CARGO_PKG_VERSION")));
}
