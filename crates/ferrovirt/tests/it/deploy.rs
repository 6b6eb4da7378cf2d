//! deploy/, as it is applied on a cluster of somebody else: the operators deploy everything with the rights that stand there, and
//! whatever is named by what they deploy is there.

use std::collections::BTreeSet;

use hpp::operator::Controllers;
use kit::apply::{self, Applied};
use kit::events::Recorder;
use kit::shutdown::CancellationToken;
use kit::tls::Material;
use kube::Client;
use kube_apiserver::ApiServer;
use serde_json::{Value, json};

use crate::cluster::{WORKLOADS, account, applied, available, items, list, play, text, until};

#[tokio::test(flavor = "multi_thread")]
async fn deployed_objects_find_what_they_refer_to() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let stop = CancellationToken::new();
    let nodes = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } });
    apply::all(&client, &Applied::by("test"), &[nodes]).await.unwrap();
    let _playing = kit::spawn("workloads", play(client.clone()));

    let component = images::Image::Component.name();
    let kubevirt = applied(&client, "kubevirt-operator.yaml").await;
    applied(&client, "kubevirt-cr.yaml").await;
    let builds = virt_operator::Release {
        namespace: "kubevirt".into(),
        component: component.clone(),
        launcher: images::Image::Launcher.name(),
        guestfs: images::Image::Guestfs.name(),
        version: images::VERSION.into(),
    };
    let operator = virt_operator::Operator::new(account(&server, &kubevirt), builds, Material::new());
    let _kubevirt = operator.start(&stop);
    available(&client, "/apis/kubevirt.io/v1/kubevirts").await;

    let cdi = applied(&client, "cdi-operator.yaml").await;
    applied(&client, "cdi-cr.yaml").await;
    let release =
        cdi::operator::Release { namespace: "cdi".into(), image: component.clone(), version: images::VERSION.into() };
    let operator = cdi::operator::Operator::new(account(&server, &cdi), release, Recorder::discard());
    let _cdi = operator.start(&stop);
    available(&client, "/apis/cdi.kubevirt.io/v1beta1/cdis").await;

    let hostpath = applied(&client, "hostpath-operator.yaml").await;
    applied(&client, "hostpath-cr.yaml").await;
    let client_of = account(&server, &hostpath);
    let _hostpath =
        hpp::operator::Operator::start(client_of, "hostpath-provisioner", component, Controllers::Driver, &stop);
    available(&client, "/apis/hostpathprovisioner.kubevirt.io/v1beta1/hostpathprovisioners").await;

    // Its object is not made: nobody serves its webhook here.
    let hco = applied(&client, "hco-operator.yaml").await;
    let input = hco::render::Input { namespace: "kubevirt-hyperconverged".into(), ..Default::default() };
    let operator = hco::operator::Operator::new(account(&server, &hco), input, Recorder::discard());
    let _hco = operator.start(&stop);
    until("the webhook has a certificate", async || {
        let secrets = list(&client, "/api/v1/namespaces/kubevirt-hyperconverged/secrets").await;
        secrets.iter().any(|secret| text(secret, "/metadata/name").ends_with("webhook-service-cert")).then_some(())
    })
    .await;

    let mut missing = Vec::new();
    let there = There::look(&client).await;
    for kind in WORKLOADS {
        for workload in list(&client, &format!("/apis/apps/v1/{kind}")).await {
            there.check_pods(&workload, &mut missing);
        }
    }
    there.check_rights(&client, &mut missing).await;
    there.check_services(&client, &mut missing).await;
    assert!(missing.is_empty(), "{missing:#?}");
    stop.cancel();
}

/// What there is, as `namespace/name` or the name alone.
struct There {
    accounts: BTreeSet<String>,
    maps: BTreeSet<String>,
    secrets: BTreeSet<String>,
    priorities: BTreeSet<String>,
    images: BTreeSet<String>,
    services: Vec<Value>,
    pods: Vec<Value>,
}

async fn names(client: &Client, path: &str) -> BTreeSet<String> {
    let name = |one: &Value| match text(one, "/metadata/namespace") {
        "" => text(one, "/metadata/name").to_owned(),
        namespace => format!("{namespace}/{}", text(one, "/metadata/name")),
    };
    list(client, path).await.iter().map(name).collect()
}

impl There {
    async fn look(client: &Client) -> Self {
        let mut pods = list(client, "/apis/apps/v1/deployments").await;
        pods.extend(list(client, "/apis/apps/v1/daemonsets").await);
        assert!(pods.len() >= 10, "{} workloads", pods.len());
        There {
            accounts: names(client, "/api/v1/serviceaccounts").await,
            maps: names(client, "/api/v1/configmaps").await,
            secrets: names(client, "/api/v1/secrets").await,
            priorities: names(client, "/apis/scheduling.k8s.io/v1/priorityclasses").await,
            images: images::Image::all().into_iter().map(images::Image::name).collect(),
            services: list(client, "/api/v1/services").await,
            pods,
        }
    }

