//! What the API server serves right now, asked by discovery: built-ins and custom resources alike.

use kube::core::ApiResource;
use kube::discovery::{Discovery, Scope};
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::error::{During, Result};

/// One resource whose objects live and die on their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Served {
    pub(crate) api: ApiResource,
    pub(crate) namespaced: bool,
    /// Whether `deletecollection` is offered.
    pub(crate) whole: bool,
}

impl Served {
    /// A client for objects in `namespace`; cluster-wide resources ignore it.
    pub(crate) fn within<K>(&self, client: &Client, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = kube::core::DynamicResourceScope> + DeserializeOwned,
    {
        if self.namespaced && !namespace.is_empty() {
            Api::namespaced_with(client.clone(), namespace, &self.api)
        } else {
            Api::all_with(client.clone(), &self.api)
        }
    }
    /// `deployments.apps`, `pods`
    pub(crate) fn group_resource(&self) -> String {
        let ApiResource { group, plural, .. } = &self.api;
        if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") }
    }
    /// Whether this is the resource of a kind in a group; `api_version` is `group/version`.
    pub(crate) fn is_kind(&self, api_version: &str, kind: &str) -> bool {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.api.kind == kind && self.api.group == group
    }
}

/// Every resource that can be listed, watched and deleted, in one version each.
pub(crate) async fn discover(client: &Client) -> Result<Vec<Served>> {
    let discovery = match Discovery::new(client.clone()).run_aggregated().await {
        Ok(discovery) => discovery,
        Err(error) => {
            tracing::debug!(%error, "no aggregated discovery, asking group by group");
            Discovery::new(client.clone()).run().await.during("discover", "the served resources")?
        }
    };
    let mut served = Vec::new();
    for group in discovery.groups() {
        for (api, capabilities) in group.resources_by_stability() {
            let can = |verb| capabilities.supports_operation(verb);
            if !can("list") || !can("watch") || !can("delete") || (api.plural == "events" && api.group == "events.k8s.io") {
                continue;
            }
            let namespaced = capabilities.scope == Scope::Namespaced;
            served.push(Served { api, namespaced, whole: can("deletecollection") });
        }
    }
    Ok(served)
}
