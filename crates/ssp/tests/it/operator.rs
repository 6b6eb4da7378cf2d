//! The operator; the controller of Deployments and CDI's controllers are played by the test.

use std::collections::BTreeMap;

use api::cdi::v1beta1::{DataImportCron, DataSource};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kit::events::Recorder;
use kit::shutdown::CancellationToken;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, Resource, ResourceExt};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};
use ssp::object::SSP;
use ssp::operator::names::DEPLOYMENT;
use ssp::operator::{Operator, Release, Running, install};
use ssp::templates::system::Architecture;

use crate::cluster::{apply, cluster, kind, namespace, wait};

const NAMESPACE: &str = install::NAMESPACE;
const IMAGES: &str = "kubevirt-os-images";

/// A cluster with what users apply before the SSP object.
async fn installed() -> (ApiServer, Client, Api<SSP>) {
    let (server, client) = cluster().await;
    let manifests: Vec<Value> = serde_saphyr::from_multiple(&install::operator().unwrap()).unwrap();
    apply(&client, &manifests).await;
    apply(&client, &[namespace("kubevirt")]).await;
    let ssps = Api::namespaced(client.clone(), NAMESPACE);
    (server, client, ssps)
}

async fn create(ssps: &Api<SSP>, name: &str, mut spec: Value) {
    if spec["commonTemplates"]["namespace"].is_null() {
        spec["commonTemplates"]["namespace"] = json!("kubevirt");
    }
    let labels = json!({ "app.kubernetes.io/part-of": "hyperconverged-cluster" });
    let object = json!({
        "apiVersion": "ssp.kubevirt.io/v1beta3", "kind": "SSP", "metadata": { "name": name, "labels": labels }, "spec": spec,
    });
    ssps.patch(name, &PatchParams::apply("test"), &Patch::Apply(object)).await.unwrap();
}

/// The operator, with the rights it is installed with.
fn start(server: &ApiServer, version: &str) -> Running {
    let client = server.client_as(User {
        name: format!("system:serviceaccount:{NAMESPACE}:ssp-operator"),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    });
    let release = Release {
        namespace: NAMESPACE.into(),
        image: format!("r/component:{version}"),
        steps: [format!("r/tekton-tasks:{version}"), format!("r/guestfs:{version}")],
        version: version.into(),
        architecture: Architecture::Amd64,
    };
    Operator::new(client, release, Recorder::discard()).start(&CancellationToken::new())
}

/// What the Deployments' controller reports once `image` runs everywhere.
async fn ready(client: &Client, image: &str) {
    ready_of(client, DEPLOYMENT, image).await;
}

/// It goes on to report every later generation with this image: the operator may apply the Deployment again at any
/// time, as when the field of the SSP changed that its configuration carries.
/// It goes on to report every later generation with this image: the operator may apply the Deployment again at any
/// time, as when the field of the SSP changed that its configuration carries.
async fn ready_of(client: &Client, name: &str, image: &str) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let of = |found: Option<&Deployment>| found.is_some_and(|found| runs(found, image));
    wait(&deployments, name, "deployed", of).await;
    report(&deployments, name, image).await;
    let (name, image) = (name.to_owned(), image.to_owned());
    tokio::spawn(async move {
        let unreported =
            |found: Option<&Deployment>| found.is_some_and(|found| runs(found, &image) && !observed(found));
        while let Ok(Some(_)) = await_condition(deployments.clone(), &name, unreported).await {
            report(&deployments, &name, &image).await;
        }
    });
}

fn runs(found: &Deployment, image: &str) -> bool {
    json!(found)["spec"]["template"]["spec"]["containers"][0]["image"] == image
}

fn observed(found: &Deployment) -> bool {
    found.status.as_ref().and_then(|status| status.observed_generation) == found.metadata.generation
}

/// Reports on the generation of now, where it is of `image`.
async fn report(deployments: &Api<Deployment>, name: &str, image: &str) {
    let Ok(Some(found)) = deployments.get_opt(name).await else { return };
    if !runs(&found, image) || observed(&found) {
        return;
    }
    let replicas = found.spec.as_ref().and_then(|spec| spec.replicas);
    let status = json!({ "status": {
        "observedGeneration": found.metadata.generation, "replicas": replicas, "updatedReplicas": replicas,
        "readyReplicas": replicas, "availableReplicas": replicas,
    } });
    // Deleted meanwhile: nothing to report on.
    let _ = deployments.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await;
}

