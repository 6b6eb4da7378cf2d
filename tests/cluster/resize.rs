//! Pods that become larger and smaller while they run.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[("a_running_pod_is_resized", a_running_pod_is_resized)];

/// The quota of cpu time and the limit on memory, as the container's own group has them.
const GROUP: &str = "cd /sys/fs/cgroup; cat cpu.max memory.max 2>/dev/null || \
    cat cpu/cpu.cfs_quota_us memory/memory.limit_in_bytes";

fn size(requests: [&str; 2], limits: [&str; 2]) -> Value {
    let of = |[cpu, memory]: [&str; 2]| json!({"cpu": cpu, "memory": memory});
    json!({"requests": of(requests), "limits": of(limits)})
}

fn resize(space: &Namespace, size: &Value) -> Result<String> {
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": size}]}}).to_string();
    space.kubectl(&["patch", "pod", "p", "--subresource", "resize", "-p", &patch])
}

/// Waits until the container has the size, and the group says so.
fn has(space: &Namespace, size: &Value, quota: &str, memory: &str) -> Result<()> {
    let pod = space.wait("pod", "p", "had its size", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        let busy =
            conditions.into_iter().flatten().any(|c| c["type"].as_str().is_some_and(|t| t.starts_with("PodResize")));
        !busy && pod["status"]["containerStatuses"][0]["resources"] == *size
    })?;
    let status = &pod["status"]["containerStatuses"][0];
    ensure!(status["allocatedResources"] == size["requests"], "{status}");
    ensure!(status["restartCount"] == 0, "{status}");
    ensure!(pod["status"]["observedGeneration"] == pod["metadata"]["generation"], "{pod}");
    let group = sh(space, "p", GROUP)?;
    let words: Vec<&str> = group.split_whitespace().collect();
    ensure!(words.first() == Some(&quota) && words.last() == Some(&memory), "{group}");
    Ok(())
}

fn a_running_pod_is_resized() -> Result<()> {
    let space = Namespace::new("resize")?;
    let small = size(["50m", "32Mi"], ["500m", "64Mi"]);
    apply(&space, &[special("p", IDLE, &json!({"resources": small}), &json!({}))])?;
    ready(&space, "p")?;
    has(&space, &small, "50000", "67108864")?;
    let started = space.get("pod", "p")?["status"]["containerStatuses"][0]["containerID"].clone();
    let large = size(["100m", "48Mi"], ["1", "128Mi"]);
    resize(&space, &large)?;
    has(&space, &large, "100000", "134217728")?;
    let less = size(["60m", "40Mi"], ["600m", "96Mi"]);
    resize(&space, &less)?;
    has(&space, &less, "60000", "100663296")?;
    ensure!(space.get("pod", "p")?["status"]["containerStatuses"][0]["containerID"] == started, "another container");
    // What no node of this size has is said, and changes nothing.
    resize(&space, &size(["1000", "40Mi"], ["1000", "96Mi"]))?;
    let pod = space.wait("pod", "p", "was refused", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|c| c["type"] == "PodResizePending" && c["reason"] == "Infeasible")
    })?;
    ensure!(pod["status"]["containerStatuses"][0]["resources"] == less, "{pod}");
    resize(&space, &less)?;
    has(&space, &less, "60000", "100663296")?;
    let events = space.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"])?;
    for reason in ["ResizeStarted", "ResizeCompleted", "ResizeInfeasible"] {
        ensure!(events.contains(reason), "{events}");
    }
    let refused = resize(&space, &json!({"limits": {"ephemeral-storage": "1Gi"}}));
    let said = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(said.contains("only cpu and memory resources are mutable"), "{said}");
    Ok(())
}
