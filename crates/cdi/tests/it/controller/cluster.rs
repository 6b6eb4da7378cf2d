//! A cluster with the controllers at work, and the parts that others play.

use std::fmt::Debug;
use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::cdi::constants::label;
use api::cdi::v1beta1::{CDIConfig, DataVolume};
use cdi::controller::progress::{Figures, Progress};
use cdi::controller::{self, Args, Running};
use cdi::operator::manifests::rbac;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::Applied;
use kit::shutdown::CancellationToken;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::wait::{Condition, await_condition};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The class whose driver clones and whose claims are bound at once.
pub(crate) const FAST: &str = "fast";
/// The class whose claims wait for a consumer.
pub(crate) const LATE: &str = "late";
/// The class whose provisioner is no CSI driver.
pub(crate) const PLAIN: &str = "plain";

pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) volumes: Api<DataVolume>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) persistent: Api<PersistentVolume>,
    pub(crate) pods: Api<Pod>,
    running: Option<Running>,
    server: ApiServer,
}

/// A worker is always a third of the way.
struct Third;

impl Progress for Third {
    fn of(&self, _: IpAddr, _: String) -> Pin<Box<dyn Future<Output = Option<Figures>> + Send + '_>> {
        let figures = Figures { percent: 33.333, fetched: Some(1 << 20), total: Some(3 << 20) };
        Box::pin(std::future::ready(Some(figures)))
    }
}

/// The digest of an image that is nothing but this letter.
pub(crate) fn digest(letter: &str) -> String {
    format!("sha256:{}", letter.repeat(64))
}

pub(crate) async fn start() -> Cluster {
    start_with(json!({ "featureGates": ["HonorWaitForFirstConsumer"] })).await
}

/// A cluster with this configuration.
pub(crate) async fn start_with(config: Value) -> Cluster {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let folder = Path::new("../../deploy/crds");
    for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".cdi.kubevirt.io.yaml") {
            let crd = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
    }
    let mut cluster = Cluster {
        volumes: Api::namespaced(client.clone(), "default"),
        claims: Api::namespaced(client.clone(), "default"),
        persistent: Api::all(client.clone()),
        pods: Api::namespaced(client.clone(), "default"),
        running: None,
        client,
        server,
    };
    for namespace in ["cdi", "images"] {
        cluster.make("v1", "Namespace", json!({ "metadata": { "name": namespace } })).await;
    }
    let rights = rbac::render("cdi");
    kit::apply::all(&cluster.client, &Applied::by("test"), &rights).await.unwrap();
    cluster.running = Some(controllers(&cluster.server));
    let class = |name: &str, provisioner: &str, binding: &str| json!({ "metadata": { "name": name }, "provisioner": provisioner, "volumeBindingMode": binding, "allowVolumeExpansion": true });
    let storage = "storage.k8s.io/v1";
    cluster
        .make(storage, "CSIDriver", json!({ "metadata": { "name": "kubevirt.io.hostpath-provisioner" }, "spec": {} }))
        .await;
    cluster.make(storage, "StorageClass", class(FAST, "kubevirt.io.hostpath-provisioner", "Immediate")).await;
    cluster
        .make(storage, "StorageClass", class(LATE, "kubevirt.io.hostpath-provisioner", "WaitForFirstConsumer"))
        .await;
    cluster.make(storage, "StorageClass", class(PLAIN, "kubevirt.io/hostpath-provisioner", "Immediate")).await;
    let decides = json!({ "cdi.kubevirt.io/configAuthority": "" });
    let cdi = json!({ "metadata": { "name": "cdi", "annotations": decides }, "spec": { "config": config } });
    cluster.make("cdi.kubevirt.io/v1beta1", "CDI", cdi).await;
    let configs: Api<CDIConfig> = Api::all(cluster.client.clone());
    wait(&configs, "config", "told", |config: Option<&CDIConfig>| config.is_some_and(|config| config.status.is_some()))
        .await;
    for name in [FAST, LATE, PLAIN] {
        let profiles: Api<api::cdi::v1beta1::StorageProfile> = Api::all(cluster.client.clone());
        wait(&profiles, name, "profiled", |profile: Option<&api::cdi::v1beta1::StorageProfile>| {
            profile.is_some_and(|profile| profile.status.is_some())
        })
        .await;
    }
    cluster
}

