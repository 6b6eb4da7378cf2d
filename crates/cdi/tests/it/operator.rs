//! The operator; the controller of Deployments is played by the test.

use std::fmt::Debug;
use std::time::Duration;

use api::cdi::v1beta1::{CDI, CDIConfig};
use cdi::operator::manifests::workloads;
use cdi::operator::{Operator, Release, Running, install};
use cdi::token;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kit::apply::Applied;
use kit::events::Recorder;
use kit::shutdown::CancellationToken;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, Resource, ResourceExt};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const NAMESPACE: &str = "cdi";

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

fn is<'a>(kind: &'a str, status: &'a str) -> impl Condition<CDI> + 'a {
    move |cdi: Option<&CDI>| {
        let conditions = cdi.and_then(|cdi| cdi.status.as_ref()).into_iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == status)
    }
}

/// A cluster with what users apply before the CDI object.
async fn cluster() -> (ApiServer, Client, Api<CDI>) {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let manifests: Vec<Value> = serde_saphyr::from_multiple(&install::operator().unwrap()).unwrap();
    kit::apply::all(&client, &Applied::by("test"), &manifests).await.unwrap();
    let cdis = Api::all(client.clone());
    (server, client, cdis)
}

/// A CDI object. Nobody serves the webhooks in these tests; those that would be asked about it are not to hinder.
fn cdi(name: &str, mut spec: Value) -> CDI {
    let ignored = json!({ "webhooks": [{ "name": "cdi-validate.cdi.kubevirt.io", "failurePolicy": "Ignore" }] });
    let patch = json!({
        "resourceType": "ValidatingWebhookConfiguration", "resourceName": "cdi-api-validate", "type": "strategic",
        "patch": ignored.to_string(),
    });
    match spec.pointer_mut("/customizeComponents/patches").and_then(Value::as_array_mut) {
        Some(patches) => patches.push(patch),
        None => spec["customizeComponents"] = json!({ "patches": [patch] }),
    }
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
}

/// The operator, with the rights it is installed with.
fn start(server: &ApiServer, version: &str) -> Running {
    let client = server.client_as(User {
        name: format!("system:serviceaccount:{NAMESPACE}:cdi-operator"),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    });
    let release =
        Release { namespace: NAMESPACE.into(), image: format!("r/component:{version}"), version: version.into() };
    Operator::new(client, release, Recorder::discard()).start(&CancellationToken::new())
}

/// What the Deployments' controller reports once `image` runs everywhere.
async fn ready(client: &Client, image: &str) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    for name in workloads::DEPLOYMENTS {
        let of = |found: Option<&Deployment>| {
            found.is_some_and(|found| json!(found)["spec"]["template"]["spec"]["containers"][0]["image"] == image)
        };
        let found = wait(&deployments, name, "deployed", of).await.unwrap();
        let status = json!({ "status": {
            "observedGeneration": found.metadata.generation, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
            "availableReplicas": 1,
        } });
        deployments.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }
}

