//! What the tests' clusters have.

use std::fmt::Debug;
use std::time::Duration;

use kit::apply::{self, Applied};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, Resource};
use kube_apiserver::ApiServer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

macro_rules! crd {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../deploy/crds/", $name, ".yaml")))
    };
}

/// The kinds of KubeVirt and CDI.
pub(crate) const KINDS: &[(&str, &str)] = &[
    crd!("virtualmachines.kubevirt.io"),
    crd!("virtualmachinetemplates.template.kubevirt.io"),
    crd!("datasources.cdi.kubevirt.io"),
    crd!("dataimportcrons.cdi.kubevirt.io"),
];

/// A cluster that has them.
pub(crate) async fn cluster() -> (ApiServer, Client) {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    apply::crds(&client, &Applied::by("test"), KINDS).await.unwrap();
    (server, client)
}

pub(crate) async fn apply(client: &Client, manifests: &[Value]) {
    apply::all(client, &Applied::by("test"), manifests).await.unwrap();
}

pub(crate) fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// A kind of somebody else's, without a schema.
pub(crate) fn kind(group: &str, version: &str, plural: &str, kind: &str) -> Value {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = json!({ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": any } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": { "group": group, "scope": "Namespaced", "versions": [version],
            "names": { "plural": plural, "kind": kind, "singular": kind.to_lowercase() } },
    })
}

pub(crate) async fn wait<K>(api: &Api<K>, name: &str, what: &str, condition: impl Condition<K>) -> Option<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    match tokio::time::timeout(Duration::from_secs(60), await_condition(api.clone(), name, condition)).await {
        Ok(found) => found.unwrap(),
        Err(_) => panic!("never {what}: {:#?}", api.get_opt(name).await),
    }
}
