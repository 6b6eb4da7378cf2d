//! The operator on the real API server: what it deploys, says and takes away.

use std::time::Duration;

use api::hpp::HostPathProvisioner;
use hpp::operator::{Controllers, Operator};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::shutdown::CancellationToken;
use kit::store::{self, Store, Watch};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use serde_json::json;

const NAME: &str = "hostpath-provisioner";
const DEFINITION: &str =
    include_str!("../../../../deploy/crds/hostpathprovisioners.hostpathprovisioner.kubevirt.io.yaml");

struct Scene {
    client: Client,
    objects: Api<HostPathProvisioner>,
    sets: Api<DaemonSet>,
    _operator: Operator,
    _server: ApiServer,
}

async fn define(client: &Client, definition: CustomResourceDefinition) {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let made = definitions.create(&PostParams::default(), &definition).await.unwrap();
    let served = |definition: Option<&CustomResourceDefinition>| {
        let conditions = definition.and_then(|d| d.status.as_ref()?.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Established" && c.status == "True"))
    };
    await_condition(definitions, &made.metadata.name.unwrap(), served).await.unwrap();
}

impl Scene {
    async fn new() -> Self {
        Self::of_a_cluster_that_knows(&[]).await
    }

    async fn of_a_cluster_that_knows(others: &[CustomResourceDefinition]) -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        define(&client, serde_saphyr::from_str(DEFINITION).unwrap()).await;
        for definition in others {
            define(&client, definition.clone()).await;
        }
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAME}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let stop = CancellationToken::new();
        Scene {
            objects: Api::all(client.clone()),
            sets: Api::namespaced(client.clone(), NAME),
            _operator: Operator::start(client.clone(), NAME, "image:v1".into(), Controllers::Driver, &stop),
            client,
            _server: server,
        }
    }

    async fn apply(&self, spec: serde_json::Value) {
        let object = json!({"apiVersion": "hostpathprovisioner.kubevirt.io/v1beta1", "kind": "HostPathProvisioner",
            "metadata": {"name": NAME}, "spec": spec});
        let how = PatchParams::apply("test").force();
        self.objects.patch(NAME, &how, &Patch::Apply(object)).await.unwrap();
    }

    #[track_caller]
    fn until(&self, wanted: impl Fn(&HostPathProvisioner) -> bool) -> impl Future<Output = ()> {
        let (objects, caller) = (self.objects.clone(), std::panic::Location::caller());
        async move {
            let wait = await_condition(objects.clone(), NAME, |object: Option<&HostPathProvisioner>| {
                object.is_some_and(&wanted)
            });
            if tokio::time::timeout(Duration::from_secs(20), wait).await.is_err() {
                panic!("{caller}: never: {:#?}", objects.get(NAME).await.unwrap().status);
            }
        }
    }

    async fn set(&self, wanted: impl Fn(&DaemonSet) -> bool) -> DaemonSet {
        let found = |set: Option<&DaemonSet>| set.is_some_and(&wanted);
        let wait = await_condition(self.sets.clone(), "hostpath-provisioner-csi", found);
        tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap().unwrap().unwrap()
    }
}

fn says(object: &HostPathProvisioner, kind: &str, status: &str) -> bool {
    let conditions = object.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == status)
}

fn args(set: &DaemonSet) -> String {
    let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).unwrap();
    spec.containers[0].args.as_ref().unwrap().join(" ")
}