fn is<'a>(kind: &'a str, status: &'a str) -> impl Condition<SSP> + 'a {
    move |ssp: Option<&SSP>| {
        let conditions = ssp.and_then(|ssp| ssp.status.as_ref()).into_iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == status)
    }
}

fn exists<K>(object: Option<&K>) -> bool {
    object.is_some()
}

fn gone<K>(object: Option<&K>) -> bool {
    object.is_none()
}

fn templates(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(
        client.clone(),
        "kubevirt",
        &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
    )
}

fn native(client: &Client) -> Api<DynamicObject> {
    templates(client, "template.kubevirt.io", "v1alpha1", "VirtualMachineTemplate")
}

async fn merge<K>(api: &Api<K>, name: &str, patch: Value)
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn count(api: &Api<DynamicObject>) -> usize {
    api.list_metadata(&ListParams::default()).await.unwrap().items.len()
}

#[tokio::test]
async fn it_is_deployed_and_removed_and_deployed_again() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let sources: Api<DataSource> = Api::namespaced(client.clone(), IMAGES);
    let roles: Api<Role> = Api::namespaced(client.clone(), IMAGES);
    for _ in 0..2 {
        create(&ssps, "ssp", json!({})).await;
        wait(&deployments, DEPLOYMENT, "deployed", exists).await;
        assert!(webhooks.get_opt(DEPLOYMENT).await.unwrap().is_none(), "nobody answers yet");
        ready(&client, "r/component:v1").await;
        let found = wait(&ssps, "ssp", "available", is("Available", "True")).await.unwrap();
        let status = found.status.unwrap();
        assert_eq!(
            (status.phase.as_deref(), status.observed_generation),
            (Some("Deployed"), found.metadata.generation)
        );
        let versions = [status.observed_version, status.operator_version, status.target_version];
        assert!(versions.iter().all(|version| version.as_deref() == Some("v1")), "{versions:?}");

        let hooks = webhooks.get(DEPLOYMENT).await.unwrap().webhooks.unwrap();
        let bundle = hooks[0].client_config.ca_bundle.clone().unwrap();
        assert!(String::from_utf8(bundle.0).unwrap().contains("BEGIN CERTIFICATE"));
        assert!(secrets.get("virt-template-validator-certs").await.unwrap().data.unwrap().contains_key("tls.crt"));
        assert_eq!(count(&native(&client)).await, 90);
        assert_eq!(sources.list_metadata(&ListParams::default()).await.unwrap().items.len(), 14);
        assert_eq!(sources.get("rhel9").await.unwrap().labels()["app.kubernetes.io/part-of"], "hyperconverged-cluster");
        assert!(roles.get_opt("os-images.kubevirt.io:view").await.unwrap().is_some());

        ssps.delete("ssp", &DeleteParams::default()).await.unwrap();
        wait(&ssps, "ssp", "gone", gone).await;
        assert_eq!(count(&native(&client)).await, 0);
        assert!(webhooks.get_opt(DEPLOYMENT).await.unwrap().is_none());
        assert!(deployments.get_opt(DEPLOYMENT).await.unwrap().is_none());
        assert!(secrets.get_opt("virt-template-validator-certs").await.unwrap().is_none());
        assert!(sources.list_metadata(&ListParams::default()).await.unwrap().items.is_empty());
        assert!(roles.get_opt("os-images.kubevirt.io:view").await.unwrap().is_none());
        assert!(Api::<ClusterRole>::all(client.clone()).get_opt("template:view").await.unwrap().is_none());
        assert!(Api::<Namespace>::all(client.clone()).get_opt(IMAGES).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn what_others_change_is_repaired_and_of_templates_counted() {
    let (server, client, ssps) = installed().await;
    let running = start(&server, "v1");
    // Nobody answers the webhook here, and without replicas nobody is asked.
    create(&ssps, "ssp", json!({ "templateValidator": { "replicas": 0 } })).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    let counted = || running.operator.context.metrics.restored.get();
    assert_eq!(counted(), 0);

    let native = native(&client);
    let name = "fedora-server-small";
    merge(&native, name, json!({ "spec": { "virtualMachine": { "spec": { "runStrategy": "Always" } } } })).await;
    wait(&native, name, "as it was", |found: Option<&DynamicObject>| {
        found.is_some_and(|found| found.data["spec"]["virtualMachine"]["spec"]["runStrategy"] == "Halted")
    })
    .await;
    native.delete(name, &DeleteParams::default()).await.unwrap();
    wait(&native, name, "there again", exists).await;
    while counted() < 2 {
        tokio::task::yield_now().await;
    }

    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    services.delete(DEPLOYMENT, &DeleteParams::default()).await.unwrap();
    wait(&services, DEPLOYMENT, "there again", exists).await;
    let roles: Api<Role> = Api::namespaced(client.clone(), IMAGES);
    merge(&roles, "os-images.kubevirt.io:view", json!({ "rules": [] })).await;
    wait(&roles, "os-images.kubevirt.io:view", "as it was", |found: Option<&Role>| {
        found.is_some_and(|found| found.rules.as_ref().is_some_and(|rules| !rules.is_empty()))
    })
    .await;
    let sources: Api<DataSource> = Api::namespaced(client.clone(), IMAGES);
    merge(&sources, "rhel9", json!({ "spec": { "source": { "pvc": { "name": "evil", "namespace": "tenant" } } } }))
        .await;
    wait(&sources, "rhel9", "as it was", |found: Option<&DataSource>| {
        found.is_some_and(|found| found.spec.source.pvc.as_ref().is_some_and(|pvc| pvc.name == "rhel9"))
    })
    .await;
    assert_eq!(counted(), 2, "only templates are counted");
}

#[tokio::test]
async fn crons_keep_sources_until_somebody_uploads_their_own() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    let cron = |schedule: &str| {
        json!({ "commonTemplates": { "dataImportCronTemplates": [{
        "metadata": { "name": "fedora-cron", "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" } },
        "spec": {
            "managedDataSource": "fedora", "schedule": schedule,
            "template": { "spec": {
                "source": { "registry": { "url": "docker://r/fedora:latest" } },
                "storage": { "resources": { "requests": { "storage": "5Gi" } } },
            } },
        },
    }] } })
    };
    create(&ssps, "ssp", cron("0 0 * * *")).await;
    let crons: Api<DataImportCron> = Api::namespaced(client.clone(), IMAGES);
    let sources: Api<DataSource> = Api::namespaced(client.clone(), IMAGES);
    let first = wait(&crons, "fedora-cron", "made", exists).await.unwrap();
    assert_eq!(first.annotations()["cdi.kubevirt.io/storage.bind.immediate.requested"], "true");
    let source = wait(&sources, "fedora", "made", exists).await.unwrap();
    assert_eq!(source.labels()["cdi.kubevirt.io/dataImportCron"], "fedora-cron");

    // The spec of a cron cannot change.
    let changed = json!({ "spec": cron("5 5 * * *") });
    merge(&ssps, "ssp", changed).await;
    wait(&crons, "fedora-cron", "made anew", move |found: Option<&DataImportCron>| {
        found.is_some_and(|found| found.uid() != first.uid() && found.spec.schedule == "5 5 * * *")
    })
    .await;

    // CDI leads the source to what it imported.
    let imported =
        json!({ "spec": { "source": { "pvc": null, "snapshot": { "name": "fedora-1", "namespace": IMAGES } } } });
    merge(&sources, "fedora", imported).await;
    // Somebody uploads a claim of the name, and takes the label off.
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "fedora" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "5Gi" } } },
    }))
    .unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), IMAGES);
    claims.create(&PostParams::default(), &claim).await.unwrap();
    merge(&sources, "fedora", json!({ "metadata": { "labels": { "cdi.kubevirt.io/dataImportCron": null } } })).await;
    wait(&crons, "fedora-cron", "gone", gone).await;
    wait(&sources, "fedora", "theirs", |found: Option<&DataSource>| {
        let pvc = |found: &DataSource| found.spec.source.pvc.as_ref().is_some_and(|pvc| pvc.name == "fedora");
        found.is_some_and(|found| pvc(found) && found.spec.source.snapshot.is_none())
    })
    .await;

    // They take it away again.
    claims.delete("fedora", &DeleteParams::default()).await.unwrap();
    merge(&claims, "fedora", json!({ "metadata": { "finalizers": null } })).await;
    wait(&crons, "fedora-cron", "back", exists).await;
    ssps.delete("ssp", &DeleteParams::default()).await.unwrap();
    wait(&ssps, "ssp", "gone", gone).await;
    assert!(crons.get_opt("fedora-cron").await.unwrap().is_none());
}

