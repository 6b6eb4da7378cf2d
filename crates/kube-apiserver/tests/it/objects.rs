//! create, read, update, patch, delete.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Error, ResourceExt};
use serde_json::json;

use super::server;

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": name}}, "data": {"k": "v"}})).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>, code: u16, reason: &str) -> String {
    match outcome {
        Err(Error::Api(status)) => {
            assert_eq!((status.code, status.reason.as_str()), (code, reason), "{}", status.message);
            status.message
        }
        other => panic!("expected {code} {reason}, got {other:?}"),
    }
}

#[tokio::test]
async fn an_object_lives_and_dies() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let created = api.create(&PostParams::default(), &map("a")).await.unwrap();
    assert!(created.uid().is_some() && created.resource_version().is_some() && created.creation_timestamp().is_some());
    assert_eq!(created.namespace().as_deref(), Some("default"));
    refused(api.create(&PostParams::default(), &map("a")).await, 409, "AlreadyExists");

    let mut changed = created.clone();
    changed.data.as_mut().unwrap().insert("k".into(), "w".into());
    let updated = api.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(updated.resource_version(), created.resource_version());
    let message = refused(api.replace("a", &PostParams::default(), &changed).await, 409, "Conflict");
    assert!(message.contains("the object has been modified"), "{message}");
    let same = api.replace("a", &PostParams::default(), &updated).await.unwrap();
    assert_eq!(same.resource_version(), updated.resource_version(), "a write that changes nothing is none");

    let wrong = DeleteParams {
        preconditions: Some(Preconditions { uid: Some("x".into()), ..Default::default() }),
        ..Default::default()
    };
    refused(api.delete("a", &wrong).await, 409, "Conflict");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let message = refused(api.get("a").await, 404, "NotFound");
    assert_eq!(message, "configmaps \"a\" not found");
}

#[tokio::test]
async fn names_are_generated_and_checked() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let mut unnamed = map("x");
    unnamed.metadata.name = None;
    refused(api.create(&PostParams::default(), &unnamed).await, 422, "Invalid");
    unnamed.metadata.generate_name = Some("gen-".into());
    let created = api.create(&PostParams::default(), &unnamed).await.unwrap();
    assert!(created.name_any().starts_with("gen-") && created.name_any().len() == 9);
    refused(api.create(&PostParams::default(), &map("Not_Valid")).await, 422, "Invalid");
    let elsewhere: Api<ConfigMap> = Api::namespaced(server().await.client(), "missing");
    refused(elsewhere.create(&PostParams::default(), &map("a")).await, 404, "NotFound");
}

#[tokio::test]
async fn lists_select_and_continue() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    for n in 0..7 {
        api.create(&PostParams::default(), &map(&format!("m{n}"))).await.unwrap();
    }
    let list = api.list(&ListParams::default().labels("app in (m1,m2)")).await.unwrap();
    assert_eq!(list.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["m1", "m2"]);
    let list = api.list(&ListParams::default().fields("metadata.name=m3")).await.unwrap();
    assert_eq!(list.items.len(), 1);
    refused(api.list(&ListParams::default().fields("spec.nope=1")).await, 400, "BadRequest");

    let first = api.list(&ListParams::default().limit(3)).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (3, Some(4)));
    // The pages are of one moment: what is deleted in between is still there.
    api.delete("m5", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let rest = api.list(&ListParams::default().continue_token(&token)).await.unwrap();
    assert_eq!(rest.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["m3", "m4", "m5", "m6"]);
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);
}

