//! RBAC: roles and bindings compiled into rules by subject, rebuilt when one of the four resources changes.
//!
//! Guarantees: a decision reads one snapshot; a binding to a missing role grants nothing; `system:masters` is not special
//! here but in [`super::Authorizer`].

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::Value;

use apimachinery::pointer::{items, strings, text};
use apimachinery::request::{RequestInfo, User};

use self::own_node::OwnNode;
use crate::view::View;

pub mod own_node;

const GROUP: &str = "rbac.authorization.k8s.io";
const RESOURCES: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// One policy rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Verbs, `*` for all.
    pub verbs: Vec<String>,
    /// API groups, `*` for all.
    pub api_groups: Vec<String>,
    /// Resources as `pods`, `pods/log`, `*/scale`, `*`.
    pub resources: Vec<String>,
    /// Object names, empty for any.
    pub resource_names: Vec<String>,
    /// Paths, a trailing `*` matches the rest.
    pub non_resource_urls: Vec<String>,
    /// Set when the rule holds for objects of the user's own node only.
    pub own_node: Option<OwnNode>,
}

impl Rule {
    /// Reads a rule from its document.
    #[must_use]
    pub fn parse(value: &Value) -> Self {
        Self {
            verbs: strings(value, "/verbs"),
            api_groups: strings(value, "/apiGroups"),
            resources: strings(value, "/resources"),
            resource_names: strings(value, "/resourceNames"),
            non_resource_urls: strings(value, "/nonResourceURLs"),
            own_node: None,
        }
    }

    /// The rules of a role.
    #[must_use]
    pub fn all_of(role: &Value) -> Vec<Self> {
        let own_node = OwnNode::of(role);
        items(role, "/rules").iter().map(|rule| Self { own_node: own_node.clone(), ..Self::parse(rule) }).collect()
    }

    /// Whether the rule allows the request of somebody whose node, if it is bound to one, it concerns.
    fn allows(&self, info: &RequestInfo) -> bool {
        if !any(&self.verbs, &info.verb) {
            return false;
        }
        if !info.is_resource() {
            return self.non_resource_urls.iter().any(|pattern| path_matches(pattern, &info.path));
        }
        any(&self.api_groups, &info.group)
            && self.resources.iter().any(|r| resource_matches(r, &info.resource, &info.subresource))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == info.effective_name()))
    }
}

fn any(list: &[String], wanted: &str) -> bool {
    list.iter().any(|x| x == "*" || x == wanted)
}

fn path_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => pattern == path,
    }
}

fn resource_matches(pattern: &str, resource: &str, subresource: &str) -> bool {
    // A deep path such as `proxy/metrics` is authorised as its first part, as in Kubernetes.
    if pattern == "*" {
        return true;
    }
    if subresource.is_empty() {
        return pattern == resource;
    }
    let first = subresource.split_once('/').map_or(subresource, |(first, _)| first);
    match pattern.split_once('/') {
        Some((r, s)) => (r == "*" || r == resource) && (s == subresource || s == first),
        None => false,
    }
}

type Granted = Arc<Vec<Rule>>;

/// Rules of one scope by subject.
#[derive(Debug, Default)]
struct Scope {
    users: HashMap<String, Vec<Granted>>,
    groups: HashMap<String, Vec<Granted>>,
}

impl Scope {
    fn bind(&mut self, binding: &Value, rules: &Granted) {
        for subject in items(binding, "/subjects") {
            let name = text(subject, "/name");
            match text(subject, "/kind") {
                "User" => self.users.entry(name.to_owned()).or_default().push(rules.clone()),
                "Group" => self.groups.entry(name.to_owned()).or_default().push(rules.clone()),
                "ServiceAccount" => {
                    let namespace = match text(subject, "/namespace") {
                        "" => text(binding, "/metadata/namespace"),
                        other => other,
                    };
                    let user = format!("system:serviceaccount:{namespace}:{name}");
                    self.users.entry(user).or_default().push(rules.clone());
                }
                _ => {}
            }
        }
    }
    fn of<'a>(&'a self, user: &'a User) -> impl Iterator<Item = &'a Rule> {
        let named = self.users.get(&user.name).into_iter();
        let grouped = user.groups.iter().filter_map(|g| self.groups.get(g));
        named.chain(grouped).flatten().flat_map(|rules| rules.iter())
    }
}

#[derive(Debug, Default)]
struct Snapshot {
    revisions: [u64; 4],
    cluster: Scope,
    namespaces: HashMap<String, Scope>,
}

/// The evaluator.
pub struct Rbac {
    view: Arc<dyn View>,
    snapshot: ArcSwap<Snapshot>,
}

impl std::fmt::Debug for Rbac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rbac").finish_non_exhaustive()
    }
}

impl Rbac {
    /// An evaluator reading roles and bindings from `view`.
    #[must_use]
    pub fn new(view: Arc<dyn View>) -> Self {
        let initial = Snapshot { revisions: [u64::MAX; 4], ..Snapshot::default() };
        Self { view, snapshot: ArcSwap::from_pointee(initial) }
    }

    fn current(&self) -> Arc<Snapshot> {
        let revisions = RESOURCES.map(|r| self.view.revision(GROUP, r));
        let snapshot = self.snapshot.load_full();
        if snapshot.revisions == revisions {
            return snapshot;
        }
        let fresh = Arc::new(self.build(revisions));
        self.snapshot.store(fresh.clone());
        fresh
    }

