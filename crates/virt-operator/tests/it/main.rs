//! The operator on the real API server in this process; the controllers of workloads are played by the test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod defined;
mod drift;
mod instancetypes;
mod kinds;
mod node_agent;
mod template_requests;
mod update;
mod versions;
mod webhooks;

use std::fmt::Debug;
use std::time::Duration;

use api::kubevirt::constants::{SIGNER, label};
use api::kubevirt::v1::KubeVirt;
use futures::TryStreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::Applied;
use kit::shutdown::CancellationToken;
use kit::tls::Material;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, Resource, ResourceExt};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use virt_operator::manifests::crds;
use virt_operator::{Operator, Release, install};

const NAMESPACE: &str = "kubevirt";

async fn wait<K>(api: &Api<K>, name: &str, what: &str, condition: impl Condition<K>) -> Option<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    match tokio::time::timeout(Duration::from_secs(60), await_condition(api.clone(), name, condition)).await {
        Ok(found) => found.unwrap(),
        Err(_) => panic!("never {what}: {:#?}", api.get_opt(name).await),
    }
}

fn exists<K>(object: Option<&K>) -> bool {
    object.is_some()
}

fn gone<K>(object: Option<&K>) -> bool {
    object.is_none()
}

async fn ready(client: &Client) {
    deployment_ready(client, "virt-api").await;
    deployment_ready(client, "virt-controller").await;
    deployment_ready(client, "virt-exportproxy").await;
    handler_ready(client).await;
}

/// What the Deployment's controller reports once its pods are exchanged.
async fn deployment_ready(client: &Client, name: &str) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let found = wait(&deployments, name, "deployed", exists).await.unwrap();
    let status = json!({ "status": {
        "observedGeneration": found.metadata.generation, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
        "availableReplicas": 1,
    } });
    deployments.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// The same of the DaemonSet.