#[tokio::test]
async fn cdi_is_deployed_and_removed_and_deployed_again() {
    let (server, client, cdis) = cluster().await;
    let _running = start(&server, "v1");
    for _ in 0..2 {
        cdis.create(&PostParams::default(), &cdi("cdi", json!({}))).await.unwrap();
        ready(&client, "r/component:v1").await;
        let found = wait(&cdis, "cdi", "available", is("Available", "True")).await.unwrap();
        assert!(found.annotations().contains_key("cdi.kubevirt.io/configAuthority"));
        let status = found.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Deployed"));
        let versions = [status.observed_version, status.operator_version, status.target_version];
        assert!(versions.iter().all(|version| version.as_deref() == Some("v1")), "{versions:?}");

        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        for name in ["cdi-apiserver-server-cert", "cdi-uploadserver-client-cert", "cdi-uploadserver-signer"] {
            assert!(secrets.get(name).await.unwrap().data.unwrap().contains_key("tls.crt"), "{name}");
        }
        let key = secrets.get(token::SECRET).await.unwrap().data.unwrap();
        assert!(token::Verifier::new(std::str::from_utf8(&key[token::PUBLIC].0).unwrap()).is_ok());
        let bundle = maps.get("cdi-uploadproxy-signer-bundle").await.unwrap().data.unwrap();
        assert!(bundle["ca-bundle.crt"].contains("BEGIN CERTIFICATE"));
        let owner = maps.get("cdi-config").await.unwrap().metadata.owner_references.unwrap();
        assert_eq!(owner[0].kind, "CDI");
        let services: Api<APIService> = Api::all(client.clone());
        assert!(services.get("v1beta1.upload.cdi.kubevirt.io").await.unwrap().spec.unwrap().ca_bundle.is_some());

        cdis.delete("cdi", &DeleteParams::default()).await.unwrap();
        wait(&cdis, "cdi", "gone", gone).await;
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let left = definitions.list_metadata(&ListParams::default()).await.unwrap();
        let left: Vec<String> =
            left.iter().map(ResourceExt::name_any).filter(|name| name.ends_with(".cdi.kubevirt.io")).collect();
        assert_eq!(left, ["cdis.cdi.kubevirt.io"]);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let roles: Api<ClusterRole> = Api::all(client.clone());
        assert!(accounts.get_opt("cdi-sa").await.unwrap().is_none());
        assert!(roles.get_opt("cdi.kubevirt.io:admin").await.unwrap().is_none());
        assert!(secrets.get_opt(token::SECRET).await.unwrap().is_none());
        assert!(services.get_opt("v1beta1.upload.cdi.kubevirt.io").await.unwrap().is_none());
    }
}

#[tokio::test]
async fn drift_is_repaired() {
    let (server, client, cdis) = cluster().await;
    cdis.create(&PostParams::default(), &cdi("cdi", json!({}))).await.unwrap();
    let _running = start(&server, "v1");
    ready(&client, "r/component:v1").await;
    wait(&cdis, "cdi", "available", is("Available", "True")).await;

    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let selector = |wanted: &'static str| {
        move |found: Option<&Service>| {
            let spec = found.and_then(|service| service.spec.as_ref());
            let selector = spec.and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|selector| selector["cdi.kubevirt.io"] == wanted)
        }
    };
    let wrong = Patch::Merge(json!({ "spec": { "selector": { "cdi.kubevirt.io": "nobody" } } }));
    services.patch("cdi-api", &PatchParams::default(), &wrong).await.unwrap();
    wait(&services, "cdi-api", "as it was", selector("cdi-apiserver")).await;

    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.delete("cdi-apiserver", &DeleteParams::default()).await.unwrap();
    wait(&roles, "cdi-apiserver", "there again", exists).await;

    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    deployments.patch("cdi-apiserver", &PatchParams::default(), &none).await.unwrap();
    wait(&deployments, "cdi-apiserver", "as it was", |found: Option<&Deployment>| {
        found.and_then(|found| found.spec.as_ref()).is_some_and(|spec| spec.replicas == Some(1))
    })
    .await;
}

#[tokio::test]
async fn components_have_the_class_of_what_users_count_on_where_it_is() {
    let (server, client, cdis) = cluster().await;
    cdis.create(&PostParams::default(), &cdi("cdi", json!({}))).await.unwrap();
    let _running = start(&server, "v1");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let class = |found: &Deployment| {
        found.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()?.priority_class_name.clone())
    };
    let found = wait(&deployments, "cdi-apiserver", "deployed", exists).await.unwrap();
    assert_eq!(class(&found), None);
    let made = json!({ "metadata": { "name": "openshift-user-critical" }, "value": 10000 });
    let classes: Api<PriorityClass> = Api::all(client.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(made).unwrap()).await.unwrap();
    wait(&deployments, "cdi-apiserver", "of the class", move |found: Option<&Deployment>| {
        found.is_some_and(|found| class(found).as_deref() == Some("openshift-user-critical"))
    })
    .await;
}