#[tokio::test]
async fn three_kinds_of_patch() {
    let api: Api<Pod> = Api::default_namespaced(server().await.client());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]}});
    api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let params = PatchParams::default();
    let merge = json!({"metadata": {"labels": {"x": "1"}}});
    assert_eq!(api.patch("p", &params, &Patch::Merge(&merge)).await.unwrap().labels()["x"], "1");
    let strategic = json!({"spec": {"containers": [{"name": "b", "image": "b:2"}]}});
    let patched = api.patch("p", &params, &Patch::Strategic(&strategic)).await.unwrap();
    let images: Vec<_> = patched.spec.unwrap().containers.iter().map(|c| c.image.clone().unwrap()).collect();
    assert_eq!(images, ["a:1", "b:2"]);
    let operations: json_patch::Patch =
        serde_json::from_value(json!([{"op": "replace", "path": "/metadata/labels/x", "value": "2"}])).unwrap();
    assert_eq!(api.patch("p", &params, &Patch::Json::<()>(operations)).await.unwrap().labels()["x"], "2");
}

#[tokio::test]
async fn a_patch_gives_no_field_a_value_of_another_type() {
    let client = server().await.client();
    let api: Api<Deployment> = Api::default_namespaced(client.clone());
    let labels = json!({"app": "d"});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 2, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}}});
    api.create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
    let params = PatchParams::default();
    for patch in [
        json!({"spec": {"replicas": "3"}}),
        json!({"spec": {"template": {"spec": {"containers": {}}}}}),
        json!({"metadata": {"labels": {"a": 1}}}),
    ] {
        let message = refused(api.patch("d", &params, &Patch::Merge(&patch)).await, 422, "Invalid");
        assert!(message.contains("json: cannot unmarshal"), "{message}");
    }
    refused(api.patch_scale("d", &params, &Patch::Merge(json!({"spec": {"replicas": "3"}}))).await, 422, "Invalid");
    refused(api.patch_status("d", &params, &Patch::Merge(json!({"status": {"replicas": "3"}}))).await, 422, "Invalid");
    let kept = api.get("d").await.unwrap();
    assert_eq!(kept.spec.unwrap().replicas, Some(2), "nothing of it was taken");
}

#[tokio::test]
async fn finalizers_hold_an_object() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let mut held = map("held");
    held.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    let waiting = api.delete("held", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(waiting.metadata.deletion_timestamp.is_some());
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    refused(api.patch("held", &PatchParams::default(), &Patch::Merge(&more)).await, 422, "Invalid");
    let none = json!({"metadata": {"finalizers": null}});
    api.patch("held", &PatchParams::default(), &Patch::Merge(&none)).await.unwrap();
    refused(api.get("held").await, 404, "NotFound");
}

#[tokio::test]
async fn status_and_spec_do_not_touch_each_other() {
    let api: Api<Deployment> = Api::default_namespaced(server().await.client());
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}, "status": {"replicas": 9}});
    let created = api.create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
    assert_eq!(created.status.as_ref().and_then(|s| s.replicas), None);
    assert_eq!(created.metadata.generation, Some(1));
    let both = json!({"spec": {"replicas": 5}, "status": {"replicas": 4, "observedGeneration": 1}});
    let patched = api.patch_status("d", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!((patched.spec.unwrap().replicas, patched.status.unwrap().replicas), (Some(1), Some(4)));
    assert_eq!(patched.metadata.generation, Some(1));
    let patched = api.patch("d", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!((patched.spec.unwrap().replicas, patched.metadata.generation), (Some(5), Some(2)));
    let scale = api.get_scale("d").await.unwrap();
    assert_eq!(scale.status.unwrap().selector.as_deref(), Some("a=b"));
    let scaled =
        api.patch_scale("d", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 2}}))).await.unwrap();
    assert_eq!(scaled.spec.unwrap().replicas, Some(2));
}

#[tokio::test]
async fn unknown_fields_are_refused_or_dropped_as_asked() {
    let client = server().await.client();
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "dota": {}});
    let post = |validation: &str| {
        http::Request::post(format!("/api/v1/namespaces/default/configmaps?fieldValidation={validation}"))
            .header("content-type", "application/json")
            .body(body.to_string().into_bytes())
            .unwrap()
    };
    let message = refused(client.request::<ConfigMap>(post("Strict")).await, 400, "BadRequest");
    assert_eq!(
        message,
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dota\": did you mean data?"
    );
    client.request::<ConfigMap>(post("Warn")).await.unwrap();
}