#[tokio::test]
async fn machines_under_protection_are_not_deleted() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    create(&ssps, "ssp", json!({})).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    let machine = |name: &str, labels: Value| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": { "name": name, "namespace": "kubevirt", "labels": labels },
            "spec": { "runStrategy": "Halted", "template": { "spec": { "domain": { "devices": {} } } } },
        })
    };
    let protected = machine("kept", json!({ "kubevirt.io/vm-delete-protection": "True" }));
    let other = machine("free", json!({ "kubevirt.io/vm-delete-protection": "no" }));
    apply(&client, &[protected, other, machine("plain", json!({}))]).await;
    let machines = templates(&client, "kubevirt.io", "v1", "VirtualMachine");
    let refused = machines.delete("kept", &DeleteParams::default()).await.unwrap_err().to_string();
    let said = "VirtualMachine kept cannot be deleted, disable/remove label 'kubevirt.io/vm-delete-protection' from VirtualMachine before deleting it";
    assert!(refused.contains(said), "{refused}");
    machines.delete("free", &DeleteParams::default()).await.unwrap();
    machines.delete("plain", &DeleteParams::default()).await.unwrap();
    merge(&machines, "kept", json!({ "metadata": { "labels": { "kubevirt.io/vm-delete-protection": null } } })).await;
    machines.delete("kept", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn one_object_counts_and_one_elsewhere_is_told_so() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    let elsewhere: Api<SSP> = Api::namespaced(client.clone(), "kubevirt");
    create(&elsewhere, "ssp", json!({})).await;
    let told = wait(&elsewhere, "ssp", "told", is("Degraded", "True")).await.unwrap();
    let message = told.status.as_ref().unwrap().conditions[0].message.clone().unwrap();
    let expect =
        "the operator works for an SSP in namespace kubevirt-hyperconverged: create it there, and delete this one";
    assert_eq!((message.as_str(), told.finalizers().len()), (expect, 0));

    create(&ssps, "first", json!({})).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "first", "available", is("Available", "True")).await;
    create(&ssps, "another", json!({})).await;
    let refused = wait(&ssps, "another", "refused", is("Degraded", "True")).await.unwrap();
    assert!(refused.finalizers().is_empty());
    ssps.delete("first", &DeleteParams::default()).await.unwrap();
    wait(&ssps, "first", "gone", gone).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "another", "available", is("Available", "True")).await;
}

