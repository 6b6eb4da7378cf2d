//! Pools and claims on our own API server, asked as a node.

use kube::api::{DeleteParams, Patch, PatchParams};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;

use super::*;
use crate::selection::{ClaimReference, Selected};

const CLAIMS: &str = include_str!("../../../../deploy/crds/ipamclaims.k8s.cni.cncf.io.yaml");

struct Cluster {
    _server: ApiServer,
    admin: Client,
    node: Client,
    range: &'static str,
}

impl Cluster {
    /// One whose network has this range.
    async fn new(range: &'static str) -> Cluster {
        let server = ApiServer::in_memory().await.unwrap();
        let admin = server.client();
        let by = kit::apply::Applied::by("test");
        kit::apply::crds(&admin, &by, &[("ipamclaims.k8s.cni.cncf.io", CLAIMS)]).await.unwrap();
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": "default" } });
        kit::apply::all(&admin, &by, &[node, account]).await.unwrap();
        let node = server.client_as(User {
            name: "system:node:n1".into(),
            groups: vec!["system:nodes".into(), "system:authenticated".into()],
            ..User::default()
        });
        Cluster { _server: server, admin, node, range }
    }

    fn claims(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1alpha1", "IPAMClaim");
        Api::namespaced_with(self.admin.clone(), "default", &ApiResource::from_gvk_with_plural(&kind, "ipamclaims"))
    }

    /// A claim, and its UID.
    async fn claim(&self, name: &str) -> String {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1alpha1", "IPAMClaim");
        let kind = ApiResource::from_gvk_with_plural(&kind, "ipamclaims");
        let claim = DynamicObject::new(name, &kind).data(json!({ "spec": { "network": "net", "interface": "net1" } }));
        self.claims().create(&PostParams::default(), &claim).await.unwrap().metadata.uid.unwrap()
    }

    /// What the claim says it has.
    async fn ips(&self, name: &str) -> Value {
        self.claims().get(name).await.unwrap().data["status"]["ips"].clone()
    }

    /// Somebody who may, writes what the claim has.
    async fn write(&self, name: &str, ips: Value) {
        let body = Patch::Merge(json!({ "status": { "ips": ips } }));
        self.claims().patch_status(name, &PatchParams::default(), &body).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        self.claims().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// A pod on the node that names the claim.
    async fn pod(&self, name: &str, claim: &str) -> k8s_openapi::api::core::v1::Pod {
        let networks = json!([{ "name": "nad", "ipam-claim-reference": claim }]).to_string();
        let pod = json!({
            "metadata": { "name": name, "annotations": { "k8s.v1.cni.cncf.io/networks": networks } },
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }] },
        });
        let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(self.admin.clone(), "default");
        api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    fn network(&self) -> Network {
        let plugin = json!({ "type": "bridge", "ipam": { "type": "whereabouts", "range": self.range } });
        Network { name: "net".into(), version: "1.0.0".into(), plugins: vec![plugin] }
    }

    /// What the sandbox `id` gets: the first address, and what is to be given back.
    async fn attach(&self, id: &str, claim: Option<&str>) -> Result<(String, Vec<Lease>)> {
        let mut network = self.network();
        let held = match claim {
            Some(name) => {
                let pod = self.pod(id, name).await;
                let reference = ClaimReference { name: name.into(), uid: None };
                let selected = Selected { interface: "net1".into(), ..Selected::default() };
                Some(claim::read(&self.node, &pod, &selected, &reference, &network).await?)
            }
            None => None,
        };
        let taker = Taker { namespace: "default", pod: id, sandbox: id, interface: "net1", claim: held.as_ref() };
        let mut leases = Vec::new();
        take(&self.node, &mut network, &taker, &mut leases).await?;
        Ok((network.plugins[0]["ipam"]["addresses"][0]["address"].as_str().unwrap().to_owned(), leases))
    }

    async fn refused(&self, id: &str, claim: &str) -> String {
        self.attach(id, Some(claim)).await.unwrap_err().to_string()
    }
}

#[tokio::test]
async fn every_pod_of_a_claim_has_its_address_and_none_gives_it_back() {
    let cluster = Cluster::new("10.7.0.0/24").await;
    cluster.claim("vm.blue").await;
    let (first, leases) = cluster.attach("source", Some("vm.blue")).await.unwrap();
    assert_eq!((first.as_str(), leases.len()), ("10.7.0.1/24", 0));
    assert_eq!(cluster.ips("vm.blue").await, json!(["10.7.0.1/24"]));
    // The target of a migration, while the source has it; then a restart.
    assert_eq!(cluster.attach("target", Some("vm.blue")).await.unwrap().0, first);
    let (other, leases) = cluster.attach("other", None).await.unwrap();
    assert_eq!((other.as_str(), leases.len()), ("10.7.0.2/24", 1));
    give_back(&cluster.node, &leases).await.unwrap();
    assert_eq!(cluster.attach("restarted", Some("vm.blue")).await.unwrap().0, first);
    assert_eq!(cluster.attach("third", None).await.unwrap().0, "10.7.0.2/24");
}