    /// Accounts, images, priorities, ConfigMaps and Secrets that pods name.
    fn check_pods(&self, workload: &Value, missing: &mut Vec<String>) {
        let (namespace, name) = (text(workload, "/metadata/namespace"), text(workload, "/metadata/name"));
        let spec = &workload["spec"]["template"]["spec"];
        let mut named = |what: &str, value: &str, all: &BTreeSet<String>| {
            if !value.is_empty() && !all.contains(value) {
                missing.push(format!("{namespace}/{name} names {what} {value}"));
            }
        };
        let own = |name: &str| if name.is_empty() { String::new() } else { format!("{namespace}/{name}") };
        named("account", &own(text(spec, "/serviceAccountName")), &self.accounts);
        named("priority", text(spec, "/priorityClassName"), &self.priorities);
        for container in items(spec, "/initContainers").chain(items(spec, "/containers")) {
            named("image", text(container, "/image"), &self.images);
            for variable in items(container, "/env").filter(|variable| text(variable, "/name").ends_with("_IMAGE")) {
                named("image", text(variable, "/value"), &self.images);
            }
        }
        for volume in items(spec, "/volumes") {
            if volume["configMap"]["optional"] != true {
                named("configmap", &own(text(volume, "/configMap/name")), &self.maps);
            }
            if volume["secret"]["optional"] != true {
                named("secret", &own(text(volume, "/secret/secretName")), &self.secrets);
            }
        }
    }

    /// Roles and accounts that bindings name.
    async fn check_rights(&self, client: &Client, missing: &mut Vec<String>) {
        const GROUP: &str = "/apis/rbac.authorization.k8s.io/v1";
        let cluster = names(client, &format!("{GROUP}/clusterroles")).await;
        let roles = names(client, &format!("{GROUP}/roles")).await;
        let mut bindings = list(client, &format!("{GROUP}/clusterrolebindings")).await;
        bindings.extend(list(client, &format!("{GROUP}/rolebindings")).await);
        for binding in &bindings {
            let (namespace, name) = (text(binding, "/metadata/namespace"), text(binding, "/metadata/name"));
            let role = text(binding, "/roleRef/name");
            let found = match text(binding, "/roleRef/kind") {
                "ClusterRole" => cluster.contains(role),
                _ => roles.contains(&format!("{namespace}/{role}")),
            };
            if !found {
                missing.push(format!("binding {namespace}/{name} names role {role}"));
            }
            for subject in items(binding, "/subjects").filter(|subject| subject["kind"] == "ServiceAccount") {
                let account = format!("{}/{}", text(subject, "/namespace"), text(subject, "/name"));
                // The controllers that are not played here have accounts of their own.
                if !account.starts_with("kube-system/") && !self.accounts.contains(&account) {
                    missing.push(format!("binding {namespace}/{name} names account {account}"));
                }
            }
        }
    }

    /// Services that webhooks and APIs are at, the pods behind them, and their ports.
    async fn check_services(&self, client: &Client, missing: &mut Vec<String>) {
        let hooks = "/apis/admissionregistration.k8s.io/v1";
        let mut named = Vec::new();
        for kind in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
            for found in list(client, &format!("{hooks}/{kind}")).await {
                named.extend(items(&found, "/webhooks").map(|hook| hook["clientConfig"]["service"].clone()));
            }
        }
        for found in list(client, "/apis/apiregistration.k8s.io/v1/apiservices").await {
            named.extend(Some(found["spec"]["service"].clone()).filter(|service| !service.is_null()));
        }
        assert!(named.len() > 20, "{} webhooks and APIs", named.len());
        for service in named {
            let (namespace, name) = (text(&service, "/namespace"), text(&service, "/name"));
            let port = service["port"].as_u64().unwrap_or(443);
            let found = self
                .services
                .iter()
                .find(|one| (text(one, "/metadata/namespace"), text(one, "/metadata/name")) == (namespace, name));
            if found.is_none_or(|found| !items(found, "/spec/ports").any(|one| one["port"] == port)) {
                missing.push(format!("a webhook or an API is at service {namespace}/{name}:{port}"));
            }
        }
        for service in self.services.iter().filter(|service| service["spec"]["selector"].is_object()) {
            let (namespace, name) = (text(service, "/metadata/namespace"), text(service, "/metadata/name"));
            let behind: Vec<_> = self.pods.iter().filter(|pods| is_behind(service, pods)).collect();
            if behind.is_empty() {
                missing.push(format!("no pods are behind service {namespace}/{name}"));
            }
            for (pods, port) in
                behind.iter().flat_map(|pods| items(service, "/spec/ports").map(move |port| (pods, port)))
            {
                let target = if port["targetPort"].is_null() { &port["port"] } else { &port["targetPort"] };
                let mut offered = items(pods, "/spec/template/spec/containers").flat_map(|one| items(one, "/ports"));
                if !offered.any(|one| one["containerPort"] == *target || one["name"] == *target) {
                    missing.push(format!("service {namespace}/{name} leads to port {target}, which nothing offers"));
                }
            }
        }
    }
}

fn is_behind(service: &Value, pods: &Value) -> bool {
    let labels = &pods["spec"]["template"]["metadata"]["labels"];
    let mut wanted = service["spec"]["selector"].as_object().into_iter().flatten();
    service["metadata"]["namespace"] == pods["metadata"]["namespace"]
        && wanted.all(|(key, value)| labels[key] == *value)
}
