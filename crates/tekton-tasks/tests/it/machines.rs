//! Tasks about machines.

use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, cluster, refusal};

fn vm(name: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/{name}")
}

fn vmi(name: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/{name}")
}

fn manifest(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": name },
        "spec": { "running": false, "template": { "spec": { "domain": { "devices": {} } } } },
    })
}

#[tokio::test]
async fn a_machine_is_made_of_a_manifest() {
    let cluster = cluster().await;
    let params = [
        ("manifest", json!(manifest("a").to_string())),
        ("runStrategy", json!("Manual")),
        ("setOwnerReference", json!("true")),
    ];
    assert_eq!(cluster.run("create-vm-from-manifest", &params).await.unwrap(), 0);
    assert_eq!((cluster.result("name").as_str(), cluster.result("namespace").as_str()), ("a", NAMESPACE));
    let made = cluster.get(&vm("a")).await.unwrap();
    assert_eq!((&made["spec"]["runStrategy"], &made["spec"]["running"]), (&json!("Manual"), &Value::Null));
    assert_eq!(made["metadata"]["ownerReferences"][0]["name"], "step");
    let twice = cluster.run("create-vm-from-manifest", &params).await;
    assert!(refusal(twice).contains("cannot create VirtualMachine ci/a"));
}

#[tokio::test]
async fn contradicting_params_make_nothing() {
    let cluster = cluster().await;
    let said = async |params: &[(&str, Value)]| refusal(cluster.run("create-vm-from-manifest", params).await);
    assert!(said(&[]).await.contains("one of manifest and virtctl has to be given"));
    let both = [("manifest", json!(manifest("a").to_string())), ("virtctl", json!("--name a"))];
    assert!(said(&both).await.contains("only one of manifest and virtctl"));
    assert!(said(&[("manifest", json!("kind: Pod"))]).await.contains("not VirtualMachine"));
    let bad = [("manifest", json!(manifest("a").to_string())), ("startVM", json!("perhaps"))];
    assert!(said(&bad).await.contains("param startVM"));
    assert!(cluster.get(&vm("a")).await.is_none());
}

async fn instance(cluster: &Cluster, phase: &str) {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": "a", "namespace": NAMESPACE },
        "spec": { "domain": { "devices": {} } }, "status": { "phase": phase },
    });
    cluster.apply(object).await;
}

#[tokio::test]
async fn an_instance_is_waited_for_until_a_condition_holds() {
    let cluster = cluster().await;
    let wait = |success: &str, failure: &str| {
        [("vmiName", json!("a")), ("successCondition", json!(success)), ("failureCondition", json!(failure))]
    };
    let bad = cluster.run("wait-for-vmi-status", &wait("status.phase in Failed", "")).await;
    assert!(refusal(bad).contains("param successCondition"), "it is refused before anything is waited for");
    assert!(refusal(cluster.run("wait-for-vmi-status", &wait("", "")).await).contains("has to be given"));
    let params = wait("status.phase == Succeeded", "status.phase in (Failed, Unknown)");
    let waiting = cluster.run("wait-for-vmi-status", &params);
    let playing = async {
        instance(&cluster, "Running").await;
        instance(&cluster, "Succeeded").await;
    };
    assert_eq!(tokio::join!(waiting, playing).0.unwrap(), 0);
    instance(&cluster, "Failed").await;
    let failed = cluster.run("wait-for-vmi-status", &params).await;
    assert!(refusal(failed).contains("the failure condition"));
}

#[tokio::test]
async fn a_machine_is_cleaned_up_without_a_command() {
    let cluster = cluster().await;
    let nothing = [("vmName", json!("a")), ("stop", json!("false"))];
    assert!(refusal(cluster.run("cleanup-vm", &nothing).await).contains("nothing is to be done"));
    let gone = [("vmName", json!("a")), ("stop", json!("true"))];
    assert!(refusal(cluster.run("cleanup-vm", &gone).await).contains("there is no VirtualMachine ci/a"));
    cluster.apply(json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "a", "namespace": NAMESPACE }, "spec": manifest("a")["spec"] })).await;
    let delete = [("vmName", json!("a")), ("delete", json!("true"))];
    assert_eq!(cluster.run("cleanup-vm", &delete).await.unwrap(), 0);
    assert!(cluster.get(&vm("a")).await.is_none() && cluster.get(&vmi("a")).await.is_none());
}

#[tokio::test]
async fn a_command_takes_a_connection() {
    let cluster = cluster().await;
    let params = [("vmName", json!("a")), ("command", json!(["true"]))];
    assert!(refusal(cluster.run("execute-in-vm", &params).await).contains("there is no Secret with ssh-privatekey"));
    let params = [("vmName", json!("a"))];
    assert!(refusal(cluster.run("execute-in-vm", &params).await).contains("one of command and script"));
}
