//! Running objects that share an address.

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::{Cluster, Replica, create, until};

const MAC: &str = "02:00:00:00:00:aa";

async fn instance(cluster: &Cluster, namespace: &str, name: &str, mac: &str) -> VirtualMachineInstance {
    let object = json!({ "metadata": { "name": name }, "spec": { "domain": { "devices": {} } } });
    let api = cluster.of::<VirtualMachineInstance>(namespace);
    create(&api, &serde_json::from_value(object).unwrap()).await;
    let status = json!({ "phase": "Running", "interfaces": [{ "name": "p", "mac": mac }] });
    report(cluster, namespace, name, status).await
}

async fn report(cluster: &Cluster, namespace: &str, name: &str, status: Value) -> VirtualMachineInstance {
    let api = cluster.of::<VirtualMachineInstance>(namespace);
    let patch = Patch::Merge(json!({ "status": status }));
    match api.patch_status(name, &PatchParams::default(), &patch).await {
        Ok(found) => found,
        // The definition has no subresource for it.
        Err(_) => api.patch(name, &PatchParams::default(), &patch).await.unwrap(),
    }
}

async fn running_pod(cluster: &Cluster, namespace: &str, pod: Value) {
    let mut pod = pod;
    pod["metadata"]["annotations"] =
        json!({ "k8s.v1.cni.cncf.io/networks": json!([{ "name": "a", "mac": MAC }]).to_string() });
    pod["spec"] = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let api = cluster.of::<Pod>(namespace);
    create(&api, &pod).await;
    let status = json!({ "status": { "phase": "Running" } });
    let name = pod.metadata.name.unwrap();
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// What an object was told.
async fn told(cluster: &Cluster, namespace: &str, name: &str) -> Vec<String> {
    let all = cluster.of::<Event>(namespace).list(&ListParams::default()).await.unwrap();
    let about = |event: &&Event| {
        event.involved_object.name.as_deref() == Some(name) && event.reason.as_deref() == Some("MACCollision")
    };
    all.iter().filter(about).filter_map(|event| event.message.clone()).collect()
}

async fn until_told(cluster: &Cluster, namespace: &str, name: &str, message: &str) {
    let message = format!("MAC {MAC}: Collision between {message}");
    until(&format!("{name} told {message}"), async || {
        told(cluster, namespace, name).await.contains(&message).then_some(())
    })
    .await;
}

async fn until_counted(replica: &Replica, count: usize) {
    let series = format!("kmp_mac_collisions{{mac=\"{MAC}\"}} {count}\n");
    until(&series, async || {
        let text = replica.metrics().await;
        let found = if count == 0 { !text.contains("kmp_mac_collisions{") } else { text.contains(&series) };
        found.then_some(())
    })
    .await;
}

#[tokio::test]
async fn objects_that_run_with_one_address_are_told_and_counted() {
    let cluster = Cluster::new([0, 0, 9]).await;
    let (replica, other) = (cluster.replica().await, cluster.replica().await);
    cluster.namespace("open", json!({ "mutatepods.kubemacpool.io": "allocate" })).await;
    cluster.namespace("closed", json!({ "mutatevirtualmachines.kubemacpool.io": "ignore" })).await;
    instance(&cluster, "ns", "one", MAC).await;
    instance(&cluster, "ns", "two", "02-00-00-00-00-AA").await;
    let both = "VirtualMachineInstance ns/one, VirtualMachineInstance ns/two";
    until_told(&cluster, "ns", "one", both).await;
    until_told(&cluster, "ns", "two", both).await;
    until_counted(&replica, 2).await;
    until_counted(&other, 2).await;

    // Namespaces that are not served do not count; pods of those that are do.
    instance(&cluster, "closed", "three", MAC).await;
    running_pod(&cluster, "ns", json!({ "metadata": { "name": "unserved" } })).await;
    running_pod(&cluster, "open", json!({ "metadata": { "name": "pod" } })).await;
    until_told(&cluster, "open", "pod", "Pod open/pod, 2 objects of other namespaces").await;
    until_told(&cluster, "ns", "one", &format!("{both}, 1 object of another namespace")).await;
    until_counted(&replica, 3).await;
    assert!(told(&cluster, "closed", "three").await.is_empty() && told(&cluster, "ns", "unserved").await.is_empty());

    // A namespace that is served from now on does.
    let open = json!({ "metadata": { "labels": { "mutatepods.kubemacpool.io": null, "mutatevirtualmachines.kubemacpool.io": null } } });
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    for namespace in ["open", "closed"] {
        namespaces.patch(namespace, &PatchParams::default(), &Patch::Merge(&open)).await.unwrap();
    }
    until_told(&cluster, "closed", "three", "VirtualMachineInstance closed/three, 2 objects of other namespaces").await;
    until_counted(&replica, 3).await;

    report(&cluster, "ns", "one", json!({ "phase": "Succeeded" })).await;
    cluster.of::<VirtualMachineInstance>("ns").delete("two", &DeleteParams::default()).await.unwrap();
    until_counted(&replica, 0).await;
    until_counted(&other, 0).await;
}

#[tokio::test]
async fn the_two_sides_of_a_migration_and_a_launcher_are_no_collision() {
    let cluster = Cluster::new([0, 0, 9]).await;
    let replica = cluster.replica().await;
    cluster.namespace("open", json!({ "mutatepods.kubemacpool.io": "allocate" })).await;
    let source = instance(&cluster, "open", "source", MAC).await;
    let migration = json!({ "sourceState": { "migrationUID": "s" }, "targetState": { "migrationUID": "t" } });
    report(&cluster, "open", "source", json!({ "migrationState": migration })).await;
    let object = json!({ "metadata": { "name": "target" }, "spec": { "domain": { "devices": {} } } });
    create(&cluster.of::<VirtualMachineInstance>("ns"), &serde_json::from_value(object).unwrap()).await;
    let interfaces = json!([{ "name": "p", "mac": MAC }]);
    let running = json!({ "phase": "Running", "interfaces": interfaces, "migrationState": migration });
    report(&cluster, "ns", "target", running).await;
    let owner = |uid: &str| json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "source", "uid": uid, "controller": true }]);
    let uid = source.metadata.uid.unwrap();
    running_pod(&cluster, "open", json!({ "metadata": { "name": "virt-launcher", "ownerReferences": owner(&uid) } }))
        .await;
    // Only now there is one: by a pod that says it is a launcher of an instance that never was.
    running_pod(&cluster, "open", json!({ "metadata": { "name": "pretender", "ownerReferences": owner("other") } }))
        .await;
    let message = "VirtualMachineInstance open/source, Pod open/pretender, 1 object of another namespace";
    until_told(&cluster, "open", "pretender", message).await;
    until_counted(&replica, 3).await;
    assert!(told(&cluster, "open", "virt-launcher").await.is_empty());
    assert_eq!(told(&cluster, "open", "source").await.len(), 1);
}
