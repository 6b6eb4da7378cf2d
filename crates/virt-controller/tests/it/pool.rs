//! Pools of machines.

use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::pool::v1beta1::VirtualMachinePool;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, start, wait};

const REVISION: &str = "kubevirt.io/vm-pool-revision-name";

fn pools(cluster: &Cluster) -> Api<VirtualMachinePool> {
    Api::namespaced(cluster.client.clone(), "default")
}

fn claims(cluster: &Cluster) -> Api<PersistentVolumeClaim> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn make(cluster: &Cluster, change: Value) {
    let mut pool = json!({
        "metadata": { "name": "pool" },
        "spec": {
            "replicas": 2, "selector": { "matchLabels": { "app": "a" } },
            "scaleInStrategy": { "proactive": { "selectionPolicy": { "sortPolicy": "DescendingOrder" } } },
            "virtualMachineTemplate": {
                "metadata": { "labels": { "app": "a" } },
                "spec": {
                    "runStrategy": "Always",
                    "template": { "spec": { "domain": { "devices": {}, "memory": { "guest": "64Mi" } } } },
                },
            },
        },
    });
    json_patch::merge(&mut pool["spec"], &change);
    pools(cluster).create(&PostParams::default(), &serde_json::from_value(pool).unwrap()).await.unwrap();
}

async fn change(cluster: &Cluster, patch: Value) {
    pools(cluster).patch("pool", &PatchParams::default(), &Patch::Merge(json!({ "spec": patch }))).await.unwrap();
}

/// The machines that nobody deletes.
async fn names(cluster: &Cluster) -> Vec<String> {
    let all = cluster.vms.list(&ListParams::default()).await.unwrap().items;
    let stays = all.into_iter().filter(|vm| vm.metadata.deletion_timestamp.is_none());
    stays.map(|vm| vm.name_any()).collect()
}

/// Waits until there are these machines and no others.
async fn until(cluster: &Cluster, expect: &[&str]) {
    let there = async {
        while names(cluster).await != expect {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, there).await.is_err() {
        panic!("never {expect:?}: {:?}", names(cluster).await);
    }
}

async fn until_it_says(cluster: &Cluster, what: &str, check: fn(&Value) -> bool) -> Value {
    let says = move |pool: Option<&VirtualMachinePool>| {
        pool.and_then(|pool| pool.status.as_ref()).is_some_and(|status| check(&json!(status)))
    };
    json!(wait(&pools(cluster), "pool", what, says).await.unwrap().status)
}

/// Waits until the label with the revision says this.
async fn until_of(cluster: &Cluster, name: &str, revision: &'static str) {
    let of = move |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| vm.labels()[REVISION] == revision);
    wait(&cluster.vms, name, revision, of).await;
}

async fn revisions(cluster: &Cluster) -> Vec<String> {
    let api: Api<ControllerRevision> = Api::namespaced(cluster.client.clone(), "default");
    let all = api.list(&ListParams::default()).await.unwrap().items;
    all.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("pool-")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pool_has_as_many_machines_as_it_says() {
    let cluster = start().await;
    make(&cluster, json!({})).await;
    until(&cluster, &["pool-0", "pool-1"]).await;
    let vm = cluster.vms.get("pool-0").await.unwrap();
    assert_eq!((vm.labels()["app"].as_str(), vm.labels()[REVISION].as_str()), ("a", "pool-1"));
    let owner = &vm.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.controller), ("VirtualMachinePool", Some(true)));
    assert!(vm.finalizers().iter().any(|name| name == "pool.kubevirt.io/finalizer"));
    let status = until_it_says(&cluster, "counted", |status| status["replicas"] == 2).await;
    assert_eq!((&status["readyReplicas"], &status["labelSelector"]), (&json!(0), &json!("app=a")));
    assert_eq!(revisions(&cluster).await, ["pool-1"]);

    // As `kubectl scale` and a HorizontalPodAutoscaler do it.
    let scale = pools(&cluster).get_scale("pool").await.unwrap().status.unwrap();
    assert_eq!((scale.replicas, scale.selector.as_deref()), (2, Some("app=a")));
    let three = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
    pools(&cluster).patch_scale("pool", &PatchParams::default(), &three).await.unwrap();
    until(&cluster, &["pool-0", "pool-1", "pool-2"]).await;
    // How many there are makes none of them another.
    assert_eq!(cluster.vms.get("pool-2").await.unwrap().labels()[REVISION], "pool-1");

    change(&cluster, json!({ "replicas": 1 })).await;
    until(&cluster, &["pool-0"]).await;
    wait(&cluster.vms, "pool-2", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;
}

