//! A second node: pods of both reach each other and their Services, a node that was cut off comes back as it was, one that
//! was stopped gives its pods time to end; and simulated nodes.

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::packets;
use crate::pods::{IDLE, apply, ready, sh, special, with};
use crate::storage;
use crate::survival::ferrovirt;

pub(crate) const TESTS: &[Test] = &[
    ("a_second_node_joins_is_cut_off_and_leaves", a_second_node_joins_is_cut_off_and_leaves),
    ("simulated_nodes_run_pods_that_are_none", simulated_nodes_run_pods_that_are_none),
];

fn simulated_nodes_run_pods_that_are_none() -> Result<()> {
    let up = |count: &str| ferrovirt(&["up", "--cluster-only", "--simulated-nodes", count]);
    let said = up("3")?;
    ensure!(said.contains("3 simulated nodes are Ready"), "{said}");
    let outcome = on_simulated_nodes();
    up("0")?;
    let left = Namespace::kubectl_in("default", &["get", "nodes", "-l", SIMULATED, "-o", "name"])?;
    ensure!(left.trim().is_empty(), "still there: {left}");
    outcome
}

const SIMULATED: &str = "node.kubernetes.io/instance-type=simulated";

fn on_simulated_nodes() -> Result<()> {
    let space = Namespace::new("simulated")?;
    ensure!(ferrovirt(&["node", "list"])?.lines().filter(|line| line.contains("simulated")).count() == 3);
    let (key, kind) = SIMULATED.split_once('=').unwrap_or_default();
    let pod = |annotations: Value, policy: &str| {
        json!({"metadata": {"labels": {"app": "load"}, "annotations": annotations},
            "spec": {"restartPolicy": policy, "nodeSelector": {(key): kind}, "containers": [{"name": "c", "image": "none"}]}})
    };
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "load"},
        "spec": {"replicas": 30, "selector": {"matchLabels": {"app": "load"}}, "template": pod(json!({}), "Always")}});
    let ends = json!({"simulated.ferrovirt.io/runs-for": "1"});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
        "spec": {"completions": 4, "parallelism": 2, "template": pod(ends, "Never")}});
    apply(&space, &[deployment, job])?;
    space.kubectl(&["rollout", "status", "deployment/load", "--timeout=60s"])?;
    space.kubectl(&["wait", "job/once", "--for=condition=Complete", "--timeout=60s"])?;
    // A Job that stands keeps its pods.
    space.kubectl(&["delete", "job/once"])?;
    space.kubectl(&["scale", "deployment/load", "--replicas=0"])?;
    space.kubectl(&["wait", "pod", "-l", "app=load", "--for=delete", "--timeout=60s"])?;
    Ok(())
}

/// One more node, which leaves whatever happens: the tests that follow expect those that were there.
pub(crate) struct Joined(String);

impl Joined {
    pub(crate) fn new() -> Result<Self> {
        let said = ferrovirt(&["node", "add"])?;
        let name = said.split_whitespace().find(|word| word.strip_prefix("node").is_some_and(|n| !n.is_empty()));
        Ok(Self(name.with_context(|| format!("no node was added: {said}"))?.to_owned()))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let _ = ferrovirt(&["node", "remove", &self.0]);
    }
}

fn a_second_node_joins_is_cut_off_and_leaves() -> Result<()> {
    let said = ferrovirt(&["node", "add"])?;
    ensure!(said.contains("node node2 is Ready"), "{said}");
    let outcome = on_two_nodes();
    // The tests that follow expect one node, whatever became of this one.
    let said = ferrovirt(&["node", "remove", "node2"])?;
    ensure!(said.contains("node2 is removed"), "{said}");
    let there = ["get", "pods", "-A", "--field-selector", "spec.nodeName=node2", "-o", "name"];
    let left = Namespace::kubectl_in("default", &there)?;
    ensure!(left.trim().is_empty(), "the node's pods are still there: {left}");
    for (kind, namespace) in [("lease", "kube-node-lease"), ("csinode", "default")] {
        until(&format!("the node's {kind} went with it"), || {
            let left = Namespace::kubectl_in(namespace, &["get", kind, "node2", "--ignore-not-found", "-o", "name"])?;
            Ok(left.trim().is_empty().then_some(()))
        })?;
    }
    outcome
}