#[tokio::test]
async fn a_paused_object_is_left_alone_and_still_removed() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    create(&ssps, "ssp", json!({})).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    merge(&ssps, "ssp", json!({ "metadata": { "annotations": { "kubevirt.io/operator.paused": "true" } } })).await;
    let paused = |wanted: bool| {
        move |ssp: Option<&SSP>| ssp.and_then(|ssp| ssp.status.as_ref()).is_some_and(|status| status.paused == wanted)
    };
    wait(&ssps, "ssp", "paused", paused(true)).await;
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    services.delete(DEPLOYMENT, &DeleteParams::default()).await.unwrap();
    merge(&ssps, "ssp", json!({ "spec": { "templateValidator": { "replicas": 1 } } })).await;
    let generation = ssps.get("ssp").await.unwrap().metadata.generation;
    wait(&ssps, "ssp", "seen", move |ssp: Option<&SSP>| {
        ssp.and_then(|ssp| ssp.status.as_ref()).is_some_and(|status| status.observed_generation == generation)
    })
    .await;
    assert!(services.get_opt(DEPLOYMENT).await.unwrap().is_none());
    merge(&ssps, "ssp", json!({ "metadata": { "annotations": { "kubevirt.io/operator.paused": null } } })).await;
    wait(&services, DEPLOYMENT, "there again", exists).await;
    wait(&ssps, "ssp", "at work", paused(false)).await;
    merge(&ssps, "ssp", json!({ "metadata": { "annotations": { "kubevirt.io/operator.paused": "true" } } })).await;
    wait(&ssps, "ssp", "paused", paused(true)).await;
    ssps.delete("ssp", &DeleteParams::default()).await.unwrap();
    wait(&ssps, "ssp", "gone", gone).await;
    assert!(services.get_opt(DEPLOYMENT).await.unwrap().is_none());
}

