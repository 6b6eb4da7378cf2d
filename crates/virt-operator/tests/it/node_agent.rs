//! The token on a node reaches its own node and its own machines, and nothing else.

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::{
    api::core::v1::{Event, Namespace, Node, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kit::apply::{self, Applied};
use kube::{
    Api, Client, Error,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use kube_apiserver::{ApiServer, request::User};
use serde_json::json;
use virt_operator::manifests::{self, Input, crds};

/// The HTTP code of a refusal; 200 when there was none.
fn code<T>(result: Result<T, Error>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

async fn cluster() -> (ApiServer, Client) {
    let server = ApiServer::in_memory().await.unwrap();
    let admin = server.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(admin.clone());
    for (name, yaml) in crds::ALL.iter().filter(|(name, _)| *name == "virtualmachineinstances.kubevirt.io") {
        let crd: CustomResourceDefinition = serde_saphyr::from_str(yaml).unwrap();
        assert_eq!(crd.metadata.name.as_deref(), Some(*name));
        definitions.create(&PostParams::default(), &crd).await.unwrap();
    }
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let namespace = json!({ "metadata": { "name": "kubevirt" } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    let nodes: Api<Node> = Api::all(admin.clone());
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(admin.clone(), "default");
    for node in ["node1", "node2"] {
        let object = serde_json::from_value(json!({ "metadata": { "name": node } })).unwrap();
        nodes.create(&PostParams::default(), &object).await.unwrap();
        let object = json!({
            "metadata": { "name": format!("on-{node}"), "labels": { "kubevirt.io/nodeName": node } },
            "spec": { "domain": { "devices": {} } },
        });
        vmis.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
    let input = Input { namespace: "kubevirt".into(), replicas: 1, ..Default::default() };
    // Webhooks and workloads have nobody behind them here.
    let manifests: Vec<_> = manifests::render(&input)
        .into_iter()
        .filter(|m| {
            let kind = m["kind"].as_str().unwrap_or_default();
            kind.contains("Role") || kind.starts_with("ValidatingAdmissionPolicy") || kind == "ServiceAccount"
        })
        .collect();
    apply::all(&admin, &Applied::by(virt_operator::MANAGER), &manifests).await.unwrap();
    (server, admin)
}

fn agent(server: &ApiServer, node: Option<&str>) -> Client {
    let extra = node.map(|node| ("authentication.kubernetes.io/node-name".to_owned(), vec![node.to_owned()]));
    server.client_as(User {
        name: "system:serviceaccount:kubevirt:kubevirt-handler".into(),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        extra: extra.into_iter().collect(),
        ..Default::default()
    })
}

#[tokio::test]
async fn only_its_own_node() {
    let (server, _) = cluster().await;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "kubevirt.io/schedulable": "true" } } }));
    let write = async |client: Client, name: &str| {
        let nodes: Api<Node> = Api::all(client);
        code(nodes.patch(name, &PatchParams::default(), &patch).await)
    };
    assert_eq!(write(agent(&server, Some("node1")), "node1").await, 200);
    assert_ne!(write(agent(&server, Some("node1")), "node2").await, 200);
    assert_ne!(write(agent(&server, None), "node1").await, 200);
}

#[tokio::test]
async fn only_its_own_machines() {
    let (server, admin) = cluster().await;
    let patch = Patch::Merge(json!({ "status": { "phase": "Running" } }));
    let write = async |client: Client, name: &str| {
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(client, "default");
        code(vmis.patch(name, &PatchParams::default(), &patch).await)
    };
    assert_eq!(write(agent(&server, Some("node1")), "on-node1").await, 200);
    assert_ne!(write(agent(&server, Some("node1")), "on-node2").await, 200);
    // Nor by giving itself the machine first.
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(agent(&server, Some("node1")), "default");
    let steal = Patch::Merge(json!({ "metadata": { "labels": { "kubevirt.io/nodeName": "node1" } } }));
    assert_ne!(code(vmis.patch("on-node2", &PatchParams::default(), &steal).await), 200);
    let other: Api<VirtualMachineInstance> = Api::namespaced(admin, "default");
    assert_eq!(other.get("on-node2").await.unwrap().metadata.labels.unwrap()["kubevirt.io/nodeName"], "node2");
}

#[tokio::test]
async fn and_those_being_moved_to_it() {
    let (server, admin) = cluster().await;
    let own: Api<VirtualMachineInstance> = Api::namespaced(admin, "default");
    let write = async |node: &str| {
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(agent(&server, Some(node)), "default");
        let patch = Patch::Merge(json!({ "status": { "migrationState": { "targetNodeAddress": "10.0.0.1" } } }));
        code(vmis.patch("on-node1", &PatchParams::default(), &patch).await)
    };
    assert_ne!(write("node2").await, 200);
    let call = |node: Option<&str>| {
        Patch::Merge(json!({ "metadata": { "labels": { "kubevirt.io/migrationTargetNodeName": node } } }))
    };
    own.patch("on-node1", &PatchParams::default(), &call(Some("node2"))).await.unwrap();
    assert_eq!((write("node1").await, write("node2").await), (200, 200));
    assert_ne!(write("node3").await, 200);
    own.patch("on-node1", &PatchParams::default(), &call(None)).await.unwrap();
    assert_eq!((write("node1").await, write("node2").await == 200), (200, false));
}

#[tokio::test]
async fn of_its_machines_only_what_it_has_to_say() {
    let (server, admin) = cluster().await;
    let write = async |patch: serde_json::Value| {
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(agent(&server, Some("node1")), "default");
        code(vmis.patch("on-node1", &PatchParams::default(), &Patch::Merge(patch)).await)
    };
    let refused = [
        json!({ "spec": { "hostname": "mine" } }),
        json!({ "metadata": { "labels": { "kubevirt.io/created-by": "u" } } }),
        json!({ "metadata": { "labels": { "team": "a" } } }),
        json!({ "metadata": { "labels": { "kubevirt.io/nodeName": "node2" } } }),
        json!({ "metadata": { "labels": { "kubevirt.io/nodeName": null } } }),
        json!({ "metadata": { "annotations": { "team": "a" } } }),
        json!({ "metadata": { "finalizers": ["a.b/c"] } }),
        json!({ "status": { "nodeName": "node2" } }),
        json!({ "status": { "activePods": { "mine": "node1" } } }),
    ];
    for patch in refused {
        assert_eq!(write(patch.clone()).await, 422, "{patch}");
    }
    let progress = json!({ "metadata": { "annotations": { "ferrovirt.io/migration-progress": "1" } },
        "status": { "nodeName": "node1", "interfaces": [{ "ipAddress": "10.0.0.7" }] } });
    assert_eq!(write(progress).await, 200);
    // The node that a machine is moved to takes it over.
    let own: Api<VirtualMachineInstance> = Api::namespaced(admin, "default");
    let call = json!({ "metadata": { "labels": { "kubevirt.io/migrationTargetNodeName": "node1" } } });
    own.patch("on-node2", &PatchParams::default(), &Patch::Merge(call)).await.unwrap();
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(agent(&server, Some("node1")), "default");
    let take =
        json!({ "metadata": { "labels": { "kubevirt.io/nodeName": "node1" } }, "status": { "nodeName": "node1" } });
    assert_eq!(code(vmis.patch("on-node2", &PatchParams::default(), &Patch::Merge(take)).await), 200);
}

#[tokio::test]
async fn of_its_node_only_labels_and_annotations_of_kubevirt() {
    let (server, _) = cluster().await;
    let write = async |patch: serde_json::Value| {
        let nodes: Api<Node> = Api::all(agent(&server, Some("node1")));
        code(nodes.patch("node1", &PatchParams::default(), &Patch::Merge(patch)).await)
    };
    let wanted = json!({ "metadata": { "labels": { "cpu-model.node.kubevirt.io/Penryn": "true" },
        "annotations": { "kubevirt.io/heartbeat": "now" } } });
    assert_eq!(write(wanted).await, 200);
    for refused in [
        json!({ "metadata": { "labels": { "node-role.kubernetes.io/control-plane": "" } } }),
        json!({ "metadata": { "annotations": { "team": "a" } } }),
        json!({ "spec": { "unschedulable": true } }),
        json!({ "spec": { "taints": [{ "key": "a", "effect": "NoExecute" }] } }),
    ] {
        assert_eq!(write(refused.clone()).await, 422, "{refused}");
    }
}

#[tokio::test]
async fn events_only_in_its_own_name() {
    let (server, _) = cluster().await;
    let write = async |namespace: &str, involved: serde_json::Value, host: &str| {
        let events: Api<Event> = Api::namespaced(agent(&server, Some("node1")), namespace);
        let event = json!({
            "metadata": { "generateName": "e-" }, "involvedObject": involved, "reason": "Started", "message": "m",
            "source": { "component": "virt-handler", "host": host },
        });
        code(events.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await)
    };
    let vmi = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "on-node1", "namespace": "default" });
    let node = |name: &str| json!({ "apiVersion": "v1", "kind": "Node", "name": name });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default" });
    assert_eq!(write("default", vmi.clone(), "node1").await, 200);
    assert_eq!(write("default", node("node1"), "node1").await, 200);
    assert_eq!(write("default", vmi.clone(), "node2").await, 422);
    assert_eq!(write("default", node("node2"), "node1").await, 422);
    assert_eq!(write("default", pod, "node1").await, 422);
}

#[tokio::test]
async fn no_secrets() {
    let (server, _) = cluster().await;
    let secrets: Api<Secret> = Api::all(agent(&server, Some("node1")));
    assert_eq!(code(secrets.list(&ListParams::default()).await), 403);
    let own: Api<Secret> = Api::namespaced(agent(&server, Some("node1")), "kubevirt");
    assert_eq!(code(own.get("kubevirt-ca").await), 403);
}
