//! Who may do what: the shipped roles through a restart, grants nobody holds, what nodes may write, quotas under load.

use apimachinery::request::User;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ResourceQuota};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use kube_apiserver::{ApiServer, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn user(name: &str, group: &str) -> User {
    User { name: name.into(), groups: vec![group.into(), "system:authenticated".into()], ..User::default() }
}

fn node(name: &str) -> User {
    user(&format!("system:node:{name}"), "system:nodes")
}

async fn create<K: Clone + DeserializeOwned + Serialize + std::fmt::Debug>(
    api: &Api<K>,
    object: Value,
) -> Result<K, Error> {
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>, code: u16, part: &str) {
    let Err(Error::Api(status)) = outcome else { panic!("expected a refusal, got {outcome:?}") };
    assert_eq!(status.code, code, "{}", status.message);
    assert!(status.message.contains(part), "{}", status.message);
}

async fn merge<K: Clone + DeserializeOwned + std::fmt::Debug>(
    api: &Api<K>,
    name: &str,
    change: Value,
) -> Result<K, Error> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await
}

#[tokio::test]
async fn a_restart_mends_the_shipped_roles_and_keeps_what_was_added() {
    let dir = tempfile::tempdir().unwrap();
    let config = || Config { data_dir: Some(dir.path().to_owned()), ..Config::default() };
    let extra = json!({"apiGroups": ["x.io"], "resources": ["things"], "verbs": ["get"]});
    {
        let server = ApiServer::open(config()).await.unwrap();
        let client = server.client();
        let (roles, bindings): (Api<ClusterRole>, Api<ClusterRoleBinding>) =
            (Api::all(client.clone()), Api::all(client));
        merge(&roles, "system:node-proxier", json!({"rules": [extra]})).await.unwrap();
        let kept =
            json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": []});
        merge(&roles, "system:discovery", kept).await.unwrap();
        let mine = json!({"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "me"}]});
        merge(&bindings, "system:node-proxier", mine).await.unwrap();
        roles.delete("view", &DeleteParams::default()).await.unwrap();
    }
    // The client's own task ends, and with it the last hold on the store.
    tokio::task::yield_now().await;
    let server = ApiServer::open(config()).await.unwrap();
    let roles: Api<ClusterRole> = Api::all(server.client());
    let proxier = roles.get("system:node-proxier").await.unwrap().rules.unwrap();
    assert_eq!(serde_json::to_value(&proxier[0]).unwrap(), extra);
    assert!(proxier.iter().any(|rule| rule.resources.iter().flatten().any(|r| r == "endpointslices")));
    assert!(roles.get("system:discovery").await.unwrap().rules.unwrap_or_default().is_empty());
    assert!(roles.get("view").await.unwrap().aggregation_rule.is_some());
    let bindings: Api<ClusterRoleBinding> = Api::all(server.client());
    let subjects = bindings.get("system:node-proxier").await.unwrap().subjects.unwrap();
    assert_eq!(subjects.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["me", "system:kube-proxy"]);
}

/// Lets `ann` write roles and bindings, and read pods.
async fn with_ann(server: &ApiServer) -> Client {
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["create", "update", "get", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    grant(server, "ann", rules).await;
    server.client_as(user("ann", "people"))
}

async fn grant(server: &ApiServer, name: &str, rules: Value) {
    let client = server.client();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let unique = format!("{name}-{}", roles.list(&Default::default()).await.unwrap().items.len());
    create(&roles, json!({"metadata": {"name": unique}, "rules": rules})).await.unwrap();
    let binding = json!({"metadata": {"name": unique}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole", "name": unique}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]});
    create(&Api::<ClusterRoleBinding>::all(client), binding).await.unwrap();
}

#[tokio::test]
async fn users_cannot_grant_rights_they_do_not_hold() {
    let server = super::server().await;
    let ann = with_ann(&server).await;
    let roles: Api<ClusterRole> = Api::all(ann.clone());
    let bindings: Api<RoleBinding> = Api::default_namespaced(ann.clone());
    let role = |name: &str, resource: &str| json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]});
    let binding = |name: &str, role: &str| {
        json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]})
    };
    create(&roles, role("pods", "pods")).await.unwrap();
    let why = "user \"ann\" (groups=[\"people\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
    refused(create(&roles, role("secrets", "secrets")).await, 403, why);
    refused(merge(&roles, "pods", json!({"rules": role("", "secrets")["rules"]})).await, 403, "not currently held");
    // A change that grants nothing is no escalation.
    merge(&roles, "pods", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    create(&bindings, binding("pods", "pods")).await.unwrap();
    refused(create(&bindings, binding("admin", "cluster-admin")).await, 403, "not currently held");
    refused(create(&bindings, binding("none", "missing")).await, 404, "missing");
    // A selector gathers rules of others, so it is granted like all rules.
    let gathers = json!({"metadata": {"name": "g"}, "rules": [], "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    refused(create(&roles, gathers.clone()).await, 403, "must have cluster-admin privileges to use an aggregationRule");

    let special = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["escalate"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["cluster-admin"], "verbs": ["bind"]}]);
    grant(&server, "ann", special).await;
    create(&roles, role("secrets", "secrets")).await.unwrap();
    create(&bindings, binding("admin", "cluster-admin")).await.unwrap();
    refused(create(&bindings, binding("secrets", "secrets")).await, 403, "not currently held");
}

