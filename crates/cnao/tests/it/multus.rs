//! The daemon of Multus with the plugins of the distribution and real network namespaces; the container runtime is played by the
//! test, which says to the socket what the shim says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cnao::base::Base;
use cnao::multus::{self, Args, manifests};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use kit::health::Ready;
use kit::shutdown::CancellationToken;
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

const NAMESPACE: &str = "network";

/// A node: a network namespace for each sandbox, and directories of its own.
struct Node {
    cluster: Cluster,
    dir: tempfile::TempDir,
    stop: CancellationToken,
    daemon: Option<kit::Task<Result<(), cnao::Error>>>,
    name: String,
}

impl Drop for Node {
    fn drop(&mut self) {
        ip(&["netns", "delete", &self.name]);
        for bridge in [self.bridge("own"), self.bridge("red")] {
            ip(&["link", "delete", &bridge]);
        }
    }
}

fn ip(words: &[&str]) -> String {
    let output = Command::new("ip").args(words).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

async fn node(test: &str) -> Node {
    let mut documents = manifests::render(&manifests::Input {
        base: Base { namespace: NAMESPACE.into(), ..Base::default() },
        ..Default::default()
    });
    documents.retain(|document| document["kind"] != "DaemonSet");
    documents.insert(0, json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }));
    documents.insert(0, json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "kube-system" } }));
    let cluster = Cluster::with(documents).await;
    let name = format!("mul-{}-{test}", std::process::id() % 100_000);
    let mut node =
        Node { cluster, dir: tempfile::tempdir().unwrap(), stop: CancellationToken::new(), daemon: None, name };
    ip(&["netns", "add", &node.name]);
    std::fs::create_dir_all(node.at("net.d")).unwrap();
    std::fs::write(node.at("net.d/10-own.conflist"), node.own_network().to_string()).unwrap();
    node.start().await;
    node
}

impl Node {
    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn bridge(&self, which: &str) -> String {
        format!("{which}{:08x}", crc(&self.name))
    }

    fn own_network(&self) -> Value {
        json!({ "cniVersion": "1.0.0", "name": "own", "plugins": [{
            "type": "bridge", "bridge": self.bridge("own"), "ipam": self.addresses("own", "10.123.1.0/24"),
        }] })
    }

    fn addresses(&self, of: &str, subnet: &str) -> Value {
        json!({ "type": "host-local", "dataDir": self.at("leases").join(of), "ranges": [[{ "subnet": subnet }]] })
    }

    async fn start(&mut self) {
        let shim = self.at("ferrovirt-cni");
        std::fs::write(&shim, "the shim").unwrap();
        let args = Args {
            node_name: "node1".into(),
            namespace: NAMESPACE.into(),
            root: "/".into(),
            cni_config_dir: self.at("net.d"),
            cni_bin_dir: vec![self.at("bin"), "/usr/lib/cni".into()],
            socket: self.at("run/multus.sock"),
            state_dir: self.at("state"),
            shim,
            dynamic_networks: true,
            health_port: 0,
        };
        let ready = Ready::default();
        let client = self.cluster.account_in(NAMESPACE, manifests::NAME);
        let (seen, stop) = (ready.clone(), self.stop.clone());
        self.daemon = Some(kit::spawn("daemon", async move { multus::serve(client, args, &seen, &stop).await }));
        until("the daemon is ready", async || ready.get().then_some(())).await;
    }

    /// As the shim does.
    async fn call(&self, verb: &str, uid: &str) -> Result<Value, Value> {
        let socket = tokio::net::UnixStream::connect(self.at("run/multus.sock")).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let body = json!({
            "env": {
                "CNI_COMMAND": verb, "CNI_CONTAINERID": "sandbox1", "CNI_IFNAME": "eth0",
                "CNI_NETNS": format!("/run/netns/{}", self.name),
                "CNI_ARGS": format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod;K8S_POD_UID={uid}"),
            },
            "config": { "cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus-shim" },
        });
        let request = Request::post("/cni").header("content-type", "application/json").header("host", "node");
        let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
        let response =
            tokio::time::timeout(Duration::from_secs(60), sender.send_request(request)).await.unwrap().unwrap();
        let good = response.status().is_success();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        if good { Ok(body) } else { Err(body) }
    }

