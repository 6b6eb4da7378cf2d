//! What holds of every operator, whatever it deploys: each test runs for all of them.

mod crash;
mod damage;
mod drift;
mod lifecycle;
mod objects;

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use hpp::operator::Controllers;
use http::{Method, Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kit::Task;
use kit::apply::{self, Applied};
use kit::events::Recorder;
use kit::shutdown::CancellationToken;
use kit::tls::Material;
use kube::Client;
use kube_apiserver::ApiServer;
use serde_json::{Value, json};

use crate::cluster::{account, applied, available, documents, list, play, text, until};

/// What others delete or edit is back within this.
const SOON: Duration = Duration::from_secs(5);

/// An operator, and how it is asked for its product.
#[derive(Clone, Copy)]
struct Product {
    /// The operator's manifests.
    operator: &'static str,
    /// The object, and where its kind is served.
    object: &'static str,
    path: &'static str,
    /// What its objects are labelled with.
    manager: &'static str,
    /// The object has one name that counts, and none of another ever does.
    has_one_name: bool,
    /// Starts it with the images and version `v1`, `v2`, ….
    start: fn(Client, &str) -> Box<dyn Any + Send>,
}

const PRODUCTS: [Product; 5] = [
    Product {
        operator: "network-addons-operator.yaml",
        object: "network-addons-cr.yaml",
        path: "/apis/networkaddonsoperator.network.kubevirt.io/v1/networkaddonsconfigs",
        manager: "cnao-operator",
        has_one_name: true,
        start: |client, version| {
            let release = cnao::operator::Release {
                namespace: "cluster-network-addons".into(),
                image: format!("r/component:{version}"),
                version: version.into(),
            };
            let operator = cnao::operator::Operator::new(client, release, Recorder::discard());
            Box::new(operator.start(&CancellationToken::new()))
        },
    },
    Product {
        operator: "ssp-operator.yaml",
        object: "ssp-cr.yaml",
        path: "/apis/ssp.kubevirt.io/v1beta3/namespaces/kubevirt-hyperconverged/ssps",
        manager: "ssp-operator",
        has_one_name: false,
        start: |client, version| {
            let release = ssp::operator::Release {
                steps: Default::default(),
                namespace: "kubevirt-hyperconverged".into(),
                image: format!("r/component:{version}"),
                version: version.into(),
                architecture: ssp::templates::system::Architecture::Amd64,
            };
            let operator = ssp::operator::Operator::new(client, release, Recorder::discard());
            Box::new(operator.start(&CancellationToken::new()))
        },
    },
    Product {
        operator: "kubevirt-operator.yaml",
        object: "kubevirt-cr.yaml",
        path: "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts",
        manager: "virt-operator",
        has_one_name: false,
        start: |client, version| {
            let release = virt_operator::Release {
                namespace: "kubevirt".into(),
                component: format!("r/component:{version}"),
                launcher: format!("r/launcher:{version}"),
                guestfs: format!("r/guestfs:{version}"),
                version: version.into(),
            };
            let operator = virt_operator::Operator::new(client, release, Material::new());
            Box::new(operator.start(&CancellationToken::new()))
        },
    },
    Product {
        operator: "cdi-operator.yaml",
        object: "cdi-cr.yaml",
        path: "/apis/cdi.kubevirt.io/v1beta1/cdis",
        manager: "cdi-operator",
        has_one_name: false,
        start: |client, version| {
            let release = cdi::operator::Release {
                namespace: "cdi".into(),
                image: format!("r/component:{version}"),
                version: version.into(),
            };
            let operator = cdi::operator::Operator::new(client, release, Recorder::discard());
            Box::new(operator.start(&CancellationToken::new()))
        },
    },
    Product {
        operator: "hostpath-operator.yaml",
        object: "hostpath-cr.yaml",
        path: "/apis/hostpathprovisioner.kubevirt.io/v1beta1/hostpathprovisioners",
        manager: "hostpath-provisioner-operator",
        has_one_name: false,
        start: |client, version| {
            let image = format!("r/component:{version}");
            let stop = CancellationToken::new();
            let namespace = "hostpath-provisioner";
            Box::new(hpp::operator::Operator::start(client, namespace, image, Controllers::Driver, &stop))
        },
    },
];

/// Nobody serves the webhooks of the components here: as an administrator may, they let pass what they cannot be asked about.
fn lenient() -> Value {
    let patch = |name: &str, hooks: &[&str]| {
        let hooks: Vec<Value> = hooks.iter().map(|hook| json!({ "name": hook, "failurePolicy": "Ignore" })).collect();
        json!({
            "resourceType": "ValidatingWebhookConfiguration", "resourceName": name, "type": "strategic",
            "patch": json!({ "webhooks": hooks }).to_string(),
        })
    };
    let kubevirt = [
        "kubevirt-validator.kubevirt.io",
        "kubevirt-update-validator.kubevirt.io",
        "kubevirt-create-validator.kubevirt.io",
    ];
    json!({
        "virt-operator": { "patches": [patch("virt-operator-validator", &kubevirt)] },
        "cdi-operator": { "patches": [patch("cdi-api-validate", &["cdi-validate.cdi.kubevirt.io"])] },
    })
}

/// A cluster on which a product's operator may be started.
struct Scene {
    product: Product,
    server: ApiServer,
    client: Client,
    operator: Vec<Value>,
    /// What was there before, by address.
    before: BTreeMap<String, Value>,
    _workloads: Task<()>,
}

impl Scene {
    async fn new(product: Product) -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } });
        apply::all(&client, &Applied::by("test"), &[node]).await.unwrap();
        // One of the embedded cluster, whose kubelets attach networks themselves.
        let version = concat!("v1.33.0+ferrovirt-", env!("CARGO_PKG_VERSION"));
        let info = json!({ "status": { "nodeInfo": {
            "kubeletVersion": version, "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
        } } });
        call(&client, Method::PATCH, "/api/v1/nodes/node1/status", &info).await.unwrap();
        let workloads = kit::spawn("workloads", play(client.clone()));
        let operator = applied(&client, product.operator).await;
        let before = everything(&client).await;
        Scene { product, server, client, operator, before, _workloads: workloads }
    }

    /// One on which the product runs, with its operator.
    async fn deployed(product: Product) -> (Self, Box<dyn Any + Send>) {
        let scene = Scene::new(product).await;
        let running = scene.start("v1");
        scene.create(&scene.object()).await;
        available(&scene.client, product.path).await;
        (scene, running)
    }

    /// The object that asks for the product.
    fn object(&self) -> Value {
        let mut object = documents(self.product.object).swap_remove(0);
        let patches = &lenient()[self.product.manager];
        if !patches.is_null() {
            object["spec"]["customizeComponents"] = patches.clone();
        }
        object
    }

    /// Where that object is.
    fn address(&self) -> String {
        format!("{}/{}", self.product.path, text(&self.object(), "/metadata/name"))
    }

    /// The operator, with the rights that it is installed with and no other.
    fn start(&self, version: &str) -> Box<dyn Any + Send> {
        (self.product.start)(account(&self.server, &self.operator), version)
    }

    async fn create(&self, object: &Value) {
        call(&self.client, Method::POST, self.product.path, object).await.unwrap();
    }

    /// What the operator has made, by address.
    async fn made(&self) -> BTreeMap<String, Value> {
        let mut all = everything(&self.client).await;
        all.retain(|address, object| {
            let definition = text(object, "/kind") == "CustomResourceDefinition";
            let labels = &object["metadata"]["labels"]["app.kubernetes.io/managed-by"];
            !self.before.contains_key(address) && (definition || labels == self.product.manager)
        });
        all
    }

    /// Until the object is gone.
    async fn gone(&self) {
        let address = self.address();
        until("the object is gone", async || get(&self.client, &address).await.is_none().then_some(())).await;
    }
}

