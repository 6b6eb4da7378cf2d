//! What the API server serves right now, asked by discovery: built-ins and custom resources alike.

use kit::controller::{During, Result};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde::Deserialize;
use serde::de::DeserializeOwned;

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

/// The aggregated discovery document, as far as it is read here. Asked for directly: a delegated group whose server is
/// away must not hide all the others.
#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: Name,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
struct Name {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource: String,
    #[serde(default)]
    response_kind: Kind,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Kind {
    #[serde(default)]
    kind: String,
}

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Every resource that can be listed, watched and deleted, in one version each.
pub(crate) async fn discover(client: &Client) -> Result<Vec<Served>> {
    let mut served = Vec::new();
    for path in ["/api", "/apis"] {
        let request = http::Request::get(path).header(http::header::ACCEPT, ACCEPT).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError).during("discover", path)?;
        let groups: Groups = client.request(request).await.during("discover", path)?;
        for group in groups.items {
            add(&mut served, &group);
        }
    }
    Ok(served)
}

/// The resources of a group, each in the first version that has it: versions are listed best first.
fn add(served: &mut Vec<Served>, group: &Group) {
    let name = &group.metadata.name;
    let begin = served.len();
    for version in &group.versions {
        for resource in &version.resources {
            let can = |verb: &str| resource.verbs.iter().any(|v| v == verb);
            let known = served.iter().skip(begin).any(|s| s.api.plural == resource.resource);
            let mirrored = resource.resource == "events" && name == "events.k8s.io";
            if known || mirrored || !can("list") || !can("watch") || !can("delete") {
                continue;
            }
            let gvk = GroupVersionKind::gvk(name, &version.version, &resource.response_kind.kind);
            served.push(Served {
                api: ApiResource::from_gvk_with_plural(&gvk, &resource.resource),
                namespaced: resource.scope == "Namespaced",
                whole: can("deletecollection"),
            });
        }
    }
}