/// The controllers, with the rights that they are installed with and no other.
fn controllers(server: &ApiServer) -> Running {
    let args = Args {
        namespace: "cdi".to_owned(),
        identity: "test".to_owned(),
        image: "cdi:test".to_owned(),
        pull_policy: "IfNotPresent".to_owned(),
        port: 0,
    };
    let client = server.client_as(User {
        name: format!("system:serviceaccount:cdi:{}", rbac::CONTROLLER),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    });
    controller::start(client, &args, Arc::new(Third), &CancellationToken::new())
}

/// Waits until `name` fulfils `condition`; the object as it then is, none when it is gone.
pub(crate) fn wait<'a, K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    condition: impl Condition<K> + 'a,
) -> Pin<Box<dyn Future<Output = Option<K>> + 'a>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (api, name, what) = (api.clone(), name.to_owned(), what.to_owned());
    Box::pin(async move {
        match tokio::time::timeout(PATIENCE, await_condition(api.clone(), &name, condition)).await {
            Ok(found) => found.unwrap(),
            Err(_) => panic!("{name} never {what}: {:#?}", api.get_opt(&name).await),
        }
    })
}

pub(crate) fn there<K>() -> impl Condition<K> {
    |object: Option<&K>| object.is_some()
}

pub(crate) fn gone<K>() -> impl Condition<K> {
    |object: Option<&K>| object.is_none()
}

pub(crate) fn in_phase(phase: &'static str) -> impl Condition<DataVolume> {
    move |volume: Option<&DataVolume>| {
        volume.and_then(|volume| volume.status.as_ref()).and_then(|status| status.phase.as_deref()) == Some(phase)
    }
}

/// A DataVolume of `source` on `class`.
pub(crate) fn volume(name: &str, class: &str, source: &Value) -> DataVolume {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "source": source, "storage": { "storageClassName": class, "resources": { "requests": { "storage": "64Mi" } } } },
    }))
    .unwrap()
}

impl Cluster {
    /// What the controllers share.
    pub(crate) fn context(&self) -> controller::context::Context {
        self.running.as_ref().unwrap().context.clone()
    }

    /// Ends the controllers wherever they are.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// Starts others, which know nothing of them.
    pub(crate) fn restart(&mut self) {
        self.running = Some(controllers(&self.server));
    }

