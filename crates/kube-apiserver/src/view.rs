//! What authentication, authorization and admission may see of the cluster: synchronous reads from memory.
//!
//! The store implements [`View`]; tests use [`Fixed`]. Reads never block and never touch the disk, so a decision costs
//! microseconds and cannot be starved by writers.

use std::sync::Arc;

use serde_json::Value;

use apimachinery::pointer::text;
use kube_store::Store;

/// Read access to stored objects, whatever their version.
pub trait View: Send + Sync + 'static {
    /// One object; `namespace` is empty for cluster-wide resources.
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// All objects of a resource, of one namespace unless it is empty.
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>>;
    /// How many [`list`](View::list) would yield.
    fn count(&self, group: &str, resource: &str, namespace: &str) -> usize {
        self.list(group, resource, namespace).len()
    }
    /// A number that changes whenever an object of the resource does; snapshots are rebuilt by it.
    fn revision(&self, group: &str, resource: &str) -> u64;
}

impl View for Store {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.tree(&storage_key(group, resource), namespace, name)
    }
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        let snapshot = Self::list(self, &storage_key(group, resource), namespace);
        self.trees(&snapshot)
    }
    fn count(&self, group: &str, resource: &str, namespace: &str) -> usize {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        Self::list(self, &storage_key(group, resource), namespace).objects.len()
    }
    fn revision(&self, group: &str, resource: &str) -> u64 {
        self.changed_at(&storage_key(group, resource))
    }
}

fn storage_key(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// A view over a list of documents, for tests and for tools that evaluate policies off-line.
#[derive(Debug, Default)]
pub struct Fixed {
    objects: Vec<(String, String, Arc<Value>)>,
}

impl Fixed {
    /// Adds an object of `group`/`resource`.
    #[must_use]
    pub fn with(mut self, group: &str, resource: &str, object: Value) -> Self {
        self.objects.push((group.to_owned(), resource.to_owned(), Arc::new(object)));
        self
    }
}

impl View for Fixed {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.list(group, resource, namespace).into_iter().find(|o| text(o, "/metadata/name") == name)
    }
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        self.objects
            .iter()
            .filter(|(g, r, o)| {
                g == group && r == resource && (namespace.is_empty() || text(o, "/metadata/namespace") == namespace)
            })
            .map(|(_, _, o)| o.clone())
            .collect()
    }
    fn revision(&self, _group: &str, _resource: &str) -> u64 {
        1
    }
}