#[tokio::test]
async fn the_driver_is_deployed_watched_over_and_removed() {
    let scene = Scene::new().await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let events = Api::<Event>::all(scene.client.clone());
    let _events = store::watch(events, Watch::default(), Store::default(), move |change| {
        tell.send(change.new.and_then(|event| event.reason.clone()).unwrap_or_default()).unwrap_or_default();
    });
    scene.apply(json!({"storagePools": [{"name": "local", "path": "/var/hpvolumes"}], "workload": {}})).await;
    let set = scene.set(|_| true).await;
    assert!(args(&set).contains("\"name\":\"local\""), "{}", args(&set));
    scene.until(|object| says(object, "Progressing", "True") && says(object, "Available", "False")).await;
    let drivers = Api::<CSIDriver>::all(scene.client.clone());
    let driver = drivers.get("kubevirt.io.hostpath-provisioner").await.unwrap();
    assert_eq!((driver.spec.attach_required, driver.spec.storage_capacity), (Some(false), Some(true)));

    let running = json!({"status": {"observedGeneration": set.metadata.generation, "desiredNumberScheduled": 2,
        "currentNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}});
    let name = set.metadata.name.as_deref().unwrap();
    scene.sets.patch_status(name, &PatchParams::default(), &Patch::Merge(running)).await.unwrap();
    scene.until(|object| says(object, "Available", "True") && says(object, "Degraded", "False")).await;
    for wanted in ["DeployStarted", "ProvisionerHealthy"] {
        let heard = async { while told.recv().await.is_some_and(|reason| reason != wanted) {} };
        tokio::time::timeout(Duration::from_secs(20), heard).await.unwrap();
    }
    let status = scene.objects.get(NAME).await.unwrap().status.unwrap();
    let pool = &status.storage_pool_statuses[0];
    assert_eq!((pool.name.as_str(), pool.phase.as_str(), pool.current_ready), ("local", "Ready", 2));

    // What somebody takes away comes again; what somebody asks for follows.
    scene.sets.delete(name, &DeleteParams::default()).await.unwrap();
    let uid = set.metadata.uid.clone();
    scene.set(|new| new.metadata.uid != uid).await;
    let two = json!([{"name": "local", "path": "/var/hpvolumes"}, {"name": "fast", "path": "/fast"}]);
    scene.apply(json!({"storagePools": two, "workload": {"nodeSelector": {"disk": "nvme"}}})).await;
    let set = scene.set(|set| args(set).contains("\"name\":\"fast\"")).await;
    assert_eq!(set.spec.unwrap().template.spec.unwrap().node_selector.unwrap()["disk"], "nvme");

    let second = json!({"metadata": {"name": "second"}, "apiVersion": "hostpathprovisioner.kubevirt.io/v1beta1",
        "kind": "HostPathProvisioner", "spec": {"storagePools": [{"name": "other", "path": "/other"}], "workload": {}}});
    scene.objects.patch("second", &PatchParams::apply("test"), &Patch::Apply(second)).await.unwrap();
    let refused = await_condition(scene.objects.clone(), "second", |object: Option<&HostPathProvisioner>| {
        object.is_some_and(|object| says(object, "Degraded", "True"))
    });
    tokio::time::timeout(Duration::from_secs(20), refused).await.unwrap().unwrap();
    scene.objects.delete("second", &DeleteParams::default()).await.unwrap();

    let bad = json!([{"name": "local", "path": "var"}]);
    scene.apply(json!({"storagePools": bad, "workload": {}})).await;
    scene
        .until(|object| {
            let conditions = object.status.iter().flat_map(|status| &status.conditions);
            let mut texts = conditions.filter_map(|condition| condition.message.as_deref());
            says(object, "Degraded", "True") && texts.any(|text| text.starts_with("spec.storagePools[0].path: \"var\""))
        })
        .await;

    scene.objects.delete(NAME, &DeleteParams::default()).await.unwrap();
    let gone = await_condition(scene.objects.clone(), NAME, |object: Option<&HostPathProvisioner>| object.is_none());
    tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap().unwrap();
    assert!(scene.sets.get_opt(name).await.unwrap().is_none_or(|set| set.metadata.deletion_timestamp.is_some()));
    assert!(drivers.get_opt("kubevirt.io.hostpath-provisioner").await.unwrap().is_none());
}

#[tokio::test]
async fn optional_kinds_are_used_where_the_cluster_has_them() {
    let kind = |group: &str, plural: &str, kind: &str, scope: &str| -> CustomResourceDefinition {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let names =
            json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")});
        let metadata = json!({"name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"}});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"group": group,
            "scope": scope, "names": names, "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}}))
        .unwrap()
    };
    let scene = Scene::of_a_cluster_that_knows(&[
        kind("monitoring.coreos.com", "servicemonitors", "ServiceMonitor", "Namespaced"),
        kind("monitoring.coreos.com", "prometheusrules", "PrometheusRule", "Namespaced"),
        kind("security.openshift.io", "securitycontextconstraints", "SecurityContextConstraints", "Cluster"),
    ])
    .await;
    scene.apply(json!({"storagePools": [{"name": "local", "path": "/var/hpvolumes"}], "workload": {}})).await;
    let found = |group: &str, kind: &str| {
        let kind = GroupVersionKind::gvk(group, "v1", kind);
        if kind.kind == "SecurityContextConstraints" {
            let resource = ApiResource::from_gvk_with_plural(&kind, "securitycontextconstraints");
            return Api::<DynamicObject>::all_with(scene.client.clone(), &resource);
        }
        Api::namespaced_with(scene.client.clone(), NAME, &ApiResource::from_gvk(&kind))
    };
    let mut made = vec![
        (found("monitoring.coreos.com", "ServiceMonitor"), "service-monitor-hpp"),
        (found("monitoring.coreos.com", "PrometheusRule"), "prometheus-hpp-rules"),
        (found("security.openshift.io", "SecurityContextConstraints"), "hostpath-provisioner-csi"),
    ];
    for (api, name) in &made {
        let there = await_condition(api.clone(), name, |object: Option<&DynamicObject>| object.is_some());
        tokio::time::timeout(Duration::from_secs(20), there).await.unwrap().unwrap();
    }
    // What comes later is made use of, too.
    let snapshots =
        ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass"));
    made.push((Api::all_with(scene.client.clone(), &snapshots), "hostpath-csi"));
    let (api, name) = &made[3];
    let there = || await_condition(api.clone(), name, |object: Option<&DynamicObject>| object.is_some());
    tokio::time::timeout(Duration::from_secs(20), there()).await.unwrap().unwrap();
    let definitions = Api::<CustomResourceDefinition>::all(scene.client.clone());
    let definition = "volumesnapshotclasses.snapshot.storage.k8s.io";
    definitions.delete(definition, &DeleteParams::default()).await.unwrap();
    let gone = await_condition(definitions, definition, |found: Option<&CustomResourceDefinition>| found.is_none());
    tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap().unwrap();
    let kind = kind("snapshot.storage.k8s.io", "volumesnapshotclasses", "VolumeSnapshotClass", "Cluster");
    define(&scene.client, kind).await;
    tokio::time::timeout(Duration::from_secs(20), there()).await.unwrap().unwrap();
    scene.objects.delete(NAME, &DeleteParams::default()).await.unwrap();
    for (api, name) in &made {
        let gone = await_condition(api.clone(), name, |object: Option<&DynamicObject>| object.is_none());
        tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_node_whose_kubelet_does_not_know_the_driver_is_named() {
    let scene = Scene::new().await;
    scene.apply(json!({"storagePools": [{"name": "local", "path": "/var/hpvolumes"}], "workload": {}})).await;
    let set = scene.set(|_| true).await;
    // Its pod has been ready for long.
    let pods: Api<Pod> = Api::namespaced(scene.client.clone(), NAME);
    let pod = json!({"metadata": {"name": "driver-n2", "labels": {"k8s-app": "hostpath-provisioner-csi"}},
        "spec": {"nodeName": "n2", "containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let ready = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
    pods.patch_status("driver-n2", &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    let running = json!({"status": {"observedGeneration": set.metadata.generation, "desiredNumberScheduled": 1,
        "currentNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": 1, "updatedNumberScheduled": 1, "numberAvailable": 1}});
    let name = set.metadata.name.as_deref().unwrap();
    scene.sets.patch_status(name, &PatchParams::default(), &Patch::Merge(running)).await.unwrap();
    scene
        .until(|object| {
            let conditions = object.status.iter().flat_map(|status| &status.conditions);
            let mut degraded = conditions.filter(|one| one.type_ == "Degraded" && one.status == "True");
            let names =
                |text: &str| text.contains("n2") && text.contains("driver-n2") && text.contains("plugins_registry");
            says(object, "Available", "False") && degraded.any(|one| one.message.as_deref().is_some_and(names))
        })
        .await;
    let node = json!({"metadata": {"name": "n2"}, "spec": {"drivers": [
        {"name": "kubevirt.io.hostpath-provisioner", "nodeID": "n2", "topologyKeys": ["topology.hostpath.csi/node"]}]}});
    let nodes: Api<CSINode> = Api::all(scene.client.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    scene.until(|object| says(object, "Available", "True") && says(object, "Degraded", "False")).await;
}
