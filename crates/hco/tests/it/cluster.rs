//! A cluster with the operator and its webhook. The test plays the other operators.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hco::child::Child;
use hco::operator::{Operator, Running};
use hco::render::{Input, NAME};
use http::{Method, Request, header};
use k8s_openapi::api::core::v1::Secret;
use kit::Task;
use kit::apply::{self, Applied};
use kit::certs::Pair;
use kit::events::Recorder;
use kit::shutdown::CancellationToken;
use kit::store::{self, Store, Watch};
use kit::tls::{Changing, Material};
use kube::runtime::watcher;
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "kubevirt-hyperconverged";
pub(crate) const PATH: &str = "/apis/hco.kubevirt.io/v1/namespaces/kubevirt-hyperconverged/hyperconvergeds";
const PATIENCE: Duration = Duration::from_secs(60);
const DEFINITIONS: [(Child, &str); 4] = [
    (Child::KubeVirt, "crds/kubevirts.kubevirt.io.yaml"),
    (Child::Cdi, "crds/cdis.cdi.kubevirt.io.yaml"),
    (Child::NetworkAddons, "crds/networkaddonsconfigs.networkaddonsoperator.network.kubevirt.io.yaml"),
    (Child::Ssp, "crds/ssps.ssp.kubevirt.io.yaml"),
];

/// The documents of a file below deploy/.
pub(crate) fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new("../../deploy").join(file)).unwrap();
    let all: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    all.into_iter().filter(|document| !document.is_null()).collect()
}

/// Until it holds.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let held = async {
            loop {
                if let Some(found) = holds().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, held).await.unwrap_or_else(|_| panic!("{caller}: {what}: never"))
    }
}

/// A running operator with its webhook, and who plays the others.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    /// An administrator's.
    pub(crate) client: Client,
    running: Option<Running>,
    /// Plays the other operators.
    players: Option<Task<()>>,
    _tasks: Vec<Task<()>>,
    stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Cluster {
    /// One with all kinds.
    pub(crate) async fn new() -> Self {
        Self::serving(&Child::ALL).await
    }

    /// One that knows these kinds.
    pub(crate) async fn serving(children: &[Child]) -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        let mut all = documents("hco-operator.yaml");
        for (child, file) in DEFINITIONS {
            if children.contains(&child) {
                all.extend(documents(file));
            }
        }
        let by = Applied::by("kubectl");
        until("the manifests are applied", async || apply::all(&client, &by, &all).await.ok()).await;
        let mut cluster = Cluster {
            server,
            client,
            running: None,
            players: None,
            _tasks: Vec::new(),
            stop: CancellationToken::new(),
        };
        cluster.node("node1").await;
        cluster.start("v1");
        cluster.serve().await;
        cluster
    }

    /// Starts the operator of a version, with the rights that it is installed with and no other.
    pub(crate) fn start(&mut self, version: &str) {
        self.start_as(self.account("hyperconverged-cluster-operator"), version);
    }

    /// Starts the operator in the place of the one before.
    pub(crate) fn start_as(&mut self, client: Client, version: &str) {
        self.running = None;
        let input = Input {
            namespace: NAMESPACE.into(),
            image: "r/component".into(),
            version: version.into(),
            ..Input::default()
        };
        self.running = Some(Operator::new(client.clone(), input, Recorder::new(client, "hco", "")).start(&self.stop));
    }

    /// The client of a service account.
    pub(crate) fn account(&self, name: &str) -> Client {
        self.server.client_as(Self::user(name))
    }

    /// A service account.
    pub(crate) fn user(name: &str) -> User {
        User {
            name: format!("system:serviceaccount:{NAMESPACE}:{name}"),
            groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
            ..User::default()
        }
    }

    /// Serves the webhook, and waits until the API server asks it.
    async fn serve(&mut self) {
        // The namespace's account is a controller's, and there is none.
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": NAMESPACE } });
        apply::all(&self.client, &Applied::by("test"), &[account]).await.unwrap();
        let input = Input { namespace: NAMESPACE.into(), version: "v1".into(), ..Input::default() };
        let router = hco::webhook::router(self.account(hco::webhook::PROGRAM), input);
        self.serve_program(hco::webhook::PROGRAM, "hyperconverged-cluster-webhook-service-cert", router).await;
        until("the webhook is configured", async || {
            let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/hyperconverged-namespace-policy";
            let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/hyperconvergeds.hco.kubevirt.io";
            let definition = self.get(definition).await?;
            let converts = definition.pointer("/spec/conversion/webhook/clientConfig/caBundle").is_some();
            (self.get(path).await.is_some() && converts).then_some(())
        })
        .await;
    }

    /// Serves `router` where the Service of `program` leads to, with the certificate that the operator made.
    pub(crate) async fn serve_program(&mut self, program: &str, certificate: &str, router: Router) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        let material = Material::new();
        let config = watcher::Config::default().fields(&format!("metadata.name={certificate}"));
        let shown = material.clone();
        let follow = store::watch(secrets, Watch { config, ..Watch::default() }, Store::default(), move |change| {
            let data = change.new.and_then(|secret: &Secret| secret.data.clone()).unwrap_or_default();
            let text = |key: &str| data.get(key).map(|bytes| String::from_utf8(bytes.0.clone()).unwrap());
            // Somebody may spoil it; the operator makes another one.
            if let Some((certificate, key)) = text("tls.crt").zip(text("tls.key")) {
                let _ = shown.set(&Pair { certificate, key });
            }
        });
        until("the program has a certificate", async || material.is_set().then_some(())).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config: Arc<Changing> = Changing::new(material, None).unwrap();
        let server = kit::spawn("webhook", kit::server::serve_tls(listener, config, router, self.stop.clone()));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": program, "namespace": NAMESPACE, "labels": { "name": program } },
            "spec": {
                "securityContext": { "runAsNonRoot": true, "runAsUser": 1, "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": "c", "image": "i", "ports": [{ "name": "https", "containerPort": port }],
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                }],
            },
        });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.call(Method::POST, &pods, &pod).await.unwrap();
        let status = json!({ "status": {
            "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }], "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        self.call(Method::PATCH, &format!("{pods}/{program}/status"), &status).await.unwrap();
        self._tasks.extend([follow, server]);
    }

    pub(crate) async fn node(&self, name: &str) {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { "kubernetes.io/arch": "amd64" } } });
        self.call(Method::POST, "/api/v1/nodes", &node).await.unwrap();
        let clean = json!({ "spec": { "taints": null } });
        self.call(Method::PATCH, &format!("/api/v1/nodes/{name}"), &clean).await.unwrap();
    }

    /// Plays the operators of all children: they are good, and of `version`.
    pub(crate) fn play(&mut self, version: &'static str) {
        let client = self.client.clone();
        self.players = Some(kit::spawn("children", async move {
            loop {
                for child in Child::ALL {
                    // A child that was deleted meanwhile has no status to write.
                    let _ = report(&client, child, version).await;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }));
    }

    /// Creates the object with `spec` and waits until everything is good.
    pub(crate) async fn available(&mut self, spec: Value) {
        self.play("v1");
        self.create(&spec).await.unwrap();
        self.healthy().await;
    }

    pub(crate) async fn healthy(&self) {
        until("the object is healthy", async || {
            (self.object().await?["status"]["systemHealthStatus"] == "healthy").then_some(())
        })
        .await;
    }

    pub(crate) async fn create(&self, spec: &Value) -> kube::Result<Value> {
        let object = json!({
            "apiVersion": "hco.kubevirt.io/v1", "kind": "HyperConverged", "metadata": { "name": NAME, "namespace": NAMESPACE },
            "spec": spec,
        });
        self.call(Method::POST, PATH, &object).await
    }

    /// The object, if it is there.
    pub(crate) async fn object(&self) -> Option<Value> {
        self.get(&format!("{PATH}/{NAME}")).await
    }

    /// Merges `change` into the object.
    pub(crate) async fn merge(&self, change: &Value) -> kube::Result<Value> {
        self.call(Method::PATCH, &format!("{PATH}/{NAME}"), change).await
    }

    pub(crate) async fn child(&self, child: Child) -> Option<Value> {
        self.get(&address(child)).await
    }

    pub(crate) async fn get(&self, address: &str) -> Option<Value> {
        match self.call(Method::GET, address, &Value::Null).await {
            Ok(found) => Some(found),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{address}: {error}"),
        }
    }

    pub(crate) async fn call(&self, method: Method, address: &str, body: &Value) -> kube::Result<Value> {
        call(&self.client, method, address, body).await
    }

    /// A policy by which writes of `resource` are refused where `expression` does not hold.
    pub(crate) async fn forbid(&self, resource: (&str, &str), operation: &str, expression: &str, message: &str) {
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "forbid" },
            "spec": {
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [resource.0], "apiVersions": ["*"], "operations": [operation], "resources": [resource.1],
                }] },
                "validations": [{ "expression": expression, "message": message }],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": "forbid" }, "spec": { "policyName": "forbid", "validationActions": ["Deny"] },
        });
        apply::all(&self.client, &Applied::by("test"), &[policy, binding]).await.unwrap();
    }
}