    async fn network(&self, name: &str, config: &Value) {
        let path = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions";
        let object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name }, "spec": { "config": config.to_string() },
        });
        self.cluster.call(Method::POST, path, &object).await.unwrap();
    }

    /// A segment with addresses, called `red`.
    async fn red(&self) {
        let red = json!({
            "cniVersion": "0.3.1", "type": "bridge", "bridge": self.bridge("red"),
            "ipam": self.addresses("red", "10.123.2.0/24"),
        });
        self.network("red", &red).await;
    }

    /// Creates the pod with this annotation and returns its UID.
    async fn pod(&self, networks: &str) -> String {
        self.cluster.call(Method::POST, "/api/v1/namespaces", &json!({ "metadata": { "name": "default" } })).await.ok();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "pod", "annotations": { "k8s.v1.cni.cncf.io/networks": networks } },
            "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "i" }] },
        });
        let made = self.cluster.call(Method::POST, "/api/v1/namespaces/default/pods", &pod).await.unwrap();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    async fn annotate(&self, networks: &str) {
        let change = json!({ "metadata": { "annotations": { "k8s.v1.cni.cncf.io/networks": networks } } });
        self.cluster.call(Method::PATCH, "/api/v1/namespaces/default/pods/pod", &change).await.unwrap();
    }

    /// Names of the interfaces that the pod's annotation tells of.
    async fn told(&self) -> Vec<String> {
        let pod = self.cluster.get("/api/v1/namespaces/default/pods/pod").await.unwrap();
        let text =
            pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str().unwrap_or("[]").to_owned();
        let all: Vec<Value> = serde_json::from_str(&text).unwrap();
        all.iter().map(|one| one["interface"].as_str().unwrap().to_owned()).collect()
    }

    /// Interfaces of the sandbox.
    fn interfaces(&self) -> Vec<String> {
        let text = ip(&["-n", &self.name, "-o", "link"]);
        let name = |line: &str| line.split(": ").nth(1).map(|name| name.split('@').next().unwrap_or(name).to_owned());
        let mut all: Vec<String> = text.lines().filter_map(name).filter(|name| name != "lo").collect();
        all.sort();
        all
    }

    /// Addresses that are held.
    fn leases(&self) -> usize {
        let count = |of: &str| {
            let dir = self.at("leases").join(of);
            let all = std::fs::read_dir(dir).into_iter().flatten().flatten();
            all.filter(|entry| entry.file_name().to_string_lossy().starts_with("10.")).count()
        };
        count("own/own") + count("red/red")
    }
}