/// Labels and names are anybody's: they take nobody's machine away, and reach into no other namespace.
#[tokio::test(start_paused = true)]
async fn machines_of_others_and_of_other_namespaces_are_not_touched() {
    let cluster = start().await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let victim = json!({ "metadata": { "name": "victim" } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(victim).unwrap()).await.unwrap();
    let theirs: Api<VirtualMachine> = Api::namespaced(cluster.client.clone(), "victim");
    let machine = |metadata: Value| -> VirtualMachine {
        let template = json!({ "spec": { "domain": { "devices": {} } } });
        let vm = json!({ "metadata": metadata, "spec": { "runStrategy": "Halted", "template": template } });
        serde_json::from_value(vm).unwrap()
    };
    let labels = json!({ "app": "a" });
    let create = PostParams::default();
    theirs.create(&create, &machine(json!({ "name": "pool-0", "labels": labels }))).await.unwrap();
    cluster.vms.create(&create, &machine(json!({ "name": "pool-0", "labels": labels }))).await.unwrap();
    let owners = json!([{
        "apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool", "name": "pool", "uid": "of-another",
        "controller": true,
    }]);
    let owned = json!({ "name": "pool-1", "labels": labels, "ownerReferences": owners });
    cluster.vms.create(&create, &machine(owned)).await.unwrap();
    make(&cluster, json!({})).await;
    until(&cluster, &["pool-0", "pool-1", "pool-2", "pool-3"]).await;
    until_it_says(&cluster, "its own", |status| status["replicas"] == 2).await;
    change(
        &cluster,
        json!({
            "replicas": 0, "virtualMachineTemplate": { "spec": { "template": { "spec": { "hostname": "new" } } } },
        }),
    )
    .await;
    until(&cluster, &["pool-0", "pool-1"]).await;
    for vms in [&theirs, &cluster.vms] {
        let vm = vms.get("pool-0").await.unwrap();
        assert!(vm.owner_references().is_empty() && vm.spec.template.spec.unwrap().hostname.is_none());
    }
    let owned = cluster.vms.get("pool-1").await.unwrap();
    assert_eq!(owned.owner_references()[0].uid, "of-another");
    assert!(!owned.labels().contains_key(REVISION));
}

#[tokio::test(start_paused = true)]
async fn a_new_template_is_written_at_once_and_guests_are_restarted() {
    let cluster = start().await;
    make(&cluster, json!({ "replicas": 1 })).await;
    let there = |vmi: Option<&VirtualMachineInstance>| vmi.is_some();
    let before = wait(&cluster.vmis, "pool-0", "made", there).await.unwrap();
    assert_eq!(before.labels()[REVISION], "pool-1");
    change(
        &cluster,
        json!({ "virtualMachineTemplate": { "spec": { "template": { "spec": { "hostname": "new" } } } } }),
    )
    .await;
    until_of(&cluster, "pool-0", "pool-2").await;
    let uid = before.uid();
    let stopped = move |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_none_or(|vmi| vmi.uid() != uid || vmi.metadata.deletion_timestamp.is_some())
    };
    wait(&cluster.vmis, "pool-0", "stopped", stopped).await;
    let vm = cluster.vms.get("pool-0").await.unwrap();
    assert_eq!(vm.spec.template.spec.unwrap().hostname.as_deref(), Some("new"));
    // What the old guest was made from goes with it.
    let pod = virt_controller::vmi::pod::name(&before);
    let _ = cluster.pods.delete(&pod, &DeleteParams { grace_period_seconds: Some(0), ..Default::default() }).await;
    let renewed = |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| vmi.labels()[REVISION] == "pool-2");
    wait(&cluster.vmis, "pool-0", "started anew", renewed).await;
    let left = async {
        while revisions(&cluster).await != ["pool-2"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, left).await.expect("the old revision stays");
}

