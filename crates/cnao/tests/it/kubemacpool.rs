//! The pool: two replicas behind one Service, and a leader.

use std::collections::BTreeSet;
use std::time::Duration;

use cnao::kubemacpool::manifests::{self, Input};
use cnao::kubemacpool::{Collisions, Leader, Replica};
use futures::future::join_all;
use http::Method;
use kit::Task;
use kit::certs::{Authority, Leaf, Pair};
use kit::events::Recorder;
use kit::keyring::service_names;
use kit::shutdown::CancellationToken;
use kit::tls::{Changing, Material};
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, documents, refusal, until};

const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";
const PODS: &str = "/api/v1/namespaces/default/pods";

struct Pool {
    cluster: Cluster,
    pair: Pair,
    replicas: Vec<(Replica, Task<()>)>,
    leader: Option<Leader>,
    stop: CancellationToken,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A pool of these addresses.
async fn pool(start: &str, end: &str) -> Pool {
    let (now, day) = (kit::clock::now(), Duration::from_secs(24 * 3600));
    let authority = Authority::generate("test", now, day).unwrap();
    let names = service_names(manifests::SERVICE, NAMESPACE);
    let leaf = Leaf { name: names[0].clone(), role: "kubemacpool".into(), node: None, dns: names.into() };
    let pair = authority.issue(&leaf, now, day).unwrap();
    let input = Input {
        namespace: NAMESPACE.into(),
        image: "r/component".into(),
        pull_policy: "IfNotPresent".into(),
        range: (start.into(), end.into()),
        ca_bundle: authority.pair().certificate.clone(),
        replicas: 2,
        answers: true,
        ..Input::default()
    };
    let mut all = documents("crds/virtualmachines.kubevirt.io.yaml");
    all.extend(documents("crds/virtualmachineinstances.kubevirt.io.yaml"));
    all.extend(manifests::render(&input));
    let cluster = Cluster::with(all).await;
    let mut pool = Pool { cluster, pair, replicas: Vec::new(), leader: None, stop: CancellationToken::new() };
    for number in 0..2 {
        pool.replica(&format!("replica{number}")).await;
    }
    pool
}

impl Pool {
    /// Starts a replica, with the rights that it is installed with and no other.
    async fn replica(&mut self, name: &str) {
        let replica = Replica::start(self.cluster.account("kubemacpool-sa"), NAMESPACE).await;
        let material = Material::new();
        material.set(&self.pair).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = Changing::new(material, None).unwrap();
        let server =
            kit::spawn("server", kit::server::serve_tls(listener, config, replica.router(), self.stop.clone()));
        let labels = json!({ "control-plane": "mac-controller-manager", "app": "kubemacpool" });
        self.cluster.pod(name, &labels, port).await;
        self.replicas.push((replica, server));
    }

    /// One of the replicas leads, and gives back after `wait` what was never stored.
    fn lead(&mut self, wait: Duration) -> Collisions {
        self.leader = None;
        let client = self.cluster.account("kubemacpool-sa");
        let collisions = Collisions::default();
        let recorder = Recorder::new(client.clone(), "kubemacpool", "");
        let pool = &self.replicas[0].0.pool;
        self.leader = Some(Leader::start(&client, pool, wait, collisions.clone(), recorder, &self.stop));
        collisions
    }

    async fn create(&self, name: &str, interfaces: &[&str]) -> kube::Result<Value> {
        self.cluster.call(Method::POST, MACHINES, &machine(name, interfaces)).await
    }

    /// The addresses that are taken.
    async fn taken(&self) -> usize {
        let leases =
            format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases?labelSelector=kubemacpool.io/address");
        self.cluster.get(&leases).await.unwrap()["items"].as_array().unwrap().len()
    }
}

/// A machine with an interface for each of these addresses, which may be empty.
fn machine(name: &str, interfaces: &[&str]) -> Value {
    let one = |(index, mac): (usize, &&str)| {
        let mut interface = json!({ "name": format!("n{index}"), "bridge": {} });
        if !mac.is_empty() {
            interface["macAddress"] = json!(mac);
        }
        interface
    };
    let list: Vec<Value> = interfaces.iter().enumerate().map(one).collect();
    let networks: Vec<Value> = (0..interfaces.len())
        .map(|index| json!({ "name": format!("n{index}"), "multus": { "networkName": "n" } }))
        .collect();
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": name },
        "spec": { "runStrategy": "Halted", "template": { "spec": {
            "domain": { "devices": { "interfaces": list } }, "networks": networks,
        } } },
    })
}