fn crc(text: &str) -> u32 {
    text.bytes().fold(2_166_136_261, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_the_clusters_network_and_those_that_it_names_until_it_ends() {
    let node = node("life").await;
    node.red().await;
    let uid = node.pod("red").await;
    let result = node.call("ADD", &uid).await.unwrap();
    assert!(result["ips"][0]["address"].as_str().unwrap().starts_with("10.123.1."), "{result}");
    assert_eq!(
        (node.interfaces(), node.told().await),
        (vec!["eth0".into(), "net1".into()], vec!["eth0".into(), "net1".into()])
    );
    assert!(ip(&["-n", &node.name, "-4", "address", "show", "net1"]).contains("10.123.2."));
    assert_eq!(node.leases(), 2);
    node.call("CHECK", &uid).await.unwrap();
    ip(&["-n", &node.name, "link", "delete", "net1"]);
    let said = node.call("CHECK", &uid).await;
    // Version 0.3.1 of the network knows no such question.
    assert_eq!(said, Ok(Value::Null));
    ip(&["-n", &node.name, "link", "delete", "eth0"]);
    assert!(node.call("CHECK", &uid).await.unwrap_err()["msg"].as_str().unwrap().starts_with("own: "));
    // The runtime asks twice, and for what was never made.
    for _ in 0..2 {
        node.call("DEL", &uid).await.unwrap();
    }
    assert_eq!((node.interfaces(), node.leases()), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn interfaces_of_a_pod_that_runs_follow_its_annotation() {
    let node = node("change").await;
    node.red().await;
    let uid = node.pod(r#"[{"name": "red", "interface": "a"}]"#).await;
    node.call("ADD", &uid).await.unwrap();
    node.annotate(
        r#"[{"name": "red", "interface": "a"}, {"name": "red", "interface": "b", "mac": "02:00:00:00:00:01"}]"#,
    )
    .await;
    until("b has come", async || (node.told().await == ["eth0", "a", "b"]).then_some(())).await;
    assert!(ip(&["-n", &node.name, "link", "show", "b"]).contains("02:00:00:00:00:01"));
    node.annotate(r#"[{"name": "red", "interface": "b"}]"#).await;
    until("a has gone", async || (node.told().await == ["eth0", "b"]).then_some(())).await;
    assert_eq!((node.interfaces(), node.leases()), (vec!["b".into(), "eth0".into()], 2));
    // What cannot be had is told of, and changes nothing.
    node.annotate(r#"[{"name": "red", "interface": "b"}, {"name": "blue", "interface": "c"}]"#).await;
    until("the pod's owner is told", async || {
        let events = node.cluster.get("/api/v1/namespaces/default/events").await?;
        let all = events["items"].as_array()?.clone();
        all.into_iter().find(|event| event["reason"] == "FailedAddingInterface")
    })
    .await;
    assert_eq!(node.interfaces(), ["b", "eth0"]);
    node.call("DEL", &uid).await.unwrap();
    assert_eq!((node.interfaces(), node.leases()), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_cannot_have_all_has_nothing() {
    let node = node("fail").await;
    node.network("red", &json!({ "cniVersion": "1.0.0", "type": "no-such-plugin" })).await;
    let uid = node.pod("red").await;
    let why = node.call("ADD", &uid).await.unwrap_err();
    assert!(why["msg"].as_str().unwrap().contains("failed to find plugin \"no-such-plugin\""), "{why}");
    assert_eq!((node.interfaces(), node.leases()), (Vec::new(), 0));
    // A pod that was deleted and made anew under the same name is another one.
    let why = node.call("ADD", "another").await.unwrap_err();
    assert_eq!(
        (&why["code"], why["msg"].as_str().unwrap().contains("another one by now")),
        (&json!(11), true),
        "{why}"
    );
    assert_eq!(node.interfaces(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_daemon_takes_over_what_one_has_made() {
    let mut node = node("again").await;
    node.red().await;
    let uid = node.pod("red").await;
    node.call("ADD", &uid).await.unwrap();
    let own = node.at("net.d/00-multus.conf");
    assert!(own.exists() && node.at("bin/multus-shim").exists());
    // Killed, not told to stop: nothing of the node changes.
    node.daemon = None;
    assert!(own.exists());
    std::fs::remove_file(node.at("net.d/10-own.conflist")).unwrap();
    std::fs::write(
        node.at("net.d/20-other.conflist"),
        json!({ "name": "other", "plugins": [{ "type": "ptp" }] }).to_string(),
    )
    .unwrap();
    node.start().await;
    // By the configuration that it was made by.
    node.call("DEL", &uid).await.unwrap();
    assert_eq!((node.interfaces(), node.leases()), (Vec::new(), 0));
    // The DaemonSet is not there: nobody answers after this one, and the cluster's own configuration counts again.
    node.stop.cancel();
    node.daemon.take().unwrap().await.unwrap().unwrap();
    assert!(!own.exists() && !node.at("bin/multus-shim").exists() && Path::exists(&node.at("net.d/20-other.conflist")));
}