    /// Makes any cluster-scoped or namespaced object.
    pub(crate) async fn make(&self, version: &str, kind: &str, object: Value) {
        let mut object = object;
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        let plural = match kind {
            "StorageClass" => "storageclasses".to_owned(),
            "VolumeSnapshotClass" => "volumesnapshotclasses".to_owned(),
            kind => format!("{}s", kind.to_lowercase()),
        };
        let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
        let path = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{plural}"),
        };
        let request =
            http::Request::post(path).header("content-type", "application/json").body(object.to_string().into_bytes());
        self.client.request::<Value>(request.unwrap()).await.unwrap();
    }

    pub(crate) async fn create(&self, volume: &DataVolume) -> DataVolume {
        self.volumes.create(&PostParams::default(), volume).await.unwrap()
    }

    pub(crate) async fn status<K>(&self, api: &Api<K>, name: &str, status: Value)
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await.unwrap();
    }

    /// What the provisioner and the binder do: a volume for the claim.
    pub(crate) async fn provision(&self, claims: &Api<PersistentVolumeClaim>, name: &str) -> String {
        let claim = wait(claims, name, "made", there()).await.unwrap();
        let volume = format!("pv-{}", claim.uid().unwrap());
        let spec = claim.spec.clone().unwrap();
        let size = spec.resources.unwrap().requests.unwrap()["storage"].clone();
        let persistent = json!({ "metadata": { "name": volume }, "spec": {
            "capacity": { "storage": size }, "accessModes": spec.access_modes, "volumeMode": spec.volume_mode,
            "storageClassName": spec.storage_class_name, "persistentVolumeReclaimPolicy": "Delete", "hostPath": { "path": "/x" },
            "claimRef": { "kind": "PersistentVolumeClaim", "namespace": claim.namespace(), "name": name, "uid": claim.uid() },
        } });
        self.persistent.create(&PostParams::default(), &serde_json::from_value(persistent).unwrap()).await.unwrap();
        self.bind(claims, name, &volume).await;
        volume
    }

    /// What the binder does.
    pub(crate) async fn bind(&self, claims: &Api<PersistentVolumeClaim>, name: &str, volume: &str) {
        let named = json!({ "spec": { "volumeName": volume } });
        claims.patch(name, &PatchParams::default(), &Patch::Merge(named)).await.unwrap();
        let capacity = self.persistent.get(volume).await.unwrap().spec.unwrap().capacity;
        self.status(claims, name, json!({ "phase": "Bound", "capacity": capacity })).await;
    }

    /// Waits until the volume is `claim`'s, and binds it.
    pub(crate) async fn rebound(&self, volume: &str, claim: &str) {
        let wanted = claim.to_owned();
        wait(&self.persistent, volume, "rebound", move |volume: Option<&PersistentVolume>| {
            let holder = volume.and_then(|volume| volume.spec.as_ref()?.claim_ref.as_ref()?.name.clone());
            holder.as_deref() == Some(&wanted)
        })
        .await;
        self.bind(&self.claims, claim, volume).await;
    }

    /// What the kubelet says of the pod's first container.
    pub(crate) async fn report(&self, pods: &Api<Pod>, pod: &str, phase: &str, state: Value) {
        let found = wait(pods, pod, "made", there()).await.unwrap();
        let name = &found.spec.unwrap().containers[0].name;
        let ready = phase == "Running";
        self.status(
            pods,
            pod,
            json!({ "phase": phase, "podIP": "10.0.0.1", "containerStatuses": [{
                "name": name, "state": state, "ready": ready, "restartCount": 0, "image": "i", "imageID": "i",
            }] }),
        )
        .await;
    }

    /// The worker is done, and says so.
    pub(crate) async fn finish(&self, pods: &Api<Pod>, pod: &str, message: &str) {
        let message = json!({ "message": message, "preallocationApplied": false }).to_string();
        let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": message } });
        self.report(pods, pod, "Succeeded", ended).await;
    }

    /// The pod that asks a registry for `cron`, once it is there.
    pub(crate) async fn poller(&self, cron: &str) -> Pod {
        let selector = format!("{},{}={cron}", label::POLLER, label::DATA_IMPORT_CRON);
        let pods = watcher(self.pods.clone(), watcher::Config::default().labels(&selector)).applied_objects();
        let asks = pods.filter_map(|pod| async {
            let ended =
                |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Succeeded"));
            pod.ok().filter(|pod| pod.metadata.deletion_timestamp.is_none() && !ended(pod))
        });
        let mut asks = std::pin::pin!(asks);
        let found = tokio::time::timeout(PATIENCE * 20, asks.next()).await;
        found.ok().flatten().unwrap_or_else(|| panic!("nobody asks for {cron}"))
    }

    /// The pod that asks a registry for `cron` ends, and these are its last words.
    pub(crate) async fn answer(&self, cron: &str, message: &str) -> Pod {
        let pod = self.poller(cron).await;
        let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": message } });
        self.report(&self.pods, &pod.name_any(), "Succeeded", ended).await;
        pod
    }

    /// Waits for an event about anything with this reason.
    pub(crate) async fn told(&self, reason: &str) -> String {
        let api: Api<Event> = Api::all(self.client.clone());
        let events = watcher(api, watcher::Config::default()).applied_objects();
        let of_reason =
            events.filter_map(|event| async { event.ok().filter(|event| event.reason.as_deref() == Some(reason)) });
        let mut of_reason = std::pin::pin!(of_reason);
        let found = tokio::time::timeout(PATIENCE, of_reason.next()).await;
        let found = found.unwrap_or_else(|_| panic!("no event {reason}"));
        found.and_then(|event| event.message).unwrap_or_default()
    }

    /// Waits for an event about an object of `kind` with this message.
    pub(crate) async fn told_of(&self, kind: &str, message: &str) {
        let api: Api<Event> = Api::all(self.client.clone());
        let events = watcher(api, watcher::Config::default()).applied_objects();
        let found = events.filter_map(|event| async {
            event.ok().filter(|event| {
                event.involved_object.kind.as_deref() == Some(kind) && event.message.as_deref() == Some(message)
            })
        });
        let mut found = std::pin::pin!(found);
        let heard = tokio::time::timeout(PATIENCE, found.next()).await;
        assert!(heard.is_ok(), "no {kind} was told {message:?}");
    }

    /// An API of the namespace `images`.
    pub(crate) fn images<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "images")
    }

    /// Snapshots of a namespace.
    pub(crate) fn snapshots(&self, namespace: &str) -> Api<DynamicObject> {
        let gvk = kube::core::GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
        Api::namespaced_with(self.client.clone(), namespace, &kube::core::ApiResource::from_gvk(&gvk))
    }
}
