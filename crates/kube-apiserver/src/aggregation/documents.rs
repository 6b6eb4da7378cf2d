//! Discovery of delegated versions: the backend's own documents, kept for as long as it answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

type GroupVersion = (String, String);

/// Documents by group and version.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    kept: Arc<Mutex<HashMap<GroupVersion, Arc<Value>>>>,
}

impl Documents {
    /// The APIResourceList of a delegated version as last fetched.
    #[must_use]
    pub fn resources(&self, group: &str, version: &str) -> Option<Arc<Value>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&(group.to_owned(), version.to_owned())).cloned()
    }

    pub(crate) fn keep(&self, group: &str, version: &str, document: Value) {
        let key = (group.to_owned(), version.to_owned());
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(document));
    }

    pub(crate) fn retain(&self, served: impl Fn(&str, &str) -> bool) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|(group, version), _| served(group, version));
    }
}
