//! The server behind TLS: certificates, tokens, RBAC and reviews, as network clients meet them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Error};
use kube_apiserver::ApiServer;
use kube_apiserver::pki::{Pair, kubeconfig};
use kube_apiserver::serve::Bounds;
use kube_apiserver::serve::serve_within;
use kube_apiserver::serve::tls::Tls;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A served server; stops when dropped.
pub(crate) struct Served {
    pub(crate) server: ApiServer,
    pub(crate) url: String,
    shutdown: CancellationToken,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Served {
    pub(crate) async fn start() -> Self {
        Self::start_within(Bounds::default()).await
    }

    pub(crate) async fn start_within(bounds: Bounds) -> Self {
        let server = super::server().await;
        let router = server.network_router();
        Self::start_router(bounds, server, router).await
    }

    pub(crate) async fn start_router(bounds: Bounds, server: ApiServer, router: axum::Router) -> Self {
        let pki = &server.edges().pki;
        let pair = pki.api_server(&["127.0.0.1".into()]).unwrap();
        let tls = Tls::from_pem(&pair.certificate, &pair.key, pki.ca_pem()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        tokio::spawn(serve_within(bounds, vec![listener], Arc::new(tls), router, stop));
        Self { server, url, shutdown }
    }

    pub(crate) fn kubeconfig(&self) -> String {
        let pki = &self.server.edges().pki;
        kubeconfig(&self.url, pki.ca_pem(), "admin", &pki.admin().unwrap())
    }

    pub(crate) async fn with_certificate(&self, pair: &Pair) -> Client {
        let text = kubeconfig(&self.url, self.server.edges().pki.ca_pem(), "u", pair);
        self.with(kube::config::Kubeconfig::from_yaml(&text).unwrap()).await
    }

    pub(crate) async fn with_token(&self, token: Option<&str>) -> Client {
        let mut config = kube::config::Kubeconfig::from_yaml(&self.kubeconfig()).unwrap();
        config.auth_infos[0].auth_info =
            Some(kube::config::AuthInfo { token: token.map(|t| t.to_owned().into()), ..Default::default() });
        self.with(config).await
    }

    async fn with(&self, config: kube::config::Kubeconfig) -> Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>, code: u16, message: &str) {
    match outcome {
        Err(Error::Api(status)) => assert_eq!((status.code, status.message.as_str()), (code, message)),
        other => panic!("expected {code} {message}, got {other:?}"),
    }
}

async fn raw(client: &Client, method: &str, path: &str, body: Value) -> Result<Value, Error> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    client.request(request.body(body).unwrap()).await
}

#[tokio::test]
async fn certificates_name_users_and_groups() {
    let served = Served::start().await;
    let pki = &served.server.edges().pki;
    let admin = served.with_certificate(&pki.admin().unwrap()).await;
    assert_eq!(Api::<Namespace>::all(admin).list(&ListParams::default()).await.unwrap().items.len(), 4);
    let bob = served.with_certificate(&pki.client("bob", "bob", "").unwrap()).await;
    refused(
        Api::<Pod>::default_namespaced(bob.clone()).list(&ListParams::default()).await,
        403,
        "pods is forbidden: User \"bob\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"",
    );
    refused(
        raw(&bob, "GET", "/metrics", Value::Null).await,
        403,
        "forbidden: User \"bob\" cannot get path \"/metrics\"",
    );
    let nobody = served.with_token(None).await;
    assert!(nobody.apiserver_version().await.is_ok());
    refused(
        Api::<Namespace>::all(nobody).get("default").await,
        403,
        "namespaces \"default\" is forbidden: User \"system:anonymous\" cannot get resource \"namespaces\" in API group \"\" in the namespace \"default\"",
    );
    refused(
        Api::<Namespace>::all(served.server.client()).delete("default", &DeleteParams::default()).await.map(drop),
        403,
        "namespaces \"default\" is forbidden: this namespace may not be deleted",
    );
    let stranger = served.with_token(Some("a.b.c")).await;
    refused(Api::<Namespace>::all(stranger).get("default").await, 401, "Unauthorized");
}

#[tokio::test]
async fn tokens_end_with_their_account() {
    let served = Served::start().await;
    let admin = served.server.client();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "robot"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let issued = raw(&admin, "POST", path, json!({"spec": {}})).await.unwrap();
    let token = issued["status"]["token"].as_str().unwrap();
    let robot = served.with_token(Some(token)).await;
    let me = raw(&robot, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.unwrap();
    assert_eq!(me["status"]["userInfo"]["username"], "system:serviceaccount:default:robot");
    let review = json!({"spec": {"token": token}});
    let review = raw(&admin, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", review).await.unwrap();
    assert_eq!(review["status"]["authenticated"], true);
    let other = raw(&admin, "POST", path, json!({"spec": {"audiences": ["elsewhere"]}})).await.unwrap();
    let other = served.with_token(other["status"]["token"].as_str()).await;
    refused(raw(&other, "GET", "/api", Value::Null).await, 401, "Unauthorized");
    accounts.delete("robot", &DeleteParams::default()).await.unwrap();
    refused(raw(&robot, "GET", "/api", Value::Null).await, 401, "Unauthorized");
}

#[tokio::test]
async fn bindings_take_effect_at_once_and_reviews_agree() {
    let served = Served::start().await;
    let admin = served.server.client();
    let bob = served.with_certificate(&served.server.edges().pki.client("bob", "bob", "").unwrap()).await;
    let ask = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(raw(&bob, "POST", path, ask.clone()).await.unwrap()["status"]["allowed"], false);
    let binding = json!({"metadata": {"name": "bob"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}]});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    raw(&admin, "POST", bindings, binding).await.unwrap();
    assert_eq!(raw(&bob, "POST", path, ask).await.unwrap()["status"]["allowed"], true);
    Api::<Pod>::default_namespaced(bob.clone()).list(&ListParams::default()).await.unwrap();
    let subject = json!({"spec": {"user": "bob", "resourceAttributes": {"verb": "delete", "resource": "pods", "namespace": "default"}}});
    let answer = raw(&admin, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", subject).await.unwrap();
    assert_eq!(answer["status"]["allowed"], false);
    // Who may write roles may still not grant what he lacks.
    let role = json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"]}]});
    raw(&admin, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", role).await.unwrap();
    let binding = json!({"metadata": {"name": "r"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}]});
    raw(&admin, "POST", bindings, binding).await.unwrap();
    let greedy =
        json!({"metadata": {"name": "g"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    refused(
        raw(&bob, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", greedy).await,
        403,
        "roles.rbac.authorization.k8s.io \"g\" is forbidden: user \"bob\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}",
    );
}

#[tokio::test]
async fn a_node_reaches_what_its_pods_use() {
    let served = Served::start().await;
    let admin = served.server.client();
    let pod = |name: &str, node: &str, secret: &str| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": node, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "s", "secret": {"secretName": secret}}]}})
    };
    for (name, node, secret) in [("a", "n1", "mine"), ("b", "n2", "theirs")] {
        raw(&admin, "POST", "/api/v1/namespaces/default/secrets", json!({"metadata": {"name": secret}})).await.unwrap();
        raw(&admin, "POST", "/api/v1/namespaces/default/pods", pod(name, node, secret)).await.unwrap();
    }
    let n1 = served.with_certificate(&served.server.edges().pki.kubelet("n1").unwrap()).await;
    assert!(raw(&n1, "GET", "/api/v1/namespaces/default/secrets/mine", Value::Null).await.is_ok());
    refused(
        raw(&n1, "GET", "/api/v1/namespaces/default/secrets/theirs", Value::Null).await,
        403,
        "secrets \"theirs\" is forbidden: User \"system:node:n1\" cannot get resource \"secrets\" in API group \"\" in the namespace \"default\": no relationship found between node and this object",
    );
    assert!(raw(&n1, "GET", "/api/v1/namespaces/default/secrets", Value::Null).await.is_err());
    assert!(raw(&n1, "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", Value::Null).await.is_ok());
    assert!(raw(&n1, "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2", Value::Null).await.is_err());
    assert!(raw(&n1, "GET", "/api/v1/pods", Value::Null).await.is_err());
    raw(&n1, "POST", "/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.unwrap();
    refused(
        raw(&n1, "POST", "/api/v1/nodes", json!({"metadata": {"name": "n2"}})).await,
        403,
        "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\"",
    );
}
