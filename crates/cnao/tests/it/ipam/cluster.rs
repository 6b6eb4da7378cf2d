//! An API server that has the controller deployed, and the pods of its replicas and virt-controller played by the test.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::kubevirt::identity::pod_interface;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use axum::body::Body;
use cnao::base::Base;
use cnao::ipam::claim::IPAMClaim;
use cnao::ipam::manifests::{self, Input};
use cnao::ipam::names::{ACCOUNT, FINALIZER, NETWORKS, SECRET};
use cnao::ipam::network::NetworkAttachmentDefinition;
use cnao::ipam::{Server, certificates};
use cnao::kubemacpool::certificates::Intervals;
use http::Request;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Pod};
use kit::apply::Applied;
use kit::certs::Pair;
use kit::events::Recorder;
use kit::keyring::Held;
use kit::shutdown::CancellationToken;
use kit::{Task, clock, server, tls};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::cluster::until;

const NAMESPACE: &str = "cluster-network-addons";
const DEFINITIONS: [(&str, &str); 3] = [
    ("virtualmachines.kubevirt.io", include_str!("../../../../../deploy/crds/virtualmachines.kubevirt.io.yaml")),
    (
        "virtualmachineinstances.kubevirt.io",
        include_str!("../../../../../deploy/crds/virtualmachineinstances.kubevirt.io.yaml"),
    ),
    ("ipamclaims.k8s.cni.cncf.io", include_str!("../../../../../deploy/crds/ipamclaims.k8s.cni.cncf.io.yaml")),
];

/// A cluster with the networks `ns/kept`, `other/kept` and `ns/plain`, of which the first two keep addresses.
pub(crate) struct Cluster {
    server: ApiServer,
    pub(crate) admin: Client,
    pair: Pair,
    made: AtomicU64,
}