#[tokio::test]
async fn what_cannot_be_done_is_said_and_done_when_it_can() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    let twice = json!({ "commonTemplates": { "dataImportCronTemplates": [
        { "metadata": { "name": "a" }, "spec": { "managedDataSource": "fedora", "schedule": "", "template": { "spec": {} } } },
        { "metadata": { "name": "b" }, "spec": { "managedDataSource": "fedora", "schedule": "", "template": { "spec": {} } } },
    ] } });
    create(&ssps, "ssp", twice).await;
    let refused = wait(&ssps, "ssp", "refused", is("Degraded", "True")).await.unwrap();
    let message = refused.status.unwrap().conditions[2].message.clone().unwrap();
    assert!(message.contains("dataImportCronTemplates[1].spec.managedDataSource: another one keeps"), "{message}");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    assert!(deployments.get_opt(DEPLOYMENT).await.unwrap().is_none());
    merge(
        &ssps,
        "ssp",
        json!({ "spec": { "commonTemplates": { "namespace": "nowhere", "dataImportCronTemplates": [] } } }),
    )
    .await;
    let failed = |ssp: Option<&SSP>| {
        let status = ssp.and_then(|ssp| ssp.status.as_ref());
        let conditions = status.into_iter().flat_map(|status| &status.conditions);
        conditions
            .into_iter()
            .any(|one| one.type_ == "Degraded" && one.message.as_deref().is_some_and(|said| said.contains("nowhere")))
    };
    wait(&ssps, "ssp", "told that the namespace is missing", failed).await;
    merge(&ssps, "ssp", json!({ "spec": { "commonTemplates": { "namespace": "kubevirt" } } })).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
}

#[tokio::test]
async fn without_replicas_nobody_is_asked() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    create(&ssps, "ssp", json!({})).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
    assert!(webhooks.get_opt(DEPLOYMENT).await.unwrap().is_some());
    assert!(budgets.get_opt(DEPLOYMENT).await.unwrap().is_some());
    merge(&ssps, "ssp", json!({ "spec": { "templateValidator": { "replicas": 0 } } })).await;
    wait(&webhooks, DEPLOYMENT, "gone", gone).await;
    wait(&budgets, DEPLOYMENT, "gone", gone).await;
    merge(&ssps, "ssp", json!({ "spec": { "templateValidator": { "replicas": 2 } } })).await;
    wait(&budgets, DEPLOYMENT, "back", exists).await;
    wait(&webhooks, DEPLOYMENT, "back", exists).await;
}

