//! Sets of instances.

use std::time::Duration;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use meta::conditions;
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, in_phase, start, wait};

fn sets(cluster: &Cluster) -> Api<ReplicaSet> {
    Api::namespaced(cluster.client.clone(), "default")
}

fn spec() -> Value {
    json!({ "domain": { "devices": {}, "memory": { "guest": "64Mi" } } })
}

async fn make(cluster: &Cluster, replicas: i32) -> ReplicaSet {
    let set = json!({
        "metadata": { "name": "set" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "a" } },
            "template": { "metadata": { "labels": { "app": "a" } }, "spec": spec() },
        },
    });
    sets(cluster).create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap()
}

async fn change(cluster: &Cluster, patch: Value) {
    sets(cluster).patch("set", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn make_instance(cluster: &Cluster, namespace: &str, metadata: Value) -> VirtualMachineInstance {
    let api: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), namespace);
    let vmi = json!({ "metadata": metadata, "spec": spec() });
    api.create(&PostParams::default(), &serde_json::from_value(vmi).unwrap()).await.unwrap()
}

/// What virt-handler says of a guest.
async fn report(cluster: &Cluster, name: &str, phase: &str) {
    let patch = json!({ "status": { "phase": phase } });
    cluster.vmis.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// What a node does: the guest runs and is ready.
async fn serve(cluster: &Cluster, name: &str) {
    let vmi = wait(&cluster.vmis, name, "scheduling", in_phase("Scheduling")).await.unwrap();
    let pod = cluster.pods.get(&virt_controller::vmi::pod::name(&vmi)).await.unwrap();
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, name, "scheduled", in_phase("Scheduled")).await;
    let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
    cluster.vmis.patch(name, &PatchParams::default(), &running).await.unwrap();
    cluster.pod_condition(&pod.name_any(), "Ready", "True", "").await;
}

/// What follows from the end of a guest's pod.
async fn bury(cluster: &Cluster, name: &str) {
    let patch = json!({ "metadata": { "finalizers": null } });
    let _ = cluster.vmis.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
}

/// Those that the set has and that are not on their way out.
async fn active(cluster: &Cluster) -> Vec<VirtualMachineInstance> {
    let mut all = cluster.vmis.list(&ListParams::default()).await.unwrap().items;
    all.retain(|vmi| vmi.metadata.deletion_timestamp.is_none() && owner(vmi).as_deref() == Some("set"));
    all
}

fn owner(vmi: &VirtualMachineInstance) -> Option<String> {
    vmi.owner_references().iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.name.clone())
}