#[tokio::test]
async fn a_node_writes_what_is_its_own() {
    let server = super::server().await;
    let n1 = server.client_as(node("n1"));
    let nodes: Api<Node> = Api::all(n1.clone());
    let labelled = |key: &str| json!({"metadata": {"name": "n1", "labels": {key: "x"}}});
    let why = "node \"n1\" is not allowed to set the following labels: secure.node-restriction.kubernetes.io/zone";
    refused(create(&nodes, labelled("secure.node-restriction.kubernetes.io/zone")).await, 403, why);
    refused(create(&nodes, json!({"metadata": {"name": "n2"}})).await, 403, "not allowed to modify node \"n2\"");
    let made = create(&nodes, labelled("topology.kubernetes.io/zone")).await.unwrap();
    let label = |key: &str| json!({"metadata": {"labels": {key: "y"}}});
    let wrong = "is not allowed to modify labels: node-restriction.kubernetes.io/a";
    refused(merge(&nodes, "n1", label("node-restriction.kubernetes.io/a")).await, 403, wrong);
    refused(merge(&nodes, "n1", label("kubernetes.io/odd")).await, 403, "is not allowed to modify labels");
    merge(&nodes, "n1", label("kubelet.kubernetes.io/mine")).await.unwrap();
    merge(&nodes, "n1", label("example.com/any")).await.unwrap();
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    refused(merge(&nodes, "n1", taint).await, 403, "not allowed to modify taints");
    let owned =
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}]}});
    refused(merge(&nodes, "n1", owned).await, 403, "not allowed to modify ownerReferences");

    let pods: Api<Pod> = Api::default_namespaced(n1.clone());
    let mirror = |name: &str, change: Value| {
        let mut pod = json!({"metadata": {"name": name, "annotations": {"kubernetes.io/config.mirror": "h"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": made.metadata.uid, "controller": true}]},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
        json_patch::merge(&mut pod, &change);
        pod
    };
    create(&pods, mirror("p", json!({}))).await.unwrap();
    let secret = json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}});
    refused(create(&pods, mirror("q", secret)).await, 403, "secret");
    let map = json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "s"}}]}});
    refused(create(&pods, mirror("q", map)).await, 403, "can not create pods that reference configmaps");
    let stranger = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "other", "controller": true}]}});
    refused(create(&pods, mirror("q", stranger)).await, 403, "UID mismatch");
    refused(create(&pods, mirror("q", json!({"spec": {"nodeName": "n2"}}))).await, 403, "spec.nodeName set to itself");
    let plain = json!({"metadata": {"annotations": null}});
    refused(create(&pods, mirror("q", plain)).await, 403, "can only create mirror pods");
    let status = |change: Value| async { pods.patch_status("p", &PatchParams::default(), &Patch::Merge(change)).await };
    status(json!({"status": {"phase": "Running"}})).await.unwrap();
    refused(status(json!({"metadata": {"labels": {"a": "b"}}})).await, 403, "cannot update labels through pod status");
    let other: Api<Pod> = Api::default_namespaced(server.client_as(node("n2")));
    refused(
        other.delete("p", &DeleteParams::default()).await,
        403,
        "can only delete pods with spec.nodeName set to itself",
    );

    let request = |path: &str, name: &str, spec: Value| {
        let body = json!({"metadata": {"name": name}, "spec": spec}).to_string().into_bytes();
        http::Request::post(path).header("content-type", "application/json").body(body).unwrap()
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    n1.request::<Value>(request(leases, "n1", json!({}))).await.unwrap();
    refused(n1.request::<Value>(request(leases, "n2", json!({}))).await, 403, "can only access node lease");
    let csi = "/apis/storage.k8s.io/v1/csinodes";
    n1.request::<Value>(request(csi, "n1", json!({"drivers": []}))).await.unwrap();
    let why = "can only access CSINode with the same name as the requesting node";
    refused(n1.request::<Value>(request(csi, "n2", json!({"drivers": []}))).await, 403, why);
}

