//! What the marker's token may write.

use cnao::base::Base;
use cnao::bridge_marker::manifests::{self, Input};
use http::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, refusal, until};

const NAMESPACE: &str = "default";

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_writes_the_marks_of_its_own_node_and_nothing_else() {
    let input =
        Input { base: Base { namespace: NAMESPACE.into(), image: "i".into(), ..Base::default() }, ..Input::default() };
    let mut all = manifests::render(&input);
    // There is no controller of DaemonSets.
    all.retain(|manifest| manifest["kind"] != "DaemonSet");
    let cluster = Cluster::with(all).await;
    for name in ["node1", "node2"] {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        cluster.call(Method::POST, "/api/v1/nodes", &node).await.unwrap();
        let status =
            json!({ "status": { "capacity": { "cpu": "4" }, "conditions": [{ "type": "Ready", "status": "True" }] } });
        cluster.call(Method::PATCH, &format!("/api/v1/nodes/{name}/status"), &status).await.unwrap();
    }
    let marker = cluster.on_node(NAMESPACE, "bridge-marker", "node1");
    let write = async |node: &str, status: Value| {
        let address = format!("/api/v1/nodes/{node}/status");
        Cluster::call_as(&marker, Method::PATCH, &address, &json!({ "status": status })).await
    };
    let mark = || json!({ "capacity": { "bridge.network.kubevirt.io/br1": "1000" } });
    let refused = until("the policy holds", async || write("node2", mark()).await.err()).await;
    assert!(refused.to_string().contains("only the node it runs on"), "{refused}");
    write("node1", mark()).await.unwrap();
    write("node1", json!({ "capacity": { "bridge.network.kubevirt.io/br1": null } })).await.unwrap();
    let marks = "only the marks of bridges";
    for bad in [
        json!({ "capacity": { "cpu": "400" } }),
        json!({ "capacity": { "cpu": null } }),
        json!({ "capacity": { "example.com/other": "1" } }),
        json!({ "conditions": [] }),
        json!({ "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }] }),
    ] {
        assert!(refusal(write("node1", bad.clone()).await).contains(marks), "{bad}");
    }
    let labels = json!({ "metadata": { "labels": { "a": "b" } } });
    assert!(Cluster::call_as(&marker, Method::PATCH, "/api/v1/nodes/node1", &labels).await.is_err());
    // A token that no node is named in.
    let unbound = cluster.account_in(NAMESPACE, "bridge-marker");
    let written =
        Cluster::call_as(&unbound, Method::PATCH, "/api/v1/nodes/node1/status", &json!({ "status": mark() })).await;
    assert!(refusal(written).contains("not bound to a node"));
}
