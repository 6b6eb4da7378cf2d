//! Who owns whom, by uid: metadata only, a few words for each object. Pure.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::resources::Served;

/// Finalizer of foreground deletion.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of deletion that leaves the dependents.
pub(crate) const ORPHAN: &str = "orphan";

/// What is remembered of an object.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) served: Arc<Served>,
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) owners: Box<[OwnerReference]>,
    pub(crate) deleting: bool,
    pub(crate) foreground: bool,
    pub(crate) orphan: bool,
}

impl Node {
    fn new(served: Arc<Served>, meta: &ObjectMeta) -> Self {
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        Self {
            served,
            namespace: meta.namespace.as_deref().unwrap_or_default().into(),
            name: meta.name.as_deref().unwrap_or_default().into(),
            owners: meta.owner_references.clone().unwrap_or_default().into(),
            deleting: meta.deletion_timestamp.is_some(),
            foreground: has(FOREGROUND),
            orphan: has(ORPHAN),
        }
    }
    /// Waits for its dependents to go first.
    pub(crate) fn waits_for_dependents(&self) -> bool {
        self.deleting && self.foreground
    }
}

/// All objects and the edges between them.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    nodes: HashMap<String, Node>,
    dependents: HashMap<String, BTreeSet<String>>,
}

impl Graph {
    pub(crate) fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }
    /// The objects that name `uid` as an owner.
    pub(crate) fn dependents(&self, uid: &str) -> impl Iterator<Item = (&String, &Node)> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| self.nodes.get_key_value(uid))
    }
    /// Dependents that must go before `uid` may.
    pub(crate) fn blocking(&self, uid: &str) -> Vec<String> {
        let blocks = |node: &Node| node.owners.iter().any(|o| o.uid == uid && o.block_owner_deletion == Some(true));
        self.dependents(uid).filter(|(_, node)| blocks(node)).map(|(uid, _)| uid.clone()).collect()
    }
    /// Uids of all objects of a resource.
    pub(crate) fn of(&self, served: &Served) -> Vec<String> {
        self.nodes.iter().filter(|(_, node)| *node.served == *served).map(|(uid, _)| uid.clone()).collect()
    }
    /// Objects with an owner that is not in the graph.
    pub(crate) fn with_unknown_owner(&self) -> Vec<String> {
        let unknown = |node: &Node| node.owners.iter().any(|owner| !self.nodes.contains_key(&owner.uid));
        self.nodes.iter().filter(|(_, node)| unknown(node)).map(|(uid, _)| uid.clone()).collect()
    }

    /// Takes in an object as it is now; the uids to look at because of it.
    pub(crate) fn set(&mut self, served: &Arc<Served>, meta: &ObjectMeta) -> Vec<String> {
        let Some(uid) = meta.uid.clone() else { return Vec::new() };
        let node = Node::new(served.clone(), meta);
        let old = self.nodes.get(&uid);
        let mut affected = Vec::new();
        let same_owners = old.is_some_and(|old| old.owners == node.owners);
        if !same_owners {
            if !node.owners.is_empty() {
                affected.push(uid.clone());
            }
            for owner in old.into_iter().flat_map(|old| old.owners.iter()).map(|o| o.uid.clone()).collect::<Vec<_>>() {
                if let Some(uids) = self.dependents.get_mut(&owner) {
                    uids.remove(&uid);
                    if uids.is_empty() {
                        self.dependents.remove(&owner);
                    }
                }
                affected.push(owner);
            }
            for owner in &node.owners {
                self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
            }
        }
        let old = self.nodes.get(&uid);
        let began = |now: bool, before: bool| now && !before;
        if began(node.deleting && node.orphan, old.is_some_and(|o| o.deleting && o.orphan)) {
            affected.push(uid.clone());
        }
        if began(node.waits_for_dependents(), old.is_some_and(Node::waits_for_dependents)) {
            affected.push(uid.clone());
            affected.extend(self.dependents(&uid).map(|(uid, _)| uid.clone()));
        }
        self.nodes.insert(uid, node);
        affected
    }

    /// Takes an object out; the uids to look at because of it, and the object.
    pub(crate) fn remove(&mut self, uid: &str) -> (Vec<String>, Option<Node>) {
        let Some(node) = self.nodes.remove(uid) else { return (Vec::new(), None) };
        let mut affected: Vec<String> = self.dependents(uid).map(|(uid, _)| uid.clone()).collect();
        for owner in &node.owners {
            if let Some(uids) = self.dependents.get_mut(&owner.uid) {
                uids.remove(uid);
                if uids.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
            if self.nodes.get(&owner.uid).is_some_and(Node::waits_for_dependents) {
                affected.push(owner.uid.clone());
            }
        }
        (affected, Some(node))
    }
}

