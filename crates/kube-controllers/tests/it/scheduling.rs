//! The scheduler.

use std::time::Instant;

use k8s_openapi::api::core::v1::{Event, Node, Pod, ResourceQuota};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Patch, PatchParams, PostParams};
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
async fn an_unschedulable_pod_waits_and_names_the_reason() {
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
    cluster.until(cluster.api::<Pod>(), "second", says("0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")).await;
    let cordon = json!({"spec": {"unschedulable": true}});
    cluster.all::<Node>().patch("n1", &PatchParams::default(), &Patch::Merge(cordon)).await.unwrap();
    cluster.until(cluster.api::<Pod>(), "second", says("0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")).await;
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
                == Some("0/2 nodes are available: 2 Insufficient example.com/device. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.")
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
                == Some("0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod.")
        })
        .await;
}

fn condition(pod: Option<&Pod>, type_: &str) -> Option<k8s_openapi::api::core::v1::PodCondition> {
    pod?.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == type_).cloned()
}

async fn priority_class(cluster: &Cluster, name: &str, value: i32) {
    let class: PriorityClass = serde_json::from_value(json!({"metadata": {"name": name}, "value": value})).unwrap();
    cluster.all::<PriorityClass>().create(&PostParams::default(), &class).await.unwrap();
}

/// A pod of 3 cpus is to have `wanted`, and its node says what it has set aside and what the container has.
async fn between_sizes(cluster: &Cluster, wanted: &str, has: &str, reason: Option<&str>) {
    let pods = cluster.api::<Pod>();
    let size = json!({"requests": {"cpu": wanted}});
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": size}]}});
    pods.patch_subresource("resize", "old", &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    let status = json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}}, "resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": has}});
    let pending = reason.map(|reason| json!({"type": "PodResizePending", "status": "True", "reason": reason}));
    let gone = json!({"type": "PodResizePending", "$patch": "delete"});
    let status = json!({"status": {"phase": "Running", "containerStatuses": [status],
        "conditions": [pending.unwrap_or(gone)]}});
    pods.patch_status("old", &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
}

#[tokio::test]
async fn a_pod_between_two_sizes_holds_the_larger_of_its_node() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    cluster.start(kube_controllers::quota::run);
    cluster.node("n1", json!({})).await;
    cluster.create::<ResourceQuota>(json!({"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "9"}}})).await;
    cluster.create::<Pod>(pod("old", cpu("3"))).await;
    cluster.until(cluster.api::<Pod>(), "old", |p| node_of(p).is_some()).await;
    let used = |amount: &'static str| {
        cluster.until(cluster.api::<ResourceQuota>(), "q", move |q| {
            q.and_then(|q| q.status.as_ref()?.used.as_ref()?.get("requests.cpu")).is_some_and(|u| u.0 == amount)
        })
    };
    let waits =
        |p: Option<&Pod>| condition(p, "PodScheduled").is_some_and(|c| c.reason.as_deref() == Some("Unschedulable"));
    // It is to have less, and has not given it back.
    between_sizes(&cluster, "1", "3", None).await;
    used("3").await;
    cluster.create::<Pod>(pod("new", cpu("2"))).await;
    cluster.until(cluster.api::<Pod>(), "new", waits).await;
    between_sizes(&cluster, "1", "1", None).await;
    cluster.until(cluster.api::<Pod>(), "new", |p| node_of(p).is_some()).await;
    used("3").await;
    // What it may get later is kept for it, and what it can never get is not.
    between_sizes(&cluster, "2", "1", Some("Deferred")).await;
    used("4").await;
    cluster.create::<Pod>(pod("last", cpu("1"))).await;
    cluster.until(cluster.api::<Pod>(), "last", waits).await;
    between_sizes(&cluster, "2", "1", Some("Infeasible")).await;
    cluster.until(cluster.api::<Pod>(), "last", |p| node_of(p).is_some()).await;
}

#[tokio::test]
async fn the_less_important_make_room() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    cluster.node("n1", json!({})).await;
    priority_class(&cluster, "high", 1000).await;
    priority_class(&cluster, "low", 10).await;
    let with = |amount: &str, class: &str| {
        let mut spec = cpu(amount);
        spec["priorityClassName"] = class.into();
        // Only a node agent ends a pod that was given time to end.
        spec["terminationGracePeriodSeconds"] = json!(30);
        spec
    };
    cluster.create::<Pod>(pod("lowest", with("2", "low"))).await;
    cluster.create::<Pod>(pod("high-already", with("2", "high"))).await;
    for name in ["lowest", "high-already"] {
        cluster.until(cluster.api::<Pod>(), name, |p| node_of(p).is_some()).await;
    }
    cluster.create::<Pod>(pod("new", with("1", "high"))).await;
    // The victim is told why and given its time; meanwhile the room is promised.
    let nominated = |p: Option<&Pod>| p.and_then(|p| p.status.as_ref()?.nominated_node_name.clone());
    cluster.until(cluster.api::<Pod>(), "new", |p| nominated(p).as_deref() == Some("n1")).await;
    let victim = cluster
        .until(cluster.api::<Pod>(), "lowest", |p| p.is_some_and(|p| p.metadata.deletion_timestamp.is_some()))
        .await;
    let why = condition(victim.as_ref(), "DisruptionTarget").unwrap();
    assert_eq!(why.reason.as_deref(), Some("PreemptionByScheduler"));
    assert_eq!(why.message.as_deref(), Some("default-scheduler: preempting to accommodate a higher priority pod"));
    let uid = cluster.api::<Pod>().get("new").await.unwrap().metadata.uid.unwrap();
    let text = format!("Preempted by pod {uid} on node n1");
    cluster.until_all::<Event>(|all| all.iter().any(|e| e.message.as_deref() == Some(&text))).await;
    // Room that is promised to the important is not given to others.
    cluster.create::<Pod>(pod("sneaky", with("1", "low"))).await;
    cluster
        .until(cluster.api::<Pod>(), "sneaky", |p| condition(p, "PodScheduled").is_some_and(|c| c.status == "False"))
        .await;
    let now = kube::api::DeleteParams::default().grace_period(0);
    cluster.api::<Pod>().delete("lowest", &now).await.unwrap();
    let placed = cluster.until(cluster.api::<Pod>(), "new", |p| node_of(p).is_some()).await;
    assert_eq!(node_of(placed.as_ref()).as_deref(), Some("n1"));
    cluster.until(cluster.api::<Pod>(), "sneaky", |p| node_of(p).is_some()).await;
    assert!(node_of(Some(&cluster.api::<Pod>().get("high-already").await.unwrap())).is_some());
}