#[tokio::test]
async fn dry_runs_store_nothing() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let answered = api.create(&dry, &map("d")).await.unwrap();
    assert!(answered.uid().is_some());
    refused(api.get("d").await, 404, "NotFound");
}

#[tokio::test]
async fn a_namespace_waits_for_its_finalizer() {
    let client = server().await.client();
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "team"}})).unwrap();
    let created = api.create(&PostParams::default(), &namespace).await.unwrap();
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Active"));
    let waiting = api.delete("team", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(waiting.status.as_ref().unwrap().phase.as_deref(), Some("Terminating"));
    let mut done = serde_json::to_value(&waiting).unwrap();
    done["spec"]["finalizers"] = json!([]);
    let request = http::Request::put("/api/v1/namespaces/team/finalize")
        .header("content-type", "application/json")
        .body(done.to_string().into_bytes())
        .unwrap();
    client.request::<Namespace>(request).await.unwrap();
    refused(api.get("team").await, 404, "NotFound");
}

#[tokio::test]
async fn evictions_respect_budgets() {
    let client = server().await.client();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = |name: &str| {
        serde_json::from_value::<Pod>(json!({"metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}})).unwrap()
    };
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    for name in ["one", "two", "unwell"] {
        pods.create(&PostParams::default(), &pod(name)).await.unwrap();
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&running)).await.unwrap();
    }
    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> = Api::default_namespaced(client);
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}});
    budgets.create(&PostParams::default(), &serde_json::from_value(budget).unwrap()).await.unwrap();
    let evict = async |name: &str| pods.evict(name, &Default::default()).await.map(|_| ());
    refused(evict("one").await, 429, "TooManyRequests");
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    budgets.patch_status("b", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    evict("one").await.unwrap();
    refused(pods.get("one").await, 404, "NotFound");
    let message = refused(evict("two").await, 429, "TooManyRequests");
    assert_eq!(message, "Cannot evict pod as it would violate the pod's disruption budget.");
    // Who is not well may go for nothing while enough of the others are.
    let unwell = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    pods.patch_status("unwell", &PatchParams::default(), &Patch::Merge(&unwell)).await.unwrap();
    evict("unwell").await.unwrap();
}

