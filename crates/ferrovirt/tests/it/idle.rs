//! Components on a cluster that lacks kinds of others: idle, they do not ask for them; and they notice when one comes or goes.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hpp::operator::Controllers;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::events::Recorder;
use kit::served;
use kit::shutdown::CancellationToken;
use kit::store::{Key, Store, Watch};
use kit::tls::Material;
use kube::api::{DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};

/// Groups of which the cluster has nothing.
const LACKING: [&str; 5] = [
    "snapshot.storage.k8s.io",
    "route.openshift.io",
    "monitoring.coreos.com",
    "security.openshift.io",
    "cdi.kubevirt.io",
];

/// The paths that were asked for, by whoever uses the client.
fn counted(server: &ApiServer) -> (Client, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = asked.clone();
    let count = axum::middleware::map_request(move |request: axum::extract::Request| {
        seen.lock().unwrap().push(request.uri().to_string());
        std::future::ready(request)
    });
    let router = server.router().layer(count).layer(axum::Extension(User::admin()));
    (Client::new(router, "default"), asked)
}

async fn define(client: &Client, definition: Value) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
}

/// KubeVirt's kinds and the provisioner's, and none of CDI's.
async fn define_ours(client: &Client) {
    for file in std::fs::read_dir(Path::new("../../deploy/crds")).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let built_in = name.starts_with("network-attachment-definitions.");
        if (!name.contains("cdi.kubevirt.io") || name.starts_with("cdis.")) && !built_in {
            define(client, serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap()).await;
        }
    }
}

/// The kind, as this cluster has it; and its definition goes.
async fn undefine(client: &Client, name: &str) -> Value {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let spec = definitions.get(name).await.unwrap().spec;
    definitions.delete(name, &DeleteParams::default()).await.unwrap();
    let gone = async {
        while definitions.get_opt(name).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    let approved = json!({ "api-approved.kubernetes.io": "unapproved, a test's" });
    json!({ "metadata": { "name": name, "annotations": approved }, "spec": spec })
}

#[tokio::test(start_paused = true)]
async fn an_idle_component_does_not_ask_for_kinds_that_the_cluster_lacks() {
    let server = ApiServer::in_memory().await.unwrap();
    let (client, asked) = counted(&server);
    for kind in ["volumesnapshots", "volumesnapshotclasses", "volumesnapshotcontents"] {
        undefine(&server.client(), &format!("{kind}.snapshot.storage.k8s.io")).await;
    }
    define_ours(&client).await;
    let stop = CancellationToken::new();
    let _controllers = virt_controller::start(client.clone(), "kubevirt", "launcher", &stop);
    let builds = virt_operator::Release {
        namespace: "kubevirt".into(),
        component: "component".into(),
        launcher: "launcher".into(),
        guestfs: "guestfs".into(),
        version: images::VERSION.into(),
    };
    let _kubevirt = virt_operator::Operator::new(client.clone(), builds, Material::new()).start(&stop);
    let release =
        cdi::operator::Release { namespace: "cdi".into(), image: "component".into(), version: images::VERSION.into() };
    let _cdi = cdi::operator::Operator::new(client.clone(), release, Recorder::discard()).start(&stop);
    let _hostpath = hpp::operator::Operator::start(
        client.clone(),
        "hostpath-provisioner",
        "component".into(),
        Controllers::Driver,
        &stop,
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    let lacking = |asked: &[String]| -> Vec<String> {
        // Whether a definition of that name is there is what is watched.
        let kinds = asked.iter().filter(|path| path.starts_with("/apis/") && !path.contains("fieldSelector"));
        kinds
            .filter(|path| {
                LACKING
                    .iter()
                    .any(|group| path.starts_with(&format!("/apis/{group}/v1/")) || path.contains("datavolumes"))
            })
            .cloned()
            .collect()
    };
    let at_the_start = std::mem::take(&mut *asked.lock().unwrap());
    assert!(at_the_start.iter().any(|path| path == "/apis/snapshot.storage.k8s.io/v1"), "discovery was never asked");
    assert_eq!(lacking(&at_the_start), [""; 0], "what is not served was listed");
    tokio::time::sleep(Duration::from_secs(300)).await;
    let later = std::mem::take(&mut *asked.lock().unwrap());
    let of_others: Vec<_> = later.iter().filter(|path| LACKING.iter().any(|group| path.contains(group))).collect();
    // A watch that the API server ends is begun again; nothing else happens.
    let beyond: Vec<_> = of_others.iter().filter(|path| !path.contains("watch=true")).collect();
    assert!(beyond.is_empty(), "{beyond:#?}");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_store_of_an_optional_kind_begins_with_its_definition_and_ends_with_it() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let name = "volumesnapshotclasses.snapshot.storage.k8s.io";
    let mut definition = undefine(&client, name).await;
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass"));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let store: Store<DynamicObject> = Store::default();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let _watch = served::watch(&client, &resource, api.clone(), Watch::default(), store.clone(), move |change| {
        let _ = tell.send((change.key.name.clone(), change.new.is_some()));
    });
    // Nothing is known to be there.
    store.synced().await;
    assert!(store.is_empty());
    for _ in 0..2 {
        define(&client, definition).await;
        let class = json!({ "metadata": { "name": "a" }, "driver": "d", "deletionPolicy": "Delete" });
        let mut class: DynamicObject = serde_json::from_value(class).unwrap();
        class.types =
            Some(kube::core::TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() });
        let made = async {
            while api.create(&PostParams::default(), &class).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), made).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(60), told.recv()).await.unwrap();
        assert_eq!(heard, Some(("a".to_owned(), true)));
        assert!(store.contains(&Key::new("", "a")));
        definition = undefine(&client, name).await;
        let heard = tokio::time::timeout(Duration::from_secs(60), told.recv()).await.unwrap();
        assert_eq!(heard, Some(("a".to_owned(), false)));
        assert!(store.is_empty());
    }
}
