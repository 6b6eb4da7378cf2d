//! Guests that are to leave: their budgets, their evacuation, and their way to a new launcher.

use std::fmt::Debug;

use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, in_phase, machine, start, wait};
use crate::migration::{arrives, under_way};

type Migrations = Api<VirtualMachineInstanceMigration>;

/// Waits until there is exactly one object of the kind, and returns it.
async fn only<K>(api: &Api<K>, what: &str) -> K
where
    K: kube::Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let found = async {
        loop {
            let mut all = api.list(&ListParams::default()).await.unwrap().items;
            if let (Some(one), true) = (all.pop(), all.is_empty()) {
                return one;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("never {what}"))
}

/// A machine with this strategy whose guest runs on node1 and can move or not, and its pod.
async fn running(cluster: &Cluster, strategy: &str, movable: bool) -> Pod {
    let mut vm: VirtualMachine = machine("Always");
    vm.spec.template.spec.as_mut().unwrap().eviction_strategy = Some(strategy.to_owned());
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
    let status = if movable { "True" } else { "False" };
    let conditions = json!([{ "type": "LiveMigratable", "status": status }]);
    patch(cluster, json!({ "status": { "phase": "Running", "conditions": conditions } })).await;
    pod
}

async fn patch(cluster: &Cluster, patch: Value) {
    cluster.vmis.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn keeps(pods: i32) -> impl Fn(Option<&PodDisruptionBudget>) -> bool {
    move |budget| {
        let spec = budget.and_then(|budget| budget.spec.as_ref());
        spec.and_then(|spec| spec.min_available.as_ref()) == Some(&IntOrString::Int(pods))
    }
}

#[tokio::test]
async fn a_guest_that_is_to_move_is_protected_until_it_goes() {
    let cluster = start().await;
    let pod = running(&cluster, "LiveMigrate", true).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), "default");
    let budget = only(&budgets, "protected").await;
    let name = budget.name_any();
    assert!(name.starts_with("kubevirt-disruption-budget-"), "{name}");
    let owner = cluster.vmis.get("vm").await.unwrap().uid().unwrap();
    let selector = budget.spec.unwrap().selector.unwrap().match_labels.unwrap();
    assert_eq!(selector, [("kubevirt.io/created-by".to_owned(), owner)].into());

    cluster.vms.delete("vm", &DeleteParams::background()).await.unwrap();
    wait(&budgets, &name, "let go", |budget: Option<&PodDisruptionBudget>| budget.is_none()).await;
    cluster.end(&pod.name_any()).await;
}

