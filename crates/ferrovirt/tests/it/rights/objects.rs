//! The roles and bindings of the product, as its code makes them, and the API server's judgement by them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube_apiserver::authz::rbac::Rbac;
use kube_apiserver::request::User;
use kube_apiserver::view::View;
use serde_json::{Value, json};

use crate::cluster::{items, text};

/// What each operator is deployed with, and what it deploys.
pub(super) fn components() -> Vec<(&'static str, Vec<Value>)> {
    let kubevirt = virt_operator::manifests::Input { namespace: "kubevirt".into(), ..Default::default() };
    let addons = cnao::release::NAMESPACE;
    let all = [
        ("kubevirt", virt_operator::install::operator(), virt_operator::manifests::render(&kubevirt)),
        ("cdi", cdi::operator::install::operator(), cdi::operator::manifests::every("cdi")),
        ("network-addons", cnao::operator::install::operator(), cnao::operator::operands::every(addons)),
        ("ssp", ssp::operator::install::operator(), ssp::operator::manifests::every(ssp::operator::install::NAMESPACE)),
        ("hyperconverged", hco::operator::install::operator(), hco::operator::install::operands()),
        (
            "hostpath",
            hpp::operator::install::operator(hpp::operator::Controllers::Driver),
            hpp::operator::install::operands(),
        ),
    ];
    let documents = |text: String| -> Vec<Value> { serde_saphyr::from_multiple(&text).unwrap() };
    all.into_iter().map(|(name, deployed, made)| (name, [documents(deployed.unwrap()), made].concat())).collect()
}

/// Roles that every cluster has, and that are given to accounts of ours.
fn of_the_cluster() -> [Value; 2] {
    let rule = |group: &str, resource: &str, verb: &str| json!({ "apiGroups": [group], "resources": [resource], "verbs": [verb] });
    let mut reader = json!({
        "kind": "Role", "metadata": { "namespace": "kube-system", "name": "extension-apiserver-authentication-reader" },
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"],
            "resourceNames": ["extension-apiserver-authentication"],
        }],
    });
    reader["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    let reviews = [
        rule("authentication.k8s.io", "tokenreviews", "create"),
        rule("authorization.k8s.io", "subjectaccessreviews", "create"),
    ];
    [reader, json!({ "kind": "ClusterRole", "metadata": { "name": "system:auth-delegator" }, "rules": reviews })]
}

/// Objects of RBAC.
struct Objects(BTreeMap<&'static str, Vec<Arc<Value>>>);

impl View for Objects {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.list(group, resource, namespace).into_iter().find(|one| text(one, "/metadata/name") == name)
    }

    fn list(&self, _group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        let all = self.0.get(resource).into_iter().flatten();
        let within = |one: &&Arc<Value>| namespace.is_empty() || text(one, "/metadata/namespace") == namespace;
        all.filter(within).cloned().collect()
    }

    fn revision(&self, _group: &str, _resource: &str) -> u64 {
        1
    }
}

/// A cluster with nothing but these objects.
pub(super) struct Cluster {
    pub(super) rbac: Rbac,
    /// Everybody who has rights.
    pub(super) everybody: BTreeSet<String>,
    /// Namespaces in which somebody has some.
    pub(super) namespaces: BTreeSet<String>,
    pub(super) roles: Vec<Value>,
}

impl Cluster {
    pub(super) fn new(manifests: &[Value]) -> Self {
        let mut all: BTreeMap<&'static str, Vec<Arc<Value>>> = BTreeMap::new();
        let (mut everybody, mut namespaces, mut given) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let kinds = [
            ("ClusterRole", "clusterroles"),
            ("ClusterRoleBinding", "clusterrolebindings"),
            ("Role", "roles"),
            ("RoleBinding", "rolebindings"),
        ];
        for manifest in manifests.iter().chain(&of_the_cluster()) {
            let Some((kind, resource)) = kinds.iter().find(|(kind, _)| manifest["kind"] == *kind) else { continue };
            all.entry(resource).or_default().push(Arc::new(manifest.clone()));
            for subject in items(manifest, "/subjects") {
                everybody.insert(match text(subject, "/namespace") {
                    "" => text(subject, "/name").to_owned(),
                    namespace => format!("{namespace}/{}", text(subject, "/name")),
                });
            }
            if *kind == "RoleBinding" {
                namespaces.insert(text(manifest, "/metadata/namespace").to_owned());
            }
            if manifest["roleRef"]["kind"] == "ClusterRole" {
                given.insert(text(manifest, "/roleRef/name").to_owned());
            }
        }
        let roles: Vec<Value> = all.get("clusterroles").into_iter().flatten().map(|role| (**role).clone()).collect();
        // What is for people is given to somebody of the name of the role, or of the one of Kubernetes' that it becomes part of.
        for role in roles.iter().filter(|role| !given.contains(text(role, "/metadata/name"))) {
            let name = text(role, "/metadata/name");
            let part = |of: &&&str| {
                role["metadata"]["labels"][format!("rbac.authorization.k8s.io/aggregate-to-{of}")] == "true"
            };
            let whose = ["admin", "edit", "view"].iter().filter(part).map(|of| (*of).to_owned());
            let mut whose: Vec<String> = whose.collect();
            if whose.is_empty() && name != "system:auth-delegator" {
                whose.push(name.to_owned());
            }
            for user in whose {
                all.entry("clusterrolebindings").or_default().push(Arc::new(json!({
                    "roleRef": { "kind": "ClusterRole", "name": name }, "subjects": [{ "kind": "User", "name": user }],
                })));
                everybody.insert(user);
            }
        }
        let roles = ["clusterroles", "roles"].iter().filter_map(|kind| all.get(kind)).flatten();
        let roles = roles.map(|role| (**role).clone()).collect();
        Cluster { rbac: Rbac::new(Arc::new(Objects(all))), everybody, namespaces, roles }
    }
}

/// Somebody, as the API server knows him: an account, a group's member, or a user.
pub(super) fn user(who: &str) -> User {
    match who.split_once('/') {
        Some((namespace, name)) => {
            User { name: format!("system:serviceaccount:{namespace}:{name}"), ..User::default() }
        }
        None => User { name: who.to_owned(), groups: vec![who.to_owned()], ..User::default() },
    }
}