fn on_two_nodes() -> Result<()> {
    let space = Namespace::new("nodes")?;
    let on = |name: &str, node: &str, script: &str, main| {
        with(special(name, script, &main, &json!({"nodeName": node})), &json!({"metadata": {"labels": {"app": name}}}))
    };
    let says = "mkdir -p /tmp/www && cd /tmp/www && echo far > index.html && trap 'echo told to end; exit 0' TERM; busybox httpd -f -p 8080 & wait";
    let probe = json!({"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"},
                         "spec": {"selector": {"app": "far"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    let near = on("near", "node1", IDLE, json!({}));
    apply(&space, &[on("far", "node2", says, probe), near, service])?;
    ready(&space, "far")?;
    ready(&space, "near")?;
    by_each_address(&space)?;
    let by_name = "until busybox timeout 5 busybox wget -qO- http://far; do busybox sleep 0.2; done";
    ensure!(sh(&space, "near", by_name)? == "far\n", "by its Service");
    packets::pass_whole(&space)?;
    storage::nodes_share_a_volume(&space)?;

    ferrovirt(&["node", "cut", "node2"])?;
    space.kubectl(&["wait", "node/node2", "--for=condition=Ready=Unknown", "--timeout=120s"])?;
    space.kubectl(&["wait", "pod/far", "--for=condition=Ready=False", "--timeout=60s"])?;
    space.kubectl(&["wait", "pod/near", "--for=condition=Ready", "--timeout=5s"])?;
    ferrovirt(&["node", "heal", "node2"])?;
    space.kubectl(&["wait", "node/node2", "--for=condition=Ready", "--timeout=60s"])?;
    space.kubectl(&["wait", "pod/far", "--for=condition=Ready", "--timeout=60s"])?;
    let back = space.get("pod", "far")?;
    ensure!(back["status"]["containerStatuses"][0]["restartCount"] == 0, "{back}");
    ensure!(sh(&space, "near", by_name)? == "far\n", "by its Service, again");
    by_each_address(&space)?;
    stopped_in_good_order(&space)?;
    // At once: a node that starts again is to its neighbours the one that it was.
    by_each_address(&space)?;
    ensure!(sh(&space, "near", by_name)? == "far\n", "by its Service, after the stop");

    let address = space.kubectl(&["get", "service", "far", "-o", "jsonpath={.spec.clusterIP}"])?;
    let url = format!("http://{address}");
    ensure!(space.fetch(&url)? == "far\n", "from the host");
    deny_and_admit(&space, &space.get("pod", "far")?)?;
    ferrovirt(&["node", "kill", "node1"])?;
    let without = until("the host reached the Service without node1", || Ok(space.fetch(&url).ok()));
    ferrovirt(&["node", "start", "node1"])?;
    ensure!(without? == "far\n", "from the host, without node1");
    Ok(())
}

fn by_each_address(space: &Namespace) -> Result<()> {
    let far = space.get("pod", "far")?;
    for address in far["status"]["podIPs"].as_array().into_iter().flatten() {
        let address = address["ip"].as_str().unwrap_or_default();
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let answer = sh(space, "near", &format!("busybox timeout 3 busybox wget -qO- http://{host}:8080"));
        let answer = answer.with_context(|| format!("by {address}"))?;
        ensure!(answer == "far\n", "{address}: {answer}");
    }
    Ok(())
}

/// A node that is stopped tells its pods, says that it goes, and brings back with it those that are to run always.
fn stopped_in_good_order(space: &Namespace) -> Result<()> {
    let once = special(
        "once",
        "trap 'exit 0' TERM; while :; do busybox sleep 1 & wait $!; done",
        &json!({}),
        &json!({"nodeName": "node2", "restartPolicy": "Never"}),
    );
    apply(space, &[once])?;
    ready(space, "once")?;
    let said = ferrovirt(&["node", "stop", "node2"])?;
    ensure!(said.contains("node2 is stopped"), "{said}");
    let said = "jsonpath={.status.conditions[?(@.type==\"Ready\")].message}";
    let said = space.kubectl(&["get", "node", "node2", "-o", said])?;
    ensure!(said.contains("node is shutting down"), "{said}");
    // It ended by itself, and that was said before the power went.
    let once = space.get("pod", "once")?;
    ensure!(once["status"]["phase"] == "Succeeded", "{}", once["status"]);
    let far = space.get("pod", "far")?;
    ensure!(far["status"]["phase"] == "Running", "{}", far["status"]);
    ferrovirt(&["node", "start", "node2"])?;
    space.kubectl(&["wait", "pod/far", "--for=condition=Ready", "--timeout=60s"])?;
    let events = space.events("Pod", "far")?;
    ensure!(!events.iter().any(|(reason, _)| reason == "FailedCreatePodSandBox"), "{events:?}");
    let last = space.kubectl(&["logs", "far", "--previous"])?;
    ensure!(last.contains("told to end"), "{last}");
    Ok(())
}

/// A policy judges what comes from pods of another node as it does what comes from the same.
fn deny_and_admit(space: &Namespace, far: &Value) -> Result<()> {
    let policy = |spec: Value| json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": spec});
    let subject = json!({"matchLabels": {"app": "far"}});
    let address = far["status"]["podIP"].as_str().unwrap_or_default();
    let reached = || -> Result<bool> {
        let script = format!("busybox timeout 2 busybox wget -qO- http://{address}:8080");
        Ok(space.output(&["exec", "near", "--", "sh", "-c", &script])?.status.success())
    };
    apply(space, &[policy(json!({"podSelector": subject}))])?;
    until("the far pod was out of reach", || Ok((!reached()?).then_some(())))?;
    let near = json!([{"podSelector": {"matchLabels": {"app": "near"}}}]);
    apply(space, &[policy(json!({"podSelector": subject, "ingress": [{"from": near}]}))])?;
    until("the far pod was within reach", || Ok(reached()?.then_some(())))?;
    space.kubectl(&["delete", "networkpolicy", "p"]).map(drop)
}
