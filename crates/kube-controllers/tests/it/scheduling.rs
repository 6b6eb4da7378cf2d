//! The scheduler.

use std::time::Instant;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Patch, PatchParams};
use kube_controllers::scheduler;
use serde_json::{Value, json};

use crate::cluster::Cluster;

fn pod(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    json!({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": spec})
}

fn node_of(pod: Option<&Pod>) -> Option<String> {
    pod.and_then(|p| p.spec.as_ref()?.node_name.clone())
}

fn cpu(amount: &str) -> Value {
    json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": amount}}}]})
}

#[tokio::test]
async fn pods_are_bound_and_said_so() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    cluster.node("n1", json!({})).await;
    cluster.create::<Pod>(pod("p", json!({}))).await;
    let bound = cluster.until(cluster.api::<Pod>(), "p", |p| node_of(p).is_some()).await.unwrap();
    let scheduled = bound.status.unwrap().conditions.unwrap();
    assert!(scheduled.iter().any(|c| c.type_ == "PodScheduled" && c.status == "True"), "{scheduled:?}");
    let events =
        cluster.until_all::<Event>(|events| events.iter().any(|e| e.reason.as_deref() == Some("Scheduled"))).await;
    assert!(events.iter().any(|e| e.message.as_deref() == Some("Successfully assigned default/p to n1")));
}

#[tokio::test]
async fn what_does_not_fit_waits_and_says_why() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    cluster.create::<Pod>(pod("big", cpu("3"))).await;
    let message = |p: Option<&Pod>| {
        let conditions = p.and_then(|p| p.status.as_ref()?.conditions.clone()).unwrap_or_default();
        conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False").and_then(|c| c.message)
    };
    let says = |text: &'static str| move |p: Option<&Pod>| message(p).as_deref() == Some(text);
    cluster.until(cluster.api::<Pod>(), "big", says("no nodes available to schedule pods")).await;
    cluster.node("n1", json!({})).await;
    cluster.until(cluster.api::<Pod>(), "big", |p| node_of(p).is_some()).await;

    cluster.create::<Pod>(pod("second", cpu("2"))).await;
    cluster.until(cluster.api::<Pod>(), "second", says("0/1 nodes are available: 1 Insufficient cpu.")).await;
    let cordon = json!({"spec": {"unschedulable": true}});
    cluster.all::<Node>().patch("n1", &PatchParams::default(), &Patch::Merge(cordon)).await.unwrap();
    cluster.until(cluster.api::<Pod>(), "second", says("0/1 nodes are available: 1 node(s) were unschedulable.")).await;
    let uncordon = json!({"spec": {"unschedulable": null}});
    cluster.all::<Node>().patch("n1", &PatchParams::default(), &Patch::Merge(uncordon)).await.unwrap();
    cluster.api::<Pod>().delete("big", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.until(cluster.api::<Pod>(), "second", |p| node_of(p).is_some()).await;
}

#[tokio::test]
async fn extended_resources_and_selectors() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    cluster.node("plain", json!({"kind": "plain"})).await;
    cluster.node("special", json!({"kind": "special"})).await;
    let offer = json!({"status": {"allocatable": {"example.com/device": "1"}}});
    cluster.all::<Node>().patch_status("special", &PatchParams::default(), &Patch::Merge(offer)).await.unwrap();
    let device =
        json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"example.com/device": "1"}}}]});
    cluster.create::<Pod>(pod("first", device.clone())).await;
    let first = cluster.until(cluster.api::<Pod>(), "first", |p| node_of(p).is_some()).await;
    assert_eq!(node_of(first.as_ref()).as_deref(), Some("special"));
    cluster.create::<Pod>(pod("second", device)).await;
    cluster
        .until(cluster.api::<Pod>(), "second", |p| {
            p.and_then(|p| p.status.as_ref()?.conditions.as_ref()?.first()?.message.clone()).as_deref()
                == Some("0/2 nodes are available: 2 Insufficient example.com/device.")
        })
        .await;
    cluster.create::<Pod>(pod("picky", json!({"nodeSelector": {"kind": "plain"}}))).await;
    let picky = cluster.until(cluster.api::<Pod>(), "picky", |p| node_of(p).is_some()).await;
    assert_eq!(node_of(picky.as_ref()).as_deref(), Some("plain"));
}

#[tokio::test]
async fn pods_spread_and_keep_apart() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    for name in ["a", "b", "c"] {
        cluster.node(name, json!({"kubernetes.io/hostname": name})).await;
    }
    let apart = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}]}}});
    let mut used = std::collections::BTreeSet::new();
    for name in ["p1", "p2", "p3"] {
        cluster.create::<Pod>(pod(name, apart.clone())).await;
        let bound = cluster.until(cluster.api::<Pod>(), name, |p| node_of(p).is_some()).await;
        used.insert(node_of(bound.as_ref()).unwrap());
    }
    assert_eq!(used.len(), 3);
    cluster.create::<Pod>(pod("p4", apart)).await;
    cluster
        .until(cluster.api::<Pod>(), "p4", |p| {
            p.and_then(|p| p.status.as_ref()?.conditions.as_ref()?.first()?.message.clone()).as_deref()
                == Some("0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.")
        })
        .await;
}

/// Not a benchmark, but a bound: a hundred pods are bound in well under 5 ms each.
#[tokio::test]
async fn a_hundred_pods() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    cluster.node("n1", json!({})).await;
    cluster.create::<Pod>(pod("warm", json!({}))).await;
    cluster.until(cluster.api::<Pod>(), "warm", |p| node_of(p).is_some()).await;
    let start = Instant::now();
    let names: Vec<String> = (0..100).map(|i| format!("p{i}")).collect();
    futures::future::join_all(names.iter().map(|name| cluster.create::<Pod>(pod(name, json!({}))))).await;
    cluster.until_all::<Pod>(|pods| pods.iter().all(|p| node_of(Some(p)).is_some())).await;
    println!("100 pods created and bound in {:?}", start.elapsed());
}