fn addresses(machine: &Value) -> Vec<String> {
    let list = machine.pointer("/spec/template/spec/domain/devices/interfaces").and_then(Value::as_array);
    let text = |one: &Value| one["macAddress"].as_str().unwrap_or_default().to_owned();
    list.into_iter().flatten().map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_gets_addresses_and_keeps_them() {
    let pool = pool("02:00:00:00:00:00", "02:00:00:00:00:ff").await;
    let made = pool.create("vm", &["", "02:00:00:00:00:aa"]).await.unwrap();
    let first = addresses(&made);
    assert!(first[0].starts_with("02:00:00:00:00:") && first[1] == "02:00:00:00:00:aa", "{first:?}");
    assert!(made["metadata"]["annotations"]["kubemacpool.io/transaction-timestamp"].is_string());
    // Whoever writes the manifest again, with one interface more.
    let mut again = machine("vm", &["", "", ""]);
    again["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    let written = pool.cluster.call(Method::PUT, &format!("{MACHINES}/vm"), &again).await.unwrap();
    let second = addresses(&written);
    assert_eq!(second[..2], first[..]);
    assert!(!second[2].is_empty() && !first.contains(&second[2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_takes_nothing() {
    let pool = pool("02:00:00:00:00:00", "02:00:00:00:00:00").await;
    for _ in 0..3 {
        pool.cluster.call(Method::POST, &format!("{MACHINES}?dryRun=All"), &machine("vm", &[""])).await.unwrap();
    }
    assert_eq!(pool.taken().await, 0);
    pool.create("vm", &[""]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_at_once_give_no_address_twice() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:0f:ff").await;
    let names: Vec<String> = (0..60).map(|number| format!("vm{number}")).collect();
    let half = names.len() / 2;
    let made = join_all(names[..half].iter().map(|name| pool.create(name, &["", ""]))).await;
    let mut all: Vec<String> = made.into_iter().flat_map(|made| addresses(&made.unwrap())).collect();
    // One ends, and another begins in its place, while more is asked for.
    pool.cluster.ready("replica0", false).await;
    pool.replica("replica2").await;
    let made = join_all(names[half..].iter().map(|name| pool.create(name, &["", ""]))).await;
    all.extend(made.into_iter().flat_map(|made| addresses(&made.unwrap())));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 120);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_range_is_said_and_what_is_deleted_is_given_again() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:01").await;
    pool.lead(Duration::from_secs(1));
    pool.create("one", &["", ""]).await.unwrap();
    let message = refusal(pool.create("two", &[""]).await);
    assert!(message.contains("the range is full (02:00:00:00:00:00 - 02:00:00:00:00:01)"), "{message}");
    pool.cluster.call(Method::DELETE, &format!("{MACHINES}/one"), &Value::Null).await.unwrap();
    until("they are given again", async || pool.create("two", &["", ""]).await.ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_never_stored_is_given_back() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:ff").await;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "none" },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["kubevirt.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["virtualmachines"],
            }] },
            "validations": [{ "expression": "object.metadata.name != 'never'", "message": "never" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "none" }, "spec": { "policyName": "none", "validationActions": ["Deny"] },
    });
    pool.cluster.apply(&[policy, binding]).await;
    until("the policy holds", async || pool.create("never", &[""]).await.err().map(drop)).await;
    pool.create("kept", &[""]).await.unwrap();
    assert!(pool.taken().await >= 2);
    pool.lead(Duration::from_millis(200));
    until("one is left", async || (pool.taken().await == 1).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_from_before_the_pool_keep_what_they_have() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:01").await;
    let namespace = json!({ "metadata": { "labels": { "mutatevirtualmachines.kubemacpool.io": "ignore" } } });
    pool.cluster.call(Method::PATCH, "/api/v1/namespaces/default", &namespace).await.unwrap();
    let made = pool.create("old", &["02:00:00:00:00:00", ""]).await.unwrap();
    assert_eq!(addresses(&made), ["02:00:00:00:00:00", ""], "the namespace wants to be left alone");
    assert_eq!(pool.taken().await, 0);
    pool.lead(Duration::from_secs(600));
    until("it is noted", async || (pool.taken().await == 1).then_some(())).await;
    let again = json!({ "metadata": { "labels": { "mutatevirtualmachines.kubemacpool.io": null } } });
    pool.cluster.call(Method::PATCH, "/api/v1/namespaces/default", &again).await.unwrap();
    let made = until("the pool is asked", async || {
        let made = pool.create("new", &[""]).await.unwrap();
        let asked = !addresses(&made)[0].is_empty();
        if !asked {
            pool.cluster.call(Method::DELETE, &format!("{MACHINES}/new"), &Value::Null).await.unwrap();
        }
        asked.then_some(made)
    })
    .await;
    assert_eq!(addresses(&made), ["02:00:00:00:00:01"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_interfaces_are_refused_by_field() {
    let pool = pool("02:00:00:00:00:00", "02:00:00:00:00:ff").await;
    let message = refusal(pool.create("vm", &["02:00:00:00:00:01", "02-00-00-00-00-01"]).await);
    assert!(message.contains("is the address of another interface"), "{message}");
    assert!(refusal(pool.create("vm", &["nonsense"]).await).contains("is not a MAC address"));
    assert!(refusal(pool.create("vm", &[""; 257]).await).contains("256 are the most"));
    assert_eq!(pool.taken().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_namespaces_that_ask_get_addresses() {
    let pool = pool("02:00:00:00:00:00", "02:00:00:00:00:ff").await;
    let pod = |name: &str, networks: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "annotations": { "k8s.v1.cni.cncf.io/networks": networks } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        })
    };
    let networks =
        |pod: &Value| pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str().unwrap().to_owned();
    let made = pool.cluster.call(Method::POST, PODS, &pod("before", "net")).await.unwrap();
    assert_eq!(networks(&made), "net");
    let namespace = json!({ "metadata": { "labels": { "mutatepods.kubemacpool.io": "allocate" } } });
    pool.cluster.call(Method::PATCH, "/api/v1/namespaces/default", &namespace).await.unwrap();
    let made = until("the pool is asked", async || {
        let made = pool.cluster.call(Method::POST, PODS, &pod("after", "net")).await.unwrap();
        let asked = networks(&made).contains("02:00:00:00:00:");
        if !asked {
            pool.cluster
                .call(Method::DELETE, &format!("{PODS}/after?gracePeriodSeconds=0"), &Value::Null)
                .await
                .unwrap();
        }
        asked.then_some(made)
    })
    .await;
    let list: Value = serde_json::from_str(&networks(&made)).unwrap();
    assert_eq!(list[0]["name"], "net");
    // What is no list of networks is not this webhook's to refuse.
    pool.cluster.call(Method::POST, PODS, &pod("odd", "[1,")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_address_on_two_running_machines_is_told_on_both() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:ff").await;
    let collisions = pool.lead(Duration::from_secs(600));
    let mac = "02:00:00:00:00:aa";
    for name in ["a", "b"] {
        let instance = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": name },
            "spec": { "domain": { "devices": { "interfaces": [{ "name": "n", "bridge": {}, "macAddress": mac }] } } },
        });
        pool.cluster.call(Method::POST, INSTANCES, &instance).await.unwrap();
        let status = json!({ "status": { "phase": "Running", "interfaces": [{ "mac": mac }] } });
        let path = if pool.cluster.call(Method::PATCH, &format!("{INSTANCES}/{name}/status"), &status).await.is_ok() {
            ""
        } else {
            "object"
        };
        if path == "object" {
            pool.cluster.call(Method::PATCH, &format!("{INSTANCES}/{name}"), &status).await.unwrap();
        }
    }
    let told = async |name: &str| {
        let events = pool.cluster.get("/api/v1/namespaces/default/events").await?;
        let one = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "MACCollision" && event["involvedObject"]["name"] == *name && message.contains(mac)
        };
        events["items"].as_array()?.iter().any(one).then_some(())
    };
    until("the first is told", async || told("a").await).await;
    until("the second is told", async || told("b").await).await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &collisions.registry()).unwrap();
    assert!(text.contains("kmp_mac_collisions{mac=\"02:00:00:00:00:aa\"} 2"), "{text}");
    pool.cluster.call(Method::DELETE, &format!("{INSTANCES}/a"), &Value::Null).await.unwrap();
    until("it is over", async || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &collisions.registry()).unwrap();
        (!text.contains("mac=")).then_some(())
    })
    .await;
}