#[tokio::test]
async fn priorities_come_from_classes() {
    let client = server().await.client();
    let (classes, post): (Api<PriorityClass>, _) = (Api::all(client.clone()), PostParams::default());
    let class = |name: &str, value: i64, default: bool| {
        let class =
            json!({"metadata": {"name": name}, "value": value, "globalDefault": default, "preemptionPolicy": "Never"});
        serde_json::from_value::<PriorityClass>(class).unwrap()
    };
    classes.create(&post, &class("usual", 7, true)).await.unwrap();
    let message = refused(classes.create(&post, &class("other", 8, true)).await, 403, "Forbidden");
    assert!(
        message.ends_with("PriorityClass usual is already marked as default. Only one default can exist"),
        "{message}"
    );
    let message = refused(classes.create(&post, &class("huge", 1_000_000_001, false)).await, 422, "Invalid");
    assert!(message.contains("maximum allowed value of a user defined priority is 1000000000"), "{message}");
    refused(classes.create(&post, &class("system-mine", 1, false)).await, 422, "Invalid");
    refused(classes.delete("system-node-critical", &Default::default()).await, 403, "Forbidden");
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = |name: &str, more: serde_json::Value| {
        let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
        json_patch::merge(&mut pod["spec"], &more);
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let usual = pods.create(&post, &pod("a", json!({}))).await.unwrap().spec.unwrap();
    assert_eq!((usual.priority, usual.priority_class_name.as_deref()), (Some(7), Some("usual")));
    assert_eq!(usual.preemption_policy.as_deref(), Some("Never"));
    let message =
        refused(pods.create(&post, &pod("b", json!({"priorityClassName": "absent"}))).await, 403, "Forbidden");
    assert!(message.ends_with("no PriorityClass with name absent was found"), "{message}");
    refused(pods.create(&post, &pod("c", json!({"priority": 8}))).await, 403, "Forbidden");
    refused(pods.create(&post, &pod("d", json!({"preemptionPolicy": "PreemptLowerPriority"}))).await, 403, "Forbidden");
    let runtimes: Api<RuntimeClass> = Api::all(pods.clone().into_client());
    let runtime = json!({"metadata": {"name": "heavy"}, "handler": "runc", "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"kind": "heavy"}, "tolerations": [{"key": "heavy", "operator": "Exists"}]}});
    runtimes.create(&post, &serde_json::from_value(runtime).unwrap()).await.unwrap();
    let heavy = pods.create(&post, &pod("heavy", json!({"runtimeClassName": "heavy"}))).await.unwrap().spec.unwrap();
    assert_eq!(heavy.overhead.unwrap()["cpu"].0, "250m");
    assert_eq!(heavy.node_selector.unwrap()["kind"], "heavy");
    assert_eq!(heavy.tolerations.unwrap().iter().filter(|t| t.key.as_deref() == Some("heavy")).count(), 1);
    let message = refused(pods.create(&post, &pod("f", json!({"runtimeClassName": "none"}))).await, 403, "Forbidden");
    assert!(message.ends_with("pod rejected: RuntimeClass \"none\" not found"), "{message}");
    let wrong = json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]});
    let message = refused(pods.create(&post, &pod("e", wrong)).await, 422, "Invalid");
    assert!(
        message.contains("spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"),
        "{message}"
    );
}

#[tokio::test]
async fn services_get_addresses_of_their_own() {
    use k8s_openapi::api::core::v1::Service;
    let api: Api<Service> = Api::default_namespaced(server().await.client());
    let service = |name: &str, more: serde_json::Value| {
        let mut spec = json!({"ports": [{"port": 80}]});
        json_patch::merge(&mut spec, &more);
        serde_json::from_value::<Service>(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    };
    let post = PostParams::default();
    let fixed = api.create(&post, &service("dns", json!({"clusterIP": "10.96.0.10"}))).await.unwrap();
    assert_eq!(fixed.spec.unwrap().cluster_ip.as_deref(), Some("10.96.0.10"));
    let message =
        refused(api.create(&post, &service("again", json!({"clusterIP": "10.96.0.10"}))).await, 422, "Invalid");
    assert!(message.contains("provided IP is already allocated"), "{message}");
    refused(api.create(&post, &service("outside", json!({"clusterIP": "10.1.0.10"}))).await, 422, "Invalid");
    let dual =
        api.create(&post, &service("dual", json!({"ipFamilyPolicy": "PreferDualStack"}))).await.unwrap().spec.unwrap();
    assert_eq!(dual.ip_families, Some(vec!["IPv4".to_owned(), "IPv6".to_owned()]));
    assert!(dual.cluster_ips.unwrap()[1].starts_with("fd00:10:96::"));
    let port = api.create(&post, &service("port", json!({"type": "NodePort"}))).await.unwrap();
    let number = port.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].node_port.unwrap();
    assert!((30000..=32767).contains(&number));
    let taken = service("taken", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": number}]}));
    let message = refused(api.create(&post, &taken).await, 422, "Invalid");
    assert!(message.contains("provided port is already allocated"), "{message}");
    let dry = PostParams { dry_run: true, ..post.clone() };
    refused(api.create(&dry, &taken).await, 422, "Invalid");
    // A dry run takes nothing of the range, and so does not ask what is in it.
    let low =
        json!({"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": 80}, {"name": "b", "port": 81}]});
    let shown = api.create(&dry, &service("low", low.clone())).await.unwrap().spec.unwrap().ports.unwrap();
    assert_eq!(shown.iter().map(|port| port.node_port).collect::<Vec<_>>(), [Some(80), Some(81)]);
    let message = refused(api.create(&post, &service("low", low)).await, 422, "Invalid");
    assert!(message.contains("The range of valid ports is 30000-32767"), "{message}");
    // An update that says nothing of what was allocated keeps it.
    let mut quiet = service("port", json!({"type": "NodePort"}));
    quiet.metadata.resource_version = port.resource_version();
    let kept = api.replace("port", &post, &quiet).await.unwrap().spec.unwrap();
    assert_eq!((kept.cluster_ip, kept.ports.unwrap()[0].node_port), (port.spec.unwrap().cluster_ip, Some(number)));
}

