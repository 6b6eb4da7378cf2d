//! Services: by cluster address, by node port from outside, headless, with affinity, and none that would answer.

use std::net::UdpSocket;
use std::time::Duration;

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
    (
        "local_traffic_keeps_the_client_and_says_where_it_is_served",
        local_traffic_keeps_the_client_and_says_where_it_is_served,
    ),
    ("datagrams_follow_the_endpoints", datagrams_follow_the_endpoints),
    ("both_families_come_and_go", both_families_come_and_go),
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
    let answers = until("the service answered", || Ok(ask(&space, "http://s", 20).ok().filter(|all| all.len() == 20)))?;
    ensure!(answers.iter().all(|a| Some(a) == answers.first()), "{answers:?}");
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

/// A web server that answers the address its client has.
fn mirror(name: &str) -> Value {
    let script = "mkdir -p /tmp/www/cgi-bin && cd /tmp/www && printf '#!/bin/sh\\necho; echo $REMOTE_ADDR\\n' > cgi-bin/who && chmod +x cgi-bin/who && trap 'exit 0' TERM; busybox httpd -f -p 8080 & wait";
    let main = json!({"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}, "ports": [{"name": "web", "containerPort": 8080}]});
    special(name, script, &main, &json!({}))
}

/// Whether the client was the host; a server of both families says it in its own way.
fn is_host(client: &str) -> bool {
    client.trim().trim_start_matches('[').trim_end_matches(']').trim_start_matches("::ffff:") == "10.88.0.1"
}

fn local_traffic_keeps_the_client_and_says_where_it_is_served() -> Result<()> {
    let space = Namespace::new("local-traffic")?;
    let balanced = json!({"type": "LoadBalancer", "selector": {"app": "who"}, "externalTrafficPolicy": "Local"});
    apply(&space, &[mirror("who"), service("s", &balanced)])?;
    ready(&space, "who")?;
    let spec = space.get("service", "s")?["spec"].clone();
    let (port, health) = (&spec["ports"][0]["nodePort"], &spec["healthCheckNodePort"]);
    let node = space.kubectl(&["get", "pod", "who", "-o", "jsonpath={.status.hostIP}"])?;
    let said = until("the node said that it has an endpoint", || {
        Ok(space.fetch(&format!("http://{node}:{health}/healthz")).ok())
    })?;
    ensure!(said.contains(r#""localEndpoints":1"#), "{said}");
    let client = space.fetch(&format!("http://{node}:{port}/cgi-bin/who"))?;
    ensure!(is_host(&client), "the client's address is lost: {client}");
    let change = json!({"spec": {"externalTrafficPolicy": "Cluster"}}).to_string();
    space.kubectl(&["patch", "service", "s", "-p", &change])?;
    until("the node stood in for the client", || {
        let client = space.fetch(&format!("http://{node}:{port}/cgi-bin/who"))?;
        Ok((!is_host(&client)).then_some(()))
    })?;
    let spec = space.get("service", "s")?["spec"].clone();
    ensure!(spec["healthCheckNodePort"].is_null(), "{spec}");
    Ok(())
}

/// A client that keeps its socket, and so its flow, is led to the next endpoint when the first is gone.
fn datagrams_follow_the_endpoints() -> Result<()> {
    let space = Namespace::new("datagrams")?;
    let socket = |address: &str| -> Result<UdpSocket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        Ok(socket)
    };
    // On the host, where nodes find it at the bridge's address.
    let servers = [socket("10.88.0.1:0")?, socket("10.88.0.1:0")?];
    let slice = |server: &UdpSocket| -> Result<Value> {
        Ok(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "u", "labels": {"kubernetes.io/service-name": "u"}}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.88.0.1"]}], "ports": [{"protocol": "UDP", "port": server.local_addr()?.port()}]}))
    };
    let datagrams = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "u"}, "spec": {"ports": [{"port": 9000, "protocol": "UDP"}]}});
    apply(&space, &[datagrams, slice(&servers[0])?])?;
    let client = socket("0.0.0.0:0")?;
    let address = space.kubectl(&["get", "service", "u", "-o", "jsonpath={.spec.clusterIP}"])?;
    client.connect((address.as_str(), 9000))?;
    let mut buffer = [0; 8];
    for (which, server) in servers.iter().enumerate() {
        apply(&space, &[slice(server)?])?;
        until(&format!("endpoint {which} was asked and heard"), || {
            client.send(b"ask")?;
            let Ok((_, asker)) = server.recv_from(&mut buffer) else { return Ok(None) };
            server.send_to(b"answer", asker)?;
            Ok(client.recv(&mut buffer).is_ok().then_some(()))
        })?;
    }
    Ok(())
}

fn both_families_come_and_go() -> Result<()> {
    let space = Namespace::new("families")?;
    apply(&space, &[web("one", "web"), service("s", &json!({}))])?;
    idle(&space, "client")?;
    ready(&space, "one")?;
    let ips = || -> Result<Vec<String>> {
        let spec = space.get("service", "s")?["spec"].clone();
        Ok(spec["clusterIPs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|ip| ip.as_str().map(str::to_owned))
            .collect())
    };
    let first = ips()?;
    ensure!(first.len() == 1, "{first:?}");
    space.kubectl(&["patch", "service", "s", "-p", r#"{"spec": {"ipFamilyPolicy": "RequireDualStack"}}"#])?;
    let both = ips()?;
    ensure!(both.len() == 2 && both[0] == first[0], "{both:?}");
    until("the second family answered", || {
        Ok(ask(&space, &format!("http://[{}]", both[1]), 1).is_ok_and(|answers| answers == ["one"]).then_some(()))
    })?;
    let known = Namespace::kubectl_in("default", &["get", "ipaddresses", "-o", "name"])?;
    ensure!(both.iter().all(|ip| known.contains(ip)), "{known}");
    ensure!(Namespace::kubectl_in("default", &["get", "servicecidrs"])?.contains("10.96.0.0/16"), "the ranges");
    space.kubectl(&["patch", "service", "s", "-p", r#"{"spec": {"ipFamilyPolicy": "SingleStack"}}"#])?;
    ensure!(ips()? == first, "one family again");
    Ok(())
}
