//! expand: a machine of the cluster, or one that is only written down.

use serde_json::{Value, json};

use crate::cluster::said;
use crate::server::{Answer, Server, not_found};

const PREFIX: &str = "/apis/subresources.kubevirt.io/v1/namespaces";

/// What the server makes of a machine.
fn expanded() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "demo" },
        "spec": { "template": { "spec": { "domain": { "cpu": { "sockets": 2 } } } } },
    })
}

fn answers(method: &str, path: &str) -> Answer {
    match (method, path.strip_prefix(PREFIX)) {
        ("GET", Some("/default/virtualmachines/demo/expand-spec")) => Answer::Object(200, expanded()),
        ("PUT", Some("/default/expand-vm-spec" | "/there/expand-vm-spec")) => Answer::Object(200, expanded()),
        _ => not_found(),
    }
}

#[tokio::test]
async fn a_machine_of_the_cluster_is_named() {
    let server = Server::start(answers).await;
    insta::assert_snapshot!(said(&server.virtctl(&["expand", "--vm", "demo"]).await), @r"
    exit 0
    apiVersion: kubevirt.io/v1
    kind: VirtualMachine
    metadata:
      name: demo
    spec:
      template:
        spec:
          domain:
            cpu:
              sockets: 2
    ");
    insta::assert_snapshot!(said(&server.virtctl(&["expand", "--vm", "other"]).await), @r"
    exit 1

    error: cannot expand VM default/other: not here
    hint: look for it with `kubectl get vm,vmi -A`, and choose the namespace with -n
    ");
}

#[tokio::test]
async fn another_machine_is_sent_to_the_namespace_it_is_written_for() {
    #[track_caller]
    fn check(asked: &[(String, String, Value)], namespace: &str, sent: &Value) {
        let (method, path, body) = asked.last().unwrap();
        assert_eq!((method.as_str(), path.as_str()), ("PUT", format!("{PREFIX}/{namespace}/expand-vm-spec").as_str()));
        assert_eq!(body, sent);
    }
    let server = Server::start(answers).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vm.yaml");
    let write = |machine: &Value| std::fs::write(&file, machine.to_string()).unwrap();
    let name = file.to_str().unwrap();
    let mut machine =
        json!({ "kind": "VirtualMachine", "metadata": {}, "spec": { "instancetype": { "name": "u1.large" } } });
    write(&machine);
    let output = server.virtctl(&["expand", "--file", name, "--output", "json"]).await;
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), expanded());
    check(&server.asked.lock().await, "default", &machine);
    machine["metadata"]["namespace"] = json!("there");
    write(&machine);
    assert!(server.virtctl(&["expand", "-f", name]).await.status.success());
    check(&server.asked.lock().await, "there", &machine);
    // What is said on the command line counts; whether the two agree is for the server to say.
    assert!(server.virtctl(&["expand", "-f", name, "-n", "default"]).await.status.success());
    check(&server.asked.lock().await, "default", &machine);
}

#[tokio::test]
async fn what_is_no_machine_is_not_sent() {
    let server = Server::start(answers).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pod.yaml");
    std::fs::write(&file, "kind: Pod\n").unwrap();
    let output = said(&server.virtctl(&["expand", "--file", file.to_str().unwrap()]).await);
    assert!(output.contains("its kind is \"Pod\""), "{output}");
    insta::assert_snapshot!(said(&server.virtctl(&["expand"]).await), @r"
    exit 2

    error: which machine is not said
    hint: name one with --vm, or give its manifest with --file
    ");
    assert!(server.asked.lock().await.is_empty());
}