#[tokio::test]
async fn gates_hold_and_other_schedulers_pods_are_left_alone() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    cluster.node("n1", json!({})).await;
    cluster.create::<Pod>(pod("foreign", json!({"schedulerName": "other"}))).await;
    cluster.create::<Pod>(pod("gated", json!({"schedulingGates": [{"name": "example.com/wait"}]}))).await;
    cluster.create::<Pod>(pod("free", json!({}))).await;
    cluster.until(cluster.api::<Pod>(), "free", |p| node_of(p).is_some()).await;
    let gated = cluster.api::<Pod>().get("gated").await.unwrap();
    assert_eq!(condition(Some(&gated), "PodScheduled").unwrap().reason.as_deref(), Some("SchedulingGated"));
    assert_eq!(node_of(Some(&gated)), None);
    let open = json!({"spec": {"schedulingGates": null}});
    cluster.api::<Pod>().patch("gated", &PatchParams::default(), &Patch::Merge(open)).await.unwrap();
    cluster.until(cluster.api::<Pod>(), "gated", |p| node_of(p).is_some()).await;
    let foreign = cluster.api::<Pod>().get("foreign").await.unwrap();
    assert!(node_of(Some(&foreign)).is_none() && condition(Some(&foreign), "PodScheduled").is_none());
}

#[tokio::test]
async fn constraints_between_pods() {
    let cluster = Cluster::new().await;
    cluster.start(scheduler::run);
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        cluster.node(name, json!({"kubernetes.io/hostname": name, "zone": zone})).await;
    }
    let term = |key: &str, app: &str| json!([{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]);
    let affinity = |kind: &str, key: &str, app: &str| json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term(key, app)}}});
    let place = async |name: &str, spec: Value| {
        let mut pod = pod(name, spec);
        pod["metadata"]["labels"] = json!({"app": name});
        cluster.create::<Pod>(pod).await;
        let placed = cluster.until(cluster.api::<Pod>(), name, |p| node_of(p).is_some()).await;
        node_of(placed.as_ref()).unwrap()
    };
    assert_eq!(place("db", json!({"nodeSelector": {"zone": "b"}})).await, "b1");
    assert_eq!(place("near", affinity("podAffinity", "zone", "db")).await, "b1");
    // The first of its kind may begin anywhere; the second has to follow.
    let first = place("self", affinity("podAffinity", "zone", "self")).await;
    assert!(!first.is_empty());
    // Who wants nobody named x beside it keeps x out, though x says nothing.
    assert_eq!(
        place(
            "shy",
            json!({"nodeSelector": {"zone": "a"}, "affinity": affinity("podAntiAffinity", "zone", "x")["affinity"]})
        )
        .await
        .chars()
        .next(),
        Some('a')
    );
    assert_eq!(place("x", json!({})).await, "b1");
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["s1", "s2"]}]}}]});
    let (one, two) = (place("s1", spread.clone()).await, place("s2", spread).await);
    assert_ne!(one.chars().next(), two.chars().next(), "{one} {two}");
    let impossible = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "r"}}}]});
    cluster.create::<Pod>(pod("r", impossible)).await;
    let text = "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints (missing required label). preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.";
    cluster
        .until(cluster.api::<Pod>(), "r", |p| {
            condition(p, "PodScheduled").is_some_and(|c| c.message.as_deref() == Some(text))
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
