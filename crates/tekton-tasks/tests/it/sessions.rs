//! Commands in guests: a server that hangs up stands for the guest's.

use std::path::Path;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::cluster::{Cluster, NAMESPACE, cluster, refusal};
use crate::power::guest_at;

/// What `ssh` ends with when there is no conversation.
const NONE: u8 = 255;

async fn machine(cluster: &Cluster, strategy: &str) {
    cluster
        .apply(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "a", "namespace": NAMESPACE },
            "spec": { "runStrategy": strategy, "template": { "spec": { "domain": { "devices": {} } } } },
        }))
        .await;
}

/// A connection's Secret, as it is mounted.
fn secret(dir: &Path, options: &str) -> String {
    for (name, text) in [
        ("user", "me"),
        ("ssh-privatekey", "k"),
        ("disable-strict-host-key-checking", "true"),
        ("additional-ssh-options", options),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    format!("--connection={}", dir.display())
}

/// A server of SSH on a port of its own; it hangs up.
async fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            drop(connection);
        }
    });
    port
}

fn command(task: &str) -> Vec<(&'static str, Value)> {
    let mut params = vec![("vmName", json!("a")), ("command", json!(["true"]))];
    if task == "cleanup-vm" {
        params.push(("delete", json!("true")));
    }
    params
}

#[tokio::test]
async fn a_guest_is_waited_for_at_the_port_of_its_connection() {
    let cluster = cluster().await;
    machine(&cluster, "Manual").await;
    let dir = tempfile::tempdir().unwrap();
    let connection = secret(dir.path(), &format!("-p {}", server().await));
    let done = cluster.run_with("execute-in-vm", &command("execute-in-vm"), &[connection]).await;
    assert_eq!((done.unwrap(), cluster.power.asked()), (NONE, vec!["start".to_owned()]));
}

#[tokio::test]
async fn a_machine_that_always_runs_is_waited_for_and_not_started() {
    let cluster = cluster().await;
    machine(&cluster, "Always").await;
    let dir = tempfile::tempdir().unwrap();
    let connection = [secret(dir.path(), &format!("-p {}", server().await))];
    let params = command("execute-in-vm");
    let waiting = cluster.run_with("execute-in-vm", &params, &connection);
    let playing = cluster.apply(guest_at("a", NAMESPACE, "Running", "127.0.0.1"));
    assert_eq!(tokio::join!(waiting, playing).0.unwrap(), NONE);
    assert!(cluster.power.asked().is_empty());
}

#[tokio::test]
async fn a_machine_that_has_run_once_is_not_waited_for() {
    let cluster = cluster().await;
    machine(&cluster, "Once").await;
    cluster.apply(guest_at("a", NAMESPACE, "Succeeded", "127.0.0.1")).await;
    let dir = tempfile::tempdir().unwrap();
    let connection = [secret(dir.path(), "")];
    let said = refusal(cluster.run_with("execute-in-vm", &command("execute-in-vm"), &connection).await);
    assert!(said.contains("cannot start VirtualMachine ci/a: its run strategy is Once, and it has run"), "{said}");
}

/// A guest that does not come is told of by what is missing, and the machine is deleted then.
#[tokio::test]
async fn a_guest_that_does_not_answer_is_told_of() {
    let cluster = cluster().await;
    machine(&cluster, "Always").await;
    let dir = tempfile::tempdir().unwrap();
    let connection = [secret(dir.path(), "-p 1")];
    let mut params = command("cleanup-vm");
    params.extend([("timeout", json!("1s")), ("stop", json!("false"))]);
    let said = refusal(cluster.run_with("cleanup-vm", &params, &connection).await);
    assert!(said.contains("VirtualMachineInstance ci/a had no address after"), "{said}");
    machine(&cluster, "Always").await;
    cluster.apply(guest_at("a", NAMESPACE, "Running", "127.0.0.1")).await;
    let said = refusal(cluster.run_with("cleanup-vm", &params, &connection).await);
    assert!(said.contains("the guest of VirtualMachine ci/a did not answer at 127.0.0.1 port 1"), "{said}");
}

#[tokio::test]
async fn the_code_of_a_command_survives_a_machine_that_does_not_stop() {
    let cluster = cluster().await;
    machine(&cluster, "Manual").await;
    cluster.apply(guest_at("a", NAMESPACE, "Running", "127.0.0.1")).await;
    cluster.power.is_down.store(true, std::sync::atomic::Ordering::SeqCst);
    let dir = tempfile::tempdir().unwrap();
    let connection = [secret(dir.path(), &format!("-p {}", server().await))];
    let error = cluster.run_with("cleanup-vm", &command("cleanup-vm"), &connection).await.unwrap_err();
    assert_eq!(error.code(), NONE);
    let said = error.to_string();
    assert!(said.contains("the command ended with 255; cannot stop VirtualMachine ci/a"), "{said}");
    let path = format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/a");
    assert!(cluster.get(&path).await.is_none(), "it is deleted all the same");
}