/// How an owner named by an object turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Exists and stays.
    Solid,
    /// Exists and waits for its dependents to be deleted.
    Waiting,
    /// Does not exist.
    Dangling,
}

/// What to do with an object because of its owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It stays as it is.
    Keep,
    /// It stays, without these owners.
    Drop(Vec<String>),
    /// It goes, and its dependents first.
    DeleteForeground,
    /// It goes; finalizers already on it decide about its dependents.
    Delete,
}

/// Judges an object by its owners.
pub(crate) fn judge(node: &Node, owners: &[(String, Owner)], has_dependents: bool) -> Verdict {
    if owners.is_empty() || (node.deleting && !node.waits_for_dependents()) {
        return Verdict::Keep;
    }
    let is = |wanted: Owner| owners.iter().any(|(_, owner)| *owner == wanted);
    if is(Owner::Solid) {
        let others = owners.iter().filter(|(_, owner)| *owner != Owner::Solid);
        let drop: Vec<String> = others.map(|(uid, _)| uid.clone()).collect();
        return if drop.is_empty() { Verdict::Keep } else { Verdict::Drop(drop) };
    }
    if node.deleting {
        Verdict::Keep
    } else if is(Owner::Waiting) && has_dependents {
        Verdict::DeleteForeground
    } else {
        Verdict::Delete
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ApiResource, GroupVersionKind};
    use serde_json::{Value, json};

    use super::*;

    fn graph(objects: &[Value]) -> Graph {
        let gvk = GroupVersionKind::gvk("", "v1", "ConfigMap");
        let api = ApiResource::from_gvk_with_plural(&gvk, "configmaps");
        let served = Arc::new(Served { api, namespaced: true, whole: true });
        let mut graph = Graph::default();
        for object in objects {
            graph.set(&served, &serde_json::from_value(object.clone()).unwrap());
        }
        graph
    }

    fn object(uid: &str, owners: &[&str]) -> Value {
        let owners: Vec<_> = owners
            .iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid, "blockOwnerDeletion": true}))
            .collect();
        json!({"name": uid, "namespace": "d", "uid": uid, "ownerReferences": owners})
    }

    #[test]
    fn edges_follow_the_objects() {
        let mut graph = graph(&[object("a", &[]), object("b", &["a"]), object("c", &["a", "x"])]);
        assert_eq!(graph.blocking("a"), ["b", "c"]);
        assert_eq!(graph.with_unknown_owner(), ["c"]);
        let (affected, _) = graph.remove("a");
        assert_eq!(affected, ["b", "c"]);
        let (affected, node) = graph.remove("b");
        assert_eq!((affected.len(), node.map(|n| n.name.into_string())), (0, Some("b".into())));
        assert_eq!(graph.blocking("a"), ["c"]);
    }

    #[test]
    fn foreground_deletion_wakes_the_dependents() {
        let mut graph = graph(&[object("a", &[]), object("b", &["a"])]);
        let mut deleting = object("a", &[]);
        deleting["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        deleting["finalizers"] = json!([FOREGROUND]);
        let served = graph.get("a").unwrap().served.clone();
        assert_eq!(graph.set(&served, &serde_json::from_value(deleting).unwrap()), ["a", "b"]);
        let (affected, _) = graph.remove("b");
        assert_eq!(affected, ["a"]);
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(owners: &[Owner], deleting: bool, has_dependents: bool, expect: Verdict) {
        let graph = graph(&[object("a", &[])]);
        let mut node = graph.get("a").unwrap().clone();
        node.deleting = deleting;
        let owners: Vec<_> = owners.iter().enumerate().map(|(i, owner)| (i.to_string(), *owner)).collect();
        assert_eq!(judge(&node, &owners, has_dependents), expect);
    }

    #[test]
    fn verdicts() {
        use Owner::{Dangling, Solid, Waiting};
        check(&[], false, false, Verdict::Keep);
        check(&[Solid], false, false, Verdict::Keep);
        check(&[Dangling], false, false, Verdict::Delete);
        check(&[Dangling], true, false, Verdict::Keep);
        check(&[Dangling, Solid], false, false, Verdict::Drop(vec!["0".into()]));
        check(&[Waiting], false, true, Verdict::DeleteForeground);
        check(&[Waiting, Dangling], false, false, Verdict::Delete);
    }
}