#[tokio::test]
async fn an_update_is_announced_and_done() {
    let (server, client, cdis) = cluster().await;
    let spec = json!({
        "infra": { "apiServerReplicas": 2, "nodeSelector": { "infra": "yes" } }, "priorityClass": "high",
        "customizeComponents": { "patches": [{
            "resourceType": "Deployment", "resourceName": "cdi-uploadproxy", "type": "merge",
            "patch": "{\"metadata\":{\"labels\":{\"team\":\"storage\"}}}",
        }] },
    });
    cdis.create(&PostParams::default(), &cdi("cdi", spec)).await.unwrap();
    let first = start(&server, "v1");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let apiserver = json!(wait(&deployments, "cdi-apiserver", "deployed", exists).await.unwrap());
    assert_eq!(apiserver["spec"]["replicas"], 2);
    let pod = &apiserver["spec"]["template"]["spec"];
    assert_eq!((&pod["nodeSelector"]["infra"], &pod["priorityClassName"]), (&json!("yes"), &json!("high")));
    let one = Patch::Merge(json!({ "spec": { "infra": { "apiServerReplicas": 1 } } }));
    cdis.patch("cdi", &PatchParams::default(), &one).await.unwrap();
    wait(&deployments, "cdi-apiserver", "smaller", |found: Option<&Deployment>| {
        found.and_then(|found| found.spec.as_ref()).is_some_and(|spec| spec.replicas == Some(1))
    })
    .await;
    ready(&client, "r/component:v1").await;
    wait(&cdis, "cdi", "available", is("Available", "True")).await;
    assert_eq!(deployments.get("cdi-uploadproxy").await.unwrap().labels()["team"], "storage");
    drop(first);

    let second = start(&server, "v2");
    let moving = wait(&cdis, "cdi", "being updated", is("Progressing", "True")).await.unwrap().status.unwrap();
    assert_eq!(moving.phase.as_deref(), Some("Upgrading"));
    assert_eq!((moving.observed_version.as_deref(), moving.target_version.as_deref()), (Some("v1"), Some("v2")));
    ready(&client, "r/component:v2").await;
    let done = wait(&cdis, "cdi", "updated", is("Progressing", "False")).await.unwrap().status.unwrap();
    assert_eq!((done.phase.as_deref(), done.observed_version.as_deref()), (Some("Deployed"), Some("v2")));

    // And back, when the newer one is no good.
    drop(second);
    let _third = start(&server, "v1");
    let moving = wait(&cdis, "cdi", "on its way back", is("Progressing", "True")).await.unwrap().status.unwrap();
    assert_eq!((moving.phase.as_deref(), moving.target_version.as_deref()), (Some("Upgrading"), Some("v1")));
    ready(&client, "r/component:v1").await;
    let done = wait(&cdis, "cdi", "back", is("Progressing", "False")).await.unwrap().status.unwrap();
    assert_eq!((done.phase.as_deref(), done.observed_version.as_deref()), (Some("Deployed"), Some("v1")));
}

#[tokio::test]
async fn a_second_object_is_refused() {
    let (server, client, cdis) = cluster().await;
    let _running = start(&server, "v1");
    cdis.create(&PostParams::default(), &cdi("first", json!({}))).await.unwrap();
    ready(&client, "r/component:v1").await;
    wait(&cdis, "first", "available", is("Available", "True")).await;
    cdis.create(&PostParams::default(), &cdi("another", json!({}))).await.unwrap();
    let refused = wait(&cdis, "another", "refused", is("Degraded", "True")).await.unwrap();
    assert!(refused.finalizers().is_empty());
    let status = refused.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Error"));
    assert_eq!(status.conditions[0].message.as_deref(), Some("Reconciling to error state, unwanted CDI object"));
}

