//! migrate, migrate-cancel and evacuate-cancel against a server that answers as an API server does.

use serde_json::{Value, json};

use crate::cluster::said;
use crate::server::{Answer, Server, list, not_found};

fn migration(version: u32, phase: &str, state: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": { "name": "m1", "namespace": "default", "uid": "u", "resourceVersion": version.to_string() },
        "spec": { "vmiName": "demo" }, "status": { "phase": phase, "migrationState": state },
    })
}

fn answers(end: &str, state: &Value, method: &str, path: &str) -> Answer {
    let watch = path.contains("watch=true");
    if method == "PUT" && path.ends_with("/virtualmachines/demo/migrate") {
        let details = json!({ "kind": "virtualmachineinstancemigrations", "name": "m1", "uid": "u" });
        return Answer::Object(202, json!({ "kind": "Status", "status": "Success", "details": details }));
    }
    if path.contains("/virtualmachineinstancemigrations?") {
        if !watch {
            return list("VirtualMachineInstanceMigrationList", &[migration(1, "Scheduling", &json!({}))]);
        }
        let event = |object: Value| json!({ "type": "MODIFIED", "object": object });
        return Answer::Events(vec![
            event(migration(2, "PreparingTarget", &json!({}))),
            event(migration(3, end, state)),
        ]);
    }
    if path.contains("/virtualmachineinstances?") {
        return if watch { Answer::Events(vec![]) } else { list("VirtualMachineInstanceList", &[]) };
    }
    not_found()
}

#[tokio::test]
async fn watched_until_it_is_there() {
    let server = Server::start(|method, path| answers("Succeeded", &json!({ "targetNode": "n2" }), method, path)).await;
    let output = server.virtctl(&["migrate", "demo", "--watch", "--addedNodeSelector=kubernetes.io/hostname=n2"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 0
    VM demo was scheduled to migrate
    Scheduling
    PreparingTarget
    Succeeded: runs on n2
    ");
    let asked = server.asked.lock().await;
    let (method, path, body) = &asked[0];
    assert_eq!(
        (method.as_str(), path.as_str()),
        ("PUT", "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/demo/migrate")
    );
    assert_eq!(body, &json!({ "addedNodeSelector": { "kubernetes.io/hostname": "n2" } }));
}

#[tokio::test]
async fn watched_until_it_fails() {
    let server =
        Server::start(|method, path| answers("Failed", &json!({ "failureReason": "no route to n2" }), method, path))
            .await;
    let output = server.virtctl(&["migrate", "demo", "-w"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 1
    VM demo was scheduled to migrate
    Scheduling
    PreparingTarget
    Failed
    error: VM default/demo was not migrated: no route to n2
    ");
}

#[tokio::test]
async fn the_migration_under_way_is_cancelled() {
    let server = Server::start(|method, path| match method {
        "DELETE" => Answer::Object(200, json!({ "kind": "Status", "status": "Success" })),
        _ if path.contains("vmi-name%3Ddemo") || path.contains("vmi-name=demo") => {
            let mut over = migration(1, "Failed", &json!({}));
            over["metadata"]["name"] = json!("m0");
            list("VirtualMachineInstanceMigrationList", &[over, migration(1, "Running", &json!({}))])
        }
        _ => list("VirtualMachineInstanceMigrationList", &[]),
    })
    .await;
    let output = server.virtctl(&["migrate-cancel", "demo"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 0
    VM demo was scheduled to migrate-cancel
    ");
    let deleted = server.asked.lock().await.last().cloned().unwrap();
    assert!(deleted.0 == "DELETE" && deleted.1.contains("/virtualmachineinstancemigrations/m1"), "{deleted:?}");
    let output = server.virtctl(&["migrate-cancel", "other"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 1

    error: Found no migration to cancel for other
    hint: `kubectl get vmim -n default` shows those that ended
    ");
}

#[tokio::test]
async fn evacuations_are_cancelled_one_by_one_or_by_node() {
    let server = Server::start(|method, path| match (method, path) {
        ("PUT", _) => Answer::Object(200, json!({ "kind": "Status", "status": "Success" })),
        _ => {
            let vmi = |name: &str, node: &str| {
                json!({ "metadata": { "name": name, "namespace": "ns" }, "status": { "evacuationNodeName": node } })
            };
            list("VirtualMachineInstanceList", &[vmi("a", "n1"), vmi("b", "n2")])
        }
    })
    .await;
    let output = server.virtctl(&["evacuate-cancel", "vm", "demo"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 0
    VM demo was canceled evacuation
    ");
    let output = server.virtctl(&["evacuate-cancel", "node", "n1"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 0
    VMI ns/a was canceled evacuation
    ");
    let last = server.asked.lock().await.last().cloned().unwrap();
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/a/evacuate/cancel";
    assert_eq!((last.1.as_str(), last.2), (path, json!({ "evacuationNodeName": "n1" })));
}