#[tokio::test]
async fn an_update_is_announced_and_older_templates_are_deprecated() {
    let (server, client, ssps) = installed().await;
    let first = start(&server, "v1");
    create(&ssps, "ssp", json!({})).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    drop(first);
    let old = json!({
        "apiVersion": "template.kubevirt.io/v1alpha1", "kind": "VirtualMachineTemplate",
        "metadata": { "name": "rhel6-server-tiny", "namespace": "kubevirt", "labels": {
            "app.kubernetes.io/managed-by": "ssp-operator", "template.kubevirt.io/type": "base",
            "os.template.kubevirt.io/rhel6.0": "true", "template.kubevirt.io/architecture": "amd64",
        } },
        "spec": { "virtualMachine": {} },
    });
    apply(&client, &[old]).await;
    let _second = start(&server, "v2");
    let moving = wait(&ssps, "ssp", "being updated", is("Progressing", "True")).await.unwrap().status.unwrap();
    assert_eq!((moving.observed_version.as_deref(), moving.target_version.as_deref()), (Some("v1"), Some("v2")));
    ready(&client, "r/component:v2").await;
    let done = wait(&ssps, "ssp", "updated", is("Progressing", "False")).await.unwrap().status.unwrap();
    assert_eq!(done.observed_version.as_deref(), Some("v2"));
    let old = native(&client).get("rhel6-server-tiny").await.unwrap();
    assert_eq!(old.labels().get("template.kubevirt.io/deprecated").map(String::as_str), Some("true"));
    assert_eq!(old.labels().get("os.template.kubevirt.io/rhel6.0"), None);
}

#[tokio::test]
async fn templates_of_openshift_are_made_where_they_are_served() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    create(&ssps, "ssp", json!({})).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    apply(&client, &[kind("template.openshift.io", "v1", "templates", "Template")]).await;
    let theirs = templates(&client, "template.openshift.io", "v1", "Template");
    let made = wait(&theirs, "rhel9-server-small", "made", exists).await.unwrap();
    assert_eq!(made.data["objects"][0]["metadata"]["name"], "${NAME}");
    ssps.delete("ssp", &DeleteParams::default()).await.unwrap();
    wait(&ssps, "ssp", "gone", gone).await;
    assert_eq!(count(&theirs).await, 0);
}

#[tokio::test]
async fn the_older_version_asks_for_the_same() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    let older = json!({
        "apiVersion": "ssp.kubevirt.io/v1beta2", "kind": "SSP", "metadata": { "name": "ssp", "namespace": NAMESPACE },
        "spec": {
            "commonTemplates": { "namespace": "kubevirt" }, "templateValidator": { "replicas": 1 },
            "featureGates": { "deployVmConsoleProxy": false },
        },
    });
    apply(&client, &[older]).await;
    ready(&client, "r/component:v1").await;
    let found = wait(&ssps, "ssp", "available", is("Available", "True")).await.unwrap();
    assert_eq!(found.spec.template_validator.unwrap().replicas, Some(1));
}

#[tokio::test]
async fn prometheus_is_told_where_it_is() {
    let (server, client, ssps) = installed().await;
    for (plural, of) in [("prometheusrules", "PrometheusRule"), ("servicemonitors", "ServiceMonitor")] {
        apply(&client, &[kind("monitoring.coreos.com", "v1", plural, of)]).await;
    }
    let _running = start(&server, "v1");
    create(&ssps, "ssp", json!({})).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("monitoring.coreos.com", "v1", "PrometheusRule"));
    let rules: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let rule = wait(&rules, "prometheus-k8s-rules-cnv", "made", exists).await.unwrap();
    let alerts = rule.data["spec"]["groups"][1]["rules"].as_array().unwrap();
    assert!(alerts.iter().any(|alert| alert["alert"] == "SSPDown"), "{alerts:?}");
}

#[tokio::test]
async fn tokens_for_screens_are_handed_out_while_they_are_asked_for() {
    let (server, client, ssps) = installed().await;
    let _running = start(&server, "v1");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let services: Api<APIService> = Api::all(client.clone());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "kube-system");
    let (proxy, service, secret) = ("vm-console-proxy", "v1.token.kubevirt.io", "vm-console-proxy-cert");
    create(&ssps, "ssp", json!({ "tokenGenerationService": { "enabled": true } })).await;
    ready(&client, "r/component:v1").await;
    wait(&deployments, proxy, "deployed", exists).await;
    assert!(services.get_opt(service).await.unwrap().is_none(), "nobody answers yet");
    wait(&ssps, "ssp", "waiting for the proxy", |ssp: Option<&SSP>| {
        json!(ssp)["status"]["conditions"][0]["message"] == "Waiting for vm-console-proxy to be ready."
    })
    .await;
    ready_of(&client, proxy, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    let made = wait(&services, service, "in the API", exists).await.unwrap();
    assert!(made.spec.is_some_and(|spec| spec.ca_bundle.is_some()));
    assert!(secrets.get_opt(secret).await.unwrap().is_some() && bindings.get_opt(proxy).await.unwrap().is_some());

    create(&ssps, "ssp", json!({ "tokenGenerationService": { "enabled": false } })).await;
    wait(&deployments, proxy, "gone", gone).await;
    wait(&services, service, "gone", gone).await;
    wait(&secrets, secret, "gone", gone).await;
    wait(&bindings, proxy, "gone", gone).await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
}

