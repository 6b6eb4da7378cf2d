//! Signing requests: approved for nodes by what they may, signed as each signer allows.

use apimachinery::request::User;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use kube_apiserver::{ApiServer, Config};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};

type Requests = Api<CertificateSigningRequest>;

/// A request for `subject` (`CN` or `CN/O`) and these hosts.
fn request(subject: &str, hosts: &[&str]) -> String {
    let (name, organization) = subject.split_once('/').unwrap_or((subject, ""));
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if !organization.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    let key = KeyPair::generate().unwrap();
    STANDARD.encode(params.serialize_request(&key).unwrap().pem().unwrap())
}

async fn ask(client: &Client, name: &str, signer: &str, request: String, usage: &str) -> Result<(), Error> {
    let csr = json!({"metadata": {"name": name}, "spec": {"request": request,
        "signerName": format!("kubernetes.io/{signer}"), "usages": ["digital signature", usage]}});
    let csr = serde_json::from_value(csr).unwrap();
    Requests::all(client.clone()).create(&PostParams::default(), &csr).await.map(drop)
}

async fn approve(client: &Client, name: &str) {
    let change =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": "t"}]}});
    let api = Requests::all(client.clone());
    api.patch_approval(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

/// `Approved:why`, `Failed:why` of each condition, and `signed` when there is a certificate.
async fn state(client: &Client, name: &str) -> String {
    let status = Requests::all(client.clone()).get(name).await.unwrap().status.unwrap_or_default();
    let mut words: Vec<String> = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .map(|c| format!("{}:{}", c.type_, c.message.unwrap_or_default()))
        .collect();
    if let Some(certificate) = status.certificate {
        assert!(String::from_utf8(certificate.0).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
        words.push("signed".into());
    }
    words.join(" ")
}

fn user(name: &str, group: &str) -> User {
    User { name: name.into(), groups: vec![group.into(), "system:authenticated".into()], ..User::default() }
}

const SELF: &str = "Approved:Auto approving self kubelet client certificate after SubjectAccessReview. signed";
const ANY: &str = "Approved:Auto approving kubelet client certificate after SubjectAccessReview. signed";
const SERVING: &str = "Approved:Auto approving the serving certificate of the node that asks for it. signed";
const KUBELET: &str = "kube-apiserver-client-kubelet";

#[tokio::test]
async fn nodes_get_their_own_certificates_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { pki_dir: Some(dir.path().to_owned()), ..Config::default() };
    let server = ApiServer::open(config).await.unwrap();
    server.edges().pki.kubelet_server("n1", &["n1".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    let admin = server.client();
    let n1 = server.client_as(user("system:node:n1", "system:nodes"));
    ask(&n1, "own", KUBELET, request("system:node:n1/system:nodes", &[]), "client auth").await.unwrap();
    assert_eq!(state(&admin, "own").await, SELF);
    let other = ask(&n1, "other", KUBELET, request("system:node:n2/system:nodes", &[]), "client auth").await;
    let Err(Error::Api(status)) = other else { panic!("{other:?}") };
    assert!(status.message.contains("can only create a node CSR with CN=system:node:n1"), "{}", status.message);

    let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    let nodes: Api<Node> = Api::all(n1.clone());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    // A node that has been taken over writes what it likes about itself.
    let known = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "InternalIP", "address": "10.0.0.2"}, {"type": "Hostname", "address": "bank.example"}]}});
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(known)).await.unwrap();
    let serving = |hosts: &[&str]| request("system:node:n1/system:nodes", hosts);
    ask(&n1, "serves", "kubelet-serving", serving(&["n1", "10.0.0.1"]), "server auth").await.unwrap();
    assert_eq!(state(&admin, "serves").await, SERVING);
    for (name, host) in [("lies", "bank.example"), ("steals", "10.0.0.2")] {
        ask(&n1, name, "kubelet-serving", serving(&["n1", host]), "server auth").await.unwrap();
        assert_eq!(state(&admin, name).await, "");
    }
}