async fn until_there_are(cluster: &Cluster, count: usize) -> Vec<VirtualMachineInstance> {
    let found = async {
        loop {
            let active = active(cluster).await;
            if active.len() == count {
                return active;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("never that many")
}

async fn until_it_says(cluster: &Cluster, what: &str, check: fn(&Value) -> bool) -> Value {
    let says = move |set: Option<&ReplicaSet>| {
        set.and_then(|set| set.status.as_ref()).is_some_and(|status| check(&json!(status)))
    };
    json!(wait(&sets(cluster), "set", what, says).await.unwrap().status)
}

async fn has_event(cluster: &Cluster, reason: &str, message: &str) {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let found = async {
        loop {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            let said = |event: &Event| {
                event.reason.as_deref() == Some(reason) && event.message.as_deref().unwrap_or("").contains(message)
            };
            if all.iter().any(said) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no event {reason}"));
}

#[tokio::test(start_paused = true)]
async fn a_set_has_as_many_instances_as_it_says_and_those_that_serve_stay() {
    let cluster = start().await;
    make(&cluster, 3).await;
    let made = until_there_are(&cluster, 3).await;
    for vmi in &made {
        assert!(vmi.name_any().starts_with("set") && vmi.labels()["app"] == "a", "{vmi:?}");
        let owner = &vmi.owner_references()[0];
        assert_eq!((owner.kind.as_str(), owner.block_owner_deletion), ("VirtualMachineInstanceReplicaSet", Some(true)));
    }
    has_event(&cluster, "SuccessfulCreate", "Started the virtual machine by creating").await;
    let serving = made[1].name_any();
    serve(&cluster, &serving).await;
    let status = until_it_says(&cluster, "one ready", |status| status["readyReplicas"] == 1).await;
    assert_eq!((&status["replicas"], &status["labelSelector"]), (&json!(3), &json!("app=a")));

    change(&cluster, json!({ "spec": { "replicas": 1 } })).await;
    let left = until_there_are(&cluster, 1).await;
    assert_eq!(left[0].name_any(), serving);
    has_event(&cluster, "SuccessfulDelete", "Stopped the virtual machine by deleting").await;
    until_it_says(&cluster, "one", |status| status["replicas"] == 1).await;
}

#[tokio::test(start_paused = true)]
async fn more_than_a_burst_are_made_in_passes() {
    let cluster = start().await;
    make(&cluster, 260).await;
    until_there_are(&cluster, 260).await;
    until_it_says(&cluster, "all", |status| status["replicas"] == 260).await;
}

/// What `kubectl scale` and a HorizontalPodAutoscaler do.
#[tokio::test(start_paused = true)]
async fn its_scale_subresource_says_and_sets_how_many() {
    let cluster = start().await;
    make(&cluster, 1).await;
    until_it_says(&cluster, "counted", |status| status["replicas"] == 1).await;
    let scale = sets(&cluster).get_scale("set").await.unwrap();
    let status = scale.status.unwrap();
    assert_eq!((status.replicas, status.selector.as_deref()), (1, Some("app=a")));
    let more = Patch::Merge(json!({ "spec": { "replicas": 2 } }));
    sets(&cluster).patch_scale("set", &PatchParams::default(), &more).await.unwrap();
    assert_eq!(sets(&cluster).get("set").await.unwrap().spec.replicas, Some(2));
    until_there_are(&cluster, 2).await;
}

#[tokio::test(start_paused = true)]
async fn orphans_that_it_selects_are_taken_in_and_others_let_go() {
    let cluster = start().await;
    let orphan = make_instance(&cluster, "default", json!({ "name": "orphan", "labels": { "app": "a" } })).await;
    make(&cluster, 2).await;
    let both = until_there_are(&cluster, 2).await;
    assert!(both.iter().any(|vmi| vmi.uid() == orphan.uid()), "it counts");

    let other = Patch::Merge(json!({ "metadata": { "labels": { "app": "b" } } }));
    cluster.vmis.patch("orphan", &PatchParams::default(), &other).await.unwrap();
    let freed = |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| vmi.owner_references().is_empty());
    wait(&cluster.vmis, "orphan", "let go", freed).await;
    until_there_are(&cluster, 2).await;
    assert!(cluster.vmis.get("orphan").await.unwrap().metadata.deletion_timestamp.is_none());
}

/// Labels are written by anybody: they take nobody's instances away, and reach into no other namespace.
#[tokio::test(start_paused = true)]
async fn what_others_own_and_other_namespaces_are_not_touched() {
    let cluster = start().await;
    let victim = json!({ "metadata": { "name": "victim" } });
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(victim).unwrap()).await.unwrap();
    let labels = json!({ "app": "a" });
    make_instance(&cluster, "victim", json!({ "name": "theirs", "labels": labels })).await;
    let owners = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "name": "set",
        "uid": "of-another", "controller": true,
    }]);
    let owned = json!({ "name": "owned", "labels": labels, "ownerReferences": owners });
    let before = make_instance(&cluster, "default", owned).await;
    make(&cluster, 1).await;
    let counted = until_it_says(&cluster, "counted", |status| status["replicas"] == 1).await;
    assert_eq!(counted["replicas"], 1);
    change(&cluster, json!({ "spec": { "replicas": 0 } })).await;
    until_it_says(&cluster, "none", |status| status["replicas"] == 0).await;
    let owned = cluster.vmis.get("owned").await.unwrap();
    assert_eq!((owned.owner_references(), &owned.metadata.deletion_timestamp), (before.owner_references(), &None));
    let theirs: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), "victim");
    let theirs = theirs.get("theirs").await.unwrap();
    assert!(theirs.owner_references().is_empty() && theirs.metadata.deletion_timestamp.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_paused_set_only_counts() {
    let cluster = start().await;
    make(&cluster, 1).await;
    until_there_are(&cluster, 1).await;
    change(&cluster, json!({ "spec": { "paused": true, "replicas": 3 } })).await;
    let status = until_it_says(&cluster, "paused", |status| status["conditions"][0]["type"] == "ReplicaPaused").await;
    let condition = &status["conditions"][0];
    assert_eq!((&condition["reason"], &condition["message"]), (&json!("Paused"), &json!("Controller got paused")));
    has_event(&cluster, "SuccessfulPaused", "Paused").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(active(&cluster).await.len(), 1);
    change(&cluster, json!({ "spec": { "paused": false } })).await;
    until_there_are(&cluster, 3).await;
    has_event(&cluster, "SuccessfulResumed", "Resumed").await;
}

#[tokio::test(start_paused = true)]
async fn a_template_that_cannot_be_made_says_why_and_is_tried_seldom() {
    let cluster = start().await;
    let name = "x".repeat(300);
    make(&cluster, 0).await;
    let broken = json!({ "spec": { "replicas": 5, "template": { "metadata": { "labels": { "app": name } } } } });
    change(&cluster, broken).await;
    let failed = |status: &Value| status["conditions"][0]["type"] == "ReplicaFailure";
    let status = until_it_says(&cluster, "failed", failed).await;
    assert_eq!(status["conditions"][0]["reason"], "FailedCreate");
    assert!(status["conditions"][0]["message"].as_str().unwrap().contains("cannot create"), "{status}");
    has_event(&cluster, "FailedCreate", "Error creating virtual machine instance").await;
    change(&cluster, json!({ "spec": { "template": { "metadata": { "labels": { "app": "a" } } } } })).await;
    until_there_are(&cluster, 5).await;
    let set = sets(&cluster).get("set").await.unwrap();
    wait(&sets(&cluster), "set", "well again", |set: Option<&ReplicaSet>| {
        set.and_then(|set| set.status.as_ref())
            .is_some_and(|status| conditions::get(&status.conditions, "ReplicaFailure").is_none())
    })
    .await;
    assert_eq!(set.spec.replicas, Some(5));
}

#[tokio::test(start_paused = true)]
async fn guests_that_keep_ending_are_replaced_less_and_less_often() {
    let cluster = start().await;
    make(&cluster, 1).await;
    let begun = tokio::time::Instant::now();
    let mut made = Vec::new();
    for _ in 0..4 {
        let vmi = until_there_are(&cluster, 1).await.remove(0);
        made.push(begun.elapsed());
        let name = vmi.name_any();
        report(&cluster, &name, "Failed").await;
        wait(&cluster.vmis, &name, "told to go", |vmi: Option<&VirtualMachineInstance>| {
            vmi.is_none_or(|vmi| vmi.metadata.deletion_timestamp.is_some())
        })
        .await;
        bury(&cluster, &name).await;
    }
    has_event(&cluster, "SuccessfulDelete", "Deleted finished virtual machine").await;
    let held = |status: &Value| status["conditions"][0]["reason"] == "BackOff";
    let status = until_it_says(&cluster, "held back", held).await;
    assert!(status["conditions"][0]["message"].as_str().unwrap().contains("instances keep ending"), "{status}");
    assert!(made[1] < Duration::from_secs(5), "{made:?}");
    assert!(made[2] - made[1] >= Duration::from_secs(9) && made[3] - made[2] >= Duration::from_secs(18), "{made:?}");
}

#[tokio::test(start_paused = true)]
async fn a_set_that_is_deleted_takes_nobody_in() {
    let cluster = start().await;
    make(&cluster, 1).await;
    until_there_are(&cluster, 1).await;
    let policy = DeleteParams { propagation_policy: Some(kube::api::PropagationPolicy::Orphan), ..Default::default() };
    sets(&cluster).delete("set", &policy).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(cluster.vmis.list(&ListParams::default()).await.unwrap().items.len(), 1, "none is made in its place");
}
