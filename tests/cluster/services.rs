//! Services: by cluster address, by node port from outside, headless, with affinity, and none that would answer.

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, idle, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[
    ("a_service_spreads_and_refuses", a_service_spreads_and_refuses),
    ("a_node_port_is_reached_from_outside", a_node_port_is_reached_from_outside),
    ("affinity_keeps_a_client", affinity_keeps_a_client),
    ("endpoints_may_be_written_by_hand", endpoints_may_be_written_by_hand),
    ("pods_reach_each_other_and_themselves", pods_reach_each_other_and_themselves),
];

/// A web server that says its pod's name.
fn web(name: &str, app: &str) -> Value {
    let script = "mkdir -p /tmp/www && cd /tmp/www && busybox hostname > index.html && trap 'exit 0' TERM; busybox httpd -f -p 8080 & wait";
    let main = json!({"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}, "ports": [{"name": "web", "containerPort": 8080}]});
    let pod = special(name, script, &main, &json!({}));
    crate::pods::with(pod, &json!({"metadata": {"labels": {"app": app}}}))
}

fn service(name: &str, spec: &Value) -> Value {
    let base = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "web"}]});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": crate::pods::with(base, spec)})
}

fn ask(space: &Namespace, url: &str, times: u32) -> Result<Vec<String>> {
    let script = format!("for n in $(busybox seq {times}); do busybox timeout 5 busybox wget -qO- {url}; done");
    Ok(sh(space, "client", &script)?.lines().map(str::to_owned).collect())
}

fn a_service_spreads_and_refuses() -> Result<()> {
    let space = Namespace::new("service")?;
    apply(
        &space,
        &[
            web("one", "web"),
            web("two", "web"),
            service("s", &json!({})),
            service("empty", &json!({"selector": {"app": "nobody"}})),
        ],
    )?;
    idle(&space, "client")?;
    ready(&space, "one")?;
    ready(&space, "two")?;
    until("both pods answered", || {
        let answers = ask(&space, "http://s", 20)?;
        ensure!(answers.len() == 20, "{answers:?}");
        Ok((answers.contains(&"one".to_owned()) && answers.contains(&"two".to_owned())).then_some(()))
    })?;
    let refused = space.output(&[
        "exec",
        "client",
        "--",
        "busybox",
        "timeout",
        "5",
        "busybox",
        "wget",
        "-qO-",
        "http://empty",
    ])?;
    ensure!(crate::pods::text(&refused.stderr).contains("Connection refused"), "{refused:?}");
    space.kubectl(&["delete", "pod", "one", "--timeout=60s"])?;
    until("the pod that went is asked no more", || {
        Ok(ask(&space, "http://s", 10)
            .is_ok_and(|answers| answers.len() == 10 && answers.iter().all(|a| a == "two"))
            .then_some(()))
    })
}

fn endpoints_may_be_written_by_hand() -> Result<()> {
    let space = Namespace::new("byhand")?;
    let manual = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "manual"},
        "spec": {"ports": [{"port": 80, "targetPort": 8080}]}});
    apply(&space, &[web("one", "web"), manual])?;
    idle(&space, "client")?;
    ready(&space, "one")?;
    let address = space.get("pod", "one")?["status"]["podIP"].clone();
    let subsets = json!([{"addresses": [{"ip": address}], "ports": [{"port": 8080}]}]);
    let endpoints =
        json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "manual"}, "subsets": subsets});
    apply(&space, &[endpoints])?;
    until("the address written by hand answered", || {
        Ok(ask(&space, "http://manual", 1).is_ok_and(|answers| answers == ["one"]).then_some(()))
    })
}

fn a_node_port_is_reached_from_outside() -> Result<()> {
    let space = Namespace::new("node-port")?;
    apply(&space, &[web("one", "web"), service("s", &json!({"type": "NodePort"}))])?;
    ready(&space, "one")?;
    let port = space.kubectl(&["get", "service", "s", "-o", "jsonpath={.spec.ports[0].nodePort}"])?;
    ensure!((30000..=32767).contains(&port.parse::<u32>().context("no port")?), "{port}");
    ensure!(space.fetch(&format!("http://10.88.0.11:{port}/"))? == "one\n", "another answer");
    let taken = service("t", &json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port.parse::<u32>()?}]}));
    let why = space.refused(&taken.to_string())?;
    ensure!(why.contains("provided port is already allocated"), "{why}");
    let table = space.kubectl(&["get", "service", "s", "--no-headers"])?;
    ensure!(table.contains(&format!("80:{port}/TCP")), "{table}");
    Ok(())
}

fn affinity_keeps_a_client() -> Result<()> {
    let space = Namespace::new("affinity")?;
    apply(&space, &[web("one", "web"), web("two", "web"), service("s", &json!({"sessionAffinity": "ClientIP"}))])?;
    idle(&space, "client")?;
    ready(&space, "one")?;
    ready(&space, "two")?;
    until("both pods were endpoints", || {
        let ips = space.kubectl(&["get", "endpoints", "s", "-o", "jsonpath={.subsets[0].addresses[*].ip}"])?;
        Ok((ips.split(' ').count() == 2).then_some(()))
    })?;
    let answers = until("the service answered", || Ok(ask(&space, "http://s", 20).ok()))?;
    ensure!(answers.len() == 20 && answers.iter().all(|a| Some(a) == answers.first()), "{answers:?}");
    Ok(())
}

fn pods_reach_each_other_and_themselves() -> Result<()> {
    let space = Namespace::new("hairpin")?;
    apply(&space, &[web("one", "web"), service("s", &json!({}))])?;
    ready(&space, "one")?;
    until("a pod reached itself by its Service", || {
        let answer =
            space.output(&["exec", "one", "--", "busybox", "timeout", "5", "busybox", "wget", "-qO-", "http://s"])?;
        Ok((answer.stdout == b"one\n").then_some(()))
    })?;
    apply(&space, &[special("host", IDLE, &json!({}), &json!({"hostNetwork": true}))])?;
    ready(&space, "host")?;
    let address = space.kubectl(&["get", "pod", "one", "-o", "jsonpath={.status.podIP}"])?;
    let answer = sh(&space, "host", &format!("busybox timeout 5 busybox wget -qO- http://{address}:8080"))?;
    ensure!(answer == "one\n", "{answer}");
    ensure!(
        space.kubectl(&["get", "pod", "host", "-o", "jsonpath={.status.podIP}"])? == "10.88.0.11",
        "the host's network"
    );
    Ok(())
}
