//! Trees of the objects that admission and authorization look at for request after request: namespaces, service accounts,
//! priority classes. Parsed once, they are kept while they are the newest; how many is bounded.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use super::{Key, Object};

/// A list of so many objects may be kept.
pub(super) const FEW: usize = 16;
/// When there are so many trees all are dropped, and those that are still asked for come back.
const KEPT: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Trees(RwLock<HashMap<Key, (u64, Arc<Value>)>>);

impl Trees {
    /// The tree of an object, which nobody else may change.
    pub(super) fn of(&self, object: &Object) -> Arc<Value> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tree)) = known.get(&object.key).filter(|(revision, _)| *revision == object.revision) {
            return tree.clone();
        }
        drop(known);
        let tree = Arc::new(object.value());
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEPT && !known.contains_key(&object.key) {
            known.clear();
        }
        known.insert(object.key.clone(), (object.revision, tree.clone()));
        tree
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Body, EventKind};
    use super::*;

    fn object(name: &str, revision: u64) -> Object {
        Body::new(json!({"metadata": {"name": name}})).finish(
            Key::new("namespaces", "", name),
            revision,
            EventKind::Added,
        )
    }

    #[test]
    fn a_tree_is_that_of_the_revision_asked_for() {
        let trees = Trees::default();
        let (old, new) = (object("a", 7), object("a", 8));
        assert!(Arc::ptr_eq(&trees.of(&old), &trees.of(&old)));
        assert_eq!(trees.of(&new)["metadata"]["resourceVersion"], "8");
        assert_eq!(trees.of(&old)["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn trees_are_bounded() {
        let trees = Trees::default();
        for n in 0..3 * KEPT {
            trees.of(&object(&n.to_string(), 1));
        }
        assert!(trees.0.read().unwrap().len() <= KEPT);
    }
}
