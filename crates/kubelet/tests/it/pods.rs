//! Pods from manifests, as a user sees them.

use std::time::Instant;

use serde_json::json;

use crate::machine::Machine;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_run_on_containerd() {
    let machine = Machine::start().await;
    thread(&machine).await;
}

/// Two containers, a volume between them, and the time it takes.
async fn thread(machine: &Machine) {
    let began = Instant::now();
    machine
        .create(
            "thread",
            json!({"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "a", "command": ["sh", "-c", "echo hello > /shared/file; sleep 1000"], "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
                {"name": "b", "command": ["sh", "-c", "until cat /shared/file; do sleep 0.1; done; sleep 1000"], "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}],
                "volumes": [{"name": "shared", "emptyDir": {}}]}),
        )
        .await;
    let pod = machine.ready("thread").await;
    println!("two containers ready after {:?}", began.elapsed());
    let status = pod.status.as_ref().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(status.pod_ip.as_deref().unwrap().starts_with("10.199."));
    let began = Instant::now();
    machine.delete("thread", 1).await;
    println!("deleted after {:?}", began.elapsed());
}
