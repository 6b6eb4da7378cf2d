//! OpenAPI documents of extension servers: kept cut down to the group version that each serves here.
//!
//! Guarantees: whoever reads `/openapi` waits for no extension server.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::openapi::extension::Part;
use crate::registry::Registry;

pub(crate) type GroupVersion = (String, String);

/// The parts of delegated versions by group and version.
#[derive(Debug, Default)]
pub struct Specifications {
    kept: Mutex<BTreeMap<GroupVersion, Specification>>,
}

/// What is known of one; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Specification {
    /// For `/openapi/v2`.
    pub v2: Option<Part>,
    /// For `/openapi/v3`.
    pub v3: Option<Part>,
}

impl Specifications {
    /// Those of the versions that `registry` delegates, in a lasting order.
    #[must_use]
    pub fn of(&self, registry: &Registry) -> Vec<(GroupVersion, Specification)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let delegated = |(group, version): &GroupVersion| {
            registry.aggregated.iter().any(|target| target.group == *group && target.version == *version)
        };
        let parts = kept.iter().filter(|(key, _)| delegated(key));
        parts.map(|(key, part)| (key.clone(), part.clone())).collect()
    }

    pub(crate) fn keep(&self, key: GroupVersion, change: impl FnOnce(&mut Specification)) {
        change(self.kept.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
    }

    pub(crate) fn retain(&self, served: impl Fn(&GroupVersion) -> bool) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| served(key));
    }
}