/// Everything that can be listed, by address.
async fn everything(client: &Client) -> BTreeMap<String, Value> {
    let groups = client.list_api_groups().await.unwrap().groups;
    let versions = groups.into_iter().filter_map(|group| Some(group.preferred_version?.group_version));
    let mut resources = client.list_core_api_resources("v1").await.unwrap().resources;
    let mut at: Vec<(String, String, String)> = Vec::new();
    let listed = |all: Vec<APIResource>| {
        all.into_iter().filter(|one| one.verbs.iter().any(|verb| verb == "list") && one.kind != "Event")
    };
    at.extend(listed(std::mem::take(&mut resources)).map(|one| ("v1".to_owned(), one.kind, one.name)));
    for version in versions {
        // Those that components would answer are not here.
        let Ok(found) = client.list_api_group_resources(&version).await else { continue };
        at.extend(listed(found.resources).map(|one| (version.clone(), one.kind, one.name)));
    }
    let lists = at.into_iter().map(|(version, kind, plural)| async move {
        let root = if version.contains('/') { "/apis" } else { "/api" };
        let mut found = list(client, &format!("{root}/{version}/{plural}")).await;
        for object in &mut found {
            object["apiVersion"] = json!(version);
            object["kind"] = json!(kind);
        }
        found
    });
    join_all(lists).await.into_iter().flatten().map(|object| (apply::address(&object), object)).collect()
}

async fn call(client: &Client, method: Method, address: &str, body: &Value) -> kube::Result<Value> {
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(address).header(header::CONTENT_TYPE, kind).body(body);
    client.request(request.unwrap()).await
}

async fn get(client: &Client, address: &str) -> Option<Value> {
    match call(client, Method::GET, address, &Value::Null).await {
        Ok(found) => Some(found),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("{address}: {error}"),
    }
}

/// What an object says, without what the API server and other writers keep in it.
fn content(object: &Value) -> Value {
    let mut object = object.clone();
    let (labels, mut annotations) = (object["metadata"]["labels"].take(), object["metadata"]["annotations"].take());
    // Counts what the API server has seen of a DaemonSet's template.
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove("deprecated.daemonset.template.generation");
    }
    object["metadata"] = json!({ "labels": labels, "annotations": annotations });
    object["status"] = Value::Null;
    object
}