/// The process ended between what it wrote into the pool and what it wrote into the claim.
#[tokio::test]
async fn an_address_that_the_claim_does_not_say_yet_is_found_in_the_pool() {
    let cluster = Cluster::new("10.7.0.0/24").await;
    cluster.claim("vm.blue").await;
    let (first, _) = cluster.attach("a", Some("vm.blue")).await.unwrap();
    cluster.write("vm.blue", json!([])).await;
    assert_eq!(cluster.attach("b", Some("vm.blue")).await.unwrap().0, first);
    assert_eq!(cluster.ips("vm.blue").await, json!([first]));
}

#[tokio::test]
async fn an_address_comes_back_when_its_claim_is_gone() {
    let cluster = Cluster::new("10.7.0.0/30").await;
    cluster.claim("vm.blue").await;
    cluster.claim("vm2.blue").await;
    assert_eq!(cluster.attach("a", Some("vm.blue")).await.unwrap().0, "10.7.0.1/30");
    assert_eq!(cluster.attach("b", Some("vm2.blue")).await.unwrap().0, "10.7.0.2/30");
    let full = cluster.attach("c", None).await.unwrap_err().to_string();
    assert!(full.contains("all are taken"), "{full}");
    // One of the same name that is made later is another one.
    cluster.delete("vm.blue").await;
    cluster.claim("vm.blue").await;
    cluster.pod("d", "none").await;
    assert_eq!(cluster.attach("d", None).await.unwrap().0, "10.7.0.1/30");
    assert!(cluster.refused("e", "vm.blue").await.contains("all are taken"));
}

/// Who may write claims asks for the address of another one.
#[tokio::test]
async fn nobody_gets_an_address_by_writing_it_into_a_claim() {
    let cluster = Cluster::new("10.7.0.0/24").await;
    cluster.claim("victim.blue").await;
    cluster.claim("evil.blue").await;
    assert_eq!(cluster.attach("a", Some("victim.blue")).await.unwrap().0, "10.7.0.1/24");
    let pod = cluster.attach("b", None).await.unwrap().0;
    for (at, theirs) in ["10.7.0.1/24", pod.as_str()].into_iter().enumerate() {
        cluster.write("evil.blue", json!([theirs])).await;
        // The pod of the second one is there.
        cluster.pod("b", "none").await;
        let refused = cluster.refused(&format!("evil{at}"), "evil.blue").await;
        assert!(refused.contains("IPAMClaim default/evil.blue says that it has the address"), "{refused}");
        let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(cluster.admin.clone(), "default");
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        api.delete("b", &at_once).await.unwrap();
    }
    cluster.write("evil.blue", json!(["192.0.2.1/24"])).await;
    // What is of no range of the network is not asked for there.
    assert_eq!(cluster.attach("c", Some("evil.blue")).await.unwrap().0, "10.7.0.3/24");
}

#[tokio::test]
async fn an_address_that_is_free_is_the_one_that_the_claim_says() {
    let cluster = Cluster::new("10.7.0.10-10.7.0.20/24").await;
    cluster.claim("vm.blue").await;
    // As after the pool was lost.
    cluster.write("vm.blue", json!(["10.7.0.15/24"])).await;
    assert_eq!(cluster.attach("a", Some("vm.blue")).await.unwrap().0, "10.7.0.15/24");
    cluster.claim("far.blue").await;
    cluster.write("far.blue", json!(["10.7.0.200/24"])).await;
    let refused = cluster.refused("b", "far.blue").await;
    assert!(refused.contains("10.7.0.200, which the network's range 10.7.0.0/24 does not give"), "{refused}");
    assert!(cluster.refused("c", "absent.blue").await.contains("IPAMClaim default/absent.blue is not there"));
}

#[test]
fn networks_that_keep_no_addresses_are_named() {
    let network = |ipam: &str| Network {
        plugins: vec![json!({ "type": "bridge", "ipam": { "type": ipam } })],
        ..Network::default()
    };
    assert_eq!(keeps(&network("whereabouts"), true), Ok(()));
    assert!(keeps(&network("whereabouts"), false).unwrap_err().contains("allowPersistentIPs"));
    assert!(keeps(&network("host-local"), true).unwrap_err().contains("whereabouts"));
}
