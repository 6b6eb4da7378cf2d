//! ReplicaSets, DaemonSets and StatefulSets keep what they promise.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, template};

pub(crate) const TESTS: &[Test] = &[
    ("a_replica_set_replaces_lost_pods", a_replica_set_replaces_lost_pods),
    ("a_daemon_set_runs_on_each_node_and_rolls", a_daemon_set_runs_on_each_node_and_rolls),
    ("a_stateful_set_counts", a_stateful_set_counts),
];

fn set(kind: &str, name: &str, spec: &Value) -> Value {
    let labels = json!({"app": name});
    let base = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
                      "spec": {"selector": {"matchLabels": labels}, "template": template(&labels, IDLE)}});
    crate::pods::with(base, &json!({"spec": spec}))
}

fn names(space: &Namespace, app: &str) -> Result<Vec<String>> {
    let list: Value =
        serde_json::from_str(&space.kubectl(&["get", "pods", "-l", &format!("app={app}"), "-o", "json"])?)?;
    let pods = list["items"].as_array().into_iter().flatten();
    let staying = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    Ok(staying.filter_map(|pod| pod["metadata"]["name"].as_str()).map(str::to_owned).collect())
}

fn a_replica_set_replaces_lost_pods() -> Result<()> {
    let space = Namespace::new("replicas")?;
    apply(&space, &[set("ReplicaSet", "r", &json!({"replicas": 2}))])?;
    space.kubectl(&["wait", "rs/r", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=120s"])?;
    let pods: Value = serde_json::from_str(&space.kubectl(&["get", "pods", "-l", "app=r", "-o", "json"])?)?;
    let first = pods["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    space.kubectl(&["delete", "pod", &first, "--timeout=60s"])?;
    space.kubectl(&["wait", "rs/r", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=120s"])?;
    space.kubectl(&["scale", "rs/r", "--replicas=0"])?;
    until("no pod was left", || {
        Ok(space.kubectl(&["get", "pods", "-l", "app=r", "-o", "name"])?.is_empty().then_some(()))
    })
}

fn a_daemon_set_runs_on_each_node_and_rolls() -> Result<()> {
    let space = Namespace::new("daemons")?;
    apply(&space, &[set("DaemonSet", "d", &json!({}))])?;
    space.kubectl(&["rollout", "status", "daemonset/d", "--timeout=120s"])?;
    let status = space.get("ds", "d")?["status"].clone();
    ensure!(status["desiredNumberScheduled"] == 1 && status["numberAvailable"] == 1, "{status}");
    space.kubectl(&["set", "env", "daemonset/d", "VERSION=2"])?;
    space.kubectl(&["rollout", "status", "daemonset/d", "--timeout=120s"])?;
    let env =
        space.kubectl(&["get", "pods", "-l", "app=d", "-o", "jsonpath={.items[0].spec.containers[0].env[0].value}"])?;
    ensure!(env == "2", "{env}");
    space.kubectl(&["patch", "ds", "d", "-p", r#"{"spec":{"template":{"spec":{"nodeSelector":{"no":"where"}}}}}"#])?;
    space.wait("ds", "d", "left the node", |set| set["status"]["desiredNumberScheduled"] == 0)?;
    Ok(())
}

fn a_stateful_set_counts() -> Result<()> {
    let space = Namespace::new("stateful-set")?;
    apply(
        &space,
        &[
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"clusterIP": "None", "selector": {"app": "s"}}}),
            set("StatefulSet", "s", &json!({"replicas": 2, "serviceName": "s"})),
        ],
    )?;
    space.kubectl(&["rollout", "status", "statefulset/s", "--timeout=120s"])?;
    ensure!(names(&space, "s")? == ["s-0", "s-1"], "{:?}", names(&space, "s")?);
    // A pod's name is known a moment after the pod is ready: its endpoint and the node's view of it follow.
    let name = format!("s-1.s.{}.svc.cluster.local", space.name());
    until("the name of a pod", || {
        let found = space.output(&["exec", "s-0", "--", "busybox", "nslookup", &name])?;
        Ok(String::from_utf8_lossy(&found.stdout).contains("10.244.").then_some(()))
    })?;
    space.kubectl(&["scale", "statefulset/s", "--replicas=1"])?;
    until("the last one went", || Ok((names(&space, "s")? == ["s-0"]).then_some(())))
}