impl Cluster {
    pub(crate) async fn new() -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let admin = server.client();
        let by = Applied::by("test");
        kit::apply::crds(&admin, &by, &DEFINITIONS).await.unwrap();
        let ring = certificates::keyring(NAMESPACE, Intervals::default().lifetimes().unwrap());
        let renewed = ring.plan(&Held::default(), clock::now()).unwrap();
        let pair = renewed.leaves[SECRET].clone();
        let input = Input {
            ca_bundle: renewed.bundle,
            base: Base { namespace: NAMESPACE.into(), image: "i".into(), ..Base::default() },
            ..Input::default()
        };
        let named = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name } });
        let mut all: Vec<Value> = [NAMESPACE, "ns", "other"].iter().map(|name| named("Namespace", name)).collect();
        let rules = json!([
            { "apiGroups": ["kubevirt.io"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["*"] },
        ]);
        all.push(role("virt-controller", rules.clone()));
        all.push(role("tenant", json!([rules[1]])));
        all.push(role(
            "owner",
            json!([rules[1], { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["ipamclaims"], "verbs": ["update"] }]),
        ));
        all.extend(["virt-controller", "tenant", "owner"].map(binding));
        kit::apply::all(&admin, &by, &all).await.unwrap();
        kit::apply::all(&admin, &by, &manifests::render(&input)).await.unwrap();
        let cluster = Cluster { server, admin, pair, made: AtomicU64::new(0) };
        let kept = json!({ "cniVersion": "1.0.0", "name": "kept-net", "type": "bridge", "allowPersistentIPs": true });
        cluster.network("ns", "kept", &kept).await;
        cluster.network("other", "kept", &kept).await;
        cluster.network("ns", "plain", &json!({ "type": "bridge" })).await;
        cluster
    }

    /// Makes a network, or gives it another configuration.
    pub(crate) async fn network(&self, namespace: &str, name: &str, config: &Value) {
        let body = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": { "name": name },
            "spec": { "config": config.to_string() },
        });
        let resource = ApiResource::erase::<NetworkAttachmentDefinition>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.admin.clone(), namespace, &resource);
        if api.get_opt(name).await.unwrap().is_some() {
            api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
        } else {
            api.create(&PostParams::default(), &serde_json::from_value(body).unwrap()).await.unwrap();
        }
    }

    /// The client of a user: `virt-controller`, `tenant`, who may write pods, or `owner`, who may write pods and claims.
    pub(crate) fn user(&self, name: &str) -> Client {
        self.server.client_as(User {
            name: name.into(),
            groups: vec!["system:authenticated".into()],
            ..User::default()
        })
    }

    /// A replica that is asked, and looks after claims if it leads.
    pub(crate) async fn replica(&self, leads: bool) -> Replica {
        let name = format!("ipam-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let client = self.server.client_as(User {
            name: format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
            groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
            ..User::default()
        });
        let server = Server::start(client.clone(), "ovn-kubernetes", Recorder::new(client.clone(), "ipam", ""));
        let stop = CancellationToken::new();
        let place = (NAMESPACE.to_owned(), name.clone());
        let leading = leads.then(|| kit::spawn("leading", server.lead(client, place, stop.clone())));
        let material = tls::Material::new();
        material.set(&self.pair).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = tls::Changing::new(material, None).unwrap();
        let serving = kit::spawn("serving", server::serve_tls(listener, config, server.router(), stop.clone()));
        self.expose(&name, port).await;
        Replica { name, server, stop, leading, _serving: serving }
    }

    /// A ready pod of the Deployment.
    async fn expose(&self, name: &str, port: u16) {
        let labels = json!({ "control-plane": "manager", "app": "kubevirt-ipam-controller" });
        let ports = json!([{ "name": "webhook-server", "containerPort": port }]);
        let pod = json!({
            "metadata": { "name": name, "labels": labels },
            "spec": { "containers": [{ "name": "manager", "image": "i", "ports": ports }] },
        });
        let api: Api<Pod> = Api::namespaced(self.admin.clone(), NAMESPACE);
        api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let status = json!({ "status": {
            "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    /// Ends a replica without warning: what it was about stays as it was.
    pub(crate) async fn kill(&self, replica: Replica) {
        let api: Api<Pod> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        api.delete(&replica.name, &at_once).await.unwrap();
        drop(replica);
        // The lock of one that is killed is free when its time is over; nobody waits for that here.
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let _ = leases.delete("kubevirt-ipam-controller-election", &DeleteParams::default()).await;
    }

    pub(crate) fn of<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.admin.clone(), "ns")
    }

    /// A machine, and the instance that virt-controller makes of it.
    pub(crate) async fn machine(
        &self,
        name: &str,
        networks: &[(&str, &str)],
    ) -> (VirtualMachine, VirtualMachineInstance) {
        let machine = json!({ "metadata": { "name": name }, "spec": { "runStrategy": "Always", "template": { "spec": spec(networks) } } });
        let machine: VirtualMachine = self.create(&machine).await;
        let instance = self.instance(name, Some(&machine.uid().unwrap()), networks).await;
        (machine, instance)
    }

    /// An instance, of the machine with the UID `of`.
    pub(crate) async fn instance(
        &self,
        name: &str,
        of: Option<&str>,
        networks: &[(&str, &str)],
    ) -> VirtualMachineInstance {
        let mut metadata = json!({ "name": name });
        if let Some(uid) = of {
            metadata["ownerReferences"] = json!([{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": uid, "controller": true,
            }]);
        }
        self.create(&json!({ "metadata": metadata, "spec": spec(networks) })).await
    }

    pub(crate) async fn create<K>(&self, object: &Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        self.of::<K>().create(&PostParams::default(), &serde_json::from_value(object.clone()).unwrap()).await.unwrap()
    }

    /// Deletes and waits until it is gone.
    pub(crate) async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let uid = self.of::<K>().get(name).await.unwrap().uid();
        self.of::<K>().delete(name, &at_once).await.unwrap();
        // The controller may have made another one under its name already.
        until("it is gone", async || {
            let there = self.of::<K>().get_opt(name).await.unwrap();
            there.is_none_or(|there| there.uid() != uid).then_some(())
        })
        .await;
    }

    pub(crate) async fn claim(&self, name: &str) -> Option<IPAMClaim> {
        self.of::<IPAMClaim>().get_opt(name).await.unwrap()
    }

    /// Waits until the claim is there.
    pub(crate) async fn claimed(&self, name: &str) -> IPAMClaim {
        until("there is a claim", async || self.claim(name).await).await
    }

    /// Waits until nothing holds the claim any more.
    pub(crate) async fn let_go(&self, name: &str) {
        until("the claim is let go", async || {
            let held = self.claim(name).await;
            held.is_none_or(|claim| !claim.finalizers().iter().any(|one| one == FINALIZER)).then_some(())
        })
        .await;
    }

    /// The messages of the events about an object.
    pub(crate) async fn told(&self, name: &str) -> Vec<String> {
        let all = self.of::<Event>().list(&Default::default()).await.unwrap();
        let about = all.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
        about.filter_map(|event| event.message).collect()
    }
}

