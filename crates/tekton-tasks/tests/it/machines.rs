//! Tasks about machines.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, cluster, refusal};
use crate::power::guest_at;

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
    cluster.apply(guest_at("a", NAMESPACE, phase, "127.0.0.1")).await;
}

#[tokio::test]
async fn a_machine_that_its_controller_starts_is_not_asked_to() {
    let cluster = cluster().await;
    for (strategy, asked) in [("Always", None), ("Once", None), ("RerunOnFailure", None), ("Manual", Some("start"))] {
        let name = strategy.to_lowercase();
        let params = [
            ("manifest", json!(manifest(&name).to_string())),
            ("runStrategy", json!(strategy)),
            ("startVM", json!("true")),
        ];
        assert_eq!(cluster.run("create-vm-from-manifest", &params).await.unwrap(), 0, "{strategy}");
        assert_eq!(cluster.power.asked(), asked.into_iter().collect::<Vec<_>>(), "{strategy}");
    }
    let mut receiver = manifest("b");
    receiver["spec"] = json!({ "runStrategy": "WaitAsReceiver", "template": receiver["spec"]["template"] });
    let params = [("manifest", json!(receiver.to_string())), ("startVM", json!("true"))];
    let said = refusal(cluster.run("create-vm-from-manifest", &params).await);
    assert!(said.contains("param startVM") && cluster.get(&vm("b")).await.is_none(), "{said}");
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
async fn a_watch_that_fails_ends_no_wait() {
    let cluster = cluster().await;
    let params = [("vmiName", json!("a")), ("successCondition", json!("status.phase == Succeeded"))];
    cluster.broken.store(2, Ordering::SeqCst);
    instance(&cluster, "Succeeded").await;
    assert_eq!(cluster.run("wait-for-vmi-status", &params).await.unwrap(), 0);
    assert_eq!(cluster.broken.load(Ordering::SeqCst), 0);
}

/// Who may not read it is told so, and waits for nothing.
#[tokio::test]
async fn a_machine_of_others_is_not_waited_for() {
    let cluster = cluster().await;
    cluster.apply(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "others" } })).await;
    cluster.apply(guest_at("a", "others", "Succeeded", "127.0.0.1")).await;
    let condition = ("successCondition", json!("status.phase == Succeeded"));
    let params = [("vmiName", json!("a")), ("vmiNamespace", json!("others")), condition];
    let said = refusal(cluster.run("wait-for-vmi-status", &params).await);
    assert!(said.contains("cannot watch VirtualMachineInstance others/a") && said.contains("forbidden"), "{said}");
}

/// The machine `a` with this strategy, and its guest.
async fn machine(cluster: &Cluster, strategy: &str, phase: Option<&str>) {
    let mut machine = manifest("a");
    machine["metadata"]["namespace"] = json!(NAMESPACE);
    machine["spec"] = json!({ "runStrategy": strategy, "template": machine["spec"]["template"] });
    cluster.apply(machine).await;
    if let Some(phase) = phase {
        instance(cluster, phase).await;
    }
}

#[tokio::test]
async fn a_machine_is_cleaned_up_without_a_command() {
    let cluster = cluster().await;
    let nothing = [("vmName", json!("a")), ("stop", json!("false"))];
    assert!(refusal(cluster.run("cleanup-vm", &nothing).await).contains("nothing is to be done"));
    let stop = [("vmName", json!("a")), ("stop", json!("true"))];
    assert!(refusal(cluster.run("cleanup-vm", &stop).await).contains("there is no VirtualMachine ci/a"));
    machine(&cluster, "Manual", Some("Running")).await;
    let delete = [("vmName", json!("a")), ("delete", json!("true"))];
    assert_eq!(cluster.run("cleanup-vm", &delete).await.unwrap(), 0);
    assert_eq!(cluster.power.asked(), ["stop"]);
    assert!(cluster.get(&vm("a")).await.is_none() && cluster.get(&vmi("a")).await.is_none());
    // Between two guests it is stopped as well: the next one would come.
    machine(&cluster, "Always", None).await;
    assert_eq!(cluster.run("cleanup-vm", &stop).await.unwrap(), 0);
    assert_eq!(cluster.power.asked(), ["stop"]);
    // What has stopped is not asked to.
    cluster.delete(&vm("a")).await;
    machine(&cluster, "Manual", Some("Succeeded")).await;
    assert_eq!(cluster.run("cleanup-vm", &stop).await.unwrap(), 0);
    assert!(cluster.power.asked().is_empty());
}

#[tokio::test]
async fn a_machine_that_cannot_be_stopped_is_deleted_all_the_same() {
    let cluster = cluster().await;
    machine(&cluster, "Manual", Some("Running")).await;
    cluster.power.is_down.store(true, Ordering::SeqCst);
    let params = [("vmName", json!("a")), ("delete", json!("true"))];
    let said = refusal(cluster.run("cleanup-vm", &params).await);
    assert!(said.contains("cannot stop VirtualMachine ci/a") && said.contains("virt-api is down"), "{said}");
    assert!(cluster.get(&vm("a")).await.is_none());
}

#[tokio::test]
async fn a_command_takes_a_connection() {
    let cluster = cluster().await;
    let params = [("vmName", json!("a")), ("command", json!(["true"]))];
    assert!(refusal(cluster.run("execute-in-vm", &params).await).contains("there is no Secret with ssh-privatekey"));
    let params = [("vmName", json!("a"))];
    assert!(refusal(cluster.run("execute-in-vm", &params).await).contains("one of command and script"));
}
