//! Whether operators share a process, and going from one to the other.

use anyhow::{Context, Result};
use kube::Client;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::manifest::{self, NAME};
use crate::deploy::{self, NAMESPACE};

/// Where operators run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// All in one process.
    Together,
    /// Each in a Deployment of its own.
    Apart,
}

impl Arrangement {
    /// What to apply, made of the manifests of operators that are apart.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn of(self, manifests: &str) -> Result<Vec<DynamicObject>> {
        let all = deploy::documents(manifests)?;
        if self == Arrangement::Apart {
            return Ok(all);
        }
        let values =
            all.iter().map(serde_json::to_value).collect::<Result<_, _>>().context("a document has no form")?;
        objects(manifest::together(values)?)
    }

    /// Takes away what runs operators the other way: the same work would wait behind the other's leases.
    ///
    /// # Errors
    /// When the API server refuses.
    pub(crate) async fn alone(self, client: &Client) -> Result<()> {
        let metadata = |name: &str| json!({ "name": name, "namespace": NAMESPACE });
        let object =
            |api: &str, kind: &str, name: &str| json!({ "apiVersion": api, "kind": kind, "metadata": metadata(name) });
        let others: Vec<Value> = match self {
            Arrangement::Together => manifest::apart().map(|name| object("apps/v1", "Deployment", name)).collect(),
            Arrangement::Apart => [
                ("v1", "ServiceAccount"),
                ("rbac.authorization.k8s.io/v1", "Role"),
                ("rbac.authorization.k8s.io/v1", "RoleBinding"),
                ("networking.k8s.io/v1", "NetworkPolicy"),
                ("apps/v1", "Deployment"),
            ]
            .map(|(api, kind)| object(api, kind, NAME))
            .into(),
        };
        deploy::delete(client, &objects(others)?).await
    }
}

fn objects(values: Vec<Value>) -> Result<Vec<DynamicObject>> {
    values.into_iter().map(|value| serde_json::from_value(value).context("a document is not an object")).collect()
}

/// True where operators share a process.
///
/// # Errors
/// When the API server does not say.
pub(crate) async fn are_together(client: &Client) -> Result<bool> {
    let deployments: kube::Api<k8s_openapi::api::apps::v1::Deployment> =
        kube::Api::namespaced(client.clone(), NAMESPACE);
    Ok(deployments.get_metadata_opt(NAME).await.context("cannot ask for the operators")?.is_some())
}