#[tokio::test]
async fn node_certificates_are_approved_only_with_the_right_to_them() {
    let server = super::server().await;
    let admin = server.client();
    let rule = json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create"]}]);
    let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": "asks"}, "rules": rule})).unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &role).await.unwrap();
    let bind = |role: &str, subject: &str| -> ClusterRoleBinding {
        let group = "rbac.authorization.k8s.io";
        serde_json::from_value(json!({"metadata": {"name": format!("{subject}-{}", role.len())},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "Group", "name": subject}]}))
        .unwrap()
    };
    let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
    bindings.create(&PostParams::default(), &bind("asks", "bootstrappers")).await.unwrap();
    let joining = server.client_as(user("joining", "bootstrappers"));
    ask(&joining, "before", KUBELET, request("system:node:n9/system:nodes", &[]), "client auth").await.unwrap();
    assert_eq!(state(&admin, "before").await, "");
    let may = bind("system:certificates.k8s.io:certificatesigningrequests:nodeclient", "bootstrappers");
    bindings.create(&PostParams::default(), &may).await.unwrap();
    ask(&joining, "after", KUBELET, request("system:node:n9/system:nodes", &[]), "client auth").await.unwrap();
    assert_eq!(state(&admin, "after").await, ANY);
    // What is no certificate of a node is not approved by that right.
    ask(&joining, "else", KUBELET, request("ann/people", &[]), "client auth").await.unwrap();
    assert_eq!(state(&admin, "else").await, "");
}

#[tokio::test]
async fn each_signer_signs_what_it_is_for() {
    let server = super::server().await;
    let admin = server.client();
    let check =
        |name: &'static str, signer: &'static str, request: String, usage: &'static str, expect: &'static str| {
            let admin = admin.clone();
            async move {
                ask(&admin, name, signer, request, usage).await.unwrap();
                if state(&admin, name).await.is_empty() {
                    approve(&admin, name).await;
                }
                let state = state(&admin, name).await;
                assert!(state.starts_with("Approved:") && state.ends_with(expect), "{name}: {state}");
            }
        };
    check("a", "kube-apiserver-client", request("ann/people", &[]), "client auth", "signed").await;
    let wrong = "\"server auth\" is not among [\"digital signature\", \"key encipherment\", \"client auth\"]";
    check("b", "kube-apiserver-client", request("ann/people", &[]), "server auth", wrong).await;
    check("c", KUBELET, request("system:node:n/system:nodes", &[]), "client auth", "signed").await;
    check("d", KUBELET, request("ann/people", &[]), "client auth", "Failed:subject organization is not system:nodes")
        .await;
    let wrong = "Failed:DNS, IP, Email and URI subjectAltNames are not allowed";
    check("e", KUBELET, request("system:node:n/system:nodes", &["n"]), "client auth", wrong).await;
    check("f", "kubelet-serving", request("system:node:n/system:nodes", &["n"]), "server auth", "signed").await;
    let wrong = "Failed:at least one DNS or IP subjectAltName is required";
    check("g", "kubelet-serving", request("system:node:n/system:nodes", &[]), "server auth", wrong).await;
    let nameless = ask(&admin, "h", "legacy-unknown", request("anything/x", &["host"]), "code signing").await;
    let Err(Error::Api(status)) = nameless else { panic!("{nameless:?}") };
    assert!(status.message.contains("spec.signerName: Invalid value"), "{}", status.message);
    let masters = ask(&admin, "m", "kube-apiserver-client", request("root/system:masters", &[]), "client auth").await;
    let Err(Error::Api(status)) = masters else { panic!("{masters:?}") };
    assert!(status.message.contains("system:masters group is not allowed"), "{}", status.message);
}

#[tokio::test]
async fn a_foreign_signer_is_left_to_others() {
    let server = super::server().await;
    let admin = server.client();
    let csr: Value = json!({"metadata": {"name": "x"}, "spec": {"request": request("ann", &[]),
        "signerName": "example.com/mine", "usages": ["client auth"]}});
    let api = Requests::all(admin.clone());
    api.create(&PostParams::default(), &serde_json::from_value(csr).unwrap()).await.unwrap();
    approve(&admin, "x").await;
    assert_eq!(state(&admin, "x").await, "Approved:t");
}
