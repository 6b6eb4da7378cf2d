//! The operator; the controller of Deployments is played by the test.

use cnao::operator::{Operator, Release, Running};
use http::Method;
use kit::events::Recorder;
use kit::shutdown::CancellationToken;
use serde_json::{Value, json};

use crate::cluster::{Cluster, documents, until};

const NAMESPACE: &str = "cluster-network-addons";
const OBJECTS: &str = "/apis/networkaddonsoperator.network.kubevirt.io/v1/networkaddonsconfigs";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/network-attachment-definitions.k8s.cni.cncf.io";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kubemacpool-mutator";

fn deployment() -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kubemacpool-mac-controller-manager")
}

fn marker() -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/bridge-marker")
}

fn daemon_set(name: &str) -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{name}")
}

struct Scene {
    cluster: Cluster,
    _running: Running,
}

/// A cluster with the operator, on a node with this kubelet.
async fn scene(kubelet: &str) -> Scene {
    let cluster = Cluster::with(documents("network-addons-operator.yaml")).await;
    // The embedded API server brings the kind of networks; others do not.
    cluster.call(Method::DELETE, DEFINITION, &Value::Null).await.unwrap();
    until("the kind is gone", async || cluster.get(DEFINITION).await.is_none().then_some(())).await;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } });
    cluster.call(Method::POST, "/api/v1/nodes", &node).await.unwrap();
    let info = json!({ "status": { "nodeInfo": {
        "kubeletVersion": kubelet, "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
        "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
    } } });
    cluster.call(Method::PATCH, "/api/v1/nodes/node1/status", &info).await.unwrap();
    let client = cluster.account_in(NAMESPACE, "cluster-network-addons-operator");
    let release = Release { namespace: NAMESPACE.into(), image: "r/component".into(), version: "v1".into() };
    let running = Operator::new(client, release, Recorder::discard()).start(&CancellationToken::new());
    Scene { cluster, _running: running }
}