fn role(name: &str, rules: Value) -> Value {
    json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules })
}

fn binding(name: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name }],
    })
}

/// Networks by name and definition; without a definition, the pod's own.
fn spec(networks: &[(&str, &str)]) -> Value {
    let interfaces: Vec<Value> = networks.iter().map(|(name, _)| json!({ "name": name, "bridge": {} })).collect();
    let networks: Vec<Value> = networks
        .iter()
        .map(|(name, of)| match of.is_empty() {
            true => json!({ "name": name, "pod": {} }),
            false => json!({ "name": name, "multus": { "networkName": of } }),
        })
        .collect();
    let domain = json!({ "devices": { "interfaces": interfaces }, "resources": { "requests": { "memory": "64Mi" } } });
    json!({ "domain": domain, "networks": networks })
}

/// The pod that virt-controller makes of an instance, in its networks.
pub(crate) fn launcher(name: &str, vmi: &VirtualMachineInstance) -> Pod {
    let elements: Vec<Value> = vmi
        .spec
        .networks
        .iter()
        .filter_map(|network| {
            let of = &network.multus.as_ref()?.network_name;
            let (namespace, of) = of.split_once('/').unwrap_or(("ns", of));
            Some(json!({ "name": of, "namespace": namespace, "interface": pod_interface(&network.name) }))
        })
        .collect();
    let mut annotations = json!({ "kubevirt.io/domain": vmi.name_any() });
    if !elements.is_empty() {
        annotations[NETWORKS] = json!(json!(elements).to_string());
    }
    let owner = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": vmi.name_any(), "uid": vmi.uid(), "controller": true,
    }]);
    let metadata = json!({
        "name": name, "labels": { "kubevirt.io": "virt-launcher" }, "annotations": annotations, "ownerReferences": owner,
    });
    let spec = json!({ "containers": [{ "name": "compute", "image": "i" }] });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// The networks that a pod asks for.
pub(crate) fn networks(pod: &Pod) -> Value {
    serde_json::from_str(&pod.annotations()[NETWORKS]).unwrap()
}

/// Has `user` make a pod in `ns`.
pub(crate) async fn make(user: &Client, pod: &Pod) -> kube::Result<Pod> {
    Api::<Pod>::namespaced(user.clone(), "ns").create(&PostParams::default(), pod).await
}

/// The sentence of a refusal.
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> String {
    match result {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("not refused: {other:?}"),
    }
}

/// A replica at work.
pub(crate) struct Replica {
    name: String,
    server: Server,
    stop: CancellationToken,
    leading: Option<Task<()>>,
    _serving: Task<()>,
}

impl Replica {
    /// Ends as it does when the kubelet asks it to.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        if let Some(leading) = self.leading.take() {
            tokio::time::timeout(Duration::from_secs(60), leading).await.unwrap().unwrap();
        }
    }

    /// What the webhook answers to `request`, asked by whoever reaches it.
    pub(crate) async fn ask(&self, request: &Value) -> Value {
        let mut request = request.clone();
        request["uid"] = json!("1");
        let review = json!({ "request": request });
        let request = Request::post("/mutate-v1-pod").body(Body::from(review.to_string())).unwrap();
        let response = self.server.router().oneshot(request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 22).await.unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        answer["response"].clone()
    }
}
