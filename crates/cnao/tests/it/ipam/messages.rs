//! What the webhook says.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::cluster::{Cluster, Replica, launcher, make, refusal};

fn request(operation: &str, object: &Value, old: &Value) -> Value {
    let user = json!({ "username": "virt-controller", "groups": ["system:authenticated"] });
    json!({ "operation": operation, "namespace": "ns", "object": object, "oldObject": old, "userInfo": user })
}

async fn check(replica: &Replica, request: &Value, word: &str) {
    let answer = replica.ask(request).await;
    assert_eq!((&answer["allowed"], &answer["status"]["message"]), (&json!(true), &json!(word)), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_has_its_word() {
    let cluster = Cluster::new().await;
    let replica = cluster.replica(false).await;
    let (_, instance) = cluster.machine("vm", &[("blue", "kept")]).await;
    let (_, plain) = cluster.machine("plain", &[("plain", "plain")]).await;
    let stored = json!(make(&cluster.user("virt-controller"), &launcher("p", &instance)).await.unwrap());
    let none = Value::Null;
    check(&replica, &request("CREATE", &json!({ "metadata": {} }), &none), "not a VM").await;
    check(&replica, &request("CREATE", &json!(launcher("q", &plain)), &none), "carry on").await;
    check(&replica, &request("UPDATE", &stored, &stored), "mutation not needed").await;
    check(&replica, &request("UPDATE", &stored, &json!(launcher("p", &instance))), "mutation not needed").await;
    let mut other = request("CREATE", &json!(launcher("q", &plain)), &none);
    other["namespace"] = json!("empty");
    other["object"]["metadata"]["annotations"] = json!({ "kubevirt.io/domain": "vm" });
    check(&replica, &other, "no mutation required").await;
    // What only somebody sends who is not the API server.
    for object in [json!(null), json!([]), json!({ "metadata": 3 }), json!({ "metadata": { "annotations": [] } })] {
        check(&replica, &request("CREATE", &object, &none), "not a VM").await;
    }
    let mut dry = request("CREATE", &json!(launcher("q", &instance)), &none);
    dry["dryRun"] = json!(true);
    assert!(replica.ask(&dry).await["patch"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_makes_no_claim() {
    let cluster = Cluster::new().await;
    let replica = cluster.replica(false).await;
    let (_, instance) = cluster.machine("vm", &[("blue", "kept")]).await;
    let mut dry = request("CREATE", &json!(launcher("q", &instance)), &Value::Null);
    dry["dryRun"] = json!(true);
    assert!(replica.ask(&dry).await["patch"].is_string());
    assert!(cluster.claim("vm.blue").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_said_before_a_pod_is_made() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let virt = cluster.user("virt-controller");
    let (_, instance) = cluster.machine("vm", &[("my_net", "kept")]).await;
    let refused = refusal(make(&virt, &launcher("p", &instance)).await);
    assert!(
        refused.contains("spec.networks: name \"my_net\"") && refused.contains("is no name of an object"),
        "{refused}"
    );
    crate::cluster::until("the machine's owner is told", async || {
        cluster.told("vm").await.iter().any(|message| message.contains("is no name of an object")).then_some(())
    })
    .await;
    cluster.network("ns", "kept", &json!({ "allowPersistentIPs": "yes" })).await;
    let refused = refusal(make(&virt, &launcher("p", &instance)).await);
    assert!(refused.contains("allowPersistentIPs in spec.config is \"yes\": write true or false"), "{refused}");
    // The pod's own network in the place of which there is a primary one.
    let config = json!({ "name": "udn", "role": "primary", "allowPersistentIPs": true });
    cluster.network("ns", "udn", &config).await;
    let (_, instance) = cluster.machine("vm2", &[("net", "")]).await;
    let mut pod = launcher("p2", &instance);
    pod.annotations_mut().insert("v1.multus-cni.io/default-network".into(), "mine".into());
    let refused = refusal(make(&virt, &pod).await);
    let sentence =
        "multus default network annotation \"v1.multus-cni.io/default-network\" is not allowed on pod creation";
    assert!(refused.contains(sentence), "{refused}");
}
