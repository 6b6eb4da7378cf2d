//! Networks beside the pod's own, as the annotation of Multus asks for them.

use anyhow::{Context, Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[
    ("pods_meet_on_a_network_beside_their_own", pods_meet_on_a_network_beside_their_own),
    ("a_network_that_is_not_there_is_waited_for", a_network_that_is_not_there_is_waited_for),
    ("interfaces_of_a_running_pod_come_and_go", interfaces_of_a_running_pod_come_and_go),
    ("no_two_pods_get_one_address_of_a_pool", no_two_pods_get_one_address_of_a_pool),
];

const ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

fn network(name: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": { "name": name },
        "spec": { "config": config.to_string() },
    })
}

fn pod(name: &str, networks: &str) -> Value {
    let mut pod = special(name, IDLE, &json!({}), &json!({}));
    pod["metadata"]["annotations"] = json!({ (ANNOTATION): networks });
    pod
}

/// What the annotation says of an interface.
fn told(space: &Namespace, pod: &str, interface: &str) -> Result<Value> {
    let found = space.get("pod", pod)?;
    let text = found["metadata"]["annotations"][STATUS].as_str().context("the pod's networks are not told")?;
    let list: Vec<Value> = serde_json::from_str(text)?;
    let own = list.iter().find(|entry| entry["default"] == true).context("the pod's own network is not told")?;
    ensure!(own["interface"] == "eth0" && own["ips"][0] == found["status"]["podIP"], "{own}");
    list.into_iter().find(|entry| entry["interface"] == interface).with_context(|| format!("no {interface} in {text}"))
}

fn pods_meet_on_a_network_beside_their_own() -> Result<()> {
    let space = Namespace::new("nets")?;
    let fixed = json!({ "cniVersion": "0.3.1", "type": "bridge", "bridge": "e2e-nets", "capabilities": { "ips": true, "mac": true },
        "ipam": { "type": "static" } });
    let bare = json!({ "cniVersion": "1.0.0", "name": "bare", "plugins": [{ "type": "cnv-bridge", "bridge": "e2e-bare" }, { "type": "tuning" }] });
    apply(&space, &[network("fixed", &fixed), network("bare", &bare)])?;
    let one = r#"[{"name": "fixed", "ips": ["10.99.0.1/24"], "mac": "02:00:00:00:99:01"}, {"name": "bare", "interface": "lan"}]"#;
    let two =
        r#"[{"name": "bare"}, {"name": "fixed", "namespace": "e2e-nets", "ips": ["10.99.0.2/24", "fd00:99::2/64"]}]"#;
    apply(&space, &[pod("one", one), pod("two", two)])?;
    ready(&space, "one")?;
    ready(&space, "two")?;
    let fixed = told(&space, "one", "net1")?;
    ensure!(fixed["name"] == "e2e-nets/fixed" && fixed["ips"] == json!(["10.99.0.1"]), "{fixed}");
    ensure!(fixed["mac"] == "02:00:00:00:99:01", "{fixed}");
    let mac = sh(&space, "one", "cat /sys/class/net/net1/address")?;
    ensure!(mac.trim() == "02:00:00:00:99:01", "{mac}");
    ensure!(told(&space, "one", "lan")?["ips"].is_null(), "a network without addresses gives none");
    ensure!(
        told(&space, "two", "net2")?["ips"] == json!(["10.99.0.2", "fd00:99::2"]),
        "{}",
        told(&space, "two", "net2")?
    );
    sh(&space, "one", "busybox ping -c 1 -W 5 10.99.0.2")?;
    let added = space.event("Pod", "two", "AddedInterface")?;
    ensure!(added.starts_with("Add net") && added.contains(" from e2e-nets/"), "{added}");
    // The pod's own network is as it was.
    let route = sh(&space, "one", "busybox ip route")?;
    ensure!(route.contains("default via") && route.contains("dev eth0"), "{route}");
    space.kubectl(&["delete", "pod", "one", "two", "--grace-period=0", "--wait"]).map(drop)
}