#[tokio::test]
async fn an_evicted_guest_is_moved_once_at_a_time_and_forgotten_when_it_has_left() {
    let cluster = start().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = json!({ "metadata": { "name": "node2", "labels": { "kubevirt.io/schedulable": "true" } } });
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let source = running(&cluster, "LiveMigrate", true).await;
    let migrations: Migrations = Api::namespaced(cluster.client.clone(), "default");
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), "default");
    patch(&cluster, json!({ "status": { "evacuationNodeName": "node1" } })).await;
    let migration = only(&migrations, "evacuated").await;
    let name = migration.name_any();
    assert!(name.starts_with("kubevirt-evacuation-"), "{name}");
    assert_eq!(migration.annotations()["kubevirt.io/evacuationMigration"], "node1");
    assert_eq!(migration.labels()["kubevirt.io/vmi-name"], "vm");
    assert_eq!(migration.spec.vmi_name.as_deref(), Some("vm"));
    let budget = only(&budgets, "protected").await.name_any();

    let target = under_way(&cluster, &migration, "vm", "node2").await;
    let both = wait(&budgets, &budget, "protecting both pods", keeps(2)).await.unwrap();
    assert_eq!(both.labels()["kubevirt.io/migrationName"], name);
    assert_eq!(migrations.list(&ListParams::default()).await.unwrap().items.len(), 1);

    arrives(&cluster, "vm", "node2").await;
    let unmarked = |vmi: Option<&VirtualMachineInstance>| {
        let status = vmi.and_then(|vmi| vmi.status.as_ref());
        status.is_some_and(|status| status.evacuation_node_name.is_none())
    };
    wait(&cluster.vmis, "vm", "unmarked", unmarked).await;
    let gone = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    wait(&cluster.pods, &source.name_any(), "told to end", gone).await;
    cluster.end(&source.name_any()).await;
    wait(&budgets, &budget, "protecting one pod", keeps(1)).await;
    assert!(!gone(cluster.pods.get_opt(&target.name_any()).await.unwrap().as_ref()));
    assert_eq!(migrations.list(&ListParams::default()).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn the_mark_of_a_node_that_was_left_is_taken_off() {
    let cluster = start().await;
    running(&cluster, "LiveMigrate", true).await;
    patch(&cluster, json!({ "status": { "evacuationNodeName": "node0" } })).await;
    wait(&cluster.vmis, "vm", "unmarked", |vmi: Option<&VirtualMachineInstance>| {
        vmi.and_then(|vmi| vmi.status.as_ref()).is_some_and(|status| status.evacuation_node_name.is_none())
    })
    .await;
    let migrations: Migrations = Api::namespaced(cluster.client.clone(), "default");
    assert!(migrations.list(&ListParams::default()).await.unwrap().items.is_empty());
}

pub(crate) async fn kubevirt(cluster: &Cluster, methods: Value) -> Api<KubeVirt> {
    let api: Api<KubeVirt> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let object = json!({
        "metadata": { "name": "kubevirt", "namespace": "kubevirt" },
        "spec": { "workloadUpdateStrategy": { "workloadUpdateMethods": methods } },
    });
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    api
}

pub(crate) async fn deployed(api: &Api<KubeVirt>) {
    let status = json!({ "status": { "phase": "Deployed", "observedDeploymentID": "1", "targetDeploymentID": "1" } });
    api.patch_status("kubevirt", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// As if the guest had been started before the operator brought a new launcher.
async fn outdate(cluster: &Cluster, pod: &Pod) {
    // The launcher of a pod cannot be chosen afterwards, so the newer one is this: none that any pod has.
    let patch = Patch::Strategic(json!({ "spec": { "containers": [{ "name": "compute", "image": "launcher:v0" }] } }));
    cluster.pods.patch(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    wait(&cluster.vmis, "vm", "known to be old", |vmi: Option<&VirtualMachineInstance>| {
        let status = vmi.and_then(|vmi| vmi.status.as_ref());
        status.and_then(|status| status.launcher_container_image_version.as_deref()) == Some("launcher:v0")
    })
    .await;
}

#[tokio::test]
async fn guests_in_an_old_launcher_are_counted_and_moved_once_the_product_is_deployed() {
    let cluster = start().await;
    let pod = running(&cluster, "None", true).await;
    outdate(&cluster, &pod).await;
    let kubevirts = kubevirt(&cluster, json!(["LiveMigrate"])).await;
    deployed(&kubevirts).await;
    let migrations: Migrations = Api::namespaced(cluster.client.clone(), "default");
    let migration = only(&migrations, "brought to the new launcher").await;
    assert!(migration.name_any().starts_with("kubevirt-workload-update-"));
    assert!(migration.annotations().contains_key("kubevirt.io/workloadUpdateMigration"));
    let count = |count: i32| {
        move |kubevirt: Option<&KubeVirt>| {
            let status = kubevirt.and_then(|kubevirt| kubevirt.status.as_ref());
            status.and_then(|status| status.outdated_virtual_machine_instance_workloads) == Some(count)
        }
    };
    wait(&kubevirts, "kubevirt", "counted", count(1)).await;
    wait(&cluster.vmis, "vm", "labelled", |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(|vmi| vmi.labels().contains_key("kubevirt.io/outdatedLauncherImage"))
    })
    .await;
}

#[tokio::test]
async fn a_guest_that_cannot_move_is_ended_where_that_is_allowed() {
    let cluster = start().await;
    let pod = running(&cluster, "None", false).await;
    outdate(&cluster, &pod).await;
    let kubevirts = kubevirt(&cluster, json!(["LiveMigrate", "Evict"])).await;
    deployed(&kubevirts).await;
    let going = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    wait(&cluster.pods, &pod.name_any(), "evicted", going).await;
    let migrations: Migrations = Api::namespaced(cluster.client.clone(), "default");
    assert!(migrations.list(&ListParams::default()).await.unwrap().items.is_empty());
}