/// As where the operator came without the namespace, as OLM's packages do: its rights there are given everywhere then.
#[tokio::test]
async fn the_namespace_of_boot_sources_is_made_where_nobody_has() {
    let (server, client) = cluster().await;
    let mut manifests: Vec<Value> = serde_saphyr::from_multiple(&install::operator().unwrap()).unwrap();
    manifests.retain(|manifest| manifest["metadata"]["name"] != IMAGES);
    for manifest in &mut manifests {
        if manifest["metadata"]["namespace"] == IMAGES {
            manifest["kind"] = json!(manifest["kind"].as_str().map(|kind| format!("Cluster{kind}")));
            manifest["metadata"] = json!({ "name": "ssp-operator-images" });
            if manifest["roleRef"].is_object() {
                manifest["roleRef"] = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "ssp-operator-images" });
            }
        }
    }
    apply(&client, &manifests).await;
    apply(&client, &[namespace("kubevirt")]).await;
    let ssps = Api::namespaced(client.clone(), NAMESPACE);
    let _running = start(&server, "v1");
    create(&ssps, "ssp", json!({})).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    assert!(namespaces.get_opt(IMAGES).await.unwrap().is_some());
}

/// A kind of Tekton.
fn kind_of_tekton(name: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.tekton.dev") },
        "spec": {
            "group": "tekton.dev", "scope": "Namespaced",
            "names": { "kind": name, "plural": plural, "singular": name.to_lowercase() },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            } } }],
        },
    })
}

/// A node that offers these devices.
async fn node_with(client: &Client, devices: &[&str]) {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "one" } });
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let all: BTreeMap<&str, &str> = devices.iter().map(|device| (*device, "1k")).collect();
    let status = json!({ "status": { "allocatable": all } });
    nodes.patch_status("one", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

#[tokio::test]
async fn tasks_come_where_tekton_is_and_go_with_the_object() {
    let (server, client, ssps) = installed().await;
    node_with(&client, &["devices.kubevirt.io/tun"]).await;
    let _running = start(&server, "v1");
    create(&ssps, "ssp", json!({})).await;
    ready(&client, "r/component:v1").await;
    wait(&ssps, "ssp", "available", is("Available", "True")).await;
    apply(&client, &[kind_of_tekton("Task", "tasks"), kind_of_tekton("Pipeline", "pipelines")]).await;
    let of = |kind: &str| -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1", kind));
        Api::namespaced_with(client.clone(), NAMESPACE, &kind)
    };
    let (tasks, pipelines) = (of("Task"), of("Pipeline"));
    let made = wait(&tasks, "execute-in-vm", "made", exists).await.unwrap();
    assert_eq!(made.data["spec"]["steps"][0]["image"], "r/tekton-tasks:v1");
    // No node of this cluster has KVM, and a step that asks for it would find no place.
    let made = wait(&tasks, "disk-virt-customize", "made", exists).await.unwrap();
    let limits = &made.data["spec"]["steps"][0]["computeResources"]["limits"];
    assert_eq!(*limits, json!({}));
    wait(&pipelines, "windows-efi-installer", "made", exists).await;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    wait(&roles, "cleanup-vm-task", "made", exists).await;
    wait(&tasks, "disk-uploader", "made", exists).await;
    assert_eq!(count(&tasks).await, 13);
    ssps.delete("ssp", &DeleteParams::default()).await.unwrap();
    wait(&tasks, "execute-in-vm", "gone", gone).await;
    wait(&roles, "cleanup-vm-task", "gone", gone).await;
}