#[tokio::test]
async fn an_installation_that_its_configuration_decided_is_taken_over() {
    let (server, client, cdis) = cluster().await;
    let first = start(&server, "v1");
    cdis.create(&PostParams::default(), &cdi("cdi", json!({}))).await.unwrap();
    ready(&client, "r/component:v1").await;
    wait(&cdis, "cdi", "available", is("Available", "True")).await;
    drop(first);
    let configs: Api<CDIConfig> = Api::all(client.clone());
    let said = json!({ "metadata": { "name": "config" }, "spec": { "preallocation": true } });
    configs.create(&PostParams::default(), &serde_json::from_value(said).unwrap()).await.unwrap();
    let before = Patch::Merge(json!({ "metadata": { "annotations": { "cdi.kubevirt.io/configAuthority": null } } }));
    cdis.patch("cdi", &PatchParams::default(), &before).await.unwrap();
    let _second = start(&server, "v2");
    wait(&cdis, "cdi", "deciding", |cdi: Option<&CDI>| {
        cdi.and_then(|cdi| cdi.spec.config.as_ref()).is_some_and(|config| config.preallocation == Some(true))
    })
    .await;
}

#[tokio::test]
async fn networks_are_opened_and_prometheus_is_told_where_it_is() {
    let (server, client, cdis) = cluster().await;
    for (plural, kind) in [("prometheusrules", "PrometheusRule"), ("servicemonitors", "ServiceMonitor")] {
        let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let version = json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": any } });
        let definition = json!({
            "metadata": { "name": format!("{plural}.monitoring.coreos.com") },
            "spec": { "group": "monitoring.coreos.com", "scope": "Namespaced", "versions": [version],
                "names": { "plural": plural, "kind": kind, "singular": kind.to_lowercase() } },
        });
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
    }
    let _running = start(&server, "v1");
    cdis.create(&PostParams::default(), &cdi("cdi", json!({}))).await.unwrap();
    ready(&client, "r/component:v1").await;
    wait(&cdis, "cdi", "available", is("Available", "True")).await;
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), NAMESPACE);
    let policy = policies.get("cdi-allow-uploadproxy-communications").await.unwrap().spec.unwrap();
    assert_eq!(policy.policy_types.unwrap(), ["Ingress", "Egress"]);
    let kind = kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(
        "monitoring.coreos.com",
        "v1",
        "PrometheusRule",
    ));
    let rules: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &kind);
    let rule = rules.get("prometheus-cdi-rules").await.unwrap();
    let alerts = rule.data["spec"]["groups"][1]["rules"].as_array().unwrap();
    assert!(alerts.iter().any(|alert| alert["alert"] == "CDINotReady"), "{alerts:?}");
    rules.delete("prometheus-cdi-rules", &DeleteParams::default()).await.unwrap();
    wait(&rules, "prometheus-cdi-rules", "there again", exists).await;
    cdis.delete("cdi", &DeleteParams::default()).await.unwrap();
    wait(&cdis, "cdi", "gone", gone).await;
    assert!(rules.get_opt("prometheus-cdi-rules").await.unwrap().is_none());
    assert!(policies.get_opt("cdi-allow-uploadproxy-communications").await.unwrap().is_none());
}

#[tokio::test]
async fn certificates_are_renewed_before_they_end() {
    let (server, client, cdis) = cluster().await;
    let spans = json!({ "ca": { "duration": "1h" }, "server": { "duration": "1h", "renewBefore": "59m58s" } });
    let _running = start(&server, "v1");
    cdis.create(&PostParams::default(), &cdi("cdi", json!({ "certConfig": spans }))).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let shown = |secret: &Secret| secret.data.as_ref().map(|data| data["tls.crt"].0.clone());
    let first = wait(&secrets, "cdi-apiserver-server-cert", "made", exists).await.unwrap();
    let (authority, was) = (secrets.get("cdi-apiserver-signer").await.unwrap(), shown(&first));
    wait(&secrets, "cdi-apiserver-server-cert", "renewed", move |secret: Option<&Secret>| {
        secret.is_some_and(|secret| shown(secret) != was)
    })
    .await;
    let same = secrets.get("cdi-apiserver-signer").await.unwrap();
    assert_eq!(shown(&same), shown(&authority), "who trusts the authority goes on trusting");
}