pub(crate) fn address(child: Child) -> String {
    let kind = child.kind();
    let namespace = if kind.namespaced { format!("namespaces/{NAMESPACE}/") } else { String::new() };
    format!("/apis/{}/{namespace}{}/{}", kind.api_version, kind.plural, kind.name)
}

pub(crate) async fn call(client: &Client, method: Method, address: &str, body: &Value) -> kube::Result<Value> {
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(address).header(header::CONTENT_TYPE, kind).body(body);
    client.request(request.unwrap()).await
}

/// What a child's operator says when all is well.
async fn report(client: &Client, child: Child, version: &str) -> kube::Result<()> {
    let address = address(child);
    let held = call(client, Method::GET, &address, &Value::Null).await?;
    let field = if child == Child::KubeVirt { "observedKubeVirtVersion" } else { "observedVersion" };
    let said = |type_: &str, status: &str| json!({ "type": type_, "status": status, "reason": "Test", "message": "" });
    let status = json!({
        (field): version,
        "conditions": [said("Available", "True"), said("Progressing", "False"), said("Degraded", "False")],
    });
    if held["status"][field] == version {
        return Ok(());
    }
    // CDI's status is written with the object.
    let subresource = if child == Child::Cdi { "" } else { "/status" };
    call(client, Method::PATCH, &format!("{address}{subresource}"), &json!({ "status": status })).await.map(drop)
}

pub(crate) fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The condition of that type.
pub(crate) fn condition(object: &Value, type_: &str) -> Value {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|condition| condition["type"] == type_).unwrap_or_default()
}

/// The message of a refusal.
#[track_caller]
pub(crate) fn refusal(result: kube::Result<Value>) -> String {
    match result {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("{other:?}"),
    }
}
