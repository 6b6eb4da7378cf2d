//! Claims on devices: made, allocated by the scheduler, shared, given back.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube_controllers::devices::kinds::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use kube_controllers::{devices, scheduler};
use serde_json::{Value, json};

use crate::cluster::Cluster;

const DRIVER: &str = "gpu.example.com";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Two nodes; n1 has devices a and b, n2 has c, which is larger.
async fn cluster() -> Cluster {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    cluster.start(devices::run);
    cluster.run_pods();
    let device = |name: &str, memory: &str| json!({"name": name, "attributes": {"model": {"string": "m"}}, "capacity": {"memory": {"value": memory}}});
    for (node, devices) in
        [("n1", json!([device("a", "8Gi"), device("b", "8Gi")])), ("n2", json!([device("c", "16Gi")]))]
    {
        cluster.node(node, json!({})).await;
        publish(&cluster, node, devices).await;
    }
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [
        {"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}});
    post::<DeviceClass>(&cluster, "/apis/resource.k8s.io/v1/deviceclasses", &class).await;
    cluster
}

async fn post<K: serde::de::DeserializeOwned>(cluster: &Cluster, uri: &str, object: &Value) -> K {
    let request =
        kube::core::Request::new(uri).create(&PostParams::default(), object.to_string().into_bytes()).unwrap();
    cluster.client.request(request).await.unwrap()
}

async fn publish(cluster: &Cluster, node: &str, devices: Value) {
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
        "spec": {"driver": DRIVER, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
    post::<ResourceSlice>(cluster, "/apis/resource.k8s.io/v1/resourceslices", &slice).await;
}

fn asks(expression: &str) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu"});
    if !expression.is_empty() {
        exactly["selectors"] = json!([{"cel": {"expression": expression}}]);
    }
    json!({"devices": {"requests": [{"name": "one", "exactly": exactly}]}})
}

async fn claim(cluster: &Cluster, name: &str, spec: Value) {
    let claim =
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec});
    post::<ResourceClaim>(cluster, "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", &claim).await;
}

async fn template(cluster: &Cluster, name: &str, spec: Value) {
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"metadata": {"labels": {"made": "yes"}}, "spec": spec}});
    post::<ResourceClaimTemplate>(
        cluster,
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
        &template,
    )
    .await;
}

async fn pod(cluster: &Cluster, name: &str, source: Value) {
    let mut entry = json!({"name": "gpu"});
    entry.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    let container = json!({"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}});
    cluster
        .create::<Pod>(
            json!({"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": [entry]}}),
        )
        .await;
}

fn node_of(pod: Option<&Pod>) -> Option<&str> {
    pod?.spec.as_ref()?.node_name.as_deref()
}

async fn bound(cluster: &Cluster, name: &str) -> Pod {
    cluster.until(cluster.api::<Pod>(), name, |pod: Option<&Pod>| node_of(pod).is_some()).await.unwrap()
}

async fn waits(cluster: &Cluster, name: &str, text: &'static str) {
    let says = move |pod: Option<&Pod>| {
        let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| {
            c.type_ == "PodScheduled" && c.status == "False" && c.message.as_deref().is_some_and(|m| m.contains(text))
        })
    };
    cluster.until(cluster.api::<Pod>(), name, says).await;
}

fn devices_of(claim: &ResourceClaim) -> Vec<String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    allocation.into_iter().flat_map(|a| &a.devices.results).map(|result| result.device.clone()).collect()
}

fn users(claim: &ResourceClaim) -> Vec<String> {
    claim.status.iter().flat_map(|status| &status.reserved_for).map(|consumer| consumer.name.clone()).collect()
}

#[tokio::test]
async fn a_pod_gets_the_device_that_it_asks_for() {
    let cluster = cluster().await;
    let large = format!("device.capacity['{DRIVER}'].memory.compareTo(quantity('10Gi')) > 0");
    claim(&cluster, "large", asks(&large)).await;
    pod(&cluster, "p", json!({"resourceClaimName": "large"})).await;
    let placed = bound(&cluster, "p").await;
    assert_eq!(node_of(Some(&placed)), Some("n2"));
    let claim = cluster.api::<ResourceClaim>().get("large").await.unwrap();
    assert_eq!((devices_of(&claim), users(&claim)), (vec!["c".to_owned()], vec!["p".to_owned()]));
    assert!(claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER));
    let allocation = serde_json::to_value(claim.status.unwrap().allocation).unwrap();
    assert_eq!(
        allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"],
        json!(["n2"]),
        "{allocation}"
    );
}

#[tokio::test]
async fn a_claim_of_a_template_lives_as_long_as_its_pod() {
    let cluster = cluster().await;
    pod(&cluster, "p", json!({"resourceClaimTemplateName": "t"})).await;
    waits(&cluster, "p", "waiting for claim \"gpu\" to be made of resourceclaimtemplate \"t\"").await;
    template(&cluster, "t", asks("")).await;
    let placed = bound(&cluster, "p").await;
    let status = placed.status.unwrap().resource_claim_statuses.unwrap();
    let name = status[0].resource_claim_name.clone().unwrap();
    assert!(status[0].name == "gpu" && name.starts_with("p-gpu-"), "{status:?}");
    let claim = cluster.api::<ResourceClaim>().get(&name).await.unwrap();
    assert_eq!((claim.labels()["made"].as_str(), users(&claim)), ("yes", vec!["p".to_owned()]));
    cluster.api::<Pod>().delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    // What the garbage collector deletes later is released already.
    cluster
        .until(cluster.api::<ResourceClaim>(), &name, |claim: Option<&ResourceClaim>| {
            claim.is_none_or(|claim| devices_of(claim).is_empty() && claim.finalizers().is_empty())
        })
        .await;
}

