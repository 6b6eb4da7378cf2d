//! A second node: pods of both reach each other and their Services, and a node that was cut off comes back as it was.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, ready, sh, special, with};
use crate::survival::ferrovirt;

pub(crate) const TESTS: &[Test] =
    &[("a_second_node_joins_is_cut_off_and_leaves", a_second_node_joins_is_cut_off_and_leaves)];

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
    outcome
}

fn on_two_nodes() -> Result<()> {
    let space = Namespace::new("nodes")?;
    let on = |name: &str, node: &str, script: &str, main| {
        with(special(name, script, &main, &json!({"nodeName": node})), &json!({"metadata": {"labels": {"app": name}}}))
    };
    let says = "mkdir -p /tmp/www && cd /tmp/www && echo far > index.html && trap 'exit 0' TERM; busybox httpd -f -p 8080 & wait";
    let probe = json!({"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"},
                         "spec": {"selector": {"app": "far"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    let near = on("near", "node1", IDLE, json!({}));
    apply(&space, &[on("far", "node2", says, probe), near, service])?;
    ready(&space, "far")?;
    ready(&space, "near")?;
    let far = space.get("pod", "far")?;
    for address in far["status"]["podIPs"].as_array().into_iter().flatten() {
        let address = address["ip"].as_str().unwrap_or_default();
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let answer = sh(&space, "near", &format!("busybox timeout 5 busybox wget -qO- http://{host}:8080"))?;
        ensure!(answer == "far\n", "{address}: {answer}");
    }
    let by_name = "until busybox timeout 5 busybox wget -qO- http://far; do busybox sleep 0.2; done";
    ensure!(sh(&space, "near", by_name)? == "far\n", "by its Service");

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

    let address = space.kubectl(&["get", "service", "far", "-o", "jsonpath={.spec.clusterIP}"])?;
    let url = format!("http://{address}");
    ensure!(space.fetch(&url)? == "far\n", "from the host");
    deny_and_admit(&space, &far)?;
    ferrovirt(&["node", "kill", "node1"])?;
    let without = until("the host reached the Service without node1", || Ok(space.fetch(&url).ok()));
    ferrovirt(&["node", "start", "node1"])?;
    ensure!(without? == "far\n", "from the host, without node1");
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
