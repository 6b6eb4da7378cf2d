//! What others do to the objects an operator owns: a watch of their metadata, kind by kind. Only addresses are kept.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::{DynamicObject, GroupVersionKind, ObjectMeta, PartialObjectMeta};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Task;
use crate::apply::{self, Applied};
use crate::served::{self, Served};
use crate::store::{Mirror, follow};

/// The groups that every Kubernetes serves, beside the core's.
const ALWAYS_SERVED: [&str; 11] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "batch",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "",
];

/// A kind that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The group; empty for the core's.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The namespace all of its objects lie in; none when they lie in several, or in none.
    pub namespace: Option<String>,
}

impl Kind {
    /// The definitions of kinds.
    pub fn definitions() -> Self {
        Kind {
            group: "apiextensions.k8s.io".to_owned(),
            version: "v1".to_owned(),
            kind: "CustomResourceDefinition".to_owned(),
            namespace: None,
        }
    }

    fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(&self.group, &self.version, &self.kind);
        ApiResource::from_gvk_with_plural(&kind, &apply::plural(&self.kind))
    }

    /// A cluster may lack it: it is watched while it is served.
    fn is_optional(&self) -> bool {
        !ALWAYS_SERVED.contains(&self.group.as_str())
    }
}

/// The kinds of `manifests`, each once, so that whatever an operator renders is watched.
pub fn kinds(manifests: &[Value]) -> Vec<Kind> {
    let mut kinds: BTreeMap<(&str, &str), BTreeSet<Option<&str>>> = BTreeMap::new();
    for manifest in manifests {
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str);
        let kind = (text("/apiVersion").unwrap_or_default(), text("/kind").unwrap_or_default());
        kinds.entry(kind).or_default().insert(text("/metadata/namespace"));
    }
    let kind = |((api_version, kind), namespaces): ((&str, &str), BTreeSet<Option<&str>>)| {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let namespace = if namespaces.len() == 1 { namespaces.into_iter().next().flatten() } else { None };
        Kind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(str::to_owned),
        }
    };
    kinds.into_iter().map(kind).collect()
}

/// Tells `applied` what becomes of the objects of `kinds`, those that `config` selects, and calls `wake` when one is not as it was
/// left, for as long as the tasks are held.
pub fn watch<F>(client: &Client, kinds: &[Kind], config: &watcher::Config, applied: &Applied, wake: F) -> Vec<Task<()>>
where
    F: Fn() + Clone + Send + 'static,
{
    let watch = |kind: &Kind| {
        let resource = kind.resource();
        let api = match &kind.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let served = kind.is_optional().then(|| Served::new(client, &resource));
        let mut follower = Follower { resource, applied: applied.clone(), wake: wake.clone(), listed: BTreeSet::new() };
        let config = config.clone();
        crate::spawn("drift", async move {
            match served {
                Some(served) => served::mirror(served, api, config, &mut follower).await,
                None => follow(api, config, &mut follower).await,
            }
        })
    };
    kinds.iter().map(watch).collect()
}

/// What follows one kind.
struct Follower<F> {
    resource: ApiResource,
    applied: Applied,
    wake: F,
    /// What the list that is under way has shown.
    listed: BTreeSet<String>,
}

impl<F: Fn()> Mirror<PartialObjectMeta<DynamicObject>> for Follower<F> {
    fn listing(&mut self) {
        self.listed.clear();
    }

    fn there(&mut self, object: PartialObjectMeta<DynamicObject>, listed: bool) {
        self.touched(&object.metadata, true);
        if listed {
            self.listed.insert(self.address(&object.metadata));
        }
    }

    fn gone(&mut self, object: &PartialObjectMeta<DynamicObject>) {
        self.touched(&object.metadata, false);
    }

    // What went while nobody looked.
    fn listed(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        let root = apply::root(&self.resource.api_version);
        let (plural, all) = (&self.resource.plural, format!("{root}/"));
        let concerned = |address: &str| {
            let mut path = address.strip_prefix(&all).unwrap_or_default().rsplit('/');
            path.nth(1).is_some_and(|kind| kind == plural)
        };
        if self.applied.missing(concerned, &listed) {
            (self.wake)();
        }
    }
}

impl<F: Fn()> Follower<F> {
    fn touched(&self, metadata: &ObjectMeta, there: bool) {
        if self.applied.touched(&self.address(metadata), there.then_some(metadata)) {
            (self.wake)();
        }
    }

    fn address(&self, metadata: &ObjectMeta) -> String {
        apply::address(&json!({
            "apiVersion": self.resource.api_version, "kind": self.resource.kind,
            "metadata": { "name": metadata.name, "namespace": metadata.namespace },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_is_rendered_is_watched_once() {
        let manifest = |version: &str, kind: &str, namespace: Option<&str>| json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "x", "namespace": namespace } });
        let rbac = "rbac.authorization.k8s.io/v1";
        let found = kinds(&[
            manifest("v1", "Service", Some("ns")),
            manifest("v1", "Service", Some("ns")),
            manifest(rbac, "RoleBinding", Some("ns")),
            manifest(rbac, "RoleBinding", Some("kube-system")),
            manifest(rbac, "ClusterRole", None),
            manifest("monitoring.coreos.com/v1", "ServiceMonitor", Some("ns")),
        ]);
        let shown: Vec<(&str, Option<&str>, bool)> =
            found.iter().map(|kind| (kind.kind.as_str(), kind.namespace.as_deref(), kind.is_optional())).collect();
        let expect = [
            ("ServiceMonitor", Some("ns"), true),
            ("ClusterRole", None, false),
            ("RoleBinding", None, false),
            ("Service", Some("ns"), false),
        ];
        assert_eq!(shown, expect);
        assert_eq!((found[3].group.as_str(), found[3].version.as_str()), ("", "v1"));
        assert_eq!((found[1].group.as_str(), found[1].version.as_str()), ("rbac.authorization.k8s.io", "v1"));
    }
}