impl Scene {
    async fn create(&self, spec: Value) {
        let object = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster" }, "spec": spec,
        });
        self.cluster.call(Method::POST, OBJECTS, &object).await.unwrap();
    }

    async fn merge(&self, change: Value) {
        self.cluster.call(Method::PATCH, &format!("{OBJECTS}/cluster"), &change).await.unwrap();
    }

    /// The condition of that type.
    async fn said(&self, type_: &str) -> Option<Value> {
        let object = self.cluster.get(&format!("{OBJECTS}/cluster")).await?;
        let all = object["status"]["conditions"].as_array()?.clone();
        all.into_iter().find(|condition| condition["type"] == type_)
    }

    async fn roll_out(&self) {
        let held = until("the pool is deployed", async || self.cluster.get(&deployment()).await).await;
        let status = json!({ "status": {
            "observedGeneration": held["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
            "availableReplicas": 1,
        } });
        self.cluster.call(Method::PATCH, &format!("{}/status", deployment()), &status).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_object_asks_for_is_deployed_and_taken_away_with_it() {
    let scene = scene("v1.33.0+ferrovirt-0.1.0").await;
    scene.create(json!({ "multus": {}, "linuxBridge": {}, "kubeMacPool": {} })).await;
    until("nodes are to be marked", async || scene.cluster.get(&marker()).await).await;
    until("the kind of networks is there", async || scene.cluster.get(DEFINITION).await).await;
    until("the pool is waited for", async || (scene.said("Progressing").await?["status"] == "True").then_some(()))
        .await;
    assert!(scene.cluster.get(HOOKS).await.is_none(), "nobody would answer");
    assert!(
        scene.cluster.get(&daemon_set("kube-cni-linux-bridge-plugin")).await.is_none(),
        "kubelets have the plugins"
    );
    scene.roll_out().await;
    let set = scene.cluster.get(&marker()).await.unwrap();
    let status = json!({ "status": {
        "observedGeneration": set["metadata"]["generation"], "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
        "numberMisscheduled": 0, "numberReady": 1, "updatedNumberScheduled": 1, "numberAvailable": 1,
    } });
    scene.cluster.call(Method::PATCH, &format!("{}/status", marker()), &status).await.unwrap();
    until("it is available", async || (scene.said("Available").await?["status"] == "True").then_some(())).await;
    until("machines are judged", async || scene.cluster.get(HOOKS).await).await;
    let note = scene.said("Available").await.unwrap()["message"].as_str().unwrap().to_owned();
    assert!(note.contains("the kubelets of this cluster attach networks themselves"), "{note}");
    let object = scene.cluster.get(&format!("{OBJECTS}/cluster")).await.unwrap();
    assert_eq!(object["status"]["observedVersion"], "v1");
    let parents = ["bridge-marker", "kubemacpool-mac-controller-manager"];
    let containers = object["status"]["containers"].as_array().unwrap();
    assert_eq!(containers.iter().map(|one| one["parentName"].as_str().unwrap()).collect::<Vec<_>>(), parents);
    scene.cluster.call(Method::DELETE, &format!("{OBJECTS}/cluster"), &Value::Null).await.unwrap();
    until("the object is gone", async || {
        scene.cluster.get(&format!("{OBJECTS}/cluster")).await.is_none().then_some(())
    })
    .await;
    assert!(scene.cluster.get(&deployment()).await.is_none() && scene.cluster.get(HOOKS).await.is_none());
    assert!(scene.cluster.get(&marker()).await.is_none());
    assert!(scene.cluster.get(DEFINITION).await.is_some(), "networks of others are of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_not_asked_for_any_more_goes_and_the_range_outlives_it() {
    let scene = scene("v1.33.0").await;
    scene.create(json!({ "kubeMacPool": {} })).await;
    scene.roll_out().await;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/kubemacpool-mac-range-config");
    let first = until("there is a range", async || scene.cluster.get(&path).await).await["data"].clone();
    assert!(first["RANGE_START"].as_str().unwrap().starts_with("02:"), "{first}");
    // Another word of the object changes nothing of it.
    scene.merge(json!({ "spec": { "imagePullPolicy": "Always" } })).await;
    until("images are always pulled", async || {
        let held = scene.cluster.get(&deployment()).await?;
        (held.pointer("/spec/template/spec/containers/0/imagePullPolicy")? == "Always").then_some(())
    })
    .await;
    assert_eq!(scene.cluster.get(&path).await.unwrap()["data"], first);
    let range = json!({ "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:ff" });
    scene.merge(json!({ "spec": { "kubeMacPool": range } })).await;
    until("the range is another", async || {
        (scene.cluster.get(&path).await?["data"]["RANGE_END"] == "02:00:00:00:00:ff").then_some(())
    })
    .await;
    scene.merge(json!({ "spec": { "kubeMacPool": null, "linuxBridge": {} } })).await;
    until("the pool is gone", async || scene.cluster.get(&deployment()).await.is_none().then_some(())).await;
    until("the marker has come", async || scene.cluster.get(&marker()).await).await;
}

/// Prometheus' operator comes after the pool, and the pool goes before it.
#[tokio::test(flavor = "multi_thread")]
async fn the_pool_is_scraped_once_there_is_somebody_to_scrape_it() {
    let scene = scene("v1.33.0+ferrovirt-0.1.0").await;
    scene.create(json!({ "kubeMacPool": {} })).await;
    until("the pool is there", async || scene.cluster.get(&deployment()).await).await;
    for (plural, kind) in [("prometheusrules", "PrometheusRule"), ("servicemonitors", "ServiceMonitor")] {
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let version = json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } });
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.monitoring.coreos.com") },
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced", "versions": [version],
                "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase() },
            },
        });
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        scene.cluster.call(Method::POST, path, &definition).await.unwrap();
    }
    let objects = format!("/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}");
    let monitor = format!("{objects}/servicemonitors/kubemacpool-metrics-monitor");
    let found = until("it is to be scraped", async || scene.cluster.get(&monitor).await).await;
    let service = format!("/api/v1/namespaces/{NAMESPACE}/services/kubemacpool-metrics-service");
    let service = scene.cluster.get(&service).await.unwrap();
    let selected = found["spec"]["selector"]["matchLabels"].as_object().unwrap();
    assert!(selected.iter().all(|(key, value)| &service["metadata"]["labels"][key] == value), "{service}");
    assert_eq!(found["spec"]["endpoints"][0]["port"], service["spec"]["ports"][0]["name"]);
    let rule = format!("{objects}/prometheusrules/kubemacpool-prometheus-rule");
    until("collisions are told", async || scene.cluster.get(&rule).await).await;
    scene.merge(json!({ "spec": { "kubeMacPool": null } })).await;
    until("it goes with the pool", async || scene.cluster.get(&monitor).await.is_none().then_some(())).await;
    until("the rule, too", async || scene.cluster.get(&rule).await.is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_put_right() {
    let scene = scene("v1.33.0").await;
    scene.create(json!({ "kubeMacPool": {} })).await;
    scene.roll_out().await;
    until("machines are judged", async || scene.cluster.get(HOOKS).await).await;
    scene.cluster.call(Method::PATCH, HOOKS, &json!({ "webhooks": [] })).await.unwrap();
    until("they are again", async || {
        (scene.cluster.get(HOOKS).await?["webhooks"].as_array()?.len() == 2).then_some(())
    })
    .await;
    scene.cluster.call(Method::DELETE, &deployment(), &Value::Null).await.unwrap();
    until("it is back", async || scene.cluster.get(&deployment()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_is_named_and_bad_values_change_nothing() {
    let scene = scene("v1.33.0").await;
    scene.create(json!({ "kubeMacPool": {}, "ovs": {}, "multus": {} })).await;
    scene.roll_out().await;
    let said =
        until("it is degraded", async || scene.said("Degraded").await.filter(|said| said["status"] == "True")).await;
    let message = said["message"].as_str().unwrap();
    assert!(message.contains("ovs: no node says") && !message.contains("multus"), "{message}");
    scene.merge(json!({ "spec": { "kubeMacPool": { "rangeStart": "02:00:00:00:01:00", "rangeEnd": "02:00:00:00:00:ff" } } })).await;
    until("it is refused", async || {
        let said = scene.said("Degraded").await?;
        said["message"].as_str()?.contains("is above rangeEnd").then_some(())
    })
    .await;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/kubemacpool-mac-range-config");
    assert_ne!(scene.cluster.get(&path).await.unwrap()["data"]["RANGE_START"], "02:00:00:00:01:00");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_kubelets_attach_no_networks_gets_what_does() {
    let scene = scene("v1.33.0").await;
    let daemon = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/multus");
    scene.create(json!({ "multus": {} })).await;
    let held = until("it is deployed", async || scene.cluster.get(&daemon).await).await;
    let dynamic = |held: &Value| {
        held["spec"]["template"]["spec"]["containers"][0]["args"].to_string().contains("--dynamic-networks")
    };
    assert!(!dynamic(&held));
    // Nothing says which of the two is there first.
    until("networks can be defined", async || scene.cluster.get(DEFINITION).await).await;
    scene.merge(json!({ "spec": { "multusDynamicNetworks": {} } })).await;
    until("networks follow the annotation", async || dynamic(&scene.cluster.get(&daemon).await?).then_some(())).await;
    scene.merge(json!({ "spec": { "multus": null, "multusDynamicNetworks": null, "linuxBridge": {} } })).await;
    until("it is gone", async || scene.cluster.get(&daemon).await.is_none().then_some(())).await;
    assert!(scene.cluster.get(DEFINITION).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_are_put_on_nodes_whose_kubelets_bring_none() {
    let scene = scene("v1.33.0").await;
    scene.create(json!({ "linuxBridge": {}, "macvtap": { "devicePluginConfig": "ours" } })).await;
    let (plugins, devices) = (daemon_set("kube-cni-linux-bridge-plugin"), daemon_set("macvtap-cni"));
    let set = until("the plugins are", async || scene.cluster.get(&plugins).await).await;
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["serviceAccountName"], &pod["initContainers"][0]["image"]),
        (&json!("linux-bridge"), &json!("r/component"))
    );
    let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/linux-bridge");
    assert!(scene.cluster.get(&account).await.is_some());
    until("nodes are marked", async || scene.cluster.get(&marker()).await).await;
    let set = until("links are devices", async || scene.cluster.get(&devices).await).await;
    assert!(set.to_string().contains("\"configMapKeyRef\":{\"key\":\"DP_MACVTAP_CONF\",\"name\":\"ours\"}"), "{set}");
    scene.merge(json!({ "spec": { "linuxBridge": null, "macvtap": null } })).await;
    for name in [&plugins, &devices, &marker(), &account] {
        until("it is gone", async || scene.cluster.get(name).await.is_none().then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_server_runs_while_it_is_asked_for() {
    let scene = scene("v1.33.0").await;
    let server = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/secondary-dns");
    scene.create(json!({ "kubeSecondaryDNS": { "domain": "example.org", "nameServerIP": "192.0.2.1" } })).await;
    let held = until("it is deployed", async || scene.cluster.get(&server).await).await;
    let variables = held["spec"]["template"]["spec"]["containers"][0]["env"].to_string();
    assert!(variables.contains("example.org") && variables.contains("192.0.2.1"), "{variables}");
    scene.merge(json!({ "spec": { "kubeSecondaryDNS": null } })).await;
    until("it is gone", async || scene.cluster.get(&server).await.is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_of_claims_runs_while_it_is_asked_for_and_leaves_no_claim_held() {
    let scene = scene("v1.33.0+ferrovirt-0.1.0").await;
    let controller = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kubevirt-ipam-controller-manager");
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let hook = format!("{configurations}/kubevirt-ipam-controller-mutating-webhook-configuration");
    scene.create(json!({ "kubevirtIpamController": { "defaultNetworkNADNamespace": "ovn" } })).await;
    let held = until("it is deployed", async || scene.cluster.get(&controller).await).await;
    let arguments = held["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains("--default-network-nad-namespace=ovn"), "{arguments}");
    assert!(scene.cluster.get(&hook).await.is_none(), "nobody would answer");
    let status = json!({ "status": {
        "observedGeneration": held["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
        "availableReplicas": 1,
    } });
    scene.cluster.call(Method::PATCH, &format!("{controller}/status"), &status).await.unwrap();
    let judged = until("pods are judged", async || scene.cluster.get(&hook).await).await;
    assert_eq!(judged["webhooks"][0]["clientConfig"]["service"]["path"], "/mutate-v1-pod");
    let claims = "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/default/ipamclaims";
    let claim = json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": { "name": "vm.blue", "finalizers": ["kubevirt.io/persistent-ipam", "example.com/other"] },
        "spec": { "network": "blue", "interface": "" },
    });
    until("there are claims", async || scene.cluster.call(Method::POST, claims, &claim).await.ok()).await;
    scene.merge(json!({ "spec": { "kubevirtIpamController": null } })).await;
    until("it is gone", async || scene.cluster.get(&controller).await.is_none().then_some(())).await;
    assert!(scene.cluster.get(&hook).await.is_none());
    until("the claim is let go", async || {
        let held = scene.cluster.get(&format!("{claims}/vm.blue")).await?;
        (held["metadata"]["finalizers"] == json!(["example.com/other"])).then_some(())
    })
    .await;
}
