//! Nodes that do not answer, as the controller of nodes has found out.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::facts::nodes::Lost;

/// The nodes, by their names.
#[derive(Debug, Default)]
pub(crate) struct LostNodes(Mutex<BTreeMap<String, Lost>>);

impl LostNodes {
    /// What is known of `node` when it is lost.
    pub(crate) fn get(&self, node: &str) -> Option<Lost> {
        self.nodes().get(node).cloned()
    }

    /// Remembers whether `node` is lost; true when that is news.
    pub(crate) fn set(&self, node: &str, lost: Option<&Lost>) -> bool {
        let mut nodes = self.nodes();
        let before = match lost {
            Some(lost) => nodes.insert(node.to_owned(), lost.clone()),
            None => nodes.remove(node),
        };
        before.as_ref() != lost
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, Lost>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
