//! A cluster with one node and the controllers at work, and the parts that others play.

use std::fmt::Debug;
use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kit::shutdown::CancellationToken;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, Resource};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use virt_controller::Running;
use virt_operator::manifests::{Input, rbac};

pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) vms: Api<VirtualMachine>,
    pub(crate) vmis: Api<VirtualMachineInstance>,
    pub(crate) pods: Api<Pod>,
    pub(crate) migrations: Api<VirtualMachineInstanceMigration>,
    pub(crate) controllers: Running,
    _server: ApiServer,
}

/// The account of virt-controller, with the rights that it is installed with and no other.
async fn account(server: &ApiServer) -> Client {
    let admin = server.client();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let own = json!({ "metadata": { "name": "kubevirt" } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(own).unwrap()).await.unwrap();
    let rights = rbac::render(&Input { namespace: "kubevirt".into(), ..Input::default() });
    apply::all(&admin, &Applied::by("test"), &rights).await.unwrap();
    server.client_as(User {
        name: "system:serviceaccount:kubevirt:kubevirt-controller".into(),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    })
}

pub(crate) async fn start() -> Cluster {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for name in [
        "virtualmachines.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachineinstancemigrations.kubevirt.io",
        "kubevirts.kubevirt.io",
        "migrationpolicies.migrations.kubevirt.io",
        "virtualmachinesnapshots.snapshot.kubevirt.io",
        "virtualmachinesnapshotcontents.snapshot.kubevirt.io",
        "virtualmachinerestores.snapshot.kubevirt.io",
        "virtualmachineclones.clone.kubevirt.io",
        "virtualmachinebackups.backup.kubevirt.io",
        "virtualmachinebackuptrackers.backup.kubevirt.io",
        "virtualmachineexports.export.kubevirt.io",
        "virtualmachinetemplates.template.kubevirt.io",
        "virtualmachinetemplaterequests.template.kubevirt.io",
        "virtualmachineinstancereplicasets.kubevirt.io",
        "virtualmachinepools.pool.kubevirt.io",
    ] {
        let path = format!("../../deploy/crds/{name}.yaml");
        let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({
        "metadata": { "name": "node1", "labels": { "kubevirt.io/schedulable": "true", "kubernetes.io/hostname": "node1" } },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }], "allocatable": { "cpu": "2" } },
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let stop = CancellationToken::new();
    let controllers = virt_controller::start(account(&server).await, "kubevirt", "launcher:v1", &stop);
    Cluster {
        vms: Api::namespaced(client.clone(), "default"),
        vmis: Api::namespaced(client.clone(), "default"),
        pods: Api::namespaced(client.clone(), "default"),
        migrations: Api::namespaced(client.clone(), "default"),
        client,
        controllers,
        _server: server,
    }
}

pub(crate) fn machine(strategy: &str) -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": { "name": "vm" },
        "spec": { "runStrategy": strategy, "template": {
            "metadata": { "labels": { "app": "x" } },
            "spec": {
                "domain": {
                    "devices": {
                        "disks": [{ "name": "root", "disk": { "bus": "virtio" } }],
                        "interfaces": [{ "name": "default", "masquerade": {} }],
                    },
                    "memory": { "guest": "128Mi" },
                },
                "networks": [{ "name": "default", "pod": {} }],
                "volumes": [{ "name": "root", "containerDisk": { "image": "disk:v1" } }],
            },
        } },
    }))
    .unwrap()
}

/// Waits until `name` fulfils `condition`; the object as it then is, none when it is gone.
#[track_caller]
pub(crate) fn wait<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    condition: impl Condition<K>,
) -> impl Future<Output = Option<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (api, name, what) = (api.clone(), name.to_owned(), what.to_owned());
    async move {
        match tokio::time::timeout(PATIENCE, await_condition(api.clone(), &name, condition)).await {
            Ok(found) => found.unwrap(),
            Err(_) => panic!("never {what}: {:#?}", api.get_opt(&name).await),
        }
    }
}

pub(crate) fn in_phase(phase: &'static str) -> impl Condition<VirtualMachineInstance> {
    move |vmi: Option<&VirtualMachineInstance>| {
        vmi.and_then(|vmi| vmi.status.as_ref()).and_then(|status| status.phase.as_deref()) == Some(phase)
    }
}

pub(crate) fn printed(word: &'static str) -> impl Condition<VirtualMachine> {
    move |vm: Option<&VirtualMachine>| {
        vm.and_then(|vm| vm.status.as_ref()).and_then(|status| status.printable_status.as_deref()) == Some(word)
    }
}

impl Cluster {
    /// The launcher pod of the machine, once it is there.
    pub(crate) async fn pod(&self) -> Pod {
        let scheduling = in_phase("Scheduling");
        let vmi = wait(&self.vmis, "vm", "scheduling", scheduling).await.unwrap();
        self.pods.get(&virt_controller::vmi::pod::name(&vmi)).await.unwrap()
    }

    /// What scheduler and kubelet do: bind the pod and report its containers so.
    pub(crate) async fn run(&self, pod: &Pod, state: Value) {
        self.run_on("node1", pod, state).await;
    }

    pub(crate) async fn run_on(&self, node: &str, pod: &Pod, state: Value) {
        let name = pod.metadata.name.as_deref().unwrap();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "kind": "Node", "name": node },
        });
        let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding"))
            .header("content-type", "application/json")
            .body(binding.to_string().into_bytes())
            .unwrap();
        self.client.request::<Value>(request).await.unwrap();
        self.report(name, state).await;
    }

    pub(crate) async fn report(&self, pod: &str, state: Value) {
        let container = |name: &str, state: &Value| {
            json!({
                "name": name, "state": state, "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
            })
        };
        let patch = json!({ "status": {
            "phase": "Running",
            "containerStatuses": [container("compute", &state), container("volumeroot", &json!({ "running": {} }))],
        } });
        self.pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn pod_condition(&self, pod: &str, kind: &str, status: &str, reason: &str) {
        let condition = json!({ "type": kind, "status": status, "reason": reason, "message": "as told" });
        let patch = json!({ "status": { "conditions": [condition] } });
        self.pods.patch_status(pod, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    }

    /// What virt-handler does.
    pub(crate) async fn guest(&self, phase: &str) {
        let patch = json!({ "status": { "phase": phase } });
        self.vmis.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// What the kubelet does when a pod it was told to end has ended.
    pub(crate) async fn end(&self, pod: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        self.pods.delete(pod, &now).await.unwrap();
    }
}
