//! Pods with a shell, which look at the cluster from the inside.

use anyhow::Result;
use e2e::Namespace;
use serde_json::{Value, json};

/// An image with a shell and busybox.
pub(crate) const IMAGE: &str = "ferrovirt.local/component:v0.1.0";

/// A script for a container that has nothing to do and ends when it is told to.
pub(crate) const IDLE: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

/// A container that runs a script.
pub(crate) fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script]})
}

/// A base with a JSON merge patch applied.
pub(crate) fn with(mut base: Value, patch: &Value) -> Value {
    json_patch::merge(&mut base, patch);
    base
}

/// A pod with one container called `main`, which is root: its image would have it be somebody else.
pub(crate) fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"securityContext": {"runAsUser": 0}, "terminationGracePeriodSeconds": 2, "containers": [container("main", script)]}
    })
}

/// Like [`pod`], with more in its spec; `main` is merged into the container.
pub(crate) fn special(name: &str, script: &str, main: &Value, spec: &Value) -> Value {
    let container = with(container("main", script), main);
    let pod = pod(name, script);
    with(pod, &json!({"spec": with(spec.clone(), &json!({"containers": [container]}))}))
}

/// A template of pods for a workload.
pub(crate) fn template(labels: &Value, script: &str) -> Value {
    json!({"metadata": {"labels": labels}, "spec": pod("", script)["spec"]})
}

/// Applies objects, each given as JSON.
pub(crate) fn apply(space: &Namespace, objects: &[Value]) -> Result<()> {
    space.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())
}

/// Waits until a pod is Ready.
pub(crate) fn ready(space: &Namespace, name: &str) -> Result<()> {
    space.kubectl(&["wait", &format!("pod/{name}"), "--for=condition=Ready", "--timeout=120s"]).map(drop)
}

/// Makes a pod that idles, and waits until it is Ready.
pub(crate) fn idle(space: &Namespace, name: &str) -> Result<()> {
    apply(space, &[pod(name, IDLE)])?;
    ready(space, name)
}

/// Runs a script in a pod.
pub(crate) fn sh(space: &Namespace, pod: &str, script: &str) -> Result<String> {
    space.kubectl(&["exec", pod, "--", "sh", "-c", script])
}

/// Runs a script in a pod of its own until that ends, and returns what it printed.
pub(crate) fn once(space: &Namespace, pod: &Value) -> Result<String> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    apply(space, &[with(pod.clone(), &json!({"spec": {"restartPolicy": "Never"}}))])?;
    space.wait("pod", name, "ended", |pod| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))?;
    space.kubectl(&["logs", name])
}

/// What a program printed, as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
