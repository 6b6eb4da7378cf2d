//! From one build to the next and back: nodes first, then virt-controller, then virt-api, and always Available.

use api::kubevirt::v1::{KubeVirt, KubeVirtStatus};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kit::shutdown::CancellationToken;
use kit::tls::Material;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use serde_json::json;
use virt_operator::Operator;

use crate::{NAMESPACE, account, cluster, deployment_ready, handler_ready, ready, release, wait};

fn image(template: Option<&PodTemplateSpec>) -> Option<&str> {
    template?.spec.as_ref()?.containers.first()?.image.as_deref()
}

/// Waits until virt-handler's pods are to have `wanted`.
async fn handler(client: &Client, wanted: &'static str) {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    let has =
        move |set: Option<&DaemonSet>| image(set.and_then(|s| s.spec.as_ref()).map(|s| &s.template)) == Some(wanted);
    wait(&sets, "virt-handler", wanted, has).await;
}

async fn deployment(client: &Client, name: &str) -> String {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let found = deployments.get(name).await.unwrap();
    image(found.spec.as_ref().map(|spec| &spec.template)).unwrap().to_owned()
}

async fn reaches(client: &Client, name: &str, wanted: &'static str) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let has = move |found: Option<&Deployment>| {
        image(found.and_then(|d| d.spec.as_ref()).map(|spec| &spec.template)) == Some(wanted)
    };
    wait(&deployments, name, wanted, has).await;
}

async fn status(api: &Api<KubeVirt>, what: &str, holds: impl Fn(&KubeVirtStatus) -> bool) -> KubeVirtStatus {
    let found = wait(api, "kubevirt", what, move |kubevirt: Option<&KubeVirt>| {
        kubevirt.and_then(|kubevirt| kubevirt.status.as_ref()).is_some_and(|status| holds(status))
    });
    *found.await.unwrap().status.unwrap()
}

fn done(status: &KubeVirtStatus) -> bool {
    let progressing = status.conditions.iter().find(|c| c.type_ == "Progressing");
    progressing.is_some_and(|c| c.status == "False") && status.observed_deployment_id == status.target_deployment_id
}

fn is_available(status: &KubeVirtStatus) -> bool {
    status.conditions.iter().any(|c| c.type_ == "Available" && c.status == "True")
}

#[tokio::test]
async fn an_update_and_the_way_back() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let kubevirts = cluster(&client).await;
    let stop = CancellationToken::new();
    let _running = Operator::new(account(&server), release(), Material::new()).start(&stop);
    ready(&client).await;
    let first = status(&kubevirts, "deployed", done).await;

    for (tag, component, before) in
        [(Some("v2"), "r/component:v2", "r/component:v1"), (None, "r/component:v1", "r/component:v2")]
    {
        let patch = Patch::Merge(json!({ "spec": { "imageTag": tag } }));
        kubevirts.patch("kubevirt", &PatchParams::default(), &patch).await.unwrap();
        handler(&client, component).await;
        let updating = status(&kubevirts, "updating", |s| s.observed_deployment_id != s.target_deployment_id).await;
        assert_eq!(updating.phase.as_deref(), Some("Deployed"));
        assert!(is_available(&updating), "{:?}", updating.conditions);
        assert_eq!(deployment(&client, "virt-controller").await, before);
        handler_ready(&client).await;
        reaches(&client, "virt-controller", component).await;
        assert_eq!(deployment(&client, "virt-api").await, before);
        deployment_ready(&client, "virt-controller").await;
        reaches(&client, "virt-api", component).await;
        deployment_ready(&client, "virt-api").await;
        reaches(&client, "virt-exportproxy", component).await;
        deployment_ready(&client, "virt-exportproxy").await;
        let after = status(&kubevirts, "updated", done).await;
        assert!(is_available(&after));
        assert_eq!(after.observed_deployment_id == first.observed_deployment_id, tag.is_none());
    }
}