fn a_network_that_is_not_there_is_waited_for() -> Result<()> {
    let space = Namespace::new("later")?;
    apply(&space, &[pod("p", "later")])?;
    let missing = space.event("Pod", "p", "NoNetworkFound")?;
    let expect = "cannot find a network-attachment-definition (later) in namespace (e2e-later): \
                  network-attachment-definitions.k8s.cni.cncf.io \"later\" not found";
    ensure!(missing == expect, "{missing}");
    let refused = space.event("Pod", "p", "FailedCreatePodSandBox")?;
    ensure!(refused.contains(expect), "{refused}");
    // A plugin that the node does not have is named too.
    apply(&space, &[network("later", &json!({ "cniVersion": "0.3.1", "type": "ovs", "bridge": "br1" }))])?;
    e2e::until("the plugin was missed", || {
        let events = space.events("Pod", "p")?;
        Ok(events.iter().any(|(_, message)| message.contains("failed to find plugin \"ovs\" in path")).then_some(()))
    })?;
    apply(&space, &[network("later", &json!({ "cniVersion": "0.3.1", "type": "bridge", "bridge": "e2e-later" }))])?;
    ready(&space, "p")?;
    told(&space, "p", "net1").map(drop)
}

fn interfaces_of_a_running_pod_come_and_go() -> Result<()> {
    let space = Namespace::new("follow")?;
    let lan = json!({ "cniVersion": "1.0.0", "type": "cnv-bridge", "bridge": "e2e-follow", "portIsolation": true });
    apply(&space, &[network("lan", &lan), pod("p", "[]")])?;
    ready(&space, "p")?;
    let annotate = |networks: &str| {
        let annotation = format!("{ANNOTATION}={networks}");
        space.kubectl(&["annotate", "--overwrite", "pod", "p", &annotation]).map(drop)
    };
    annotate(r#"[{"name": "lan", "interface": "lan", "mac": "02:00:00:00:99:07"}]"#)?;
    e2e::until("the interface has come", || Ok(told(&space, "p", "lan").ok()))?;
    let mac = sh(&space, "p", "cat /sys/class/net/lan/address")?;
    ensure!(mac.trim() == "02:00:00:00:99:07", "{mac}");
    annotate("[]")?;
    e2e::until("the interface has gone", || Ok(told(&space, "p", "lan").is_err().then_some(())))?;
    let left = sh(&space, "p", "ls /sys/class/net")?;
    ensure!(left.split_whitespace().all(|name| name != "lan"), "{left}");
    let removed = space.event("Pod", "p", "RemovedInterface")?;
    ensure!(removed == "Removed lan of e2e-follow/lan", "{removed}");
    space.kubectl(&["delete", "pod", "p", "--grace-period=0", "--wait"]).map(drop)
}

fn no_two_pods_get_one_address_of_a_pool() -> Result<()> {
    let space = Namespace::new("pool")?;
    let ipam = json!({ "type": "whereabouts", "range": "10.97.3.0/24", "range_start": "10.97.3.5" });
    apply(
        &space,
        &[network("pool", &json!({ "cniVersion": "0.3.1", "type": "macvlan", "master": "eth0", "ipam": ipam }))],
    )?;
    apply(&space, &[pod("one", "pool"), pod("two", "pool")])?;
    let of = |name: &str| -> Result<Value> {
        ready(&space, name)?;
        Ok(told(&space, name, "net1")?["ips"][0].clone())
    };
    let mut both = [of("one")?, of("two")?];
    both.sort_by_key(ToString::to_string);
    ensure!(both == [json!("10.97.3.5"), json!("10.97.3.6")], "{both:?}");
    let held = || -> Result<usize> {
        let text = Namespace::kubectl_in("kube-system", &["get", "ippool", "10.97.3.0-24", "-o", "json"])?;
        let pool: Value = serde_json::from_str(&text)?;
        Ok(pool["spec"]["allocations"].as_object().map_or(0, serde_json::Map::len))
    };
    ensure!(held()? == 2, "{} addresses are held", held()?);
    space.kubectl(&["delete", "pod", "one", "two", "--grace-period=0", "--wait"])?;
    e2e::until("the addresses were given back", || Ok((held()? == 0).then_some(())))?;
    Namespace::kubectl_in("kube-system", &["delete", "ippool", "10.97.3.0-24"]).map(drop)
}
