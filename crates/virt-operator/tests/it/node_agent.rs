//! The token on a node reaches its own node and its own machines, and nothing else.

use api::kubevirt::v1::VirtualMachineInstance;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Error, ResourceExt};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
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
    let vmi = machine("on-node1");
    let node = |name: &str| json!({ "apiVersion": "v1", "kind": "Node", "name": name });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default" });
    assert_eq!(write("default", vmi.clone(), "node1").await, 200);
    assert_eq!(write("default", node("node1"), "node1").await, 200);
    assert_eq!(write("default", vmi.clone(), "node2").await, 422);
    assert_eq!(write("default", node("node2"), "node1").await, 422);
    assert_eq!(write("default", pod, "node1").await, 422);
}

fn machine(name: &str) -> serde_json::Value {
    json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "namespace": "default" })
}

#[tokio::test]
async fn events_only_about_its_own_machines() {
    let (server, admin) = cluster().await;
    let event = |name: &str, about: &str, node: &str| {
        let event = json!({
            "metadata": { "name": name }, "involvedObject": machine(about), "reason": "Stopped", "message": "m",
            "source": { "component": "virt-handler", "host": node },
        });
        serde_json::from_value::<Event>(event).unwrap()
    };
    let write = async |node: &str, name: &str, about: &str| {
        let events: Api<Event> = Api::namespaced(agent(&server, Some(node)), "default");
        code(events.create(&PostParams::default(), &event(name, about, node)).await)
    };
    assert_eq!(write("node1", "a", "on-node1").await, 200);
    assert_eq!(write("node1", "b", "on-node2").await, 422);
    // Nor by turning an event of its own to another machine.
    let events: Api<Event> = Api::namespaced(agent(&server, Some("node1")), "default");
    let turned = Patch::Merge(json!({ "involvedObject": machine("on-node2") }));
    assert_eq!(code(events.patch("a", &PatchParams::default(), &turned).await), 422);
    let counted = Patch::Merge(json!({ "count": 2 }));
    assert_eq!(code(events.patch("a", &PatchParams::default(), &counted).await), 200);
    // Both ends of a migration tell of it, and still do when the machine has arrived.
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(admin, "default");
    let move_to = async |labels: serde_json::Value| {
        let state = json!({ "sourceNode": "node1", "targetNode": "node3", "migrationUid": "u" });
        let patch = json!({ "metadata": { "labels": labels }, "status": { "migrationState": state } });
        vmis.patch("on-node1", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    move_to(json!({ "kubevirt.io/migrationTargetNodeName": "node3" })).await;
    let told = (write("node1", "c", "on-node1").await, write("node3", "d", "on-node1").await);
    assert_eq!((told, write("node2", "e", "on-node1").await), ((200, 200), 422));
    move_to(json!({ "kubevirt.io/migrationTargetNodeName": null, "kubevirt.io/nodeName": "node3" })).await;
    let told = (write("node1", "f", "on-node1").await, write("node3", "g", "on-node1").await);
    assert_eq!((told, write("node2", "h", "on-node1").await), ((200, 200), 422));
    // What has gone is nobody's any more.
    assert_eq!(write("node1", "i", "gone").await, 200);
}

#[tokio::test]
async fn it_reads_only_its_own_machines() {
    let (server, admin) = cluster().await;
    let of = |node: &str| Api::<VirtualMachineInstance>::all(agent(&server, Some(node)));
    let labelled = |label: &str, node: &str| ListParams::default().labels(&format!("{label}={node}"));
    let (here, next) = ("kubevirt.io/nodeName", "kubevirt.io/migrationTargetNodeName");
    let names = async |node: &str, params: ListParams| -> Vec<String> {
        of(node).list(&params).await.unwrap().items.iter().map(ResourceExt::name_any).collect()
    };
    assert_eq!(names("node1", labelled(here, "node1")).await, ["on-node1"]);
    assert!(names("node1", labelled(next, "node1")).await.is_empty());
    for stolen in [
        ListParams::default(),
        labelled(here, "node2"),
        labelled(next, "node2"),
        ListParams::default().labels(here),
        ListParams::default().labels("kubevirt.io/nodeName in (node1, node2)"),
        ListParams::default().fields("metadata.name=on-node2"),
    ] {
        assert_eq!(code(of("node1").list(&stolen).await), 403, "{stolen:?}");
    }
    for stolen in [WatchParams::default(), WatchParams::default().labels("kubevirt.io/nodeName=node2")] {
        let own = of("node1");
        let refused = match own.watch(&stolen, "0").await {
            Ok(stream) => std::pin::pin!(stream).try_next().await.map(drop),
            Err(error) => Err(error),
        };
        assert_eq!(code(refused), 403, "{stolen:?}");
    }
    let one: Api<VirtualMachineInstance> = Api::namespaced(agent(&server, Some("node1")), "default");
    assert_eq!(code(one.get("on-node2").await), 403);
    // A token that is bound to no node has none of its own.
    let unbound: Api<VirtualMachineInstance> = Api::all(agent(&server, None));
    assert_eq!(code(unbound.list(&labelled(here, "node1")).await), 403);

    // What a refused patch says is nothing of the machine: a copied secret would be shown as a bad value.
    let copied = serde_json::from_value(json!([
        { "op": "copy", "from": "/metadata/uid", "path": "/metadata/labels/stolen" },
        { "op": "copy", "from": "/metadata/uid", "path": "/spec/evictionStrategy" },
    ]));
    let refusal =
        one.patch("on-node2", &PatchParams::default(), &Patch::<()>::Json(copied.unwrap())).await.unwrap_err();
    let other: Api<VirtualMachineInstance> = Api::namespaced(admin, "default");
    let uid = other.get("on-node2").await.unwrap().metadata.uid.unwrap();
    assert!(!refusal.to_string().contains(&uid), "{refusal}");

    // It learns of a machine when it is called, goes on with it when it has come, and forgets it when it has left.
    let own = of("node1");
    let called = WatchParams::default().labels("kubevirt.io/migrationTargetNodeName=node1");
    let arriving = own.watch(&called, "0");
    let mut arriving = std::pin::pin!(arriving.await.unwrap());
    let label = async |labels: serde_json::Value| {
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        other.patch("on-node2", &PatchParams::default(), &patch).await.unwrap();
    };
    label(json!({ next: "node1" })).await;
    let WatchEvent::Added(called) = arriving.try_next().await.unwrap().unwrap() else { panic!("not called") };
    assert_eq!(called.name_any(), "on-node2");
    let prepared = Patch::Merge(json!({ "status": { "migrationState": { "targetNodeAddress": "10.0.0.1" } } }));
    assert_eq!(code(one.patch("on-node2", &PatchParams::default(), &prepared).await), 200);
    assert_eq!(names("node2", labelled(here, "node2")).await, ["on-node2"]);
    let WatchEvent::Modified(_) = arriving.try_next().await.unwrap().unwrap() else { panic!("not told") };
    label(json!({ next: null, here: "node1" })).await;
    assert_eq!(names("node1", labelled(here, "node1")).await, ["on-node1", "on-node2"]);
    assert!(names("node2", labelled(here, "node2")).await.is_empty());
    let WatchEvent::Deleted(_) = arriving.try_next().await.unwrap().unwrap() else { panic!("still called") };
}

#[tokio::test]
async fn it_reads_only_its_own_node() {
    let (server, _) = cluster().await;
    let nodes: Api<Node> = Api::all(agent(&server, Some("node1")));
    assert_eq!(code(nodes.get("node1").await), 200);
    assert_eq!(code(nodes.get("node2").await), 403);
    assert_eq!(code(nodes.list(&ListParams::default().fields("metadata.name=node1")).await), 200);
    assert_eq!(code(nodes.list(&ListParams::default().fields("metadata.name=node2")).await), 403);
    assert_eq!(code(nodes.list(&ListParams::default()).await), 403);
}

#[tokio::test]
async fn no_secrets() {
    let (server, _) = cluster().await;
    let secrets: Api<Secret> = Api::all(agent(&server, Some("node1")));
    assert_eq!(code(secrets.list(&ListParams::default()).await), 403);
    let own: Api<Secret> = Api::namespaced(agent(&server, Some("node1")), "kubevirt");
    assert_eq!(code(own.get("kubevirt-ca").await), 403);
}