#[tokio::test(start_paused = true)]
async fn guests_of_an_opportunistic_pool_are_restarted_by_users() {
    let cluster = start().await;
    make(&cluster, json!({ "replicas": 1, "updateStrategy": { "opportunistic": {} } })).await;
    let there = |vmi: Option<&VirtualMachineInstance>| vmi.is_some();
    let before = wait(&cluster.vmis, "pool-0", "made", there).await.unwrap();
    change(
        &cluster,
        json!({ "virtualMachineTemplate": { "spec": { "template": { "spec": { "hostname": "new" } } } } }),
    )
    .await;
    until_of(&cluster, "pool-0", "pool-2").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let vmi = cluster.vmis.get("pool-0").await.unwrap();
    assert_eq!((vmi.uid(), vmi.metadata.deletion_timestamp), (before.uid(), None));
    // What it is of is still known.
    assert_eq!(revisions(&cluster).await, ["pool-1", "pool-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_pool_only_counts() {
    let cluster = start().await;
    make(&cluster, json!({ "replicas": 1 })).await;
    until(&cluster, &["pool-0"]).await;
    change(&cluster, json!({ "paused": true, "replicas": 2 })).await;
    let status = until_it_says(&cluster, "paused", |status| status["conditions"][0]["type"] == "ReplicaPaused").await;
    let condition = &status["conditions"][0];
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (&json!("SuccessfulPaused"), &json!("Pool controller is paused"))
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(names(&cluster).await, ["pool-0"]);
    change(&cluster, json!({ "paused": false })).await;
    until(&cluster, &["pool-0", "pool-1"]).await;
}

/// A claim that belongs to this machine.
async fn claim_of(cluster: &Cluster, vm: &VirtualMachine) -> PersistentVolumeClaim {
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": vm.name_any(), "uid": vm.uid(), "controller": true,
    });
    let claim = json!({
        "metadata": { "name": "root-0", "ownerReferences": [owner] },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    claims(cluster).create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap()
}

async fn on_a_claim(cluster: &Cluster, strategy: Value) -> VirtualMachine {
    let volumes = json!([{ "name": "root", "persistentVolumeClaim": { "claimName": "root-0" } }]);
    let spec = json!({ "runStrategy": "Halted", "template": { "spec": { "volumes": volumes } } });
    make(cluster, json!({ "replicas": 1, "scaleInStrategy": strategy, "virtualMachineTemplate": { "spec": spec } }))
        .await;
    until(cluster, &["pool-0"]).await;
    let vm = cluster.vms.get("pool-0").await.unwrap();
    claim_of(cluster, &vm).await;
    vm
}

#[tokio::test(start_paused = true)]
async fn disks_outlive_machines_where_the_pool_says_so() {
    let cluster = start().await;
    on_a_claim(&cluster, json!({ "proactive": { "statePreservation": "Offline" } })).await;
    change(&cluster, json!({ "replicas": 0 })).await;
    wait(&cluster.vms, "pool-0", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;
    assert!(claims(&cluster).get("root-0").await.unwrap().owner_references().is_empty());
}

#[tokio::test(start_paused = true)]
async fn disks_outlive_a_machine_that_a_user_deletes_from_an_opportunistic_pool() {
    let cluster = start().await;
    on_a_claim(&cluster, json!({ "proactive": null, "opportunistic": { "statePreservation": "Online" } })).await;
    change(&cluster, json!({ "replicas": 0 })).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(names(&cluster).await, ["pool-0"], "the user chooses");
    cluster.vms.delete("pool-0", &DeleteParams::default()).await.unwrap();
    wait(&cluster.vms, "pool-0", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;
    assert!(claims(&cluster).get("root-0").await.unwrap().owner_references().is_empty());
}

#[tokio::test(start_paused = true)]
async fn disks_go_with_their_machine_by_default() {
    let cluster = start().await;
    let vm = on_a_claim(&cluster, json!({})).await;
    change(&cluster, json!({ "replicas": 0 })).await;
    wait(&cluster.vms, "pool-0", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;
    // The collector of garbage does the rest.
    let claim = claims(&cluster).get("root-0").await.unwrap();
    assert_eq!(Some(claim.owner_references()[0].uid.clone()), vm.uid());
}

#[tokio::test(start_paused = true)]
async fn machines_of_a_pool_that_is_gone_wait_for_nothing() {
    let cluster = start().await;
    make(&cluster, json!({ "replicas": 1 })).await;
    until(&cluster, &["pool-0"]).await;
    pools(&cluster).delete("pool", &DeleteParams::default()).await.unwrap();
    let free = |vm: Option<&VirtualMachine>| {
        vm.is_none_or(|vm| !vm.finalizers().iter().any(|name| name == "pool.kubevirt.io/finalizer"))
    };
    wait(&cluster.vms, "pool-0", "free", free).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_get_on_is_replaced_less_and_less_often() {
    let cluster = start().await;
    make(&cluster, json!({ "replicas": 1, "autohealing": { "startUpFailureThreshold": 2 } })).await;
    let begun = tokio::time::Instant::now();
    let mut made = Vec::new();
    for _ in 0..4 {
        let there = async {
            loop {
                if let Some(name) = names(&cluster).await.pop() {
                    return name;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let name = tokio::time::timeout(PATIENCE, there).await.expect("never replaced");
        made.push(begun.elapsed());
        let failing = Patch::Merge(json!({ "status": { "startFailure": {
            "consecutiveFailCount": 2, "lastFailedVMIUID": "x", "retryAfterTimestamp": "2100-01-01T00:00:00Z",
        } } }));
        cluster.vms.patch_status(&name, &PatchParams::default(), &failing).await.unwrap();
        let told = |vm: Option<&VirtualMachine>| vm.is_none_or(|vm| vm.metadata.deletion_timestamp.is_some());
        wait(&cluster.vms, &name, "told to go", told).await;
    }
    assert!(made[1] < Duration::from_secs(5) && made[2] - made[1] >= Duration::from_secs(9), "{made:?}");
    assert!(made[3] - made[2] >= Duration::from_secs(18), "{made:?}");
    let held = |status: &Value| status["conditions"][0]["reason"] == "BackOff";
    until_it_says(&cluster, "held back", held).await;
}
