//! Garbage collection and the end of namespaces.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use kube_controllers::{gc, namespace};
use serde_json::{Value, json};

use crate::cluster::Cluster;

fn owned(name: &str, owner: &ConfigMap) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": owner.name_any(), "uid": owner.uid(), "blockOwnerDeletion": true}]}})
}

async fn family(cluster: &Cluster) -> (ConfigMap, Api<ConfigMap>, Api<Secret>) {
    let parent: ConfigMap = cluster.create(json!({"metadata": {"name": "parent"}})).await;
    cluster.create::<Secret>(owned("child", &parent)).await;
    (parent, cluster.api(), cluster.api())
}

#[tokio::test]
async fn dependents_go_after_their_owner() {
    let cluster = Cluster::new().await;
    let (_, parents, children) = family(&cluster).await;
    parents.delete("parent", &DeleteParams::background()).await.unwrap();
    // The collector begins when the owner is gone already.
    cluster.start(gc::run);
    cluster.until(children, "child", |c| c.is_none()).await;
}

#[tokio::test]
async fn foreground_means_dependents_first() {
    let cluster = Cluster::new().await;
    cluster.start(gc::run);
    let (_, parents, children) = family(&cluster).await;
    let hold = json!({"metadata": {"finalizers": ["test/hold"]}});
    children.patch("child", &PatchParams::default(), &Patch::Merge(hold)).await.unwrap();
    parents.delete("parent", &DeleteParams::foreground()).await.unwrap();
    cluster.until(children.clone(), "child", |c| c.is_some_and(|c| c.metadata.deletion_timestamp.is_some())).await;
    assert!(parents.get("parent").await.is_ok());
    let release = json!({"metadata": {"finalizers": null}});
    children.patch("child", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    cluster.until(parents, "parent", |p| p.is_none()).await;
    assert!(children.get_opt("child").await.unwrap().is_none());
}

#[tokio::test]
async fn orphaning_leaves_them() {
    let cluster = Cluster::new().await;
    cluster.start(gc::run);
    let (_, parents, children) = family(&cluster).await;
    parents.delete("parent", &DeleteParams::orphan()).await.unwrap();
    cluster.until(parents, "parent", |p| p.is_none()).await;
    assert!(children.get("child").await.unwrap().owner_references().is_empty());
}

#[tokio::test]
async fn custom_resources_are_collected_too() {
    let cluster = Cluster::new().await;
    cluster.start(gc::run);
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let crd: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition =
        serde_json::from_value(crd).unwrap();
    cluster.all().create(&PostParams::default(), &crd).await.unwrap();
    use kube::runtime::wait::Condition;
    use kube::runtime::wait::conditions::is_crd_established;
    cluster.until(cluster.all(), "things.example.com", |c| is_crd_established().matches_object(c)).await;
    let (parent, parents, _) = family(&cluster).await;
    let gvk = kube::core::GroupVersionKind::gvk("example.com", "v1", "Thing");
    let resource = kube::core::ApiResource::from_gvk(&gvk);
    let things: Api<kube::core::DynamicObject> = Api::namespaced_with(cluster.client.clone(), "default", &resource);
    let mut thing = owned("thing", &parent);
    thing["apiVersion"] = json!("example.com/v1");
    thing["kind"] = json!("Thing");
    things.create(&PostParams::default(), &serde_json::from_value(thing).unwrap()).await.unwrap();
    parents.delete("parent", &DeleteParams::default()).await.unwrap();
    let gone =
        kube::runtime::wait::await_condition(things.clone(), "thing", |t: Option<&kube::core::DynamicObject>| {
            t.is_none()
        });
    if tokio::time::timeout(std::time::Duration::from_secs(20), gone).await.is_err() {
        panic!("not collected: {:?}", things.get_opt("thing").await);
    }
}

#[tokio::test]
async fn a_namespace_ends_with_its_content() {
    let cluster = Cluster::new().await;
    cluster.start(namespace::run);
    cluster.start(gc::run);
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": "going"}})).unwrap();
    let namespaces = cluster.all::<Namespace>();
    namespaces.create(&PostParams::default(), &object).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "going");
    let held = json!({"metadata": {"name": "held", "finalizers": ["test/hold"]}});
    maps.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
    let free = json!({"metadata": {"name": "free"}});
    maps.create(&PostParams::default(), &serde_json::from_value(free).unwrap()).await.unwrap();
    namespaces.delete("going", &DeleteParams::default()).await.unwrap();
    cluster
        .until(namespaces.clone(), "going", |n| {
            n.is_some_and(|n| {
                let conditions = n.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
                let text = "Some content in the namespace has finalizers remaining: test/hold in 1 resource instances";
                conditions.iter().any(|c| c.message.as_deref() == Some(text))
            })
        })
        .await;
    assert!(maps.get_opt("free").await.unwrap().is_none());
    let release = json!({"metadata": {"finalizers": null}});
    maps.patch("held", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    cluster.until(namespaces, "going", |n| n.is_none()).await;
}

#[tokio::test]
async fn a_namespace_stays_while_somebody_else_holds_it() {
    let cluster = Cluster::new().await;
    cluster.start(namespace::run);
    let object = json!({"metadata": {"name": "held", "labels": {"team": "a"}, "finalizers": ["example.com/hold"]}});
    let namespaces = cluster.all::<Namespace>();
    namespaces.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    namespaces.delete("held", &DeleteParams::default()).await.unwrap();
    let emptied = |n: &Namespace| n.spec.iter().flat_map(|s| s.finalizers.iter().flatten()).next().is_none();
    cluster
        .until(namespaces.clone(), "held", move |n| {
            let n = n.expect("the namespace is held");
            emptied(n)
        })
        .await;
    let held = namespaces.get("held").await.unwrap();
    assert_eq!(held.finalizers(), ["example.com/hold"]);
    assert_eq!(held.labels().get("team").map(String::as_str), Some("a"));
    let release = json!({"metadata": {"finalizers": null}});
    namespaces.patch("held", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    cluster.until(namespaces, "held", |n| n.is_none()).await;
}