#[tokio::test]
async fn the_claim_of_a_pod_that_ended_is_deleted() {
    let cluster = cluster().await;
    template(&cluster, "t", asks("")).await;
    let entry = json!({"name": "gpu", "resourceClaimTemplateName": "t"});
    cluster
        .create::<Pod>(json!({"metadata": {"name": "p", "annotations": {"test/exit": "Succeeded"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "resourceClaims": [entry]}}))
        .await;
    bound(&cluster, "p").await;
    cluster.until_all::<ResourceClaim>(|claims| claims.is_empty()).await;
}

#[tokio::test]
async fn a_pod_waits_until_a_device_is_released() {
    let cluster = cluster().await;
    for name in ["c1", "c2", "c3", "c4"] {
        claim(&cluster, name, asks("")).await;
        pod(&cluster, &name.replace('c', "p"), json!({"resourceClaimName": name})).await;
        if name != "c4" {
            bound(&cluster, &name.replace('c', "p")).await;
        }
    }
    waits(&cluster, "p4", "cannot allocate resourceclaim \"c4\": request \"one\" wants 1 device(s) of class \"gpu\"")
        .await;
    let claims = cluster.all::<ResourceClaim>().list(&Default::default()).await.unwrap().items;
    let mut devices: Vec<_> = claims.iter().flat_map(devices_of).collect();
    devices.sort();
    assert_eq!(devices, ["a", "b", "c"]);
    cluster.api::<Pod>().delete("p2", &DeleteParams::default().grace_period(0)).await.unwrap();
    bound(&cluster, "p4").await;
    let given = cluster.api::<ResourceClaim>().get("c2").await.unwrap();
    assert!(devices_of(&given).is_empty() && users(&given).is_empty());
}

#[tokio::test]
async fn pods_share_a_claim_where_its_devices_are() {
    let cluster = cluster().await;
    claim(&cluster, "shared", asks("")).await;
    for name in ["p1", "p2", "p3"] {
        pod(&cluster, name, json!({"resourceClaimName": "shared"})).await;
    }
    let mut nodes = Vec::new();
    for name in ["p1", "p2", "p3"] {
        nodes.push(node_of(Some(&bound(&cluster, name).await)).unwrap().to_owned());
    }
    assert!(nodes.iter().all(|node| *node == nodes[0]), "{nodes:?}");
    let shared = cluster.api::<ResourceClaim>().get("shared").await.unwrap();
    let mut known = users(&shared);
    known.sort();
    assert_eq!((known, devices_of(&shared).len()), (vec!["p1".to_owned(), "p2".to_owned(), "p3".to_owned()], 1));
    for name in ["p1", "p2"] {
        cluster.api::<Pod>().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    let left = |claim: Option<&ResourceClaim>| claim.is_some_and(|c| users(c) == ["p3"] && !devices_of(c).is_empty());
    cluster.until(cluster.api::<ResourceClaim>(), "shared", left).await;
    // Deleted while it is used: it goes after its last pod.
    cluster.api::<ResourceClaim>().delete("shared", &DeleteParams::default()).await.unwrap();
    assert!(cluster.api::<ResourceClaim>().get("shared").await.unwrap().metadata.deletion_timestamp.is_some());
    cluster.api::<Pod>().delete("p3", &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.until(cluster.api::<ResourceClaim>(), "shared", |claim: Option<&ResourceClaim>| claim.is_none()).await;
}

#[tokio::test]
async fn an_unschedulable_pod_names_the_missing_claim_or_class() {
    let cluster = cluster().await;
    pod(&cluster, "p", json!({"resourceClaimName": "missing"})).await;
    waits(&cluster, "p", "resourceclaim \"missing\" not found").await;
    let spec = json!({"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "later"}}]}});
    claim(&cluster, "missing", spec).await;
    waits(&cluster, "p", "resourceclaim \"missing\": request \"one\": deviceclass \"later\" does not exist").await;
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "later"},
        "spec": {"selectors": [{"cel": {"expression": format!("device.attributes['{DRIVER}'].missing == 1")}}]}});
    post::<DeviceClass>(&cluster, "/apis/resource.k8s.io/v1/deviceclasses", &class).await;
    waits(&cluster, "p", "a selector fails on device gpu.example.com/n2/c: no such key: missing").await;
    let repair = json!({"spec": {"selectors": null}});
    cluster.all::<DeviceClass>().patch("later", &PatchParams::default(), &Patch::Merge(repair)).await.unwrap();
    bound(&cluster, "p").await;
}

#[tokio::test]
async fn a_new_device_helps_who_waits_for_one() {
    let cluster = cluster().await;
    let wanted = format!("device.attributes['{DRIVER}'].model == 'new'");
    claim(&cluster, "new", asks(&wanted)).await;
    pod(&cluster, "p", json!({"resourceClaimName": "new"})).await;
    waits(&cluster, "p", "cannot allocate resourceclaim \"new\"").await;
    cluster.node("n3", json!({})).await;
    publish(&cluster, "n3", json!([{"name": "d", "attributes": {"model": {"string": "new"}}}])).await;
    assert_eq!(node_of(Some(&bound(&cluster, "p").await)), Some("n3"));
}