#[tokio::test]
async fn a_node_gets_tokens_for_whom_its_pods_show_them_to() {
    let server = super::server().await;
    let admin = server.client();
    let pods: Api<Pod> = Api::default_namespaced(admin.clone());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "serviceAccountName": "default",
        "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}], "volumes": [
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}},
            {"name": "s", "csi": {"driver": "secrets.example.com"}}]}});
    let uid = create(&pods, pod).await.unwrap().metadata.uid;
    let driver =
        json!({"metadata": {"name": "secrets.example.com"}, "spec": {"tokenRequests": [{"audience": "store"}]}});
    let request = |path: &str, body: Value| {
        let body = body.to_string().into_bytes();
        http::Request::post(path).header("content-type", "application/json").body(body).unwrap()
    };
    let n1 = server.client_as(node("n1"));
    let ask = async |audiences: Value| {
        let body = json!({"spec": {"audiences": audiences, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid}}});
        n1.request::<Value>(request("/api/v1/namespaces/default/serviceaccounts/default/token", body)).await
    };
    ask(json!(["vault"])).await.unwrap();
    let why = "serviceaccounts \"default\" is forbidden: error validating audience \"store\": csidriver.storage.k8s.io \"secrets.example.com\" not found";
    refused(ask(json!(["store"])).await, 403, why);
    admin.request::<Value>(request("/apis/storage.k8s.io/v1/csidrivers", driver)).await.unwrap();
    ask(json!(["store"])).await.unwrap();
    refused(ask(json!(["vault", "store"])).await, 403, "node may only request 0 or 1 audiences");
    let why = "serviceaccounts \"default\" is forbidden: audience \"other\" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience";
    refused(ask(json!(["other"])).await, 403, why);
    refused(ask(json!([])).await, 403, "audience \"\" not found in pod spec volume");
    // The administrator may give nodes more.
    let rule = json!({"verbs": ["request-serviceaccounts-token-audience"], "apiGroups": [""], "resources": ["other"]});
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    create(&roles, json!({"metadata": {"name": "audiences"}, "rules": [rule]})).await.unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
    let binding = json!({"metadata": {"name": "audiences"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "audiences"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:node:n1"}]});
    create(&bindings, binding).await.unwrap();
    ask(json!(["other"])).await.unwrap();
}

#[tokio::test]
async fn writers_at_once_never_pass_a_quota() {
    let server = super::server().await;
    let quotas: Api<ResourceQuota> = Api::default_namespaced(server.client());
    create(&quotas, json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "7"}}})).await.unwrap();
    let writers = (0..40).map(|number| {
        let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
        async move { create(&maps, json!({"metadata": {"name": format!("m{number}")}})).await }
    });
    let outcomes = futures::future::join_all(writers).await;
    let (made, refusals): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 7);
    let why = "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=7, limited: count/configmaps=7";
    refusals.into_iter().for_each(|refusal| refused(refusal, 403, why));
    let used = quotas.get("q").await.unwrap().status.unwrap().used.unwrap();
    assert_eq!(used["count/configmaps"].0, "7");
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    let name = made.into_iter().next().unwrap().unwrap().metadata.name.unwrap();
    maps.delete(&name, &DeleteParams::default()).await.unwrap();
    create(&maps, json!({"metadata": {"name": "again"}})).await.unwrap();
}

#[tokio::test]
async fn quotas_and_ranges_are_checked() {
    let server = super::server().await;
    let quotas: Api<ResourceQuota> = Api::default_namespaced(server.client());
    let wrong = json!({"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}});
    refused(create(&quotas, wrong).await, 422, "unsupported scope applied to resource");
    create(&quotas, json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}}))
        .await
        .unwrap();
    let change = json!({"spec": {"scopes": ["Terminating"]}});
    refused(
        merge(&quotas, "q", change).await,
        422,
        "spec.scopes: Invalid value: [\"Terminating\"]: field is immutable",
    );
    let ranges: Api<k8s_openapi::api::core::v1::LimitRange> = Api::default_namespaced(server.client());
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}}]}});
    refused(create(&ranges, range).await, 422, "min value 2 is greater than max value 1");
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}});
    create(&ranges, range).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_right_to_watch_one_object_shows_only_that_object() {
    let server = super::server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    for name in ["mine", "theirs"] {
        create(&maps, json!({"metadata": {"name": name}})).await.unwrap();
    }
    let rules =
        json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["watch"]}]);
    grant(&server, "ann", rules).await;
    let ann = server.client_as(user("ann", "people"));
    let watch = async |path: &str| {
        let request = http::Request::get(format!("/api/v1/watch{path}timeoutSeconds=1")).body(Vec::new()).unwrap();
        ann.request_text(request).await
    };
    let told = watch("/namespaces/default/configmaps/mine?").await.unwrap();
    assert!(told.contains(r#""name":"mine""#) && !told.contains("theirs"), "{told}");
    for path in [
        "/namespaces/default/configmaps?",
        "/namespaces/default/configmaps/theirs?",
        "/namespaces/default/configmaps/theirs?fieldSelector=metadata.name%3Dmine&",
        "/configmaps?",
        "/configmaps/mine/status?",
    ] {
        let outcome = watch(path).await;
        assert!(outcome.is_err(), "{path}: {outcome:?}");
    }
    // Another selector only narrows what the path names.
    let told = watch("/namespaces/default/configmaps/mine?fieldSelector=metadata.name%3Dtheirs&").await.unwrap();
    assert!(!told.contains("theirs") && !told.contains("mine"), "{told}");
}