async fn handler_ready(client: &Client) {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    let found = wait(&sets, "virt-handler", "deployed", exists).await.unwrap();
    let status = json!({ "status": {
        "observedGeneration": found.metadata.generation, "currentNumberScheduled": 1, "numberMisscheduled": 0,
        "desiredNumberScheduled": 1, "numberReady": 1, "updatedNumberScheduled": 1, "numberAvailable": 1,
    } });
    sets.patch_status("virt-handler", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Nobody serves the operator's webhooks in these tests: as an administrator may, they let pass what they cannot be asked about.
fn lenient() -> Value {
    let names = ["kubevirt-validator", "kubevirt-update-validator", "kubevirt-create-validator"];
    let hooks = names.map(|name| json!({ "name": format!("{name}.kubevirt.io"), "failurePolicy": "Ignore" }));
    json!({ "patches": [{
        "resourceType": "ValidatingWebhookConfiguration", "resourceName": "virt-operator-validator", "type": "strategic",
        "patch": json!({ "webhooks": hooks }).to_string(),
    }] })
}

/// What has to be there before the operator, and a KubeVirt object.
async fn cluster(client: &Client) -> Api<KubeVirt> {
    let manifests: Vec<Value> = serde_saphyr::from_multiple(&install::operator().unwrap()).unwrap();
    // The operator is this test.
    let manifests: Vec<_> = manifests.into_iter().filter(|manifest| manifest["kind"] != "Deployment").collect();
    kit::apply::all(client, &Applied::by("test"), &manifests).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    // As virt-handler leaves it: some label of each sort.
    let mut labels = json!({ "kubernetes.io/hostname": "node1" });
    for label in [label::SCHEDULABLE, label::REALTIME, label::SEV, label::SEV_ES, label::OBSOLETE_HOST_MODEL] {
        labels[label] = json!("true");
    }
    for prefix in [
        label::CPU_FEATURE_PREFIX,
        label::CPU_MODEL_PREFIX,
        label::CPU_MODEL_MIGRATION_PREFIX,
        label::CPU_TIMER_PREFIX,
        label::CPU_VENDOR_PREFIX,
        label::HOST_MODEL_CPU_PREFIX,
        label::HOST_MODEL_FEATURES_PREFIX,
        label::HYPERV_PREFIX,
        label::MACHINE_TYPE_PREFIX,
    ] {
        labels[format!("{prefix}x")] = json!("true");
    }
    let annotations = json!({ "kubevirt.io/heartbeat": "2026-01-01T00:00:00Z" });
    let node = json!({ "metadata": { "name": "node1", "labels": labels, "annotations": annotations } });
    let node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let kubevirts: Api<KubeVirt> = Api::namespaced(client.clone(), NAMESPACE);
    let configuration = json!({ "commonInstancetypesDeployment": { "enabled": false } });
    let spec = json!({ "customizeComponents": lenient(), "configuration": configuration });
    let wanted = json!({ "metadata": { "name": "kubevirt", "namespace": NAMESPACE }, "spec": spec });
    kubevirts.create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await.unwrap();
    kubevirts
}

/// The operator's account, with the rights that it is installed with and no other.
fn account(server: &ApiServer) -> Client {
    server.client_as(User {
        name: format!("system:serviceaccount:{NAMESPACE}:kubevirt-operator"),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    })
}

fn release() -> Release {
    Release {
        namespace: NAMESPACE.into(),
        component: "r/component:v1".into(),
        launcher: "r/launcher:v1".into(),
        guestfs: "r/guestfs:v1".into(),
        version: "v1".into(),
    }
}

/// When the first object of `name` was written.
async fn written<K>(client: Client, name: &'static str) -> u64
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let events = Api::<K>::all(client).watch(&params, "0").await.unwrap();
    let mut events = std::pin::pin!(events);
    loop {
        if let Some(WatchEvent::Added(found)) = events.try_next().await.unwrap() {
            return found.meta().resource_version.as_deref().unwrap().parse().unwrap();
        }
    }
}

/// A machine that no webhook has seen could carry notes of its own.
#[tokio::test]
async fn the_webhooks_are_there_before_there_can_be_a_machine() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let webhooks = tokio::spawn(written::<MutatingWebhookConfiguration>(client.clone(), "virt-api-mutator"));
    let judges = tokio::spawn(written::<ValidatingWebhookConfiguration>(client.clone(), "virt-api-validator"));
    let kinds = tokio::spawn(written::<CustomResourceDefinition>(client.clone(), "virtualmachines.kubevirt.io"));
    cluster(&client).await;
    let stop = CancellationToken::new();
    let _running = Operator::new(account(&server), release(), Material::new()).start(&stop);
    ready(&client).await;
    let (webhooks, judges, kinds) = (webhooks.await.unwrap(), judges.await.unwrap(), kinds.await.unwrap());
    assert!(webhooks < kinds && judges < kinds, "{webhooks} {judges} {kinds}");
    // Nor is one written while nobody answers them, wherever it is and whatever its labels.
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let hooks = serde_json::to_value(mutating.get("virt-api-mutator").await.unwrap().webhooks).unwrap();
    let of_machines =
        hooks.as_array().unwrap().iter().find(|hook| hook["rules"][0]["resources"] == json!(["virtualmachines"]));
    let hook = of_machines.unwrap();
    assert_eq!(hook["failurePolicy"], "Fail");
    assert_eq!(hook["rules"][0]["operations"], json!(["CREATE", "UPDATE"]));
    for selector in ["namespaceSelector", "objectSelector"] {
        assert!(hook.get(selector).is_none_or(|one| one == &json!({})), "{hook}");
    }
}

#[tokio::test]
async fn the_product_is_deployed_and_removed() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let kubevirts = cluster(&client).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let stop = CancellationToken::new();
    let material = Material::new();
    let _running = Operator::new(account(&server), release(), material.clone()).start(&stop);
    ready(&client).await;
    let found = wait(&kubevirts, "kubevirt", "deployed", |kv: Option<&KubeVirt>| {
        let status = kv.and_then(|kv| kv.status.as_ref());
        let available = |status: &api::kubevirt::v1::KubeVirtStatus| {
            status.conditions.iter().any(|c| c.type_ == "Available" && c.status == "True")
        };
        status.is_some_and(|status| available(status) && status.phase.as_deref() == Some("Deployed"))
    })
    .await
    .unwrap();
    let status = found.status.unwrap();
    assert_eq!(status.observed_kube_virt_version.as_deref(), Some("v1"));
    assert_eq!(found.metadata.finalizers.unwrap(), ["foregroundDeleteKubeVirt"]);
    for kind in ["Created", "Available"] {
        assert!(status.conditions.iter().any(|c| c.type_ == kind && c.status == "True"), "{kind}");
    }

    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    for name in [
        "kubevirt-ca",
        "kubevirt-virt-api-certs",
        "kubevirt-virt-handler-certs",
        "kubevirt-controller-certs",
        "kubevirt-export-ca",
        "kubevirt-exportproxy-certs",
    ] {
        assert!(secrets.get(name).await.unwrap().data.unwrap().contains_key("tls.crt"), "{name}");
    }
    for name in ["kubevirt-ca", "kubevirt-export-ca"] {
        assert!(maps.get(name).await.unwrap().data.unwrap()["ca-bundle"].contains("BEGIN CERTIFICATE"), "{name}");
    }
    assert!(material.is_set());
    assert_eq!(ours(&definitions).await, crds::ALL.len() + 1);
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let hooks = mutating.get("virt-api-mutator").await.unwrap().webhooks.unwrap();
    assert!(hooks.iter().all(|hook| hook.client_config.ca_bundle.is_some()));

    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let other = json!({ "spec": { "ports": [{ "name": "other", "port": 444, "targetPort": 8443 }] } });
    services.patch("virt-api", &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    wait(&services, "virt-api", "with the port it had, and no other", |service: Option<&Service>| {
        let ports = service.and_then(|service| service.spec.as_ref()?.ports.clone()).unwrap_or_default();
        ports.iter().map(|port| port.port).collect::<Vec<_>>() == [443]
    })
    .await;

    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let lease = json!({ "metadata": { "name": "virt-controller" }, "spec": {} });
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    for (name, signer) in [("of-a-node-agent", SIGNER), ("of-somebody-else", "example.com/signer")] {
        let (_, request) = kit::certs::request("virt-handler on node1").unwrap();
        let spec = CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(vec!["client auth".to_owned()]),
            ..Default::default()
        };
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
        let request = CertificateSigningRequest { metadata, spec, status: None };
        requests.create(&PostParams::default(), &request).await.unwrap();
    }

    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let agent = json!({
        "metadata": { "name": "virt-handler-1", "labels": { "kubevirt.io": "virt-handler" } },
        "spec": { "containers": [{ "name": "virt-handler", "image": "i" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(agent).unwrap()).await.unwrap();
    kubevirts.delete("kubevirt", &DeleteParams::default()).await.unwrap();
    // A node agent that still runs would write its node's labels again.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    wait(&accounts, "kubevirt-handler", "gone", gone).await;
    let early = await_condition(kubevirts.clone(), "kubevirt", gone);
    assert!(tokio::time::timeout(Duration::from_secs(1), early).await.is_err(), "the node agent was not waited for");
    let node = Api::<Node>::all(client.clone()).get("node1").await.unwrap();
    assert_eq!(node.labels()["kubevirt.io/schedulable"], "true");
    pods.delete("virt-handler-1", &DeleteParams { grace_period_seconds: Some(0), ..Default::default() }).await.unwrap();
    wait(&kubevirts, "kubevirt", "gone", gone).await;
    let left = ours(&definitions).await;
    assert_eq!(left, 1, "only KubeVirt's own CRD stays");
    let node = Api::<Node>::all(client.clone()).get("node1").await.unwrap().metadata;
    assert_eq!(node.labels.unwrap().into_keys().collect::<Vec<_>>(), ["kubernetes.io/hostname"]);
    assert!(node.annotations.unwrap_or_default().is_empty());
    assert!(leases.get_opt("virt-controller").await.unwrap().is_none());
    let left = requests.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(left.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["of-somebody-else"]);
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    assert!(roles.get_opt("kubevirt.io:admin").await.unwrap().is_none());
    for name in ["kubevirt-ca", "kubevirt-export-ca"] {
        assert!(
            secrets.get_opt(name).await.unwrap().is_none() && maps.get_opt(name).await.unwrap().is_none(),
            "{name}"
        );
    }
    assert!(mutating.get_opt("virt-api-mutator").await.unwrap().is_none());
    wait(&deployments, "virt-api", "gone", |found: Option<&Deployment>| {
        // Garbage collection is not part of this server; being told to go is enough.
        found.is_none_or(|found| found.metadata.deletion_timestamp.is_some())
    })
    .await;
}

/// How many of KubeVirt's kinds are defined; a cluster may define others.
async fn ours(definitions: &Api<CustomResourceDefinition>) -> usize {
    let all = definitions.list_metadata(&ListParams::default()).await.unwrap();
    all.items
        .iter()
        .filter(|definition| definition.metadata.name.as_ref().is_some_and(|name| name.ends_with("kubevirt.io")))
        .count()
}
