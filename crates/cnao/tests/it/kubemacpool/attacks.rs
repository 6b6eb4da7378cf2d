//! What a tenant sends to have more than his share, or to bring the pool down.

use api::kubevirt::v1::VirtualMachine;
use cnao::kubemacpool::{MOST_INTERFACES, MOST_OPEN};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::cluster::{Cluster, addresses, create, machine, refused};

const MACHINES: &str = "/mutate-virtualmachines";
const PODS: &str = "/mutate-pods";

#[tokio::test]
async fn huge_and_malformed_objects_are_refused_and_reserve_nothing() {
    let cluster = Cluster::new([0xff, 0xff, 0xff]).await;
    let replica = cluster.replica().await;
    cluster.namespace("open", json!({ "mutatepods.kubemacpool.io": "allocate" })).await;
    let machines = cluster.machines();
    let names: Vec<String> = (0..10_000).map(|at| format!("m{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (code, message) = refused(machines.create(&PostParams::default(), &machine("vm", &names)).await);
    assert!(code == 422 && message.contains("has 10000 interfaces: at most 256"), "{code} {message}");
    let text = machine("vm", &[&format!("p={}", "f".repeat(500_000))]);
    let (code, message) = refused(machines.create(&PostParams::default(), &text).await);
    assert!(code == 422 && message.len() < 1000, "{code} {}", message.len());

    let pod = |networks: String| -> Pod {
        let spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
        let annotations = json!({ "k8s.v1.cni.cncf.io/networks": networks });
        serde_json::from_value(json!({ "metadata": { "name": "p", "annotations": annotations }, "spec": spec }))
            .unwrap()
    };
    let many = json!(vec![json!({ "name": "a" }); 10_000]).to_string();
    for networks in [many, "[".repeat(200_000), format!("[\"{}\"]", "x".repeat(200_000))] {
        let (code, message) = refused(cluster.of::<Pod>("open").create(&PostParams::default(), &pod(networks)).await);
        assert!(code == 422 && message.len() < 1000, "{code} {}", message.len());
    }
    // What only somebody sends who is not the API server.
    for object in
        [json!(null), json!([]), json!({ "metadata": 3 }), json!({ "metadata": { "annotations": [] }, "spec": "x" })]
    {
        for (path, operation) in [(MACHINES, "CREATE"), (MACHINES, "UPDATE"), (PODS, "CREATE"), (PODS, "DELETE")] {
            let request = json!({ "operation": operation, "namespace": "open", "object": object });
            assert_eq!(replica.ask(path, &request).await["allowed"], true, "{path} {operation} {object}");
        }
    }
    for (namespace, name) in
        [("", "vm"), ("../kube-system", "vm"), ("ns?watch=true", "vm"), ("nowhere", "vm"), ("ns", "../a")]
    {
        let request = json!({ "operation": "CREATE", "namespace": namespace, "object": machine(name, &["p"]) });
        let answer = replica.ask(MACHINES, &request).await;
        assert_eq!((&answer["allowed"], &answer["patch"]), (&json!(true), &Value::Null), "{namespace}/{name}");
    }
    assert!(cluster.reserved().await.is_empty());
    assert_eq!(addresses(&create(&machines, &machine("vm", &["p"])).await), ["02:00:00:00:00:00"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_never_stored_use_up_the_share_of_their_namespace_only() {
    let cluster = Cluster::new([0xff, 0xff, 0xff]).await;
    let replica = cluster.replica().await;
    cluster.namespace("other", json!({})).await;
    let names: Vec<String> = (0..MOST_INTERFACES).map(|at| format!("m{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let ask = async |at: usize| {
        let object = machine(&format!("vm-{at}"), &names);
        replica.ask(MACHINES, &json!({ "operation": "CREATE", "namespace": "ns", "object": object })).await
    };
    for at in 0..MOST_OPEN / MOST_INTERFACES {
        assert_eq!(ask(at).await["allowed"], true);
    }
    let refusal = ask(usize::MAX).await;
    let sentence =
        "ns has 1024 MAC addresses reserved for requests that were not stored: they are free again after 600 seconds";
    assert_eq!((&refusal["status"]["code"], &refusal["status"]["message"]), (&json!(429), &json!(sentence)));
    assert_eq!(cluster.reserved().await.len(), MOST_OPEN);
    let made = create(&cluster.of::<VirtualMachine>("other"), &machine("vm", &["p"])).await;
    assert_eq!(addresses(&made), ["02:00:00:00:04:00"]);
}

#[tokio::test]
async fn a_refused_request_keeps_no_address() {
    let cluster = Cluster::new([0, 0, 1]).await;
    let _replica = cluster.replica().await;
    let machines = cluster.machines();
    assert_eq!(refused(machines.create(&PostParams::default(), &machine("vm", &["a", "b", "c"])).await).0, 403);
    cluster.until_reserved(&[]).await;
    create(&machines, &machine("vm", &["a", "b"])).await;
}