    fn build(&self, revisions: [u64; 4]) -> Snapshot {
        let compile = |role: &Value| -> Granted { Arc::new(Rule::all_of(role)) };
        let cluster_roles: HashMap<String, Granted> = self
            .view
            .list(GROUP, "clusterroles", "")
            .iter()
            .map(|role| (text(role, "/metadata/name").to_owned(), compile(role)))
            .collect();
        let roles: HashMap<(String, String), Granted> = self
            .view
            .list(GROUP, "roles", "")
            .iter()
            .map(|role| {
                ((text(role, "/metadata/namespace").to_owned(), text(role, "/metadata/name").to_owned()), compile(role))
            })
            .collect();
        let mut snapshot = Snapshot { revisions, ..Snapshot::default() };
        for binding in self.view.list(GROUP, "clusterrolebindings", "") {
            if let Some(rules) = cluster_roles.get(text(&binding, "/roleRef/name")) {
                snapshot.cluster.bind(&binding, rules);
            }
        }
        for binding in self.view.list(GROUP, "rolebindings", "") {
            let namespace = text(&binding, "/metadata/namespace").to_owned();
            let name = text(&binding, "/roleRef/name");
            let rules = if text(&binding, "/roleRef/kind") == "ClusterRole" {
                cluster_roles.get(name)
            } else {
                roles.get(&(namespace.clone(), name.to_owned()))
            };
            if let Some(rules) = rules {
                snapshot.namespaces.entry(namespace).or_default().bind(&binding, rules);
            }
        }
        snapshot
    }

    /// Whether some rule of the user allows the request.
    #[must_use]
    pub fn allows(&self, user: &User, info: &RequestInfo) -> bool {
        let snapshot = self.current();
        let allows = |rule: &Rule| {
            rule.allows(info) && rule.own_node.as_ref().is_none_or(|own| own.concerns(&*self.view, user, info))
        };
        snapshot.cluster.of(user).any(allows)
            || (info.is_resource()
                && !info.namespace.is_empty()
                && snapshot.namespaces.get(&info.namespace).is_some_and(|s| s.of(user).any(allows)))
    }

    /// All rules that apply to the user in a namespace (cluster-wide ones included).
    #[must_use]
    pub fn rules_of(&self, user: &User, namespace: &str) -> Vec<Rule> {
        let snapshot = self.current();
        let mut rules: Vec<Rule> = snapshot.cluster.of(user).cloned().collect();
        if let Some(scope) = snapshot.namespaces.get(namespace).filter(|_| !namespace.is_empty()) {
            rules.extend(scope.of(user).cloned());
        }
        rules
    }

    /// The rules of a role reference; None when the role does not exist.
    #[must_use]
    pub fn rules_of_role(&self, kind: &str, namespace: &str, name: &str) -> Option<Vec<Rule>> {
        let role = if kind == "ClusterRole" {
            self.view.get(GROUP, "clusterroles", "", name)?
        } else {
            self.view.get(GROUP, "roles", namespace, name)?
        };
        Some(Rule::all_of(&role))
    }
}

/// The parts of `wanted` that `owned` does not cover: empty means that granting `wanted` is no escalation. What somebody has of their own
/// node only covers nothing.
#[must_use]
pub fn uncovered(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut missing = Vec::new();
    for rule in wanted {
        for verb in &rule.verbs {
            for url in &rule.non_resource_urls {
                let covered = owned.iter().any(|o| {
                    o.own_node.is_none()
                        && any(&o.verbs, verb)
                        && o.non_resource_urls.iter().any(|p| {
                            p == url || p == "*" || path_matches(p, url.trim_end_matches('*')) && p.ends_with('*')
                        })
                });
                if !covered {
                    missing.push(Rule {
                        verbs: vec![verb.clone()],
                        non_resource_urls: vec![url.clone()],
                        ..Rule::default()
                    });
                }
            }
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    let names: Vec<Option<&String>> = if rule.resource_names.is_empty() {
                        vec![None]
                    } else {
                        rule.resource_names.iter().map(Some).collect()
                    };
                    for name in names {
                        if !owned.iter().any(|o| covers(o, verb, group, resource, name)) {
                            missing.push(Rule {
                                verbs: vec![verb.clone()],
                                api_groups: vec![group.clone()],
                                resources: vec![resource.clone()],
                                resource_names: name.cloned().into_iter().collect(),
                                ..Rule::default()
                            });
                        }
                    }
                }
            }
        }
    }
    missing
}

fn covers(owned: &Rule, verb: &str, group: &str, resource: &str, name: Option<&String>) -> bool {
    let resource_covered = owned.resources.iter().any(|r| {
        r == "*"
            || r == resource
            || match (r.split_once('/'), resource.split_once('/')) {
                (Some(("*", s)), Some((_, wanted))) => s == wanted,
                _ => false,
            }
    });
    owned.own_node.is_none()
        && any(&owned.verbs, verb)
        && any(&owned.api_groups, group)
        && resource_covered
        && (owned.resource_names.is_empty() || name.is_some_and(|n| owned.resource_names.contains(n)))
}

/// Words a rule as Kubernetes does in escalation errors: `{APIGroups:["apps"], Resources:["deployments"], Verbs:["get"]}`.
#[must_use]
pub fn compact(rule: &Rule) -> String {
    let quoted = |list: &[String]| list.iter().map(|x| format!("{x:?}")).collect::<Vec<_>>().join(" ");
    let mut parts = Vec::new();
    for (name, list) in [
        ("NonResourceURLs", &rule.non_resource_urls),
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ] {
        if !list.is_empty() {
            parts.push(format!("{name}:[{}]", quoted(list)));
        }
    }
    format!("{{{}}}", parts.join(", "))
}

#[cfg(test)]
mod tests;