#[tokio::test]
async fn services_change_their_type_and_families() {
    use k8s_openapi::api::core::v1::{Service, ServiceSpec};
    let api: Api<Service> = Api::default_namespaced(server().await.client());
    let change = async |spec: serde_json::Value| {
        api.patch("s", &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await
    };
    let spec = |service: Service| -> ServiceSpec { service.spec.unwrap() };
    let ports = json!([{"name": "u", "port": 53, "protocol": "UDP"}, {"name": "t", "port": 53, "protocol": "TCP"}]);
    let balanced = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": ports});
    let object = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": balanced})).unwrap();
    let made = spec(api.create(&PostParams::default(), &object).await.unwrap());
    let numbers: Vec<_> = made.ports.unwrap().iter().map(|port| port.node_port.unwrap()).collect();
    assert_eq!(numbers[0], numbers[1], "two protocols of one port share its number");
    assert!(made.health_check_node_port.is_some_and(|port| port != numbers[0]));
    assert_eq!(made.allocate_load_balancer_node_ports, Some(true));

    let both = spec(change(json!({"ipFamilyPolicy": "PreferDualStack"})).await.unwrap());
    let ips = both.cluster_ips.unwrap();
    assert_eq!((ips.len(), Some(&ips[0])), (2, made.cluster_ip.as_ref()));
    let message = refused(change(json!({"clusterIPs": [ips[0]]})).await, 422, "Invalid");
    assert!(message.contains("must be 'SingleStack' to release the secondary cluster IP"), "{message}");
    let single = spec(change(json!({"ipFamilyPolicy": "SingleStack"})).await.unwrap());
    assert_eq!((single.cluster_ips, single.ip_families), (Some(vec![ips[0].clone()]), Some(vec!["IPv4".to_owned()])));
    let message = refused(change(json!({"clusterIP": "10.96.200.200"})).await, 422, "Invalid");
    assert!(message.contains("may not change once set"), "{message}");

    let plain = spec(change(json!({"type": "ClusterIP"})).await.unwrap());
    assert!(plain.ports.unwrap().iter().all(|port| port.node_port.is_none()));
    assert_eq!((plain.external_traffic_policy, plain.health_check_node_port), (None, None));
    assert_eq!((plain.allocate_load_balancer_node_ports, plain.cluster_ip), (None, made.cluster_ip));
    let name = spec(change(json!({"type": "ExternalName", "externalName": "example.org"})).await.unwrap());
    assert_eq!((name.cluster_ip, name.cluster_ips, name.ip_families), (None, None, None));
}

#[tokio::test]
async fn changing_immutable_fields_is_refused() {
    let api: Api<Deployment> = Api::default_namespaced(server().await.client());
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b", "c": "d"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    api.create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
    let other = json!({"spec": {"selector": {"matchLabels": {"a": null, "c": "d"}}}});
    let message = refused(api.patch("d", &PatchParams::default(), &Patch::Merge(&other)).await, 422, "Invalid");
    assert!(
        message.contains("spec.selector: Invalid value: ") && message.ends_with(": field is immutable"),
        "{message}"
    );
}
