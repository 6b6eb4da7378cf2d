//! Pods that ask Multus for networks.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::cluster::{Cluster, create, machine, refused};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

fn pod(networks: &str) -> Pod {
    let spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let metadata = json!({ "generateName": "web-", "annotations": { NETWORKS: networks } });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

fn networks(pod: &Pod) -> Value {
    serde_json::from_str(&pod.annotations()[NETWORKS]).unwrap()
}

async fn delete(cluster: &Cluster, pod: &Pod) {
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    cluster.of::<Pod>(&pod.namespace().unwrap()).delete(&pod.name_any(), &at_once).await.unwrap();
}

#[tokio::test]
async fn pods_of_namespaces_that_ask_for_it_get_addresses() {
    let cluster = Cluster::new([0, 0, 3]).await;
    let _replica = cluster.replica().await;
    let asked = r#"[{"name":"a","interface":"net7"},{"name":"b","mac":"02:00:00:00:00:03"}]"#;
    let plain = create(&cluster.of::<Pod>("ns"), &pod(asked)).await;
    assert_eq!(plain.annotations()[NETWORKS], asked);

    cluster.namespace("open", json!({ "mutatepods.kubemacpool.io": "allocate" })).await;
    let pods = cluster.of::<Pod>("open");
    let made = create(&pods, &pod(asked)).await;
    let expect = json!([
        { "name": "a", "interface": "net7", "mac": "02:00:00:00:00:00" }, { "name": "b", "mac": "02:00:00:00:00:03" },
    ]);
    assert_eq!(networks(&made), expect);
    let short = create(&pods, &pod("a,b")).await;
    assert_eq!(short.annotations()[NETWORKS], "a,b");
    let (code, message) = refused(pods.create(&PostParams::default(), &pod("[{")).await);
    assert!(code == 422 && message.contains("is no list of networks in JSON"), "{message}");

    // A pod without a name yet is known by its name once it is there, and its address is free when it is gone.
    cluster.until_reserved(&["02:00:00:00:00:00", "02:00:00:00:00:03"]).await;
    delete(&cluster, &made).await;
    // The pod of the namespace that is not served has the other one, too.
    cluster.until_reserved(&["02:00:00:00:00:03"]).await;
    delete(&cluster, &plain).await;
    cluster.until_reserved(&[]).await;
}

#[tokio::test]
async fn a_launcher_has_the_addresses_of_its_machine_and_an_instance_alone_gets_its_own() {
    let cluster = Cluster::new([0, 0, 9]).await;
    let _replica = cluster.replica().await;
    cluster.namespace("open", json!({ "mutatepods.kubemacpool.io": "allocate" })).await;
    let launcher = |instance: &str| {
        let mut pod = pod(r#"[{"name":"a"}]"#);
        let owner = json!([{
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": instance, "uid": "u", "controller": true,
        }]);
        pod.metadata.owner_references = Some(serde_json::from_value(owner).unwrap());
        pod
    };
    create(&cluster.of("open"), &machine("vm", &["p"])).await;
    let pods = cluster.of::<Pod>("open");
    assert_eq!(networks(&create(&pods, &launcher("vm")).await), json!([{ "name": "a" }]));
    let alone = create(&pods, &launcher("alone")).await;
    assert_eq!(networks(&alone), json!([{ "name": "a", "mac": "02:00:00:00:00:01" }]));
}
