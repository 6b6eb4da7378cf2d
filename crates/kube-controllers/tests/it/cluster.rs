//! A cluster for one test: the API server, the wanted controllers, and nodes whose pods run at once.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use csi_controllers::Drivers;
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use kube_apiserver::ApiServer;
use kube_controllers::{Context, Options};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) ctx: Context,
    _server: ApiServer,
    _stop: DropGuard,
}

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

impl Cluster {
    pub(crate) async fn new() -> Self {
        Self::with(Drivers::default()).await
    }

    /// A cluster whose control plane reaches these CSI drivers.
    pub(crate) async fn with(drivers: Drivers) -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        let shutdown = CancellationToken::new();
        let options = Options {
            root_ca: "-----BEGIN CERTIFICATE-----".into(),
            pod_cidrs: vec![("10.244.0.0/16".parse().unwrap(), 24), ("fd00:10:244::/48".parse().unwrap(), 64)],
            drivers,
            ..Options::default()
        };
        let ctx = Context::new(client.clone(), options, shutdown.clone());
        let cluster = Self { client, ctx, _server: server, _stop: shutdown.drop_guard() };
        // Admission wants every pod's account to exist.
        cluster.start(kube_controllers::serviceaccount::run);
        cluster.until(cluster.api::<ServiceAccount>(), "default", |account| account.is_some()).await;
        cluster
    }

    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(&self, controller: impl FnOnce(Context) -> F) {
        self.ctx.spawn(controller(self.ctx.clone()));
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Creates an object in namespace default from JSON.
    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Serialize
            + Clone
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap()
    }

    /// A ready node with 4 CPUs, 8 Gi and 110 pods.
    pub(crate) async fn node(&self, name: &str, labels: Value) {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
        self.all::<Node>().create(&PostParams::default(), &node).await.unwrap();
        let offer = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        let status = json!({"status": {"capacity": offer, "allocatable": offer,
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
        self.all::<Node>().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        // A real node agent takes off the taint it registered with.
        let clean = json!({"spec": {"taints": null}});
        self.all::<Node>().patch(name, &PatchParams::default(), &Patch::Merge(clean)).await.unwrap();
    }

    /// Plays the node agents: bound pods run and are ready, deleted ones end at once. Pods with the annotation
    /// `test/exit` end with that phase instead.
    pub(crate) fn run_pods(&self) {
        let (all, client) = (self.all::<Pod>(), self.client.clone());
        self.ctx.spawn(async move {
            let mut number = 1;
            let mut ended = HashSet::new();
            let mut pods = std::pin::pin!(watcher(all, watcher::Config::default()).default_backoff().touched_objects());
            while let Some(pod) = pods.next().await {
                let Ok(pod) = pod else { continue };
                let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap());
                let (name, uid) = (pod.name_any(), pod.uid().unwrap());
                if pod.spec.as_ref().and_then(|s| s.node_name.as_ref()).is_none() {
                    continue;
                }
                if pod.metadata.deletion_timestamp.is_some() {
                    if ended.insert(uid) {
                        let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
                    }
                    continue;
                }
                if pod.status.as_ref().is_some_and(|s| s.pod_ip.is_some()) {
                    continue;
                }
                let exit = pod.annotations().get("test/exit");
                let ready =
                    if exit.is_some() || pod.annotations().contains_key("test/unready") { "False" } else { "True" };
                let ip = format!("10.244.0.{number}");
                number += 1;
                let status = json!({"status": {"phase": exit.map_or("Running", String::as_str), "podIP": ip,
                    "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": ready,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
                let _ = api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await;
            }
        });
    }

    /// Waits until `condition` holds for the named object.
    #[track_caller]
    pub(crate) fn until<K>(
        &self,
        api: Api<K>,
        name: &str,
        condition: impl Fn(Option<&K>) -> bool,
    ) -> impl Future<Output = Option<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let caller = std::panic::Location::caller();
        let name = name.to_owned();
        async move {
            let wait = kube::runtime::wait::await_condition(api.clone(), &name, condition);
            match tokio::time::timeout(PATIENCE, wait).await {
                Ok(object) => object.unwrap(),
                Err(_) => panic!("{caller}: condition never held for {name}: {:#?}", api.get_opt(&name).await),
            }
        }
    }

    /// Waits until the list of all objects of a kind satisfies `condition`.
    #[track_caller]
    pub(crate) fn until_all<K>(&self, condition: impl Fn(&[K]) -> bool) -> impl Future<Output = Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let caller = std::panic::Location::caller();
        let api = self.all::<K>();
        async move {
            let changes = watcher(api.clone(), watcher::Config::default()).default_backoff();
            let wait = async {
                let mut changes = std::pin::pin!(changes);
                loop {
                    let items = api.list(&Default::default()).await.unwrap().items;
                    if condition(&items) {
                        return items;
                    }
                    changes.next().await;
                }
            };
            match tokio::time::timeout(PATIENCE, wait).await {
                Ok(items) => items,
                Err(_) => {
                    panic!("{caller}: condition never held: {:#?}", api.list(&Default::default()).await.unwrap().items)
                }
            }
        }
    }
}
